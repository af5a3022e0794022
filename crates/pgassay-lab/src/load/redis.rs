//! A temporary Redis server, for variants with the Redis driver and no address.
//!
//! It listens on a Unix socket in a [`KeptDir`] and persists nothing. It is killed when [`Redis`] is dropped, or
//! when pgassay's main thread ends in any way (`PR_SET_PDEATHSIG`, prctl(2)).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use pgassay_load::{LoadError, Measurement, RedisClientPool, RedisError, RunLength, TextRow};
use pgassay_model::plan::{Plan, Point};
use pgassay_model::study::DriverKind;
use pgassay_rights as rights;
use pgassay_server::{KeptDir, end_with_us};

use super::Clients;
use crate::interrupt::Interrupted;
use crate::observe::TransactionRecorder;
use crate::run_context::RunContext;

/// The program, looked up on `PATH`.
const PROGRAM: &str = "redis-server";
/// How long it may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// The temporary Redis server of a run, if its plan needs one.
pub struct Redis {
    ours: Option<RedisProcess>,
}

struct RedisProcess {
    child: Child,
    directory: KeptDir,
}

impl Redis {
    /// Starts a server if a point uses the Redis driver without an address.
    pub fn start(plan: &Plan) -> Result<Self> {
        let needs = |point: &Point| point.driver == DriverKind::Redis && point.address.is_none();
        let ours = if plan.points.iter().any(needs) {
            Some(RedisProcess::start()?)
        } else {
            None
        };
        Ok(Self { ours })
    }

    /// Connects a point's clients.
    pub fn connect(
        &self,
        point: &Point,
        clients: u32,
        context: &RunContext<'_>,
    ) -> Result<RedisClients> {
        let (address, pid) = match (&point.address, &self.ours) {
            (Some(address), _) => (address.clone(), None),
            (None, Some(ours)) => (ours.socket().display().to_string(), Some(ours.child.id())),
            (None, None) => bail!("no Redis was started"),
        };
        let Some(script) = point.scripts.first() else {
            bail!("a variant with the Redis driver needs a script");
        };
        let script = (script.name.as_str(), script.text.as_str());
        let stop = context.interrupt.flag();
        let pool = RedisClientPool::connect(&address, clients, script, stop).map_err(failed)?;
        Ok(RedisClients { pool, pid })
    }
}

fn failed(error: RedisError) -> anyhow::Error {
    match error {
        RedisError::Stopped => Interrupted.into(),
        other => anyhow!(other),
    }
}

/// Clients of Redis.
pub struct RedisClients {
    pool: RedisClientPool,
    /// The server, if pgassay started it.
    pid: Option<u32>,
}

impl Clients for RedisClients {
    fn run(&mut self, length: &RunLength, _: &Point, _: &RunContext<'_>) -> Result<Measurement> {
        self.pool.run(length).map_err(failed)
    }

    fn spread_starts(&mut self, spread: Duration, seed: u64) {
        self.pool.spread_starts(spread, seed);
    }

    fn broadcast(&mut self, _: &str) -> Result<u32, LoadError> {
        Ok(0)
    }

    fn query_first(&mut self, _: &str) -> Result<Vec<TextRow>, LoadError> {
        Ok(Vec::new())
    }

    fn time_statements(&mut self, _: bool) {}

    fn record_transactions(&mut self) -> Option<TransactionRecorder> {
        None
    }

    fn stop_recording(&mut self) {}

    fn backend_pids(&self) -> Vec<i32> {
        Vec::new()
    }

    fn server_pids(&self) -> Vec<u32> {
        self.pid.iter().copied().collect()
    }

    fn are_of_postgres(&self) -> bool {
        false
    }
}

impl RedisProcess {
    fn start() -> Result<Self> {
        // Closed to others: Redis loads the data that it finds there.
        let directory = KeptDir::create().context("cannot create a directory for Redis")?;
        let socket = directory.path().join("socket");
        let mut command = Command::new(PROGRAM);
        // No TCP and no persistence: as fast as Redis gets.
        command.args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--unixsocket",
        ]);
        command.arg(&socket).arg("--dir").arg(directory.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        rights::limit(&mut command, &[]);
        // Redis runs as the current user, so no right need be held to kill it.
        drop(end_with_us(&mut command));
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM}; is it on PATH?"))?;
        let mut process = Self { child, directory };
        process.wait_until_ready(&socket)?;
        Ok(process)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn wait_until_ready(&mut self, socket: &Path) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                bail!("{PROGRAM} exited during startup: {status}");
            }
            if UnixStream::connect(socket).is_ok_and(|stream| answers(stream).is_ok()) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!(
            "{PROGRAM} did not answer within {} s",
            START_TIMEOUT.as_secs()
        )
    }
}

fn answers(mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    stream.read_exact(&mut [0; 7])
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        // It persists nothing, so killing it loses nothing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
