//! The checks of one point's ledger: each exact input against a second figure.
//!
//! | input | second figure |
//! |---|---|
//! | window, transactions | the latencies' histogram, the clients' clock, the rate of the whole run |
//! | all transactions of a run | the rate in the window |
//! | on-CPU time | the processes' CPU clocks; samples; context switches; the machine's idle time |
//! | run queue | context switches; the client's own time waiting for the server |
//! | time in statements, waiting for the client | the server's clock; the client's own times |
//! | the client's CPU time | its process's clock |
//!
//! Figures are summed over all trials of a kind before they are divided, so that short trials do not
//! get too much weight.

use pgassay_model::trial::{CrossCheckReadings, LatencyError, Trial, TrialKind};

use super::account::ClientParts;
use super::consistency::{CheckName, ConsistencyCheck};
use super::divider::Divider;
use super::measurements::{BlockFigures, PointMeasurements, exact_totals, mean, of_kind};
use super::reason_sources::ReasonSources;
use super::row::{Part, Row};
use super::{COVERAGE_ERROR_MAX, LedgerChecks, SAMPLES_ERROR_MAX};

/// Share of the machine's time, beyond CPU steal, that no process may account for.
const MACHINE_ERROR_MAX: f64 = 0.05;
/// The rates in the window and of the whole run may differ by this share: a run starts with warm-up.
const RATE_ERROR_MAX: f64 = 0.25;
/// The clients' time and backends × window may differ by this share.
const CLIENT_CLOCK_ERROR_MAX: f64 = 0.02;
/// On-CPU time by `schedstat` and by CPU clocks may differ by this share: `schedstat` may lag by a tick.
const CLOCK_ERROR_MAX: f64 = 0.03;
/// CPU time and run-queue time per transaction may differ by these shares between timed and profiled
/// trials, and be higher by the profiling overhead.
const PROFILED_CPU_ERROR_MAX: f64 = 0.15;
const PROFILED_RUN_QUEUE_ERROR_MAX: f64 = 0.4;
/// This share of the CPU stacks may not be unwound to the entry of the process. Of 376 profiles of stored
/// studies, 373 had at most 4%, and the others, with JIT code or deeper stacks than are copied, 9% to 14%.
const NOT_UNWOUND_MAX: f64 = 0.05;
/// Slices of context switches are few and short, so their shares vary widely. Recording takes time at each
/// switch, so slices see less than there is: of 54 points, 4% to 37% less CPU time, and up to 49% less run
/// queue with 8 or 64 clients (one point was beyond the limit).
const SWITCHES_CPU_ERROR_MAX: f64 = 0.4;
const SWITCHES_RUN_QUEUE_ERROR_MAX: f64 = 0.45;
/// They may see this much more. Half the time in slices must be noticed although they see less.
const SWITCHES_MORE_MAX: f64 = 0.25;
/// By chance, run-queue time of one backend in slices may differ by this share of all time: a single
/// preemption lasts for many transactions.
const SLICES_CHANCE: f64 = 0.1;
/// Profiled trials may have this much more or less run-queue time, as a share of all time: the profiler
/// also needs a CPU.
const PROFILER_RUN_QUEUE: f64 = 0.1;
/// An idle CPU that is woken is busy for this long before and after the process that runs: interrupt, timer,
/// leaving and entering the idle loop. Measured with one client: 1.6 to 2.2 µs (27 points, virtual machine).
const IDLE_WAKE_US: f64 = 2.5;
/// CPU time of the load generator's threads and process may differ by this share …
const CLIENT_CPU_ERROR_MAX: f64 = 0.15;
/// … plus the cost of reading `/proc`.
const READING_US: f64 = 2_000.0;
/// The server's clock and the client's times may differ from the rows by this share of the whole, plus
/// [`super::account::Exact::overlap_us`].
const ACCOUNT_ERROR_MAX: f64 = 0.05;
/// Profiling overhead may be this share of the throughput.
const OVERHEAD_MAX: f64 = 0.3;
/// The load generator may be the bottleneck in this share of the trials.
const CLIENT_LIMITED_MAX: f64 = 0.1;
/// If most of a transaction is think time, the bound on its response time is widened up to this.
const WHOLE_OVER_LATENCY_MAX: f64 = 5.0;

