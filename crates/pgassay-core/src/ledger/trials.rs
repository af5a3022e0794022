//! The ledger of a point, from its trials and its profile.
//!
//! Each block has its rows: exact totals of the block's timed trials, divided by the samples of the
//! block's profiled trials (of all the point's profiled trials if the block has none). The ledger is
//! the mean over the blocks, so that means of sums stay sums of means, and the difference of two
//! ledgers is the mean of the pairs' differences.
//!
//! On-CPU time covers a trial from idle to idle and is divided by all its transactions; the whole
//! covers the window in which transactions were counted.

use std::collections::BTreeMap;

use super::account::{
    BlockedKey, BlockedWeights, ClientParts, CpuKey, CpuWeights, Exact, name_locks, rows,
    server_waits_for_client_us,
};
use super::checks::{Guards, LedgerInputs, consistency, mean};
use super::reason::Reason;
use super::tail::tail;
use super::{BackgroundRow, Divider, Ledger, Part, Row};
use crate::cpu::CpuTotals;
use crate::profile::{BlockedStack, Frame, Profile};
use crate::subsystem::{Attribution, FrameName, Phase, Subsystem, Symbols};
use crate::trial::{LatencyError, Trial, TrialKind};
use crate::waits::WaitSource;

/// All measurements of one point.
pub struct PointMeasurements<'a> {
    /// The point's condition.
    pub condition: usize,
    /// The point's variant.
    pub variant: usize,
    /// Its trials, in any order.
    pub trials: Vec<&'a Trial>,
    /// Its stacks, if sampled.
    pub profile: Option<&'a Profile>,
    /// Major version of its server, such as `18` or `9.6`.
    pub major: &'a str,
}

/// Exact figures of one block's timed trials.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockFigures {
    number: u32,
    pub exact: Exact,
    pub backends: f64,
    /// Whether transactions count by their share of the window.
    pub is_credited: bool,
    /// Transactions in the window per µs.
    pub throughput: f64,
    /// Mean of the latency histogram.
    pub latency_us: f64,
    /// Mean length of the transactions in progress at a random instant.
    pub length_at_instant_us: f64,
    /// Mean length of the windows.
    pub window_us: f64,
}

/// One block's rows.
#[derive(Debug, Clone)]
pub(super) struct BlockRows {
    pub number: u32,
    pub rows: Vec<Row>,
    /// How much the client's own times exceed the server's wait for it: its rows were cut by this to
    /// fit.
    pub trimmed_us: f64,
}

/// A ledger, and the rows of the blocks that it averages.
pub(super) struct LedgerWithBlocks {
    pub ledger: Ledger,
    pub blocks: Vec<BlockRows>,
    pub guards: Guards,
}

/// The ledger of a point; `None` if no timed trial has exact totals and `pg_stat_activity` was not
/// sampled either.
///
/// # Errors
/// A damaged latency histogram.
pub fn ledger(measured: &PointMeasurements<'_>) -> Result<Option<Ledger>, LatencyError> {
    Ok(ledger_with_blocks(measured)?.map(|it| it.ledger))
}

/// The rows of each block by block number; the ledger's rows are their mean.
///
/// # Errors
/// A damaged latency histogram.
pub(crate) fn rows_by_block(
    measured: &PointMeasurements<'_>,
) -> Result<BTreeMap<u32, Vec<Row>>, LatencyError> {
    let blocks = ledger_with_blocks(measured)?.map_or_else(Vec::new, |it| it.blocks);
    Ok(blocks.into_iter().map(|it| (it.number, it.rows)).collect())
}

