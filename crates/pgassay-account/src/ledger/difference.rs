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

use super::consistency::{CheckName, CheckSide, ConsistencyCheck};
use super::measurements::PointMeasurements;
use super::row::{Nature, Part, Row, is_explained};
use super::trials::{BlockRows, LedgerWithBlocks, ledger_with_blocks};
use super::{
    ExplainedShare, LedgerDifference, LedgerRow, UNEXPLAINED_SHARE_MAX, UNEXPLAINED_TIME_SHARE_MAX,
};
use crate::cost_row::{Change, CostRow};

/// Confidence of each interval.
const LEVEL: f64 = 0.95;
/// Probability of any false mark (groups), or expected share of false marks (rows), in one list.
const ALPHA: f64 = 0.05;
/// A row below this share of its other side counts as added or removed.
const ABSENT_BELOW_SHARE: f64 = 0.02;

/// Key of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    part: Part,
    nature: Nature,
    phase: String,
    name: String,
}

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
    let sum = |wanted: &dyn Fn(&Row) -> bool| -> Vec<[f64; 2]> {
        let side = |rows: &[Row]| rows.iter().filter(|it| wanted(it)).map(|it| it.us).sum();
        blocks.iter().map(|(a, b)| [side(a), side(b)]).collect()
    };
    let in_response = sum(&|row| row.part != Part::Between);
    let mut explained =
        sum(&|row| row.part != Part::Between && is_explained(row.part, &row.phase, &row.mechanism));
    // The amount that rows were trimmed by is an error like the remainder, with the opposite sign.
    for (figures, trimmed_us) in explained.iter_mut().zip(trimmed(&a.blocks, &b.blocks)) {
        *figures = [figures[0] + trimmed_us[0], figures[1] + trimmed_us[1]];
    }
    let response = untested_row("response time", &in_response);
    let between = untested_row(
        "between transactions",
        &sum(&|row| row.part == Part::Between),
    );
    let groups = tested_rows(&pairs(&blocks, RowKey::of_group), stats::Correction::Holm);
    let rows = tested_rows(
        &pairs(&blocks, RowKey::of_row),
        stats::Correction::BenjaminiHochberg,
    );
    let unexplained = rows.iter().filter(|row| row.part == Part::Unexplained);
    let unexplained_us: f64 = unexplained.map(|row| row.cost.difference_us.abs()).sum();
    let mut difference = LedgerDifference {
        response,
        between_transactions: between,
        groups,
        rows,
        unexplained_us,
        explained: false,
        explained_share: explained_share(&in_response, &explained),
        checks: Vec::new(),
    };
    difference.checks = checks(&difference, a, b);
    difference.explained =
        difference.differs() && difference.checks.iter().all(|check| check.passed);
    Some(difference)
}