/// The parts of a ledger that checks need.
pub(super) struct LedgerInputs<'a> {
    pub measured: &'a PointMeasurements<'a>,
    pub blocks: &'a [BlockFigures],
    pub rows: &'a [Row],
    pub blocked_by: Divider,
    /// How long the server waited for its client according to the server (see
    /// [`super::account::server_waits_for_client_us`]), averaged over the blocks.
    pub server_waits_us: Option<f64>,
    /// The sources of the reasons of blocking, if there are two.
    pub reasons: Option<&'a ReasonSources>,
}

/// Sums over the trials of one kind.
#[derive(Default)]
struct TrialSums {
    trials: f64,
    transactions: f64,
    credited: f64,
    all: f64,
    recorded: f64,
    window_us: f64,
    backends_us: f64,
    on_cpu_us: f64,
    run_queue_us: f64,
    client_us: f64,
    client_cpu_us: f64,
}

impl TrialSums {
    fn of(measured: &PointMeasurements<'_>, kind: TrialKind) -> Result<Self, LatencyError> {
        let mut sums = Self::default();
        for trial in of_kind(measured, kind) {
            let server = exact_totals(trial).unwrap_or_default();
            sums.trials += 1.0;
            sums.transactions += trial.transactions as f64;
            sums.credited += trial.credited_or_counted();
            sums.all += trial.transactions_total as f64;
            sums.recorded += trial.latency.histogram()?.len() as f64;
            sums.window_us += trial.window_us;
            sums.backends_us += f64::from(server.processes) * trial.window_us;
            sums.on_cpu_us += server.on_cpu_us;
            sums.run_queue_us += server.run_queue_us;
            sums.client_us += trial.client.total_us();
            sums.client_cpu_us += trial.client.cpu_us;
        }
        Ok(sums)
    }

    /// A total of the backends as a share of their time. Totals are of whole trials, which begin with warm-up.
    fn share_in_window(&self, total_us: f64) -> f64 {
        total_us * (self.credited / self.all) / self.backends_us
    }
}

/// All checks for which this point's trials have figures.
pub(super) fn consistency(
    side: &LedgerInputs<'_>,
    checks: &LedgerChecks,
) -> Result<Vec<ConsistencyCheck>, LatencyError> {
    let timed = TrialSums::of(side.measured, TrialKind::Timed)?;
    let profiled = TrialSums::of(side.measured, TrialKind::Profiled)?;
    let is_divided = !matches!(side.blocked_by, Divider::Nothing | Divider::ActivityStates);
    let mut all = vec![
        ConsistencyCheck::new(
            CheckName::Attribution,
            f64::from(u8::from(!is_divided)),
            0.0,
        ),
        coverage(side, checks),
        ConsistencyCheck::compare(CheckName::Count, timed.transactions, timed.recorded, 0.01),
        ConsistencyCheck::new(
            CheckName::ClientLimited,
            checks.client_limited,
            CLIENT_LIMITED_MAX,
        ),
    ];
    all.extend(rate(side.measured, &timed, checks));
    if timed.backends_us > 0.0 {
        let (first, second) = (timed.backends_us, timed.client_us);
        let bound = CLIENT_CLOCK_ERROR_MAX;
        let check = ConsistencyCheck::compare(CheckName::ClientClock, first, second, bound);
        all.push(check);
    }
    all.extend(cpu_clock(side.measured, &timed));
    all.extend(machine(side.measured, &timed, checks));
    all.extend(client_cpu(side.measured, &timed));
    all.extend(of_profiled(side.measured, &timed, &profiled, checks));
    all.extend(unwound(side.measured));
    all.extend(side.reasons.and_then(ReasonSources::check));
    all.extend(server_clock(side));
    all.extend(client_account(side));
    Ok(all)
}