pub(super) fn ledger_with_blocks(
    measured: &PointMeasurements<'_>,
) -> Result<Option<LedgerWithBlocks>, LatencyError> {
    let exact = blocks(measured)?;
    if exact.is_empty() {
        return Ok(None);
    }
    let dividers = Dividers::of(measured);
    let blocks: Vec<BlockRows> = exact
        .iter()
        .map(|block| BlockRows {
            number: block.number,
            rows: dividers.rows(block),
            trimmed_us: dividers.trimmed_us(block),
        })
        .collect();
    let rows = mean_rows(&blocks);
    let of_between = |row: &&Row| row.part == Part::Between;
    let between_us: f64 = rows.iter().filter(of_between).map(|row| row.us).sum();
    let sum_us: f64 = rows.iter().map(|row| row.us).sum();
    let side = LedgerInputs {
        measured,
        blocks: &exact,
        rows: &rows,
        blocked_by: dividers.blocked_by,
        server_waits_us: dividers.server_waits_us(&exact),
    };
    let checks = side.figures();
    let consistency = consistency(&side, &checks)?;
    let guards = Guards::of(&side, &consistency);
    let ledger = Ledger {
        condition: measured.condition,
        variant: measured.variant,
        response_us: sum_us - between_us,
        between_transactions_us: between_us,
        checks,
        consistency,
        rows,
        background: background(measured),
        blocked_by: dividers.blocked_by,
        tail: tail(measured)?,
        cpu_by_stacks: !dividers.cpu.pooled.is_empty(),
    };
    Ok(Some(LedgerWithBlocks {
        ledger,
        blocks,
        guards,
    }))
}

pub(super) fn of_kind<'a>(
    measured: &PointMeasurements<'a>,
    kind: TrialKind,
) -> impl Iterator<Item = &'a Trial> {
    let of_kind = move |trial: &&Trial| trial.kind == kind && trial.transactions > 0;
    measured.trials.clone().into_iter().filter(of_kind)
}

fn blocks(measured: &PointMeasurements<'_>) -> Result<Vec<BlockFigures>, LatencyError> {
    let mut by_number: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    let is_asked = only_activity_samples(measured);
    for trial in of_kind(measured, TrialKind::Timed) {
        let is_counted = exact_totals(trial).is_some();
        if is_counted || is_asked {
            by_number.entry(trial.block).or_default().push(trial);
        }
    }
    let mut blocks = Vec::new();
    for (number, trials) in by_number {
        let mut block = block(number, &trials)?;
        if is_asked {
            let in_block = idle_us(trials.iter().copied(), block.exact.whole_us);
            let in_any = || idle_us(of_kind(measured, TrialKind::Timed), block.exact.whole_us);
            block.exact.idle_us = in_block.or_else(in_any);
        }
        blocks.push(block);
    }
    Ok(blocks)
}

/// A trial's exact totals, if it has any.
pub(super) fn exact_totals(trial: &Trial) -> Option<CpuTotals> {
    let is_counted = |it: &CpuTotals| it.processes > 0 && it.on_cpu_us > 0.0;
    trial.server.filter(is_counted)
}

/// Whether samples of `pg_stat_activity` are all that is known of the backends.
fn only_activity_samples(measured: &PointMeasurements<'_>) -> bool {
    let of_timed = || of_kind(measured, TrialKind::Timed);
    let mut asked = of_kind(measured, TrialKind::Profiled).filter_map(|trial| trial.waits.as_ref());
    of_timed().all(|trial| trial.server.is_none())
        && asked.any(|it| it.source == WaitSource::PgStatActivity && it.samples() > 0)
}

/// The part of the whole outside of statements, by the server's clock of the time inside statements
/// (`pg_stat_database.active_time`, in milliseconds; 14 and later).
fn idle_us<'a>(trials: impl Iterator<Item = &'a Trial>, whole_us: f64) -> Option<f64> {
    let (mut active_us, mut transactions) = (0.0, 0);
    for trial in trials {
        if let Some(active_ms) = trial.counters.get("pg_stat_database.active_time") {
            active_us += active_ms * 1e3;
            transactions += trial.transactions_total;
        }
    }
    (transactions > 0).then(|| (whole_us - active_us / transactions as f64).max(0.0))
}

