//! All data about one point, in the form that signatures need.

use std::collections::BTreeMap;

use pgassay_account::comparison::PointSummary;
use pgassay_account::counters;
use pgassay_account::ledger::{BackgroundRow, Divider, Ledger, Nature, Part, Row};
use pgassay_model::plan::PlannedScript;
use pgassay_model::study::{Network, Protocol};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;
use pgassay_record::run::Run;
use pgassay_script::{CommandKind, ParseOptions, ParsedScript, VariableNames};

use super::stacks::Stacks;
use super::write_waits::WRITES;

/// Data about one point or one live server; times are µs per transaction.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact on its own")]
pub struct Evidence {
    /// A live server's, not that of a study.
    pub is_live: bool,
    /// A live server's on which no transaction ended: all figures are those of the window, as if it were one.
    pub is_stalled: bool,
    /// The clients are known to use a Unix-domain socket.
    pub uses_unix_socket: bool,
    /// Major version: 9 (for 9.6), 10, … 18; 0 if unknown.
    pub major: u32,
    /// Concurrent connections.
    pub clients: f64,
    /// Each transaction opens its own connection, before its latency begins.
    pub reconnects: bool,
    /// SQL commands that a transaction sends on average, and so at most its round trips; `None` on a live server.
    pub statements: Option<f64>,
    /// The query protocol, if known.
    pub protocol: Option<Protocol>,
    /// Settings made by the study, or those of an external server; session settings override server
    /// settings.
    pub settings: BTreeMap<String, String>,
    /// The scripts' text in lower case, to search for statements.
    pub scripts: String,
    /// Mean response time; on a live server the sum of CPU, run-queue and blocked time.
    pub response_us: f64,
    /// Median latency; 0 if unknown.
    pub latency_p50_us: f64,
    /// 99th percentile latency; 0 if unknown.
    pub latency_p99_us: f64,
    /// The backends' CPU time.
    pub cpu_us: f64,
    /// The backends' run-queue time.
    pub run_queue_us: f64,
    /// CPU time of a live server's processes that ended, after it was read for the last time; not part of
    /// [`Self::cpu_us`].
    pub ended_cpu_us: f64,
    /// Time in the run queue or blocked by others' work, as for a lock.
    pub queued_us: f64,
    /// Service and think time: what is left of the response time without any queueing; 0 if unknown.
    pub work_us: f64,
    /// The load generator's CPU time.
    pub client_cpu_us: f64,
    /// Share of the trials in which the load generator was the bottleneck.
    pub client_limited: f64,
    /// Share of the machine that other programs used.
    pub other_programs: f64,
    /// The CPUs of a live server's machine; `None` in a study, and if they are unknown.
    pub processors: Option<f64>,
    /// Transactions per second.
    pub tps: f64,
    /// The machine's clock source; empty if unknown.
    pub clock_source: String,
    /// Blocked time per transaction that one reading of wait events stands for; 0 if no readings divide it.
    pub(super) us_per_reading: f64,
    pub(super) stacks: Stacks,
    /// Blocked time by reason, such as `LWLock WALWrite`; empty if waits were not sampled.
    pub(super) blocked: BTreeMap<String, f64>,
    /// Counters per transaction.
    pub(super) counters: BTreeMap<String, f64>,
}

/// The mean number of SQL commands of the scripts; `None` if one of them is not in pgbench's language.
fn statements_of(scripts: &[PlannedScript]) -> Option<f64> {
    let mut names = VariableNames::default();
    let (mut statements, mut weights) = (0.0, 0.0);
    for it in scripts {
        let options = ParseOptions::default();
        let script = ParsedScript::parse(&it.name, &it.text, &options, &mut names).ok()?;
        let is_sql = |kind: &CommandKind| matches!(kind, CommandKind::Sql(_));
        let commands = script.commands().iter();
        let weight = f64::from(it.weight);
        statements += weight * commands.filter(|it| is_sql(&it.kind)).count() as f64;
        weights += weight;
    }
    (weights > 0.0).then(|| statements / weights)
}

/// If the ledger's rows differ from the clients' clock by more than this share, they prove nothing.
const ROWS_OFF_MAX: f64 = 0.25;