fn part_us(rows: &[Row], parts: &[Part]) -> f64 {
    let of_parts = rows.iter().filter(|row| parts.contains(&row.part));
    of_parts.map(|row| row.us).sum()
}

fn over(blocks: &[BlockFigures], of: impl Fn(&BlockFigures) -> f64) -> f64 {
    mean(blocks.iter().map(of)).unwrap_or(0.0)
}

fn coverage(side: &LedgerInputs<'_>, checks: &LedgerChecks) -> ConsistencyCheck {
    let whole_us: f64 = side.rows.iter().map(|row| row.us).sum();
    let response_us = whole_us - part_us(side.rows, &[Part::Between]);
    let latency_us = over(side.blocks, BlockFigures::response_us);
    // The error of the rows is a share of the whole, which includes think time.
    let widened = (whole_us / latency_us.max(f64::MIN_POSITIVE)).clamp(1.0, WHOLE_OVER_LATENCY_MAX);
    let bound = (COVERAGE_ERROR_MAX + checks.edge) * widened;
    ConsistencyCheck::compare(CheckName::Coverage, latency_us, response_us, bound)
}

/// The sum of a second reading over the timed trials; `None` if any lacks it.
fn second(
    measured: &PointMeasurements<'_>,
    of: fn(&CrossCheckReadings) -> Option<f64>,
) -> Option<f64> {
    let readings = of_kind(measured, TrialKind::Timed);
    let readings = readings.map(|trial| trial.cross_checks.as_ref().and_then(of));
    readings.sum::<Option<f64>>().filter(|sum| *sum > 0.0)
}

fn rate(
    measured: &PointMeasurements<'_>,
    timed: &TrialSums,
    checks: &LedgerChecks,
) -> Option<ConsistencyCheck> {
    let run_us = second(measured, |it| it.run_us)?;
    let in_window = timed.credited / timed.window_us;
    let bound = RATE_ERROR_MAX + checks.edge;
    Some(ConsistencyCheck::compare(
        CheckName::Rate,
        in_window,
        timed.all / run_us,
        bound,
    ))
}

fn cpu_clock(measured: &PointMeasurements<'_>, timed: &TrialSums) -> Option<ConsistencyCheck> {
    let clock_us = second(measured, |it| it.backends_clock_us)?;
    let (name, bound) = (CheckName::CpuClock, CLOCK_ERROR_MAX);
    Some(ConsistencyCheck::compare(
        name,
        timed.on_cpu_us,
        clock_us,
        bound,
    ))
}

/// Computed from the machine's idle time and the processes' CPU time if the machine's total time was
/// recorded; otherwise from the figure that each trial computed.
fn machine(
    measured: &PointMeasurements<'_>,
    timed: &TrialSums,
    checks: &LedgerChecks,
) -> Option<ConsistencyCheck> {
    let bound = MACHINE_ERROR_MAX + checks.cpu_steal + idle_wakes(measured).unwrap_or(0.0);
    let check = |error: f64| ConsistencyCheck::new(CheckName::Machine, error, bound);
    let machine_us = second(measured, |it| it.machine_us);
    let client_us = second(measured, |it| it.client_process_us);
    let Some((machine_us, client_us)) = machine_us.zip(client_us) else {
        return checks.machine_error.map(check);
    };
    let (mut used_us, mut background_us) = (0.0, 0.0);
    for trial in of_kind(measured, TrialKind::Timed) {
        let of_machine = trial
            .cross_checks
            .and_then(|it| it.machine_us)
            .unwrap_or(0.0);
        used_us += of_machine * (trial.cpu_utilization - trial.other_programs);
        let roles = trial.background.iter();
        background_us += roles.map(|it| it.cpu.on_cpu_us).sum::<f64>();
        background_us += trial.cross_checks.map_or(0.0, |it| it.reading_us);
    }
    let named_us = timed.on_cpu_us + client_us + background_us;
    Some(check((used_us - named_us) / machine_us))
}