fn block(number: u32, trials: &[&Trial]) -> Result<BlockFigures, LatencyError> {
    let sum = |of: fn(&Trial) -> f64| trials.iter().map(|trial| of(trial)).sum::<f64>();
    let of_server = |of: fn(&CpuTotals) -> f64| {
        trials
            .iter()
            .filter_map(|it| exact_totals(it))
            .map(|it| of(&it))
            .sum::<f64>()
    };
    // A client has one backend, visible or not.
    let backends = |trial: &Trial| match exact_totals(trial) {
        Some(server) => f64::from(server.processes),
        None => trial.client.total_us() / trial.window_us,
    };
    let backends_us = trials.iter().map(|trial| backends(trial) * trial.window_us);
    let in_window = sum(Trial::credited_or_counted);
    let ended = sum(|trial| trial.transactions as f64);
    let optional = |of: fn(&Trial) -> Option<f64>| -> Option<f64> {
        let parts: Option<Vec<f64>> = trials.iter().map(|trial| of(trial)).collect();
        Some(parts?.iter().sum::<f64>() / in_window)
    };
    let all = sum(|trial| trial.transactions_total as f64);
    let window_us = sum(|trial| trial.window_us);
    let (mut latency_us, mut squares_us2) = (0.0, 0.0);
    for trial in trials {
        let latency = trial.latency.histogram()?;
        let (mean_us, sd_us) = (latency.mean() / 1e3, latency.stdev() / 1e3);
        latency_us += mean_us * trial.transactions as f64;
        squares_us2 += (mean_us.powi(2) + sd_us.powi(2)) * trial.transactions as f64;
    }
    Ok(BlockFigures {
        number,
        exact: Exact {
            whole_us: backends_us.sum::<f64>() / in_window,
            on_cpu_us: of_server(|it| it.on_cpu_us) / all,
            run_queue_us: of_server(|it| it.run_queue_us) / all,
            idle_us: None,
            client: Some(ClientParts {
                between_us: sum(|trial| trial.client.between_transactions_us) / in_window,
                sleep_us: sum(|trial| trial.client.sleep_us) / in_window,
                cpu_us: sum(|trial| trial.client.cpu_us) / all,
                run_queue_us: sum(|trial| trial.client.run_queue_us) / all,
                ready_run_queue_us: optional(|trial| trial.client.client_run_queue_us),
                thread_busy_us: optional(|trial| trial.client.thread_busy_us),
            }),
        },
        backends: trials.iter().map(|trial| backends(trial)).sum::<f64>() / trials.len() as f64,
        is_credited: trials.iter().all(|it| it.credited_transactions.is_some()),
        throughput: in_window / window_us,
        latency_us: latency_us / ended,
        length_at_instant_us: squares_us2 / latency_us.max(f64::MIN_POSITIVE),
        window_us: window_us / trials.len() as f64,
    })
}

/// Weights by block, and pooled weights for blocks that have none.
struct ByBlock<W> {
    blocks: BTreeMap<u32, W>,
    pooled: W,
}

/// The weights that divide the exact totals.
struct Dividers {
    cpu: ByBlock<CpuWeights>,
    blocked: ByBlock<BlockedWeights>,
    blocked_by: Divider,
}

impl Dividers {
    fn of(measured: &PointMeasurements<'_>) -> Self {
        let stacks = measured.profile.map(blocked_by_stacks);
        let stacks = stacks.filter(|weights| !weights.pooled.is_empty());
        let (blocked, blocked_by) = match stacks {
            Some(mut stacks) => {
                let (events, _) = blocked_by_events(measured);
                let all = stacks.blocks.values_mut().chain([&mut stacks.pooled]);
                all.for_each(|weights| name_locks(weights, &events.pooled));
                (stacks, Divider::Stacks)
            }
            None => blocked_by_events(measured),
        };
        let cpu = measured.profile.map(|it| cpu_by_block(it, measured.major));
        Self {
            cpu: cpu.unwrap_or(ByBlock {
                blocks: BTreeMap::new(),
                pooled: CpuWeights::new(),
            }),
            blocked,
            blocked_by,
        }
    }