/// The checks of both sides, and those of the difference.
fn checks(
    difference: &LedgerDifference,
    a: &LedgerWithBlocks,
    b: &LedgerWithBlocks,
) -> Vec<ConsistencyCheck> {
    let whole_us = difference.response.difference_us.abs();
    let of_side = |side: CheckSide, it: &LedgerWithBlocks| -> Vec<ConsistencyCheck> {
        let immaterial_us = UNEXPLAINED_TIME_SHARE_MAX * whole_us;
        let checks = it.ledger.consistency.iter();
        let widened = checks.map(|check| match at_stake_us(check.name, &it.ledger.rows) {
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
    let interval = difference.explained_share.and_then(|it| it.interval);
    let farthest = interval.map_or(f64::INFINITY, |[low, high]| {
        if (high - 1.0).abs() > (low - 1.0).abs() {
            high - 1.0
        } else {
            low - 1.0
        }
    });
    let part_us = |part: Part| -> f64 {
        let of_part = difference.rows.iter().filter(|row| row.part == part);
        of_part.map(|row| row.cost.difference_us).sum()
    };
    let single_source_us: f64 = [
        (Part::OnCpu, a.guards.on_cpu && b.guards.on_cpu),
        (Part::RunQueue, a.guards.run_queue && b.guards.run_queue),
    ]
    .into_iter()
    .filter(|(_, has_second_source)| !has_second_source)
    .map(|(part, _)| part_us(part).abs())
    .sum();
    checks.extend([
        ConsistencyCheck::new(
            CheckName::UnexplainedTime,
            unexplained,
            UNEXPLAINED_TIME_SHARE_MAX,
        ),
        ConsistencyCheck::new(CheckName::ExplainedShare, farthest, UNEXPLAINED_SHARE_MAX),
        ConsistencyCheck::new(
            CheckName::Sources,
            single_source_us / whole_us,
            UNEXPLAINED_TIME_SHARE_MAX,
        ),
    ]);
    checks
}

/// The time that a check's error is a share of, in µs per transaction; `None` if it is a share of all time or of
/// something else.
fn at_stake_us(check: CheckName, rows: &[Row]) -> Option<f64> {
    let part = match check {
        CheckName::CpuClock
        | CheckName::Samples
        | CheckName::ProfiledCpu
        | CheckName::SwitchesCpu => Part::OnCpu,
        CheckName::SwitchesRunQueue | CheckName::ProfiledRunQueue => Part::RunQueue,
        _ => return None,
    };
    let of_part = rows.iter().filter(|row| row.part == part);
    Some(of_part.map(|row| row.us).sum())
}

/// The mean difference of the explained part over that of the whole, with Fieller's interval: the
/// ratios ρ for which the pairs' t-test cannot distinguish `explained − ρ × whole` from 0 (Fieller,
/// "Some problems in interval estimation", 1954). `None` if the difference is 0.
fn explained_share(whole: &[[f64; 2]], explained: &[[f64; 2]]) -> Option<ExplainedShare> {
    let differences =
        |figures: &[[f64; 2]]| -> Vec<f64> { figures.iter().map(|[a, b]| b - a).collect() };
    let (whole, explained) = (differences(whole), differences(explained));
    let sums: Vec<f64> = whole.iter().zip(&explained).map(|(w, e)| w + e).collect();
    // Squares of t × standard error; the square for the sum yields the covariance.
    let square = |values: &[f64]| -> Option<(f64, f64)> {
        let mean = stats::mean_difference(values, LEVEL).ok()?;
        let half = mean.interval.map(|it| (it.high - it.low) / 2.0);
        Some((mean.mean, half.map_or(f64::INFINITY, |half| half.powi(2))))
    };
    let ((whole_us, whole2), (explained_us, explained2)) = (square(&whole)?, square(&explained)?);
    let (_, sums2) = square(&sums)?;
    if whole_us.abs() <= f64::MIN_POSITIVE {
        return None;
    }
    let covariance = (sums2 - whole2 - explained2) / 2.0;
    // ρ² a − 2 ρ b + c ≤ 0.
    let a = whole_us.powi(2) - whole2;
    let b = whole_us * explained_us - covariance;
    let c = explained_us.powi(2) - explained2;
    let root = (b.powi(2) - a * c).max(0.0).sqrt();
    Some(ExplainedShare {
        share: explained_us / whole_us,
        interval: (a > 0.0 && root.is_finite()).then(|| [(b - root) / a, (b + root) / a]),
    })
}

/// The rows of the blocks that both sides have.
fn common<'a>(a: &'a [BlockRows], b: &'a [BlockRows]) -> Vec<(&'a [Row], &'a [Row])> {
    let of_b = |number: u32| b.iter().find(|block| block.number == number);
    a.iter()
        .filter_map(|block| Some((&block.rows[..], &of_b(block.number)?.rows[..])))
        .collect()
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
fn pairs(blocks: &[(&[Row], &[Row])], account: fn(&Row) -> RowKey) -> RowPairs {
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

fn tested_rows(pairs: &RowPairs, correction: stats::Correction) -> Vec<LedgerRow> {
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
            cost: cost_row(&account.name, figures, p_value),
        })
        .collect();
    rows.sort_by(|x, y| {
        let size = |row: &LedgerRow| row.cost.difference_us.abs();
        size(y).total_cmp(&size(x))
    });
    rows
}

fn untested_row(name: &str, figures: &[[f64; 2]]) -> CostRow {
    let p_value = mean(figures).map_or(1.0, |mean| mean.p_value);
    cost_row(name, figures, p_value)
}

fn mean(figures: &[[f64; 2]]) -> Option<stats::Mean> {
    let differences: Vec<f64> = figures.iter().map(|[a, b]| b - a).collect();
    stats::mean_difference(&differences, LEVEL).ok()
}

fn cost_row(name: &str, figures: &[[f64; 2]], p_adjusted: f64) -> CostRow {
    let side = |at: usize| figures.iter().map(|it| it[at]).sum::<f64>() / figures.len() as f64;
    let (baseline_us, variant_us) = (side(0), side(1));
    let difference_us = variant_us - baseline_us;
    let interval = mean(figures).and_then(|mean| mean.interval);
    let (low_us, high_us) = interval.map_or((difference_us, difference_us), |it| (it.low, it.high));
    let is_significant =
        interval.is_some() && p_adjusted <= ALPHA && (low_us > 0.0 || high_us < 0.0);
    let change = match () {
        () if !is_significant => Change::Inconclusive,
        () if baseline_us < ABSENT_BELOW_SHARE * variant_us => Change::Added,
        () if variant_us < ABSENT_BELOW_SHARE * baseline_us => Change::Removed,
        () if difference_us > 0.0 => Change::Increased,
        () => Change::Decreased,
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