/// The time that waking idle CPUs may take, as a share of the machine's time: a request wakes a backend, and
/// its reply the client. The fewer CPUs are idle, the fewer are woken.
fn idle_wakes(measured: &PointMeasurements<'_>) -> Option<f64> {
    let machine_us = second(measured, |it| it.machine_us)?;
    let wakes_us = of_kind(measured, TrialKind::Timed).map(|trial| {
        let wakes = 2.0 * trial.counters.get("backends.voluntary_switches")?;
        let idle_share = (1.0 - trial.cpu_utilization).clamp(0.0, 0.5);
        Some(wakes * 2.0 * idle_share * IDLE_WAKE_US)
    });
    Some(wakes_us.sum::<Option<f64>>()? / machine_us)
}

fn client_cpu(measured: &PointMeasurements<'_>, timed: &TrialSums) -> Option<ConsistencyCheck> {
    let process_us = second(measured, |it| it.client_process_us)?;
    let reading_us = READING_US * timed.trials;
    let bound = CLIENT_CPU_ERROR_MAX + reading_us / timed.client_cpu_us.max(process_us);
    let name = CheckName::ClientCpu;
    let check = ConsistencyCheck::compare(name, timed.client_cpu_us, process_us, bound);
    Some(check).filter(ConsistencyCheck::is_second_source)
}

/// Checks of samples, context switches and costs of profiled trials.
fn of_profiled(
    measured: &PointMeasurements<'_>,
    timed: &TrialSums,
    profiled: &TrialSums,
    checks: &LedgerChecks,
) -> Vec<ConsistencyCheck> {
    let mut all = Vec::new();
    if let Some(error) = checks.samples_error {
        let bound = SAMPLES_ERROR_MAX + checks.samples_chance;
        all.push(ConsistencyCheck::new(CheckName::Samples, error, bound));
    }
    let Some(ratio) = checks.profiled_tps_ratio.filter(|it| *it > 0.0) else {
        return all;
    };
    let overhead = (1.0 - ratio).max(0.0);
    all.push(ConsistencyCheck::new(
        CheckName::ProfilingOverhead,
        overhead,
        OVERHEAD_MAX,
    ));
    if profiled.on_cpu_us <= 0.0 || timed.on_cpu_us <= 0.0 {
        return all;
    }
    let slower = 1.0 / ratio.min(1.0) - 1.0;
    let mut per_transaction = |name, of: fn(&TrialSums) -> f64, limit: f64| {
        let (first, second) = (of(timed) / timed.all, of(profiled) / profiled.all);
        // Profiling makes transactions longer, not shorter.
        let limit = if second > first {
            limit + slower
        } else {
            limit
        };
        all.push(ConsistencyCheck::compare(name, first, second, limit));
    };
    let on_cpu_us = |it: &TrialSums| it.on_cpu_us;
    per_transaction(CheckName::ProfiledCpu, on_cpu_us, PROFILED_CPU_ERROR_MAX);
    let quality = measured.profile.map(|it| it.quality).unwrap_or_default();
    let observed_ns = quality.observed_ns.saturating_sub(quality.unknown_state_ns) as f64;
    if observed_ns <= 0.0 || quality.switched_cpu_ns == 0 {
        return all;
    }
    let timed_share = timed.share_in_window(timed.run_queue_us);
    let share = profiled.share_in_window(profiled.run_queue_us);
    if run_queue_is_checked(timed_share, share, PROFILER_RUN_QUEUE) {
        let run_queue_us = |it: &TrialSums| it.run_queue_us;
        let name = CheckName::ProfiledRunQueue;
        per_transaction(name, run_queue_us, PROFILED_RUN_QUEUE_ERROR_MAX);
    }
    let mut switches = |name, share: f64, seen_share: f64, less_max: f64| {
        let limit = if seen_share > share {
            SWITCHES_MORE_MAX
        } else {
            less_max
        };
        all.push(ConsistencyCheck::compare(name, share, seen_share, limit));
    };
    let seen_share = quality.switched_run_queue_ns as f64 / observed_ns;
    let backends = profiled.backends_us / profiled.window_us;
    if run_queue_is_checked(share, seen_share, SLICES_CHANCE / backends.sqrt()) {
        let (name, limit) = (CheckName::SwitchesRunQueue, SWITCHES_RUN_QUEUE_ERROR_MAX);
        switches(name, share, seen_share, limit);
    }
    let share = profiled.share_in_window(profiled.on_cpu_us);
    let seen_share = quality.switched_cpu_ns as f64 / observed_ns;
    let (name, limit) = (CheckName::SwitchesCpu, SWITCHES_CPU_ERROR_MAX);
    switches(name, share, seen_share, limit);
    all
}