    fn rows(&self, block: &BlockFigures) -> Vec<Row> {
        let cpu = self.cpu.blocks.get(&block.number);
        let cpu = cpu.unwrap_or(&self.cpu.pooled);
        rows(&block.exact, cpu, self.blocked_of(block))
    }

    fn blocked_of(&self, block: &BlockFigures) -> &BlockedWeights {
        // Samples over a connection are few: those of one block may have caught no statement.
        let is_asked = self.blocked_by == Divider::ActivityStates;
        let blocked = self.blocked.blocks.get(&block.number);
        let blocked = blocked.filter(|_| !is_asked);
        blocked.unwrap_or(&self.blocked.pooled)
    }

    fn trimmed_us(&self, block: &BlockFigures) -> f64 {
        let client = block.exact.client;
        let waits = server_waits_for_client_us(&block.exact, self.blocked_of(block));
        let both = client.zip(waits);
        both.map_or(0.0, |(client, waits_us)| {
            (client.accounted_us() - waits_us).max(0.0)
        })
    }

    /// The mean over the blocks; `None` if it is unknown for any block.
    fn server_waits_us(&self, blocks: &[BlockFigures]) -> Option<f64> {
        let of_block =
            |it: &BlockFigures| server_waits_for_client_us(&it.exact, self.blocked_of(it));
        let waits: Option<Vec<f64>> = blocks.iter().map(of_block).collect();
        mean(waits?.into_iter())
    }
}

fn names<'a>(stack: &[&'a Frame]) -> Vec<FrameName<'a>> {
    let name = |frame: &&'a Frame| FrameName {
        symbol: frame.symbol.as_deref(),
        object: &frame.object,
        kernel: frame.kernel,
    };
    stack.iter().map(name).collect()
}

/// The key of an on-CPU stack.
pub(super) fn cpu_key(symbols: &Symbols, stack: &[&Frame]) -> CpuKey {
    let names = names(stack);
    let subsystem = Attribution::of(symbols, &names).subsystem;
    let no_stack = names.iter().all(|name| name.object.is_empty());
    CpuKey {
        phase: Phase::of(&names).to_string(),
        mechanism: subsystem.to_string(),
        is_unknown: subsystem == Subsystem::Unknown || no_stack,
    }
}

/// The key of a blocked stack and its wait event.
pub(crate) fn blocked_key(stack: &[&Frame], kind: &str, event: &str) -> BlockedKey {
    let names = names(stack);
    let phase = match &names[..] {
        [] => String::new(),
        names => Phase::of_blocked(names).to_string(),
    };
    BlockedKey {
        phase,
        reason: Reason::of_stack(&names, kind, event),
    }
}

/// The key of a blocked stack in a profile.
pub(super) fn key_in_profile(profile: &Profile, blocked: &BlockedStack) -> BlockedKey {
    let node = blocked.node.map(|node| profile.stack(node));
    let stack = node.unwrap_or_default();
    blocked_key(&stack, &blocked.wait_event_type, &blocked.wait_event)
}

/// Weights that divide on-CPU time, over all blocks.
pub(crate) fn cpu_weights(profile: &Profile, major: &str) -> CpuWeights {
    cpu_by_block(profile, major).pooled
}

/// Weights that divide blocked time, over all blocks; empty if no context switch was observed.
pub(crate) fn blocked_weights(profile: &Profile) -> BlockedWeights {
    blocked_by_stacks(profile).pooled
}

fn cpu_by_block(profile: &Profile, major: &str) -> ByBlock<CpuWeights> {
    let symbols = Symbols::for_major(major);
    let mut weights = ByBlock {
        blocks: BTreeMap::new(),
        pooled: CpuWeights::new(),
    };
    for (index, node) in (0u32..).zip(&profile.nodes) {
        if node.total() == 0 {
            continue;
        }
        let stack = profile.stack(index);
        let key = cpu_key(&symbols, &stack);
        let in_kernel = stack.last().is_some_and(|leaf| leaf.kernel);
        for (block, samples) in (0u32..).zip(&node.samples).filter(|(_, count)| **count > 0) {
            let of_block: &mut CpuWeights = weights.blocks.entry(block).or_default();
            for all in [of_block, &mut weights.pooled] {
                let weight = all.entry(key.clone()).or_default();
                weight[0] += f64::from(*samples);
                weight[1] += if in_kernel { f64::from(*samples) } else { 0.0 };
            }
        }
    }
    weights
}

