//! What backends wait for, asked of the server itself: for where its memory may not be read.
//!
//! `pg_stat_get_activity` is what the view `pg_stat_activity` shows (`system_views.sql`), without
//! the names of users and databases, whose look-up costs more than the rest. It needs no table of
//! numbers and no right of the operating system, but a connection, and the server's work for each
//! answer; rows of other users' sessions are empty but for members of `pg_monitor`
//! (`HAS_PGSTAT_PERMISSIONS` in `pgstatfuncs.c`).
//!
//! 9.6 tells waits for locks and buffer pins only, but its `state` tells of a session that waits for
//! its client; before 9.6 the view has no waits.

use crate::cpu::ProcessCpu;
use crate::procfs::read_state;
use pgassay_wire::{Exchange, ExchangeError};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};

/// A wait by its names, as `pg_stat_activity` shows them; both empty if no reason was told.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedWait {
    /// `wait_event_type`.
    pub kind: String,
    /// `wait_event`.
    pub name: String,
}

/// What sessions do, by process: nothing told, no wait, or a wait.
pub(crate) type Sessions = BTreeMap<u32, Option<Option<NamedWait>>>;

const QUESTION: &str =
    "select pid, state, wait_event_type, wait_event from pg_stat_get_activity(null)";

/// A connection over which is asked.
pub struct Activity<S> {
    exchange: Exchange<S>,
    sees_processes: bool,
    tells_of_clients: bool,
}

/// A process at one instant, seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glance {
    is_runnable: bool,
    /// How often it had got a CPU.
    slices: u64,
}

impl Glance {
    fn at(pid: u32) -> Option<Self> {
        Some(Self {
            is_runnable: read_state(pid).ok()? == b'R',
            slices: ProcessCpu::read(pid).ok()?.slices,
        })
    }
}

impl<S: Read + Write> Activity<S> {
    /// Asks once, to see whether there is an answer; `sees_processes` where the server's processes
    /// are those of this machine's `/proc`.
    ///
    /// # Errors
    /// The server's, as before 9.6, or the connection's.
    pub fn open(exchange: Exchange<S>, sees_processes: bool) -> Result<Self, ExchangeError> {
        let version = exchange.parameter("server_version").unwrap_or_default();
        let mut activity = Self {
            tells_of_clients: !version.starts_with("9."),
            exchange,
            sees_processes,
        };
        activity.ask(&[])?;
        Ok(activity)
    }

    /// The process that answers; 0 where the server does not say.
    pub fn own_pid(&self) -> u32 {
        self.exchange
            .backend()
            .map_or(0, |it| it.pid.cast_unsigned())
    }

    /// CPU time that the process which answers has used, in nanoseconds; `None` where it is not to
    /// be seen.
    pub fn own_cpu_ns(&self) -> Option<u64> {
        let cpu = self
            .sees_processes
            .then(|| ProcessCpu::read(self.own_pid()));
        cpu?.ok().map(|cpu| cpu.on_cpu_ns)
    }

    /// What these processes wait for now, `None` for one that waits for nothing that it would tell.
    /// Those that have ended are left out, as are those of which the server tells us nothing.
    pub(crate) fn ask(
        &mut self,
        pids: &[u32],
    ) -> Result<BTreeMap<u32, Option<NamedWait>>, ExchangeError> {
        let answer = self.exchange.query(&question(pids))?.pop();
        let rows = answer.unwrap_or_default().rows;
        Ok(rows.into_iter().filter_map(|row| self.told(row)).collect())
    }

    /// What each session does that has a database, and each parallel worker, ours left out: as
    /// [`Activity::ask`], but with nothing inside for those of which the server tells us nothing.
    pub(crate) fn ask_of_all(&mut self) -> Result<Sessions, ExchangeError> {
        // Before 10 there are no others in the view.
        let kind = if self.tells_of_clients {
            "and coalesce(backend_type, 'client backend') in ('client backend', 'parallel worker')"
        } else {
            ""
        };
        // The view is a snapshot until its transaction ends.
        let answer = self.exchange.query(&format!(
            "select pg_stat_clear_snapshot(); {QUESTION} \
             where datid is not null and pid <> pg_backend_pid() {kind}"
        ))?;
        let rows = answer.into_iter().next_back().unwrap_or_default().rows;
        let session = |row: Vec<Option<String>>| {
            let pid = row.first()?.as_ref()?.parse().ok()?;
            Some((pid, self.told(row).map(|(_, wait)| wait)))
        };
        Ok(rows.into_iter().filter_map(session).collect())
    }

    /// For questions of one's own.
    pub fn exchange(&mut self) -> &mut Exchange<S> {
        &mut self.exchange
    }

    /// The process as `/proc` shows it; `None` where it does not.
    pub(crate) fn glance(&self, pid: u32) -> Option<Glance> {
        self.sees_processes.then(|| Glance::at(pid)).flatten()
    }

    fn told(&self, row: Vec<Option<String>>) -> Option<(u32, Option<NamedWait>)> {
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

/// Of no process, so that the server shows whether it has what is asked for.
fn question(pids: &[u32]) -> String {
    let mut list = String::new();
    for (at, pid) in pids.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(list, "{comma}{pid}").expect("a String takes all text");
    }
    format!("{QUESTION} where pid = any('{{{list}}}')")
}

/// Whether a process was blocked from one glance to the next: it had no CPU, and wanted none.
pub(crate) fn stayed_blocked((before, after): (Glance, Glance)) -> bool {
    !before.is_runnable && !after.is_runnable && before.slices == after.slices
}

/// Whether a process is not known to have been blocked at any time from one glance to the next.
pub(crate) fn stayed_runnable((before, after): (Glance, Glance)) -> bool {
    before.is_runnable && after.is_runnable
}