/// Stacks that are incomplete, be it that they were deeper than what was copied, that the code has no
/// unwind information, or that there was none in user space. Lost samples fail [`CheckName::Samples`].
fn unwound(measured: &PointMeasurements<'_>) -> Option<ConsistencyCheck> {
    let quality = measured.profile?.quality;
    let samples = quality.samples as f64;
    if quality.samples == 0 {
        return None;
    }
    let share = 1.0 - quality.unwound_to_entry as f64 / samples;
    let sd = (NOT_UNWOUND_MAX * (1.0 - NOT_UNWOUND_MAX) / samples).sqrt();
    let bound = NOT_UNWOUND_MAX + 2.0 * sd;
    Some(ConsistencyCheck::new(CheckName::Unwound, share, bound))
}

/// Whether two shares of run-queue time can be compared, though they may differ by this much anyway: they
/// do differ by more, or they are so large that the allowance would hide no factor of 2.
fn run_queue_is_checked(first: f64, second: f64, allowance: f64) -> bool {
    (second - first).abs() > allowance || allowance <= SWITCHES_RUN_QUEUE_ERROR_MAX * first
}

/// A counter's sum over the timed trials that have it, and their transactions.
fn counters(measured: &PointMeasurements<'_>, name: &str) -> (f64, f64) {
    let figure = |trial: &Trial| Some((trial.counters.get(name)?, trial.transactions_total as f64));
    let figures = of_kind(measured, TrialKind::Timed).filter_map(figure);
    figures.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
}

fn account_bound(side: &LedgerInputs<'_>, whole_us: f64) -> f64 {
    ACCOUNT_ERROR_MAX + over(side.blocks, |it| it.exact.overlap_us) / whole_us
}

fn server_clock(side: &LedgerInputs<'_>) -> Option<ConsistencyCheck> {
    let (active_ms, all) = counters(side.measured, "pg_stat_database.active_time");
    // If this clock divides the time, it cannot check itself.
    let divides = side.blocks.iter().any(|it| it.exact.idle_us.is_some());
    if all <= 0.0 || divides {
        return None;
    }
    let active_us = active_ms * 1e3 / all;
    let blocked_us = part_us(side.rows, &[Part::Blocked]);
    let used_us = part_us(side.rows, &[Part::OnCpu, Part::RunQueue, Part::Running]);
    let most_us = blocked_us + used_us + part_us(side.rows, &[Part::Unexplained]);
    let whole_us: f64 = side.rows.iter().map(|row| row.us).sum();
    let outside_us = (active_us - most_us).max(0.0) - (blocked_us - active_us).max(0.0);
    Some(ConsistencyCheck::new(
        CheckName::ServerClock,
        outside_us / whole_us,
        account_bound(side, whole_us),
    ))
}

