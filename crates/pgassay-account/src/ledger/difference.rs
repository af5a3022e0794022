//! The difference of two ledgers, row by row, with intervals from pairs of blocks.
//!
//! Identity: over the blocks that both sides have, the differences of the rows, and those of the
//! groups, add up to the difference of the response times, since each is the mean of the same pairs'
//! differences.
//!
//! Groups are few and shown first: Holm's correction decides which of them changed. Rows are many and
//! use Benjamini and Hochberg's. A mark also requires that the difference exceeds the half-width
//! printed next to it.

use std::collections::BTreeMap;

use pgassay_model::trial::LatencyError;
use pgassay_stats as stats;

use super::checks::Guards;
use super::consistency::{CheckName, CheckSide, ConsistencyCheck};
use super::explained::{Explained, explained_share};
use super::measurements::PointMeasurements;
use super::reason_sources;
use super::row::{CLIENT_WAITS, Nature, Part, Row, is_explained};
use super::trials::{BlockRows, LedgerWithBlocks, ledger_with_blocks};
use super::{LedgerDifference, LedgerRow, UNEXPLAINED_SHARE_MAX, UNEXPLAINED_TIME_SHARE_MAX};
use crate::cost_row::{Change, CostRow};

/// Confidence of each interval.
const LEVEL: f64 = 0.95;
/// Probability of any false mark (groups), or expected share of false marks (rows), in one list.
const ALPHA: f64 = 0.05;

/// Key of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    part: Part,
    nature: Nature,
    phase: String,
    name: String,
}

/// One block's rows on both sides.
type BlockPair<'a> = (&'a [Row], &'a [Row]);

/// Figures of both sides, pair by pair.
type RowPairs = BTreeMap<RowKey, Vec<[f64; 2]>>;

/// The difference of the ledgers of two points; `None` if a side has no ledger, or if they have no
/// block in common.
///
/// # Errors
/// A damaged latency histogram.
pub fn difference(
    a: &PointMeasurements<'_>,
    b: &PointMeasurements<'_>,
) -> Result<Option<LedgerDifference>, LatencyError> {
    let (Some(a), Some(b)) = (ledger_with_blocks(a)?, ledger_with_blocks(b)?) else {
        return Ok(None);
    };
    Ok(of_ledgers(&a, &b))
}

fn of_ledgers(a: &LedgerWithBlocks, b: &LedgerWithBlocks) -> Option<LedgerDifference> {
    let blocks = common(&a.blocks, &b.blocks);
    if blocks.is_empty() {
        return None;
    }
    let in_response = sum(&blocks, |row| row.us);
    let explained = Explained {
        known: sum(&blocks, Row::known_us),
        possible: sum(&blocks, |row| row.possible_us),
        trimmed: trimmed(&a.blocks, &b.blocks),
    };
    let totals = sides(&in_response);
    let response = untested_row("response time", &in_response, totals);
    let between = sum_of_part(&blocks, Part::Between);
    let between = untested_row("between transactions", &between, totals);
    let tested = |account: fn(&Row) -> RowKey, correction| {
        tested_rows(&pairs(&blocks, account), totals, correction)
    };
    let groups = tested(RowKey::of_group, stats::Correction::Holm);
    let rows = tested(RowKey::of_row, stats::Correction::BenjaminiHochberg);
    let unexplained = rows.iter().filter(|row| row.part == Part::Unexplained);
    let unexplained_us: f64 = unexplained.map(|row| row.cost.difference_us.abs()).sum();
    let mut difference = LedgerDifference {
        response,
        between_transactions: between,
        groups,
        rows,
        unexplained_us,
        explained: false,
        explained_share: explained_share(&in_response, &explained, LEVEL),
        checks: Vec::new(),
    };
    difference.checks = checks(&difference, &blocks, a, b);
    difference.explained =
        difference.differs() && difference.checks.iter().all(|check| check.passed);
    Some(difference)
}