impl Evidence {
    /// The evidence of a point of a run. `None` if it has no timed trial, if the server's CPU time
    /// is unknown (nothing else can be attributed without it), or if the ledger's rows are far from
    /// what the clients measured, as with transactions that last as long as trials.
    pub fn of_point(run: &Run, condition: usize, variant: usize) -> Option<Self> {
        let summary = run
            .points
            .iter()
            .find(|it| it.condition == condition && it.variant == variant && it.trials > 0)?;
        let (cpu_us, run_queue_us) = summary.server_cpu_us.zip(summary.server_run_queue_us)?;
        let place = run
            .plan
            .points
            .iter()
            .position(|it| it.condition == condition && it.variant == variant)?;
        let point = &run.plan.points[place];
        let mut settings = run.effective_settings(point.server)?.clone();
        settings.extend(point.session.clone());
        let stacks = run.profiles.get(place);
        let version = run.servers.get(point.server).map(|it| it.version.as_str());
        let clock = run
            .checks
            .iter()
            .find(|check| check.name.contains("clocksource"));
        let trials = || {
            let is_its = |it: &&Trial| {
                let place = (it.condition, it.variant);
                place == (condition, variant) && it.kind != TrialKind::HardwareCounters
            };
            run.trials.iter().filter(is_its)
        };
        let mut ledgers = run.ledgers.iter();
        let ledger = ledgers.find(|it| it.condition == condition && it.variant == variant);
        let adds_up = |it: &Ledger| (it.checks.coverage - 1.0).abs() <= ROWS_OFF_MAX;
        if !ledger.is_none_or(adds_up) {
            return None;
        }
        let other_programs: f64 = trials().map(|trial| trial.other_programs).sum();
        let scripts: Vec<&str> = point.scripts.iter().map(|it| it.text.as_str()).collect();
        let evidence = Self {
            major: major(version.unwrap_or_default()),
            clients: f64::from(run.plan.conditions[condition].clients),
            reconnects: point.reconnects,
            protocol: Some(point.protocol),
            statements: statements_of(&point.scripts),
            uses_unix_socket: point.network == Network::Unix
                && run.plan.servers[point.server].dsn.is_none(),
            settings,
            other_programs: other_programs / trials().count().max(1) as f64,
            scripts: scripts.join("\n").to_lowercase(),
            clock_source: clock.map_or_else(String::new, |check| check.value.clone()),
            stacks: stacks.map_or_else(Stacks::default, |profile| Stacks::new(profile, cpu_us)),
            cpu_us,
            run_queue_us,
            ..Self::of_summary(summary)
        };
        let profiled = trials().filter(|it| it.kind == TrialKind::Profiled);
        let readings = profiled.filter_map(|it| Some(it.waits.as_ref()?.blocked_samples));
        Some(match ledger {
            Some(it) => Self {
                us_per_reading: us_per_reading(&it.rows, it.blocked_by, readings.sum()),
                ..evidence
                    .with_rows(&it.rows, it.blocked_by)
                    .with_background(&it.background)
            },
            None => evidence,
        })
    }

    /// CPU time of background processes as in the ledger. Counters of processes leave out those that end during the
    /// trial, such as parallel workers.
    pub(super) fn with_background(mut self, background: &[BackgroundRow]) -> Self {
        let named = |it: &BackgroundRow| (format!("background({}).cpu_us", it.role), it.us);
        self.counters.extend(background.iter().map(named));
        self
    }

    /// Replaces times by those of a ledger's rows, so that a finding and the ledger print the same
    /// figure for the same wait.
    pub(super) fn with_rows(self, rows: &[Row], blocked_by: Divider) -> Self {
        let sum = |wanted: &dyn Fn(&Row) -> bool| -> f64 {
            rows.iter().filter(|it| wanted(it)).map(|it| it.us).sum()
        };
        let is_queue = |row: &Row| {
            row.part == Part::RunQueue
                || row.part == Part::Blocked && row.nature == Nature::Queueing
        };
        Self {
            response_us: sum(&|row| row.part != Part::Between),
            run_queue_us: sum(&|row| row.part == Part::RunQueue),
            queued_us: sum(&is_queue),
            work_us: sum(&|row| row.part != Part::Between && row.nature != Nature::Queueing),
            blocked: blocked_of(rows, blocked_by),
            ..self
        }
    }

    fn of_summary(summary: &PointSummary) -> Self {
        let counters = counters::per_transaction(&summary.counters);
        Self {
            response_us: summary.latency_mean_us,
            latency_p50_us: summary.latency_p50_us,
            latency_p99_us: summary.latency_p99_us,
            client_cpu_us: summary.client_cpu_us,
            client_limited: summary.client_limited,
            tps: summary.tps,
            counters: counters
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ..Self::default()
        }
    }

    /// The same without queueing time. As a share of the whole response time, the cause of a long
    /// queue would look small.
    pub(super) fn without_queues(&self) -> Self {
        Self {
            response_us: (self.response_us - self.queued_us).max(self.cpu_us),
            run_queue_us: 0.0,
            queued_us: 0.0,
            ..self.clone()
        }
    }