/// The clients' times have a range, since it is unknown when replies arrived: the error is the distance
/// from its middle, and half of it widens the bound. One-sided if `thread_busy_us` was not measured: it
/// can be nearly all of the time.
fn client_account(side: &LedgerInputs<'_>) -> Option<ConsistencyCheck> {
    let clients = side.blocks.iter().map(|it| it.exact.client);
    let clients: Vec<ClientParts> = clients.collect::<Option<_>>()?;
    let half_range_us = mean(clients.iter().map(|it| it.possible_us() / 2.0))?;
    let accounted_us = mean(clients.iter().map(ClientParts::accounted_us))? + half_range_us;
    let has_turn = side.measures_thread_busy();
    let whole_us = over(side.blocks, |it| it.exact.whole_us);
    let left_us = side.server_waits_us? - accounted_us;
    let error = if has_turn { left_us } else { left_us.min(0.0) } / whole_us;
    let bound = account_bound(side, whole_us) + half_range_us / whole_us;
    Some(ConsistencyCheck::new(
        CheckName::ClientAccount,
        error,
        bound,
    ))
}

impl LedgerInputs<'_> {
    /// Whether the load generator measured how long ready clients waited for their thread.
    pub fn measures_thread_busy(&self) -> bool {
        let has_turn = |it: &BlockFigures| {
            it.exact
                .client
                .is_some_and(|it| it.thread_busy_us.is_some())
        };
        !self.blocks.is_empty() && self.blocks.iter().all(has_turn)
    }

    /// The figures that reports print with every ledger.
    pub fn figures(&self) -> LedgerChecks {
        let blocks = self.blocks;
        let between_us =
            |it: &BlockFigures| it.exact.client.map_or(0.0, |client| client.between_us);
        let clients_us = over(blocks, |it| it.response_us() + between_us(it));
        let little = |it: &BlockFigures| {
            let in_flight = it.throughput * (it.response_us() + between_us(it));
            (it.backends - in_flight).abs() / it.backends
        };
        let sum_us: f64 = self.rows.iter().map(|row| row.us).sum();
        let timed: Vec<&Trial> = of_kind(self.measured, TrialKind::Timed).collect();
        let profiled: Vec<&Trial> = of_kind(self.measured, TrialKind::Profiled).collect();
        let of_timed = |of: fn(&Trial) -> f64| mean(timed.iter().map(|it| of(it))).unwrap_or(0.0);
        let quality = self.measured.profile.map(|it| it.quality);
        let quality = quality.unwrap_or_default();
        let sampled_us = quality.sampled_ns as f64 / 1e3;
        let exact = profiled.iter().filter_map(|trial| trial.server);
        let exact_us: f64 = exact.map(|server| server.on_cpu_us).sum();
        LedgerChecks {
            coverage: if clients_us > 0.0 {
                sum_us / clients_us
            } else {
                0.0
            },
            little_error: over(blocks, little),
            edge: edge(blocks),
            machine_error: mean(timed.iter().filter_map(|it| it.unaccounted)),
            samples_error: (sampled_us > 0.0 && exact_us > 0.0)
                .then(|| sampled_us / exact_us - 1.0),
            samples_chance: 2.0 / (quality.samples.max(1) as f64).sqrt(),
            profiled_tps_ratio: tps_ratio(&profiled, &timed),
            client_limited: of_timed(|trial| f64::from(u8::from(trial.client.client_limited))),
            cpu_steal: of_timed(|trial| trial.cpu_steal),
        }
    }
}

/// Possible difference between rows and latencies due to transactions cut by the ends of a window.
///
/// If a transaction counts by its end, a cut one counts in only one of the two figures, and clients in
/// step all err alike: by the cut transactions' share of the window. If it counts by its share of the
/// window, equal transactions cause no error, and unequal ones only by the excess of a cut transaction
/// over the mean. Clients stall together, so more clients do not reduce it.
fn edge(blocks: &[BlockFigures]) -> f64 {
    let at_stake_us = |it: &BlockFigures| {
        if it.is_credited {
            (it.length_at_instant_us - it.latency_us).max(0.0)
        } else {
            it.length_at_instant_us
        }
    };
    over(blocks, |it| at_stake_us(it) / it.window_us)
}

