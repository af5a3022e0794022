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
/// How often a segment is tried that other programs hold up.
const TRIES: u32 = 4;
/// Share of the interval between two reports that a segment may take: the first is made while the
/// client connects, before its statements are prepared.
const REPORT_MARGIN: f64 = 0.6;
/// Transactions of the first of two segments whose difference tells about what one costs.
const TRIED: u64 = 20;
/// Instructions of the shortest segment at most, some 75 ms on a processor of its own: then the longest
/// ends before a backend reports its statistics, which it does once a second of real time.
const SHORTEST: u64 = 3_000_000;
/// Sizes of the shortest segment. Below 20, plans for the values at hand would be in it, as
/// PostgreSQL makes them the first five times.
const UNITS: [u64; 7] = [20, 50, 100, 200, 500, 1000, 2000];
/// As much is chosen by cost; only work that is not linear goes further.
const UNIT_BY_COST_MAX: u64 = 500;

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

/// What a segment gave, and how long its transactions took: in all, and on a processor where the
/// kernel says so.
struct Segment {
    file: OutFile,
    elapsed: Duration,
    on_cpu: Option<Duration>,
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

    /// Chooses how many transactions the shortest segment has, by what they cost. By the time that
    /// they take it would be another number on a busy machine, and other transactions cost otherwise.
    pub fn unit(&self) -> Result<u64> {
        let [few, many] = [self.segment(TRIED)?, self.segment(2 * TRIED)?];
        let more = many
            .totals
            .instructions
            .saturating_sub(few.totals.instructions);
        let each = more / TRIED;
        let fits = |unit: &u64| *unit <= UNIT_BY_COST_MAX && each * *unit <= SHORTEST;
        Ok(UNITS.into_iter().rfind(fits).unwrap_or(UNITS[0]))
    }

    /// Runs a segment and reads what its backend wrote when it ended. One in which the backend may
    /// have reported its statistics, because other programs held it up, is run again; of several
    /// such ones the quickest stands.
    pub fn segment(&self, transactions: u64) -> Result<OutFile> {
        let interval = self.report_interval();
        let limit = interval.mul_f64(REPORT_MARGIN);
        let mut quickest = self.try_segment(transactions)?;
        for _ in 1..TRIES {
            // What takes so long by itself does so again.
            if quickest.elapsed <= limit || quickest.on_cpu.is_none_or(|it| it > interval) {
                break;
            }
            let again = self.try_segment(transactions)?;
            if again.elapsed < quickest.elapsed {
                quickest = again;
            }
        }
        Ok(quickest.file)
    }

    /// How often a busy backend reports its statistics: some thousand instructions that are none of
    /// a transaction's (`PGSTAT_MIN_INTERVAL` in `pgstat.c` of 15 to 18, `PGSTAT_STAT_INTERVAL` before).
    fn report_interval(&self) -> Duration {
        let is_recent = self.place.server.installation().version.series().major() >= 15;
        Duration::from_millis(if is_recent { 1000 } else { 500 })
    }

    fn try_segment(&self, transactions: u64) -> Result<Segment> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        let pid = crew.backend_pids().first().copied();
        let pid = pid.context("the server did not tell its backend's process")?;
        let start = (Instant::now(), lockstep::on_cpu(pid));
        self.run(&mut crew, transactions)?;
        lockstep::until_asleep(pid);
        let elapsed = start.0.elapsed();
        let on_cpu = start.1.zip(lockstep::on_cpu(pid));
        crew.close();
        let file = self.read(pid)?;
        if i32::try_from(file.pid) != Ok(pid) {
            bail!("the file of backend {pid} is of process {}", file.pid);
        }
        if file.totals.instructions == 0 {
            bail!("callgrind found no function PostgresMain in the server, so it counted nothing");
        }
        Ok(Segment {
            file,
            elapsed,
            on_cpu: on_cpu.map(|(before, after)| after.saturating_sub(before)),
        })
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