    /// The evidence of a live server. `None` if its transactions could not be counted, and its sessions were not
    /// watched: then it may do nothing, or more than is known.
    pub fn of_observation(observation: &Observation) -> Option<Self> {
        let counted = observation.transactions.filter(|count| *count > 0);
        let is_stalled = counted.is_none();
        let has_ended =
            |it: &Activity| it.transactions_seen > 0 || it.transactions_min_per_s() > 0.0;
        let activity = observation.activity.as_ref();
        let is_uncounted = observation.transactions.is_none() && activity.is_some_and(has_ended);
        if is_stalled && (is_uncounted || activity.is_none()) {
            return None;
        }
        let transactions = counted.unwrap_or(1) as f64;
        let per_transaction = |us: f64| us / transactions;
        // On a remote server, CPU time includes run-queue time: they cannot be distinguished.
        let cpu_us = per_transaction(match observation.backends {
            Some(exact) => exact.on_cpu_us,
            None => observation.backends_present_us - observation.blocked_us(),
        });
        let blocked = observation.blocked().into_iter();
        let blocked = blocked.map(|row| (row.mechanism, per_transaction(row.blocked_us)));
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for (reason, us) in blocked {
            *sums.entry(reason).or_default() += us;
        }
        // A session waits for its client both when idle and between two statements of a transaction.
        // A live server does not show which, so this time is not part of the response time.
        let idle_us = sums.get(CLIENT).copied().unwrap_or(0.0);
        let mut counters = BTreeMap::new();
        for background in &observation.background {
            let name = format!("background({}).cpu_us", background.role);
            counters.insert(name, per_transaction(background.cpu.on_cpu_us));
        }
        let run_queue_us = observation
            .backends
            .map_or(0.0, |it| per_transaction(it.run_queue_us));
        Some(Self {
            is_live: true,
            is_stalled,
            major: major(observation.subject.major.as_deref().unwrap_or_default()),
            clients: f64::from(observation.sessions),
            response_us: (per_transaction(observation.backends_present_us) - idle_us).max(0.0),
            cpu_us,
            run_queue_us,
            queued_us: run_queue_us,
            ended_cpu_us: observation.ended_cpu_us.map_or(0.0, per_transaction),
            processors: observation
                .activity
                .as_ref()
                .and_then(|it| it.processors)
                .map(f64::from),
            tps: transactions / (observation.window_us / 1e6),
            stacks: observation
                .sampled()
                .map_or_else(Stacks::default, |profile| Stacks::new(profile, cpu_us)),
            us_per_reading: match &observation.waits {
                Some(waits)
                    if waits.blocked_samples > 0 && observation.seen_blocked().is_none() =>
                {
                    per_transaction(observation.blocked_us()) / waits.blocked_samples as f64
                }
                _ => 0.0,
            },
            blocked: sums,
            counters,
            ..Self::default()
        })
    }

    /// Leaves out this share of the waits for other transactions, 0 to 1: they are not for rows.
    pub fn leave_out_transaction_waits(&mut self, share: f64) {
        if let Some(waited_us) = self.blocked.get_mut("Lock transactionid") {
            *waited_us *= 1.0 - share;
        }
    }

    /// Leaves out this share of the waits for writes, 0 to 1: they are not those of commits.
    pub fn leave_out_writes(&mut self, share: f64) {
        for reason in WRITES {
            if let Some(waited_us) = self.blocked.get_mut(reason) {
                *waited_us *= 1.0 - share;
            }
        }
    }

    /// CPU time of stacks that contain any of these functions.
    pub fn in_functions(&self, functions: &[&str]) -> f64 {
        self.stacks.in_functions(functions)
    }

    /// CPU time of stacks that contain a function of each list, in this order, outermost first.
    pub fn in_nested_functions(&self, lists: &[&[&str]]) -> f64 {
        self.stacks.in_nested_functions(lists)
    }

    /// CPU time in these phases.
    pub fn phases(&self, phases: &[&str]) -> f64 {
        self.stacks.phases(phases)
    }

    /// Time of a client per transaction outside of its latency, if each transaction opens its own connection.
    pub fn reconnecting_us(&self) -> f64 {
        let has_rate = self.reconnects && self.tps > 0.0;
        let whole_us = if has_rate {
            self.clients * 1e6 / self.tps
        } else {
            0.0
        };
        (whole_us - self.response_us).max(0.0)
    }

    /// Time blocked for these reasons.
    pub fn blocked(&self, reasons: &[&str]) -> f64 {
        reasons.iter().filter_map(|it| self.blocked.get(*it)).sum()
    }