/// Geometric mean of profiled throughput over that of timed throughput.
fn tps_ratio(profiled: &[&Trial], timed: &[&Trial]) -> Option<f64> {
    let mean_log = |trials: &[&Trial]| mean(trials.iter().map(|trial| trial.tps().ln()));
    Some((mean_log(profiled)? - mean_log(timed)?).exp())
}

/// Which rows have a second source: a check that would notice an error by a factor of 2.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guards {
    /// On-CPU time.
    pub on_cpu: bool,
    /// Run-queue time.
    pub run_queue: bool,
    /// The certain part of each of [`super::row::CLIENT_WAITS`].
    pub client_waits: [bool; 2],
}

impl Guards {
    pub fn of(side: &LedgerInputs<'_>, checks: &[ConsistencyCheck]) -> Self {
        let has = |names: &[CheckName]| {
            let mut checks = checks.iter().filter(|it| names.contains(&it.name));
            checks.any(ConsistencyCheck::is_second_source)
        };
        let on_cpu = [
            CheckName::CpuClock,
            CheckName::Samples,
            CheckName::SwitchesCpu,
        ];
        // The clients' wait for the server includes the run queue. That is a second source only if
        // all the clients' own parts are measured, so that the remainder cannot absorb an error, and
        // if the check would notice a run queue that is twice as long.
        let whole_us: f64 = side.rows.iter().map(|row| row.us).sum();
        let share = part_us(side.rows, &[Part::RunQueue]) / whole_us;
        let notices =
            |it: &ConsistencyCheck| it.name == CheckName::ClientAccount && it.bound < share;
        let by_clients = side.measures_thread_busy() && checks.iter().any(notices);
        Self {
            on_cpu: has(&on_cpu),
            run_queue: by_clients || has(&[CheckName::SwitchesRunQueue]),
            client_waits: client_waits(side),
        }
    }
}

/// Whether the server's wait for its client would notice half or twice the certain waiting of a row of
/// [`super::row::CLIENT_WAITS`]. The wider the range of possible waiting, the less it does: half of the certain
/// waiting may as well be possible waiting, and twice as much may have left less of it.
fn client_waits(side: &LedgerInputs<'_>) -> [bool; 2] {
    let clients = side.blocks.iter().map(|it| it.exact.client);
    let Some(clients) = clients.collect::<Option<Vec<ClientParts>>>() else {
        return [true; 2];
    };
    let over_clients = |of: fn(&ClientParts) -> f64| mean(clients.iter().map(of)).unwrap_or(0.0);
    let possible_us = over_clients(ClientParts::possible_us);
    let whole_us = over(side.blocks, |it| it.exact.whole_us);
    if possible_us <= ACCOUNT_ERROR_MAX * whole_us {
        return [true; 2];
    }
    let left_us = side.server_waits_us.unwrap_or(0.0) - over_clients(ClientParts::accounted_us);
    let taken_us = left_us.clamp(0.0, possible_us);
    let tolerance_us = account_bound(side, whole_us) * whole_us;
    let waits_us = [
        over_clients(ClientParts::waited_for_cpu_us),
        over_clients(|it| it.thread_busy_us.unwrap_or(0.0)),
    ];
    waits_us.map(|us| {
        let notices_double = us > taken_us + tolerance_us;
        let notices_half = us / 2.0 > possible_us - taken_us + tolerance_us;
        // Less than that is never noticed, however exact the rest of the client's account.
        us <= tolerance_us || (notices_double && notices_half)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_queue_is_compared_unless_chance_could_be_a_factor_of_two() {
        let by_slices = |share, seen, backends: f64| {
            run_queue_is_checked(share, seen, SLICES_CHANCE / backends.sqrt())
        };
        // One client: a single preemption is 5% of the slices' time.
        assert!(!by_slices(0.01, 0.05, 1.0));
        assert!(by_slices(0.01, 0.15, 1.0));
        // 64 clients: 15% of the time is known well enough.
        assert!(by_slices(0.15, 0.16, 64.0));
        assert!(!by_slices(0.15, 0.16, 1.0));
    }
}