fn blocked_by_stacks(profile: &Profile) -> ByBlock<BlockedWeights> {
    let mut weights = no_blocked();
    for blocked in &profile.blocked {
        let key = key_in_profile(profile, blocked);
        for (block, &ns) in (0u32..).zip(&blocked.blocked_ns).filter(|(_, ns)| **ns > 0) {
            weights.add(block, &key, ns as f64);
        }
    }
    weights
}

fn blocked_by_events(measured: &PointMeasurements<'_>) -> (ByBlock<BlockedWeights>, Divider) {
    let mut weights = no_blocked();
    let mut divider = Divider::Nothing;
    // If the on-CPU total is known, samples of active sessions do not divide it: they miss too many.
    let is_asked = only_activity_samples(measured);
    for trial in of_kind(measured, TrialKind::Profiled) {
        let Some(waits) = &trial.waits else { continue };
        if is_asked && waits.runnable_samples > 0 {
            weights.add(
                trial.block,
                &BlockedKey::running(),
                waits.runnable_samples as f64,
            );
        }
        for event in waits.events.iter().filter(|event| event.samples > 0) {
            let key = blocked_key(&[], &event.kind, &event.name);
            weights.add(trial.block, &key, event.samples as f64);
            divider = waits.source.into();
        }
    }
    if is_asked {
        divider = Divider::ActivityStates;
    }
    (weights, divider)
}

fn no_blocked() -> ByBlock<BlockedWeights> {
    ByBlock {
        blocks: BTreeMap::new(),
        pooled: BlockedWeights::new(),
    }
}

impl ByBlock<BlockedWeights> {
    fn add(&mut self, block: u32, key: &BlockedKey, weight: f64) {
        for all in [self.blocks.entry(block).or_default(), &mut self.pooled] {
            *all.entry(key.clone()).or_default() += weight;
        }
    }
}

/// Rows of the same name, averaged over the blocks; a missing row counts as 0.
fn mean_rows(blocks: &[BlockRows]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for row in blocks.iter().flat_map(|block| &block.rows) {
        let same = |it: &&mut Row| it.same_account(row);
        let share = 1.0 / blocks.len() as f64;
        if let Some(sum) = rows.iter_mut().find(same) {
            sum.us += row.us * share;
            sum.system_us += row.system_us * share;
        } else {
            rows.push(Row {
                us: row.us * share,
                system_us: row.system_us * share,
                ..row.clone()
            });
        }
    }
    rows.sort_by(|a, b| b.us.total_cmp(&a.us));
    rows
}

fn background(measured: &PointMeasurements<'_>) -> Vec<BackgroundRow> {
    let mut us: BTreeMap<&str, f64> = BTreeMap::new();
    let mut transactions = 0;
    for trial in of_kind(measured, TrialKind::Timed) {
        transactions += trial.transactions_total;
        for background in &trial.background {
            *us.entry(&background.role).or_default() += background.cpu.on_cpu_us;
        }
    }
    let row = |(role, us): (&str, f64)| BackgroundRow {
        role: role.to_owned(),
        us: us / transactions.max(1) as f64,
    };
    let mut rows: Vec<BackgroundRow> = us.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.us.total_cmp(&a.us));
    rows
}

impl Row {
    /// Whether two rows have the same key, whatever their figures.
    pub(super) fn same_account(&self, other: &Self) -> bool {
        self.part == other.part
            && self.nature == other.nature
            && self.phase == other.phase
            && self.mechanism == other.mechanism
    }
}
