//! Samples wait events from `pg_stat_activity`, if the server's memory is not readable.
//!
//! `pg_stat_get_activity` returns the data of the view `pg_stat_activity` (`system_views.sql`)
//! without the names of users and databases, whose lookup costs more than the rest. It requires no
//! table of wait event numbers and no privilege of the operating system, but a connection, and work
//! by the server for each query; rows of other users' sessions are empty except for members of
//! `pg_monitor` (`HAS_PGSTAT_PERMISSIONS` in `pgstatfuncs.c`).
//!
//! 9.6 reports only waits for locks and buffer pins, but its `state` shows whether a session waits
//! for its client; before 9.6 the view has no wait events.

use crate::proc::cpu::ProcessCpu;
use crate::proc::files::read_state;
use pgassay_wire::{Exchange, ExchangeError};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};

/// A wait event with its names in `pg_stat_activity`; both are empty if it is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedWait {
    /// `wait_event_type`.
    pub kind: String,
    /// `wait_event`.
    pub name: String,
}

/// The state of sessions by PID: `None` without data, `Some(None)` without a wait, or a wait.
pub(crate) type Sessions = BTreeMap<u32, Option<Option<NamedWait>>>;

const QUESTION: &str =
    "select pid, state, wait_event_type, wait_event from pg_stat_get_activity(null)";

/// A connection for sampling `pg_stat_activity`.
pub struct ActivitySampler<S> {
    exchange: Exchange<S>,
    sees_processes: bool,
    tells_of_clients: bool,
    /// What makes the server count the transaction of a query at once; empty if that is not wanted, and before 15,
    /// where it does so at any time.
    counting: &'static str,
}

/// The state of a process at one instant, from `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcState {
    is_runnable: bool,
    /// How often it has been scheduled on a CPU.
    slices: u64,
}

impl ProcState {
    fn at(pid: u32) -> Option<Self> {
        Some(Self {
            is_runnable: read_state(pid).ok()? == b'R',
            slices: ProcessCpu::read(pid).ok()?.slices,
        })
    }
}

impl<S: Read + Write> ActivitySampler<S> {
    /// Checks that the query works. `sees_processes`: the server's processes are in this machine's
    /// `/proc`.
    ///
    /// # Errors
    /// An error of the server, as before 9.6, or of the connection.
    pub fn open(exchange: Exchange<S>, sees_processes: bool) -> Result<Self, ExchangeError> {
        Self::open_with(exchange, sees_processes, |_| "")
    }

    /// As [`Self::open`]. The server counts the transaction of each query of some processes at once, if it can: for a
    /// caller that subtracts them from its count.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_counted(
        exchange: Exchange<S>,
        sees_processes: bool,
    ) -> Result<Self, ExchangeError> {
        Self::open_with(exchange, sees_processes, counting)
    }

    fn open_with(
        exchange: Exchange<S>,
        sees_processes: bool,
        counting: impl Fn(&str) -> &'static str,
    ) -> Result<Self, ExchangeError> {
        let version = exchange.parameter("server_version").unwrap_or_default();
        let mut activity = Self {
            tells_of_clients: !version.starts_with("9."),
            counting: counting(version),
            exchange,
            sees_processes,
        };
        activity.ask(&[])?;
        Ok(activity)
    }

    /// The PID of this connection's backend; 0 if unknown.
    pub fn own_pid(&self) -> u32 {
        self.exchange
            .backend()
            .map_or(0, |it| it.pid.cast_unsigned())
    }

    /// CPU time of this connection's backend, in nanoseconds; `None` if it is not visible.
    pub fn own_cpu_ns(&self) -> Option<u64> {
        let cpu = self
            .sees_processes
            .then(|| ProcessCpu::read(self.own_pid()));
        cpu?.ok().map(|cpu| cpu.on_cpu_ns)
    }

    /// The current wait events of these processes, `None` for a process without one. Omits
    /// processes that have ended, and those without activity data.
    pub(crate) fn ask(
        &mut self,
        pids: &[u32],
    ) -> Result<BTreeMap<u32, Option<NamedWait>>, ExchangeError> {
        let sql = format!("{}{}", question(pids), self.counting);
        // The row that counts has one column.
        let rows = self.exchange.rows_read_committed(&sql)?;
        Ok(rows
            .into_iter()
            .filter_map(|row| self.parse_row(row))
            .collect())
    }

    /// The state of every session with a database and every parallel worker, except our own: as
    /// [`ActivitySampler::ask`], but with `None` for those without activity data.
    pub(crate) fn query_all_sessions(&mut self) -> Result<Sessions, ExchangeError> {
        // Before 10 the view has no other processes.
        let kind = if self.tells_of_clients {
            "and coalesce(backend_type, 'client backend') in ('client backend', 'parallel worker')"
        } else {
            ""
        };
        // The view is a snapshot until the end of the transaction.
        let answer = self.exchange.query(&format!(
            "select pg_stat_clear_snapshot(); {QUESTION} \
             where datid is not null and pid <> pg_backend_pid() {kind}"
        ))?;
        let rows = answer.into_iter().next_back().unwrap_or_default().rows;
        let session = |row: Vec<Option<String>>| {
            let pid = row.first()?.as_ref()?.parse().ok()?;
            Some((pid, self.parse_row(row).map(|(_, wait)| wait)))
        };
        Ok(rows.into_iter().filter_map(session).collect())
    }

    /// The connection, for other queries.
    pub fn exchange(&mut self) -> &mut Exchange<S> {
        &mut self.exchange
    }

    /// The state of a process in `/proc`; `None` if it is not visible.
    pub(crate) fn read_proc_state(&self, pid: u32) -> Option<ProcState> {
        self.sees_processes.then(|| ProcState::at(pid)).flatten()
    }

    fn parse_row(&self, row: Vec<Option<String>>) -> Option<(u32, Option<NamedWait>)> {
        let [pid, state, kind, name] = <[_; 4]>::try_from(row).ok()?;
        let pid = pid?.parse().ok()?;
        let wait = kind.zip(name).map(|(kind, name)| NamedWait { kind, name });
        if wait.is_none() && !self.tells_of_clients && state.as_ref()?.starts_with("idle") {
            let of_client = ["Client", "ClientRead"].map(str::to_owned);
            let [kind, name] = of_client;
            return Some((pid, Some(NamedWait { kind, name })));
        }
        (wait.is_some() || state.is_some()).then_some((pid, wait))
    }
}

/// A session reports its transactions late if they access no table; `pg_stat_get_activity` is a function.
fn counting(version: &str) -> &'static str {
    let major = version.split(|c: char| !c.is_ascii_digit()).next();
    let major = major.and_then(|it| it.parse::<u32>().ok()).unwrap_or(0);
    if major >= 15 {
        "; select pg_stat_force_next_flush() from pg_tablespace limit 1"
    } else {
        ""
    }
}

/// The query for these processes; with no PIDs it only checks that the columns exist.
fn question(pids: &[u32]) -> String {
    let mut list = String::new();
    for (at, pid) in pids.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(list, "{comma}{pid}").expect("writing to a String cannot fail");
    }
    format!("{QUESTION} where pid = any('{{{list}}}')")
}

/// Whether a process was blocked at both times and was not scheduled in between.
pub(crate) fn stayed_blocked((before, after): (ProcState, ProcState)) -> bool {
    !before.is_runnable && !after.is_runnable && before.slices == after.slices
}

/// Whether a process was runnable at both times.
pub(crate) fn stayed_runnable((before, after): (ProcState, ProcState)) -> bool {
    before.is_runnable && after.is_runnable
}