    /// A counter per transaction; `None` if it was not read.
    pub fn counter(&self, name: &str) -> Option<f64> {
        self.counters.get(name).copied()
    }

    /// The first of these counters that was read: names of views differ between versions.
    pub fn first_counter(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.counter(name))
    }

    /// A share of the backends' CPU time.
    pub fn of_cpu(&self, us: f64) -> f64 {
        share(us, self.cpu_us)
    }

    /// A share of the mean response time.
    pub fn of_response(&self, us: f64) -> f64 {
        share(us, self.response_us)
    }

    /// CPU utilization of the machine, 0 to 1; `None` if unknown.
    pub fn cpu_utilization(&self) -> Option<f64> {
        let busy_us = self.counter("machine.busy_us")?;
        let all_us = self.cpu_capacity_us();
        (all_us > 0.0).then(|| busy_us / all_us)
    }

    /// CPU capacity of the machine, in µs per transaction: times the throughput, the number of its CPUs.
    pub fn cpu_capacity_us(&self) -> f64 {
        let all = [
            "machine.busy_us",
            "machine.idle_us",
            "machine.io_wait_us",
            "machine.steal_us",
        ];
        all.iter().filter_map(|name| self.counter(name)).sum()
    }

    /// A setting made by the study.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// A boolean setting made by the study; `None` if the study does not set it.
    pub fn is_on(&self, name: &str) -> Option<bool> {
        let value = self.setting(name)?.to_lowercase();
        Some(matches!(value.as_str(), "on" | "true" | "yes" | "1"))
    }

    /// Whether it is this version or later; `false` if the version is unknown.
    pub fn since(&self, major: u32) -> bool {
        self.major >= major
    }

    /// Whether it is this version or earlier; `false` if the version is unknown.
    pub fn until(&self, major: u32) -> bool {
        self.major > 0 && self.major <= major
    }
}

/// The reason for which the server waits for its client.
pub(super) const CLIENT: &str = "client";

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn major(version: &str) -> u32 {
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Blocked time that one of these readings of wait events stands for, if they divide it.
fn us_per_reading(rows: &[Row], blocked_by: Divider, readings: u64) -> f64 {
    let is_read = matches!(
        blocked_by,
        Divider::ActivityWaitEvents | Divider::MemoryWaitEvents
    );
    let is_blocked = |row: &&Row| match row.part {
        Part::Blocked | Part::Client | Part::Between => true,
        Part::Unexplained => row.nature != Nature::Service,
        _ => false,
    };
    if !is_read || readings == 0 {
        return 0.0;
    }
    rows.iter()
        .filter(is_blocked)
        .map(|row| row.us)
        .sum::<f64>()
        / readings as f64
}

/// Whether the server waits as it does for each statement: for the network, the wake-up, and the client's work on its
/// messages. It does not while the client thinks, waits for a CPU, or while its thread serves another client. If
/// nothing divides the wait (`client`), it may be any of these.
fn is_round_trip(row: &Row) -> bool {
    let is_think = row.nature == Nature::Think && row.mechanism != CLIENT;
    !is_think && !row.mechanism.ends_with("run queue") && row.mechanism != "client thread busy"
}

/// The blocked time of a ledger by reason; empty if nothing divides it.
fn blocked_of(rows: &[Row], blocked_by: Divider) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    if blocked_by == Divider::Nothing {
        return sums;
    }
    for row in rows {
        let reason = match row.part {
            Part::Client if is_round_trip(row) => CLIENT,
            Part::Blocked | Part::Client => row.mechanism.as_str(),
            _ => continue,
        };
        *sums.entry(reason.to_owned()).or_default() += row.us;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_neither_old_nor_new() {
        assert_eq!(
            [major("9.6.24"), major("10.23"), major("18beta1"), major("")],
            [9, 10, 18, 0]
        );
        let unknown = Evidence::default();
        assert!(!unknown.since(10) && !unknown.until(18));
    }

    #[test]
    fn utilization_comes_from_machine_counters() {
        let counters = [("machine.busy_us", 30.0), ("machine.idle_us", 10.0)];
        let evidence = Evidence {
            counters: counters.map(|(name, us)| (name.to_owned(), us)).into(),
            ..Evidence::default()
        };
        assert_eq!(evidence.cpu_utilization(), Some(0.75));
        assert_eq!(Evidence::default().cpu_utilization(), None);
        assert_eq!(
            evidence.first_counter(&["nosuch", "machine.idle_us"]),
            Some(10.0)
        );
    }
}