/// The checks of both sides, and those of the difference.
fn checks(
    difference: &LedgerDifference,
    blocks: &[BlockPair<'_>],
    a: &LedgerWithBlocks,
    b: &LedgerWithBlocks,
) -> Vec<ConsistencyCheck> {
    let whole_us = difference.response.difference_us.abs();
    let of_side = |side: CheckSide, it: &LedgerWithBlocks| -> Vec<ConsistencyCheck> {
        let immaterial_us = UNEXPLAINED_TIME_SHARE_MAX * whole_us;
        let checks = it.ledger.consistency.iter();
        let widened = checks.map(|check| match at_stake_us(check.name, &it.ledger.rows) {
            Some(at_stake_us) if check.name == CheckName::BlockedReasons => {
                check.unless_immaterial(immaterial_us / at_stake_us)
            }
            Some(at_stake_us) => check.widened(immaterial_us / at_stake_us),
            None => *check,
        });
        let named = widened.map(|check| ConsistencyCheck {
            side: Some(side),
            ..check
        });
        named.collect()
    };
    let mut checks = of_side(CheckSide::Baseline, a);
    checks.extend(of_side(CheckSide::Variant, b));
    let unexplained = difference.unexplained_us / whole_us;
    let is_unexplained = |row: &&LedgerRow| !is_explained(row.part, &row.phase, &row.cost.name);
    let unexplained_rows = difference.rows.iter().filter(is_unexplained);
    let unexplained_rows_us: f64 = unexplained_rows
        .map(|row| row.cost.difference_us.abs())
        .sum();
    let interval = difference.explained_share.and_then(|it| it.interval);
    let farthest = interval.map_or(f64::INFINITY, |[low, high]| {
        if (high - 1.0).abs() > (low - 1.0).abs() {
            high - 1.0
        } else {
            low - 1.0
        }
    });
    let reasons = [a.reasons.as_ref(), b.reasons.as_ref()];
    let single_us = single_source_us(blocks, [&a.guards, &b.guards])
        + reason_sources::single_source_us(&difference.groups, reasons);
    checks.extend([
        ConsistencyCheck::new(
            CheckName::UnexplainedTime,
            unexplained,
            UNEXPLAINED_TIME_SHARE_MAX,
        ),
        ConsistencyCheck::new(
            CheckName::UnexplainedRows,
            unexplained_rows_us / whole_us,
            UNEXPLAINED_SHARE_MAX,
        ),
        ConsistencyCheck::new(CheckName::ExplainedShare, farthest, UNEXPLAINED_SHARE_MAX),
        ConsistencyCheck::new(
            CheckName::Sources,
            single_us / whole_us,
            UNEXPLAINED_TIME_SHARE_MAX,
        ),
    ]);
    checks
}

/// The difference in rows whose total has only one source on either side.
fn single_source_us(blocks: &[BlockPair<'_>], guards: [&Guards; 2]) -> f64 {
    let has = |second_source: fn(&Guards) -> bool| guards.into_iter().all(second_source);
    let difference_us = |of: &[[f64; 2]]| {
        let sum: f64 = of.iter().map(|[a, b]| b - a).sum();
        sum.abs() / of.len() as f64
    };
    let mut single_us = 0.0;
    if !has(|it| it.on_cpu) {
        single_us += difference_us(&sum_of_part(blocks, Part::OnCpu));
    }
    if !has(|it| it.run_queue) {
        single_us += difference_us(&sum_of_part(blocks, Part::RunQueue));
    }
    for (at, name) in CLIENT_WAITS.into_iter().enumerate() {
        if !guards.iter().all(|it| it.client_waits[at]) {
            let of_row = |row: &Row| {
                let is_row = row.part == Part::Client && row.mechanism == name;
                if is_row { row.known_us() } else { 0.0 }
            };
            single_us += difference_us(&sum(blocks, of_row));
        }
    }
    single_us
}

/// The time that a check's error is a share of, in µs per transaction; `None` if it is a share of all time or of
/// something else.
fn at_stake_us(check: CheckName, rows: &[Row]) -> Option<f64> {
    let parts: &[Part] = match check {
        CheckName::CpuClock
        | CheckName::Samples
        | CheckName::ProfiledCpu
        | CheckName::SwitchesCpu
        | CheckName::Unwound => &[Part::OnCpu],
        CheckName::SwitchesRunQueue | CheckName::ProfiledRunQueue => &[Part::RunQueue],
        CheckName::BlockedReasons => &[Part::Blocked, Part::Unexplained],
        _ => return None,
    };
    let of_parts = rows.iter().filter(|row| parts.contains(&row.part));
    Some(of_parts.map(|row| row.us).sum())
}

/// The rows of the blocks that both sides have.
fn common<'a>(a: &'a [BlockRows], b: &'a [BlockRows]) -> Vec<BlockPair<'a>> {
    let of_b = |number: u32| b.iter().find(|block| block.number == number);
    a.iter()
        .filter_map(|block| Some((&block.rows[..], &of_b(block.number)?.rows[..])))
        .collect()
}

/// Sums over the rows of the response time, of both sides of each block.
fn sum(blocks: &[BlockPair<'_>], of: impl Fn(&Row) -> f64) -> Vec<[f64; 2]> {
    let in_response = |row: &&Row| row.part != Part::Between;
    let side = |rows: &[Row]| rows.iter().filter(in_response).map(&of).sum();
    blocks.iter().map(|(a, b)| [side(a), side(b)]).collect()
}

fn sum_of_part(blocks: &[BlockPair<'_>], part: Part) -> Vec<[f64; 2]> {
    let side = |rows: &[Row]| {
        let of_part = rows.iter().filter(|row| row.part == part);
        of_part.map(|row| row.us).sum()
    };
    blocks.iter().map(|(a, b)| [side(a), side(b)]).collect()
}

/// The trimmed time on both sides, for the blocks that both sides have.
fn trimmed(a: &[BlockRows], b: &[BlockRows]) -> Vec<[f64; 2]> {
    let of_b = |number: u32| b.iter().find(|block| block.number == number);
    a.iter()
        .filter_map(|block| Some([block.trimmed_us, of_b(block.number)?.trimmed_us]))
        .collect()
}

impl RowKey {
    fn of_row(row: &Row) -> Self {
        Self {
            part: row.part,
            nature: row.nature,
            phase: row.phase.clone(),
            name: row.mechanism.clone(),
        }
    }

    /// Groups off CPU contain several phases.
    fn of_group(row: &Row) -> Self {
        Self {
            phase: String::new(),
            name: row.group().to_owned(),
            ..Self::of_row(row)
        }
    }
}

/// The figures of each account; a missing row counts as 0.
fn pairs(blocks: &[BlockPair<'_>], account: fn(&Row) -> RowKey) -> RowPairs {
    let mut pairs = RowPairs::new();
    for (index, (a, b)) in blocks.iter().enumerate() {
        for (side, rows) in [(0, a), (1, b)] {
            for row in rows.iter().filter(|row| row.part != Part::Between) {
                let figures = pairs.entry(account(row));
                figures.or_insert_with(|| vec![[0.0; 2]; blocks.len()])[index][side] += row.us;
            }
        }
    }
    pairs
}

/// The rows, the largest difference first; `totals` are the response times.
fn tested_rows(
    pairs: &RowPairs,
    totals: [f64; 2],
    correction: stats::Correction,
) -> Vec<LedgerRow> {
    let means: Vec<Option<stats::Mean>> = pairs.values().map(|it| mean(it)).collect();
    let p_values: Vec<f64> = means
        .iter()
        .map(|it| it.map_or(1.0, |mean| mean.p_value))
        .collect();
    let adjusted = match correction {
        stats::Correction::Holm => stats::multiplicity::holm(&p_values),
        _ => stats::multiplicity::benjamini_hochberg(&p_values),
    };
    let mut rows: Vec<LedgerRow> = pairs
        .iter()
        .zip(adjusted)
        .map(|((account, figures), p_value)| LedgerRow {
            part: account.part,
            nature: account.nature,
            phase: account.phase.clone(),
            cost: cost_row(&account.name, figures, p_value, totals),
        })
        .collect();
    rows.sort_by(|x, y| {
        let size = |row: &LedgerRow| row.cost.difference_us.abs();
        size(y).total_cmp(&size(x))
    });
    rows
}

fn untested_row(name: &str, figures: &[[f64; 2]], totals: [f64; 2]) -> CostRow {
    let p_value = mean(figures).map_or(1.0, |mean| mean.p_value);
    cost_row(name, figures, p_value, totals)
}

/// The means of both sides.
fn sides(figures: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|at| figures.iter().map(|it| it[at]).sum::<f64>() / figures.len() as f64)
}

fn mean(figures: &[[f64; 2]]) -> Option<stats::Mean> {
    let differences: Vec<f64> = figures.iter().map(|[a, b]| b - a).collect();
    stats::mean_difference(&differences, LEVEL).ok()
}

fn cost_row(name: &str, figures: &[[f64; 2]], p_adjusted: f64, totals: [f64; 2]) -> CostRow {
    let [baseline_us, variant_us] = sides(figures);
    let difference_us = variant_us - baseline_us;
    let interval = mean(figures).and_then(|mean| mean.interval);
    let (low_us, high_us) = interval.map_or((difference_us, difference_us), |it| (it.low, it.high));
    let is_significant =
        interval.is_some() && p_adjusted <= ALPHA && (low_us > 0.0 || high_us < 0.0);
    let change = if is_significant {
        stats::ChangeClass::of_significant([baseline_us, variant_us], totals).into()
    } else {
        Change::Inconclusive
    };
    CostRow {
        name: name.to_owned(),
        object: String::new(),
        baseline_us,
        variant_us,
        difference_us,
        low_us,
        high_us,
        change,
    }
}
