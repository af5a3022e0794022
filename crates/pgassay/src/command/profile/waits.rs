//! Looks at what the backends wait for, as often as their CPU is sampled.

use std::time::{Duration, Instant};

use pgassay_core::observation::{WaitCount, Waits};
use pgassay_core::run::Check;
use pgassay_core::subsystem::{wait_event, wait_number};
use pgassay_profile::{KnownWaits, LiveServer, WaitError, WaitLog, WaitReader};

use super::connection::{self, Connection};

/// Looks at the backends' memory.
pub struct WaitSampler {
    reader: WaitReader,
    log: WaitLog,
    every: Duration,
    cpu_us: f64,
}

impl WaitSampler {
    /// Finds where waits are kept; before 14 by means of the connection and another like it.
    pub fn open(
        server: &LiveServer,
        frequency_hz: u32,
        connection: Option<(&mut Connection, &str)>,
    ) -> Result<Self, Check> {
        let reader = match WaitReader::open(server) {
            Err(WaitError::NeedsConnection) => match connection {
                Some((connection, dsn)) => learn(server, connection, dsn),
                None => Err(WaitError::NeedsConnection.into()),
            },
            other => other.map_err(Into::into),
        };
        Ok(Self {
            reader: reader.map_err(|error| refusal(&error))?,
            log: WaitLog::default(),
            every: Duration::from_secs(1) / frequency_hz.max(1),
            cpu_us: 0.0,
        })
    }

    /// Looks at these processes until then.
    pub fn sample(&mut self, pids: &[u32], until: Instant) {
        let before_us = own_cpu_us();
        while Instant::now() < until {
            self.log.sweep(&self.reader, pids.iter().copied());
            let next = until.min(Instant::now() + self.every);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.cpu_us += own_cpu_us() - before_us;
    }

    /// What was seen, by the names of this major version.
    pub fn finish(self, major: Option<&str>) -> Waits {
        let name = |number: u32| match wait_event(major.unwrap_or_default(), number) {
            _ if number == 0 => (String::new(), String::new()),
            Some(wait) => (wait.kind.to_owned(), wait.name.to_owned()),
            None => ("not known".to_owned(), format!("{number:#010x}")),
        };
        let events = self.log.blocked.iter().map(|(&number, &samples)| {
            let (kind, name) = name(number);
            WaitCount {
                kind,
                name,
                samples,
            }
        });
        Waits {
            blocked_samples: self.log.blocked.values().sum(),
            runnable_samples: self.log.runnable,
            unreadable: self.log.unreadable,
            sampling_cpu_us: self.cpu_us,
            events: events.collect(),
        }
    }
}

fn learn(
    server: &LiveServer,
    connection: &mut Connection,
    dsn: &str,
) -> Result<WaitReader, anyhow::Error> {
    let major = server.major.as_deref().unwrap_or_default();
    let advisory = wait_number(major, "Lock", "advisory")
        .ok_or_else(|| anyhow::anyhow!("the numbers of wait events of {major:?} are not known"))?;
    // 9.6 does not tell that it waits for the client.
    let idle = wait_number(major, "Client", "ClientRead").unwrap_or(0);
    let (second, _) = connection::exchange(dsn)?;
    let known = KnownWaits { advisory, idle };
    Ok(WaitReader::learn(
        server,
        known,
        &mut connection.exchange,
        second,
    )?)
}

/// What keeps us from waits, and what grants them.
fn refusal(error: &anyhow::Error) -> Check {
    let (limits, mend) = match error.downcast_ref::<WaitError>() {
        Some(WaitError::NotPermitted(refusal)) => {
            let effect = format!("{}: {}", refusal.what, refusal.why);
            (effect, Some(refusal.commands.join("  or  ")))
        }
        Some(WaitError::NeedsConnection) => (error.to_string(), Some("--dsn".to_owned())),
        _ => (format!("{error:#}"), None),
    };
    Check {
        name: "waits".to_owned(),
        value: "none".to_owned(),
        limits: Some(limits),
        mend,
    }
}

/// CPU time that this thread has used: the first number of its `schedstat`.
fn own_cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let on_cpu_ns = text.split_whitespace().next().map(str::parse::<u64>);
    on_cpu_ns.and_then(Result::ok).unwrap_or(0) as f64 / 1e3
}
