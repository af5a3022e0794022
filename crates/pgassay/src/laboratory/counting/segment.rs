//! One segment: so many transactions on a connection of its own, and what its backend did.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_core::plan::Point;
use pgassay_core::study::StudySource;
use pgassay_count::OutFile;
use pgassay_load::{Crew, Window};

use super::names::Names;
use super::{lockstep, valgrind};
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::laboratory::crews::{self, Size};
use crate::laboratory::servers::{Place, reset};

/// How long a backend may take to write its file when its client has gone.
const FILE_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(10);
/// Transactions until valgrind has translated most of the code, and again as many to be timed.
const TRIED: u64 = 20;
/// The shortest segment should take at most this long on a processor of its own: then the longest
/// ends before a backend reports its statistics, which it does once a second of real time.
const SHORTEST: Duration = Duration::from_millis(75);
/// Sizes of the shortest segment. Below 20, plans for the values at hand would be in it, as
/// PostgreSQL makes them the first five times.
const UNITS: [u64; 7] = [20, 50, 100, 200, 500, 1000, 2000];
/// As much is chosen by time; only work that is not linear goes further.
const UNIT_BY_TIME_MAX: u64 = 500;

/// The next larger size of the shortest segment.
pub fn larger(unit: u64) -> Option<u64> {
    UNITS.into_iter().find(|larger| *larger > unit)
}

/// A point on a server that runs under valgrind.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub point: &'a Point,
    /// Its server, and the database on it.
    pub place: Place<'a>,
    pub source: &'a StudySource,
    pub seed: u64,
    pub interrupt: &'a Interrupt,
    pub names: &'a RefCell<Names>,
}

impl Bench<'_> {
    /// Runs so many transactions that all that the segments touch has been touched.
    pub fn warm_up(&self, transactions: u64) -> Result<()> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        self.run(&mut crew, transactions)?;
        crew.close();
        Ok(())
    }

    /// Chooses how many transactions the shortest segment has, by how long they take. Time on a
    /// processor is what counts, or a busy machine would get too short ones.
    pub fn unit(&self) -> Result<u64> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        let pid = crew.backend_pids().first().copied().unwrap_or_default();
        self.run(&mut crew, TRIED)?;
        let start = (Instant::now(), lockstep::on_cpu(pid));
        self.run(&mut crew, TRIED)?;
        let spent = match (start.1, lockstep::on_cpu(pid)) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => start.0.elapsed(),
        };
        crew.close();
        let each = spent.as_secs_f64() / TRIED as f64;
        let fits =
            |unit: &u64| *unit <= UNIT_BY_TIME_MAX && each * *unit as f64 <= SHORTEST.as_secs_f64();
        Ok(UNITS.into_iter().rfind(fits).unwrap_or(UNITS[0]))
    }

    /// Runs a segment and reads what its backend wrote when it ended.
    pub fn segment(&self, transactions: u64) -> Result<OutFile> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        let pid = crew.backend_pids().first().copied();
        let pid = pid.context("the server did not tell its backend's process")?;
        self.run(&mut crew, transactions)?;
        lockstep::until_asleep(pid);
        crew.close();
        let file = self.read(pid)?;
        if i32::try_from(file.pid) != Ok(pid) {
            bail!("the file of backend {pid} is of process {}", file.pid);
        }
        if file.totals.instructions == 0 {
            bail!("callgrind found no function PostgresMain in the server, so it counted nothing");
        }
        Ok(file)
    }

    fn connect(&self) -> Result<Crew> {
        let size = Size {
            clients: 1,
            threads: 1,
            seed: self.seed,
        };
        let mut crew = crews::connect(self.point, size, &self.place, self.source, self.interrupt)?;
        crew.before_requests(lockstep::hook());
        Ok(crew)
    }

    fn run(&self, crew: &mut Crew, transactions: u64) -> Result<()> {
        let window = Window::Counted {
            transactions_per_client: transactions,
        };
        let measured = crew
            .run(&window)
            .map_err(|error| crews::told(error, self.source, self.point))?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        if measured.failed_total > 0 {
            bail!(
                "{} of {transactions} transactions failed; the cost of a failure is not counted",
                measured.failed_total
            );
        }
        Ok(())
    }

    fn read(&self, pid: i32) -> Result<OutFile> {
        let name = valgrind::file_of(pid);
        let start = Instant::now();
        loop {
            self.interrupt.check()?;
            match self.place.server.read_own_file(&name) {
                Ok(text) if OutFile::is_complete(&text) => {
                    let mut names = self.names.borrow_mut();
                    let parsed = OutFile::parse_with(&text, &mut |object, address| {
                        names.at(object, address)
                    });
                    return parsed.with_context(|| format!("{name} is of no use"));
                }
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot read {name}"));
                }
                _ if start.elapsed() > FILE_TIMEOUT => bail!(
                    "backend {pid} ended, but callgrind wrote no whole file of it in {} s",
                    FILE_TIMEOUT.as_secs()
                ),
                _ => std::thread::sleep(POLL),
            }
        }
    }
}
