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

use pgassay_model::trial::{LatencyError, Trial, TrialKind};
use pgassay_model::waits::WaitSource;

use super::account::{BlockedWeights, CpuWeights, name_locks, rows, server_waits_for_client_us};
use super::checks::{Guards, LedgerInputs, consistency};
use super::divider::Divider;
use super::measurements::{BlockFigures, PointMeasurements, blocks, mean, of_kind};
use super::reason_sources::ReasonSources;
use super::row::{Part, Row};
use super::tail::tail;
use super::weights::{ByBlock, blocked_by_events, blocked_by_stacks, cpu_by_block};
use super::{BackgroundRow, Ledger};

/// Wait events correct the stacks only if at most this share of their readings was late.
const LATE_MAX: f64 = 0.05;

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
    pub reasons: Option<ReasonSources>,
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
pub fn rows_by_block(
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
        reasons: dividers.reasons.as_ref(),
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
        reasons: dividers.reasons,
    }))
}

/// Whether wait events were read from memory, and nearly always when due. Late readings depend on the
/// load: if another program has the CPU for a while, clients wait for it as the sampler does.
fn sampled_in_time(measured: &PointMeasurements<'_>) -> bool {
    let of_trial = |trial: &Trial| {
        let waits = trial.waits.as_ref()?;
        waits.late.filter(|_| waits.source == WaitSource::Memory)
    };
    let late: Option<Vec<f64>> = of_kind(measured, TrialKind::Profiled)
        .map(of_trial)
        .collect();
    late.is_some_and(|it| mean(it.into_iter()).is_some_and(|late| late <= LATE_MAX))
}

/// Whether too many readings of wait events are known to be late. The reasons that they show are then those
/// of a time at which the sampler was not kept waiting.
fn sampled_late(measured: &PointMeasurements<'_>) -> bool {
    let waits = of_kind(measured, TrialKind::Profiled).filter_map(|trial| trial.waits.as_ref());
    mean(waits.filter_map(|waits| waits.late)).is_some_and(|late| late > LATE_MAX)
}

/// The weights that divide the exact totals.
struct Dividers {
    cpu: ByBlock<CpuWeights>,
    blocked: ByBlock<BlockedWeights>,
    blocked_by: Divider,
    /// Stacks and wait events, compared; `None` if there is only one of them.
    reasons: Option<ReasonSources>,
}

impl Dividers {
    fn of(measured: &PointMeasurements<'_>) -> Self {
        let stacks = measured.profile.map(blocked_by_stacks);
        let stacks = stacks.filter(|weights| !weights.pooled.is_empty());
        let mut reasons = None;
        let (blocked, blocked_by) = match stacks {
            Some(mut stacks) => {
                let (events, _) = blocked_by_events(measured);
                if !sampled_late(measured) {
                    reasons = ReasonSources::compare(&stacks, &events, measured.major);
                }
                if sampled_in_time(measured) {
                    stacks.correct_client_share(&events);
                }
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
            reasons,
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

/// Rows of the same name, averaged over the blocks; a missing row counts as 0.
fn mean_rows(blocks: &[BlockRows]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for row in blocks.iter().flat_map(|block| &block.rows) {
        let same = |it: &&mut Row| it.same_account(row);
        let share = 1.0 / blocks.len() as f64;
        if let Some(sum) = rows.iter_mut().find(same) {
            sum.us += row.us * share;
            sum.system_us += row.system_us * share;
            sum.possible_us += row.possible_us * share;
        } else {
            rows.push(Row {
                us: row.us * share,
                system_us: row.system_us * share,
                possible_us: row.possible_us * share,
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
