//! Profiles a server on this machine: stack samples, exact CPU totals and transactions.

use std::collections::{BTreeMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pgassay_diagnosis::diagnose_observation;
use pgassay_lab::system_env::unix_us;
use pgassay_lab::waits::{WaitProbe, WaitSampler};
use pgassay_lab::watch::{LiveWatch, OwnTransactions, StackColumns};
use pgassay_lab::{Interrupt, Patience, ProfiledTrial, add_blocked, add_samples_by_column};
use pgassay_model::check::Check;
use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::profile::{Profile, ProfileBuilder};
use pgassay_profile::{
    Access, CpuLog, Limit, LiveServer, LoggedProcess, OffCpuConfig, ProcessList, ProcessSamples,
    ProcessTreeCpu, Role, Sampler, SamplerConfig, SamplerError, Samples, Selection, Tier,
};
use pgassay_record::observation::{self, Observation, SCHEMA};

use super::connection::{self, EndedTransactions, LocalConnection, lost_connection};
use super::overhead::{OverheadGuard, OverheadLimit};
use super::sessions::{SessionsToWatch, result_of, suspension, with_connections};
use crate::checks;

/// How often the server's processes and their CPU totals are read. What a process uses between the
/// last reading and its end is lost. A reading takes some tens of microseconds per process.
const READING_EVERY: Duration = Duration::from_millis(250);
/// With many processes, they are read less often: this long per process, for a cost of about 0.15% of a CPU.
const READING_EVERY_OF_EACH: Duration = Duration::from_millis(20);
/// Wait events read per second, for a cost of about 0.2% of a CPU. Samples divide exact totals, so the thousand of ten
/// seconds are enough.
const WAITS_PER_S_MAX: u32 = 100;

/// The processes to profile.
pub struct ProfiledProcesses {
    pub server: LiveServer,
    /// One backend of the server; all backends if `None`.
    pub backend_pid: Option<u32>,
}

/// The parameters of a profiling session.
pub struct ProfilingSession {
    pub subject: ProfiledProcesses,
    pub duration: Duration,
    /// What pgassay may use until it ends early.
    pub overhead_max: Option<OverheadLimit>,
    /// Samples per second of each busy CPU.
    pub frequency_hz: u32,
    /// Whether to also trace where backends are blocked.
    pub off_cpu: bool,
    /// The connection string, in case another connection is needed.
    pub dsn: Option<String>,
    /// Used to read the transaction count.
    pub connection: Option<LocalConnection>,
    /// Backends that serve pgassay's own connections, which are excluded.
    pub own_pids: Vec<u32>,
    /// Whether to keep the texts of statements.
    pub keeps_text: bool,
    /// An interrupt ends the waits for the server.
    pub patience: Patience,
}

/// What was gathered in the window.
struct Gathered {
    started_us: i64,
    /// Read while the server ran: it may have been stopped since.
    tier: Check,
    log: CpuLog,
    /// CPU time of ended processes that the log does not have.
    ended_cpu: Option<Duration>,
    samples: Option<Samples>,
    waits: Option<WaitSampler>,
    watch: Option<LiveWatch>,
    transactions: Option<u64>,
    /// Why something was not gathered.
    refusals: Vec<Check>,
}

impl ProfilingSession {
    /// Profiles until the time is over, the user interrupts it, or the process exits.
    pub fn observe(mut self, interrupt: &Interrupt) -> Result<Observation> {
        let tier = self.tier();
        let (sampler, no_stacks) = self.sampler()?;
        let dsn = self.dsn.as_deref();
        let connect = dsn.map(|dsn| || connection::patient_exchange(dsn, &self.patience));
        let (probe, no_waits) = WaitProbe::of(&self.subject.server, connect, true);
        if let (Some(sampler), Some(WaitProbe::Memory(reader))) = (&sampler, &probe) {
            sampler.watch_waits(self.subject.server.postmaster_pid, *reader)?;
        }
        self.own_pids
            .extend(probe.as_ref().and_then(WaitProbe::own_pid));
        let mut waits = probe.map(|probe| {
            WaitSampler::new(probe, self.frequency_hz).with_reads_per_s_max(WAITS_PER_S_MAX)
        });
        let (mut watch, no_sessions) = self.watch();
        self.own_pids
            .extend(watch.iter().flat_map(LiveWatch::own_pids));
        if self.connection.as_ref().is_some_and(|it| it.is_pooled) {
            self.own_pids.clear();
        }
        let own = self.own_transactions(watch.as_mut(), waits.as_ref());
        self.settle(watch.as_mut(), waits.as_ref(), interrupt)?;
        let mut log = CpuLog::default();
        let started_us = unix_us();
        let before = self.transactions(&own)?;
        if let Some(sampler) = &sampler {
            sampler.start()?;
        }
        interrupt.take_suspended();
        let readers = (waits.as_mut(), watch.as_mut());
        let (ended_cpu, incomplete) = self.gather(&mut log, readers, interrupt)?;
        let samples = sampler.as_ref().map(Sampler::stop).transpose()?;
        let (after, no_count) = self.transactions_at_end(&own);
        if log.processes().is_empty() {
            bail!(
                "cannot read any process of the server with postmaster {}",
                self.subject.server.postmaster_pid
            );
        }
        let pause = suspension(interrupt);
        let refusals = [no_stacks, no_waits, no_sessions, no_count, pause];
        Ok(self.describe(Gathered {
            started_us,
            tier,
            log,
            ended_cpu,
            samples,
            waits,
            watch,
            transactions: before
                .zip(after)
                .map(|(before, after)| before.others_until(after)),
            refusals: incomplete.into_iter().chain(refusals).flatten().collect(),
        }))
    }

    /// Reads until the time is over, or it ends early. Returns as [`Self::keep_reading`], and why it ended early.
    fn gather(
        &self,
        log: &mut CpuLog,
        (waits, watch): (Option<&mut WaitSampler>, Option<&mut LiveWatch>),
        interrupt: &Interrupt,
    ) -> Result<(Option<Duration>, [Option<Check>; 2])> {
        let own_pids = || self.own_pids.iter().copied();
        let limit = self.overhead_max;
        let mut guard = limit.map(|it| OverheadGuard::new(it, own_pids()));
        let begun = Instant::now();
        let until = begun + self.duration;
        let (gathered, exceeded) = OverheadGuard::run(guard.as_mut(), interrupt, |ending| {
            thread::scope(|scope| {
                let watching = watch.map(|watch| {
                    thread::Builder::new().spawn_scoped(scope, || watch.run_until(until, ending))
                });
                let ended_cpu = self.keep_reading(log, waits, until, ending);
                (ended_cpu, watching.and_then(result_of))
            })
        })?;
        let (ended_cpu, incomplete) = gathered;
        let exceeded = exceeded.map(|it| it.limitation(begun.elapsed(), self.duration));
        Ok((ended_cpu, [exceeded, incomplete]))
    }

    /// The observation, with its findings.
    fn describe(&self, gathered: Gathered) -> Observation {
        let Gathered {
            log,
            ended_cpu,
            samples,
            ..
        } = gathered;
        let subject = &self.subject;
        let (ours, others): (Vec<_>, Vec<_>) = log
            .processes()
            .iter()
            .filter(|process| !self.is_own(process.pid))
            .partition(|process| subject.includes(process.pid, &process.role));
        let major = subject.server.major.as_deref().unwrap_or_default();
        let pids = ProfiledPids {
            ours: ours.iter().filter_map(|it| it.pid).collect(),
            others: others
                .iter()
                .filter_map(|it| it.pid)
                .chain(self.own_pids.iter().copied())
                .collect(),
            is_complete: log.processes().iter().all(|it| it.pid.is_some()),
        };
        let watched = gathered
            .watch
            .map(|watch| watch.finish_with(samples.as_ref(), |pid| pids.has(pid)));
        let (activity, columns) = watched.unzip();
        let connections = self.connections(gathered.waits.as_ref());
        let columns = columns.flatten().unwrap_or_default();
        let mut observation = Observation {
            schema: SCHEMA.to_owned(),
            pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_us: gathered.started_us,
            window_us: log.window().as_secs_f64() * 1e6,
            frequency_hz: self.frequency_hz,
            subject: observation::Subject {
                postmaster_pid: Some(subject.server.postmaster_pid),
                address: None,
                backend_pid: subject.backend_pid,
                major: subject.server.major.clone(),
            },
            transactions: gathered.transactions,
            backends: Some(total(&ours)),
            sessions: ours.iter().map(|it| it.processes).sum(),
            backends_present_us: ours.iter().map(|it| it.present.as_secs_f64() * 1e6).sum(),
            ended_cpu_us: ended_cpu.map(|it| it.as_secs_f64() * 1e6),
            background: background(subject, &others),
            waits: gathered
                .waits
                .map(|waits| waits.finish(subject.server.major.as_deref())),
            tier: Some(gathered.tier),
            limitations: {
                let mut all = limits(subject, samples.as_ref(), gathered.refusals, &columns);
                all.extend(ended_processes(&log, ended_cpu));
                all
            },
            profile: samples.map(|samples| {
                let selection = samples.select(|it| pids.has_sampled(it, subject));
                profile(&samples, &selection, &pids, major, &columns)
            }),
            activity: activity.map(|it| with_connections(it, connections)),
            findings: Vec::new(),
        };
        connection::discard_incomplete_count(&mut observation);
        connection::leave_out_autovacuum(&mut observation);
        connection::note_workers(&mut observation);
        observation.findings = diagnose_observation(&observation);
        observation
    }

    /// Connections that are held in addition to those of the watch.
    fn connections(&self, waits: Option<&WaitSampler>) -> u32 {
        waits.map_or(0, WaitSampler::connections) + u32::from(self.connection.is_some())
    }

    /// The watch of all sessions; none for a single backend, or without a connection.
    fn watch(&self) -> (Option<LiveWatch>, Option<Check>) {
        let dsn = self.dsn.as_deref();
        match dsn.filter(|_| self.subject.backend_pid.is_none()) {
            None => (None, None),
            Some(dsn) => {
                SessionsToWatch::local(dsn, self.keeps_text, &self.own_pids, &self.patience)
                    .open(Some(self.subject.server.clone()))
            }
        }
    }

    /// The access tier for this server, and how to reach the next one.
    fn tier(&self) -> Check {
        let access = Access::to_server(self.subject.server.postmaster_pid);
        let tier = checks::tier(&access);
        if access.tier < Tier::T3 || self.off_cpu {
            return tier;
        }
        Check {
            limitation: Some("context switches are traced only on request".to_owned()),
            fix: Some("--off-cpu".to_owned()),
            ..tier
        }
    }

    /// A sampler, or the reason why none can be opened.
    fn sampler(&self) -> Result<(Option<Sampler>, Option<Check>)> {
        let config = SamplerConfig {
            postmaster_pids: vec![self.subject.server.postmaster_pid],
            frequency_hz: self.frequency_hz,
            off_cpu: self.off_cpu.then(|| OffCpuConfig {
                // What a process waits for is a sum; single intervals would take 26 MB in a long profile.
                intervals_max: 0,
                ..OffCpuConfig::default()
            }),
            // To divide them among statements.
            keeps_moments: self.dsn.is_some(),
            ..SamplerConfig::default()
        };
        match Sampler::open(&config) {
            Ok(sampler) => Ok((Some(sampler), None)),
            Err(SamplerError::NotPermitted(refusal)) => {
                let check = Check {
                    name: "stacks".to_owned(),
                    value: "none".to_owned(),
                    limitation: Some(format!("{}: {}", refusal.what, refusal.why)),
                    fix: Some(refusal.commands.join("  or  ")),
                };
                Ok((None, Some(check)))
            }
            Err(error @ SamplerError::Unsupported { .. }) => {
                let check = Check {
                    name: "stacks".to_owned(),
                    value: "none".to_owned(),
                    limitation: Some(error.to_string()),
                    fix: None,
                };
                Ok((None, Some(check)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads CPU totals at intervals and samples the backends' waits in between. Returns the CPU time that processes
    /// which ended used after their last reading: of a connection that lasts a moment, all of it.
    fn keep_reading(
        &self,
        log: &mut CpuLog,
        mut waits: Option<&mut WaitSampler>,
        until: Instant,
        interrupt: &Interrupt,
    ) -> Option<Duration> {
        let server = &self.subject.server;
        let ended_children = || ProcessTreeCpu::of_ended_children(server.postmaster_pid).ok();
        let mut processes = ProcessList::of_server(server);
        log.read(&processes.read());
        // After the first reading and before each later one: what ends in between counts as read.
        let before = ended_children();
        loop {
            let ended = ended_children();
            log.read(&processes.read());
            let is_over = Instant::now() >= until;
            if is_over || interrupt.check().is_err() || !server.is_there() {
                let used_ns = ended?.since_ns(before?);
                return Some(Duration::from_nanos(log.unread_of_ended_ns(used_ns)));
            }
            let next = until.min(Instant::now() + reading_every(log));
            match &mut waits {
                Some(waits) => {
                    let present = log.present().filter(|process| self.is_ours(process));
                    let pids: Vec<u32> = present.filter_map(|process| process.pid).collect();
                    waits.sample(&pids, next, interrupt);
                }
                None => interrupt.sleep_until(next),
            }
        }
    }

    fn is_ours(&self, process: &LoggedProcess) -> bool {
        !self.is_own(process.pid) && self.subject.includes(process.pid, &process.role)
    }

    /// A backend that serves pgassay.
    fn is_own(&self, pid: Option<u32>) -> bool {
        pid.is_some_and(|pid| self.own_pids.contains(&pid))
    }

    /// Transactions on pgassay's other connections, which `watch` leaves out with those of this one.
    fn own_transactions(
        &self,
        watch: Option<&mut LiveWatch>,
        waits: Option<&WaitSampler>,
    ) -> Vec<OwnTransactions> {
        let mut own: Vec<_> = waits
            .and_then(WaitSampler::own_transactions)
            .into_iter()
            .collect();
        if let Some(watch) = watch {
            let counting = self.connection.iter().map(|it| &it.counter.own);
            for own in own.iter().chain(counting) {
                watch.leave_out_transactions(own);
            }
            own.extend(watch.own_transactions());
        }
        own
    }

    /// See [`connection::TransactionCounter::settle`].
    fn settle(
        &mut self,
        watch: Option<&mut LiveWatch>,
        waits: Option<&WaitSampler>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if self.subject.backend_pid.is_some() {
            return Ok(());
        }
        let report = || {
            waits.map_or(Ok(()), WaitSampler::report_transactions)?;
            watch.map_or(Ok(()), LiveWatch::report_transactions)
        };
        let LocalConnection {
            exchange, counter, ..
        } = connection;
        counter.settle(exchange, interrupt, report)
    }

    /// As [`Self::transactions`]; without a connection any more, the reason instead: what was seen remains.
    fn transactions_at_end(
        &mut self,
        own: &[OwnTransactions],
    ) -> (Option<EndedTransactions>, Option<Check>) {
        match self.transactions(own) {
            Ok(transactions) => (transactions, None),
            Err(error) => (None, Some(lost_connection(&error))),
        }
    }

    /// Transactions ended so far; `None` for a single backend: the statistics do not list transactions per backend.
    fn transactions(&mut self, own: &[OwnTransactions]) -> Result<Option<EndedTransactions>> {
        match &mut self.connection {
            Some(LocalConnection {
                exchange, counter, ..
            }) if self.subject.backend_pid.is_none() => Ok(Some(counter.read(exchange, own)?)),
            _ => Ok(None),
        }
    }
}

/// The PIDs of processes that were read.
struct ProfiledPids {
    ours: HashSet<u32>,
    /// Of background processes, and backends that serve pgassay.
    others: HashSet<u32>,
    /// None is missing: with very many processes, those that have ended are added up.
    is_complete: bool,
}

impl ProfiledPids {
    /// Whether the samples of this PID are of a profiled process, as far as is known.
    fn has(&self, pid: u32) -> bool {
        self.ours.contains(&pid) || !(self.is_complete || self.others.contains(&pid))
    }

    /// Whether these samples are of a profiled process.
    fn has_sampled(&self, process: &ProcessSamples, subject: &ProfiledProcesses) -> bool {
        match process.pid {
            Some(pid) if self.is_complete => self.ours.contains(&pid),
            Some(pid) if self.others.contains(&pid) => false,
            Some(pid) if self.ours.contains(&pid) => true,
            pid => subject.includes(pid, &process.role),
        }
    }
}

/// The time between two readings of the processes.
fn reading_every(log: &CpuLog) -> Duration {
    let of_all = READING_EVERY_OF_EACH * log.present().count() as u32;
    READING_EVERY.max(of_all)
}

impl ProfiledProcesses {
    /// Whether the process is a profiled backend or a parallel worker of one.
    fn includes(&self, process: Option<u32>, role: &Role) -> bool {
        match (self.backend_pid, role) {
            (None, role) => matches!(role, Role::Backend | Role::ParallelWorker { .. }),
            (Some(pid), Role::ParallelWorker { leader_pid }) => {
                *leader_pid == Some(pid) || process == Some(pid)
            }
            (Some(pid), _) => process == Some(pid),
        }
    }
}

fn total(processes: &[&LoggedProcess]) -> CpuTotals {
    let sum_us =
        |of: fn(&LoggedProcess) -> u64| processes.iter().map(|it| of(it) as f64 / 1e3).sum::<f64>();
    CpuTotals {
        on_cpu_us: sum_us(|it| it.used.on_cpu_ns),
        run_queue_us: sum_us(|it| it.used.run_queue_ns),
        processes: processes.iter().map(|it| it.processes).sum(),
    }
}

/// CPU totals of the server's background processes, by role. Other backends are not background.
fn background(subject: &ProfiledProcesses, others: &[&LoggedProcess]) -> Vec<Background> {
    if subject.backend_pid.is_some() {
        return Vec::new();
    }
    let mut by_role: BTreeMap<String, Vec<&LoggedProcess>> = BTreeMap::new();
    for process in others {
        let role = process.role.to_string();
        by_role.entry(role).or_default().push(process);
    }
    let mut background: Vec<Background> = by_role
        .into_iter()
        .map(|(role, processes)| Background {
            role,
            cpu: total(&processes),
        })
        .collect();
    background.sort_by(|a, b| b.cpu.on_cpu_us.total_cmp(&a.cpu.on_cpu_us));
    background
}

/// The stacks, with a column for each statement that has one, and a last one for the rest.
fn profile(
    samples: &Samples,
    selection: &Selection<'_>,
    pids: &ProfiledPids,
    major: &str,
    columns: &StackColumns,
) -> Profile {
    let mut builder = ProfileBuilder::new(columns.len());
    add_samples_by_column(&mut builder, columns, samples, selection);
    let backend_pids: Vec<u32> = pids.ours.iter().copied().collect();
    let watched = ProfiledTrial {
        samples,
        backend_pids: &backend_pids,
        major,
        window: None,
    };
    add_blocked(&mut builder, columns.len() - 1, &watched);
    builder.finish()
}

fn limits(
    subject: &ProfiledProcesses,
    samples: Option<&Samples>,
    refusals: Vec<Check>,
    columns: &StackColumns,
) -> Vec<Check> {
    let mut limits = refusals;
    let of_samples = samples.map(Samples::limits).unwrap_or_default();
    limits.extend(of_samples.into_iter().map(|limit: Limit| Check {
        name: limit.condition.to_owned(),
        value: limit.effect.clone(),
        limitation: Some(limit.effect),
        fix: limit.fix.map(|fix| match &subject.server.major {
            Some(major) => fix.replace("postgresql-NN-", &format!("postgresql-{major}-")),
            None => fix,
        }),
    }));
    let mut add = |name: &str, value: &str, effect: String| {
        limits.push(Check {
            name: name.to_owned(),
            value: value.to_owned(),
            limitation: Some(effect),
            fix: None,
        });
    };
    if subject.server.major.is_none() {
        let effect = "cannot read the data directory, so the server version is unknown; functions \
                      are classified as in the newest version";
        add("version", "unknown", effect.to_owned());
    }
    if columns.total > columns.exact || columns.is_part {
        let share = 100.0 * columns.exact as f64 / columns.total.max(1) as f64;
        let estimated = 100.0 - share;
        let rest = if columns.is_part {
            ". Only samples of a part of the time were kept singly; the others are divided as those"
        } else {
            ""
        };
        let effect = format!(
            "CPU samples are assigned to statements by estimate ({estimated:.0}% of them): they are divided among the \
             statements of their session in proportion to their CPU time{rest}"
        );
        add("stacks by statement", &format!("{share:.0}%"), effect);
    }
    limits
}

/// What is missing of the processes that ended.
fn ended_processes(log: &CpuLog, ended_cpu: Option<Duration>) -> Option<Check> {
    if log.ended() == 0 && ended_cpu.is_none_or(|it| it.is_zero()) {
        return None;
    }
    let missing = match ended_cpu {
        Some(cpu) => format!(
            "{:.1} s of CPU time, after their last samples, belong to no statement and no function",
            cpu.as_secs_f64()
        ),
        None => format!(
            "up to {} ms of CPU time before each exit is missing",
            reading_every(log).as_millis()
        ),
    };
    Some(Check {
        name: "number of ended processes".to_owned(),
        value: log.ended().to_string(),
        limitation: Some(missing),
        fix: None,
    })
}
