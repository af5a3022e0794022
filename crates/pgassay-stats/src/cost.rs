//! What each function or subsystem costs per transaction, and how that differs between A and B.
//!
//! Samples only *allocate* an exact total: costᵢ = total µs per transaction × kᵢ / Σk, with the
//! total from the kernel's own accounting. So the rows add up to the total by construction, and
//! a difference is one of µs per transaction, never of shares.
//!
//! Which rows changed is decided with correction for their number: Holm's over the few rows of
//! subsystems, then Benjamini and Hochberg's inside the subsystems in which something changed.
//! A subsystem is also opened when its sum is unchanged but its functions are not (Simes' test):
//! a cost that only moved from one function to another is a finding too.
//!
//! A row is marked only if three of four blocks agree about its sign, and a function that comes in
//! bursts is judged by its own noise ([`crate::dispersion::prior`]): a burst in one block is no change.
//!
//! Invariants: one trial of a variant gives figures without intervals ([`Class::Descriptive`]);
//! rows keep the caller's order; trial j of A and trial j of B are neighbours. Formulas are
//! named in [`change`] and [`crate::dispersion`].

pub mod change;
mod side;

use crate::dispersion::{Dispersion, Noise, Prior, Spread, prior};
use crate::distribution::t_quantile;
use crate::error::{StatsError, check_probability};
use crate::multiplicity::{benjamini_hochberg, holm, simes};
use crate::pairs::Interval;
use change::Row;
use side::{Side, check_rows, most_blocks_agree};

/// A row this much cheaper on one side (or without samples there) counts as new or gone: the
/// 2 % leave room for the odd sample of a warm-up or of another session.
const ABSENT_BELOW_SHARE: f64 = 0.02;

/// Exact totals of one trial, and how many samples divide them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialTotals {
    /// Exact on-CPU time of the backends in the trial, µs.
    pub on_cpu_us: f64,
    /// Transactions done in the trial.
    pub transactions: u64,
    /// All samples of the trial, those of rows that are not in the table too.
    pub samples: u64,
}

/// Samples of one row (function or subsystem) in each trial.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Per trial of A, in the order of the trials.
    pub a: Vec<u64>,
    /// Per trial of B.
    pub b: Vec<u64>,
}

/// Everything that is known about two profiles. Rows may overlap (inclusive costs).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostTable {
    /// Trials of A, the baseline; trial j is the neighbour of B's trial j.
    pub a: Vec<TrialTotals>,
    /// Trials of B.
    pub b: Vec<TrialTotals>,
    /// The rows; the caller keeps their names.
    pub rows: Vec<RowCounts>,
}

/// What one side pays for a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// µs per transaction.
    pub us: f64,
    /// Samples behind it, over all trials.
    pub samples: u64,
}

/// B less A. Intervals stand for this row alone; the correction for many rows is in the class.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Difference, µs per transaction.
    pub delta_us: f64,
    /// Its standard error, µs per transaction; none when descriptive.
    pub std_err_us: Option<f64>,
    /// Its interval, µs per transaction; none when descriptive.
    pub delta_interval_us: Option<Interval>,
    /// B/A; none when A has no samples.
    pub ratio: Option<f64>,
    /// Its interval; the upper end is infinite when A has no samples.
    pub ratio_interval: Option<Interval>,
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Class {
    /// Costs something in B and next to nothing in A.
    New,
    /// Costs more in B.
    Up,
    /// Costs less in B.
    Down,
    /// Cost something in A and next to nothing in B.
    Gone,
    /// No change was found.
    Same {
        /// A change below this many µs per transaction would probably (in 20 % of cases or
        /// more) have been missed: "not resolvable below x µs".
        resolvable_us: f64,
    },
    /// One trial on a side: nothing to judge by.
    Descriptive,
}

/// One row of the difference.
#[derive(Debug, Clone, PartialEq)]
pub struct CostRow {
    /// The baseline's cost.
    pub a: Cost,
    /// The variant's cost.
    pub b: Cost,
    /// B less A.
    pub change: Change,
    /// p-value of this row alone; 1 when descriptive.
    pub p_value: f64,
    /// p-value corrected for the number of rows.
    pub p_adjusted: f64,
    /// What happened.
    pub class: Class,
}

/// The difference of two profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct CostDifference {
    /// The rows, in the order of the table.
    pub rows: Vec<CostRow>,
    /// Exact total of A, µs per transaction.
    pub total_a_us: f64,
    /// Exact total of B, µs per transaction.
    pub total_b_us: f64,
    /// Change of the total.
    pub total: Change,
    /// Noise of shares between trials; none with a single trial on a side.
    pub dispersion: Option<Dispersion>,
}

/// Subsystems and the functions inside them.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedDifference {
    /// One row a group, Holm's correction.
    pub groups: CostDifference,
    /// One row a function, Benjamini and Hochberg's correction inside the opened groups.
    pub rows: CostDifference,
}

/// How p-values of many rows are corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correction {
    /// Not at all: for one row that was named beforehand.
    None,
    /// Holm's: no false claim at all, with probability 1 − α.
    Holm,
    /// Benjamini and Hochberg's: at most the share α of claims is false, on average.
    BenjaminiHochberg,
}

impl Correction {
    fn apply(self, p_values: &[f64]) -> Vec<f64> {
        match self {
            Self::None => p_values.to_vec(),
            Self::Holm => holm(p_values),
            Self::BenjaminiHochberg => benjamini_hochberg(p_values),
        }
    }

    /// The α that a further row would be held to, beside `claims` already made among `tests`.
    fn effective_alpha(self, alpha: f64, tests: usize, claims: usize) -> f64 {
        let tests = tests.max(1);
        match self {
            Self::None => alpha,
            Self::Holm => alpha / (tests - claims.min(tests - 1)) as f64,
            Self::BenjaminiHochberg => alpha * claims.clamp(1, tests) as f64 / tests as f64,
        }
    }
}

/// The difference of every row at the family-wide error `alpha` (.05).
pub fn cost_difference(
    table: &CostTable,
    correction: Correction,
    alpha: f64,
) -> Result<CostDifference, StatsError> {
    let mut draft = Draft::of(table, alpha)?;
    let everything: Vec<usize> = (0..table.rows.len()).collect();
    draft.judge(&everything, correction, alpha);
    Ok(draft.difference)
}

/// The difference of groups first and of the rows inside changed groups second.
///
/// `group_of[row]` is the row's group, from 0 to `groups` − 1. A row of a group in which nothing
/// changed is [`Class::Same`].
pub fn grouped_cost_difference(
    table: &CostTable,
    group_of: &[usize],
    groups: usize,
    alpha: f64,
) -> Result<GroupedDifference, StatsError> {
    let largest = group_of.iter().copied().max().unwrap_or(0);
    if group_of.len() != table.rows.len() || (largest >= groups && !group_of.is_empty()) {
        let (found, rows) = (group_of.len(), table.rows.len());
        return Err(StatsError::BadGrouping {
            found,
            rows,
            largest,
            groups,
        });
    }
    // The rows' check comes before their sums, so that errors name the row the caller knows.
    let mut draft = Draft::of(table, alpha)?;
    let by_group = cost_difference(&sums(table, group_of, groups), Correction::Holm, alpha)?;
    let mut members = vec![Vec::new(); groups];
    for (row, group) in group_of.iter().enumerate() {
        members[*group].push(row);
    }
    let inside: Vec<f64> = members
        .iter()
        .map(|rows| {
            simes(
                &rows
                    .iter()
                    .map(|row| draft.difference.rows[*row].p_value)
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let moved_inside = holm(&inside);
    for (group, rows) in members.iter().enumerate() {
        // Two ways to open a group share the error rate.
        let opened = by_group.rows[group].p_adjusted.min(moved_inside[group]) <= alpha / 2.0;
        // A closed group is judged at an α that nothing can reach, which leaves it all the same.
        draft.judge(
            rows,
            Correction::BenjaminiHochberg,
            if opened { alpha } else { 0.0 },
        );
    }
    Ok(GroupedDifference {
        groups: by_group,
        rows: draft.difference,
    })
}

fn sums(table: &CostTable, group_of: &[usize], groups: usize) -> CostTable {
    let empty = RowCounts {
        a: vec![0; table.a.len()],
        b: vec![0; table.b.len()],
    };
    let mut rows = vec![empty; groups];
    for (row, group) in table.rows.iter().zip(group_of) {
        let add = |into: &mut [u64], from: &[u64]| {
            into.iter_mut()
                .zip(from)
                .for_each(|(total, count)| *total += count);
        };
        add(&mut rows[*group].a, &row.a);
        add(&mut rows[*group].b, &row.b);
    }
    CostTable {
        a: table.a.clone(),
        b: table.b.clone(),
        rows,
    }
}

/// A difference whose rows are tested but not yet judged.
struct Draft {
    difference: CostDifference,
    /// Degrees of freedom of each row's standard error.
    df: Vec<f64>,
    /// Whether most blocks agree about each row's sign.
    steady: Vec<bool>,
    alpha: f64,
}

impl Draft {
    fn of(table: &CostTable, alpha: f64) -> Result<Self, StatsError> {
        check_probability("alpha", alpha)?;
        let (a, b) = (Side::of('A', &table.a)?, Side::of('B', &table.b)?);
        check_rows(table)?;
        let level = 1.0 - alpha;
        let spreads: Vec<Vec<Spread>> = table
            .rows
            .iter()
            .map(|row| {
                let of_a = Spread::of(&row.a, &a.samples_by_trial);
                let of_b = Spread::of(&row.b, &b.samples_by_trial);
                of_a.into_iter().chain(of_b).collect()
            })
            .collect();
        let judged = a.trials().min(b.trials()) >= 2;
        let prior = prior(&spreads).unwrap_or(Prior {
            usual: Dispersion { cv2: 0.0, df: 1.0 },
            bursty_cv2: 1.0,
            bursty_share: 0.0,
        });
        let (mut rows, mut df, mut steady) = (Vec::new(), Vec::new(), Vec::new());
        for (index, counts) in table.rows.iter().enumerate() {
            let noise = judged.then(|| prior.noise(&spreads[index]));
            let (row, row_df) = untried_row(&a, &b, counts, noise, level);
            rows.push(row);
            df.push(row_df);
            steady.push(most_blocks_agree(&a, &b, counts));
        }
        let dispersion = judged.then_some(prior.usual);
        let total = change::total_change(&a, &b, level);
        let (total_a_us, total_b_us) = (a.us_per_transaction, b.us_per_transaction);
        Ok(Self {
            difference: CostDifference {
                rows,
                total_a_us,
                total_b_us,
                total,
                dispersion,
            },
            df,
            steady,
            alpha,
        })
    }

    /// Corrects the p-values of one family of rows and puts each into its class.
    fn judge(&mut self, family: &[usize], correction: Correction, alpha: f64) {
        if self.difference.dispersion.is_none() {
            return;
        }
        let p_values: Vec<f64> = family
            .iter()
            .map(|row| self.difference.rows[*row].p_value)
            .collect();
        let opened = alpha > 0.0;
        let adjusted = if opened {
            correction.apply(&p_values)
        } else {
            vec![1.0; family.len()]
        };
        let claims = adjusted.iter().filter(|p_value| **p_value <= alpha).count();
        let held_to = correction.effective_alpha(self.alpha, family.len(), claims);
        for (index, p_adjusted) in family.iter().zip(adjusted) {
            let resolvable =
                t_quantile(1.0 - held_to / 2.0, self.df[*index]) + t_quantile(0.8, self.df[*index]);
            let row = &mut self.difference.rows[*index];
            row.p_adjusted = p_adjusted;
            row.class = if opened && p_adjusted <= alpha && self.steady[*index] {
                changed(row.a.us, row.b.us)
            } else {
                Class::Same {
                    resolvable_us: resolvable * row.change.std_err_us.unwrap_or(f64::INFINITY),
                }
            };
        }
    }
}

fn untried_row(
    a: &Side,
    b: &Side,
    counts: &RowCounts,
    noise: Option<[Noise; 2]>,
    level: f64,
) -> (CostRow, f64) {
    let (count_a, count_b) = (counts.a.iter().sum::<u64>(), counts.b.iter().sum::<u64>());
    let cost_a = Cost {
        us: count_a as f64 * a.us_per_sample(),
        samples: count_a,
    };
    let cost_b = Cost {
        us: count_b as f64 * b.us_per_sample(),
        samples: count_b,
    };
    let (change, p_value, df) = match noise {
        None => (change::descriptive(&cost_a, &cost_b), 1.0, 1.0),
        Some(noise) => {
            let tested = Row {
                a,
                b,
                count_a,
                count_b,
                noise,
            }
            .test(level);
            (tested.change, tested.p_value, tested.df)
        }
    };
    let row = CostRow {
        a: cost_a,
        b: cost_b,
        change,
        p_value,
        p_adjusted: 1.0,
        class: Class::Descriptive,
    };
    (row, df)
}

fn changed(cost_a_us: f64, cost_b_us: f64) -> Class {
    if cost_a_us <= ABSENT_BELOW_SHARE * cost_b_us {
        Class::New
    } else if cost_b_us <= ABSENT_BELOW_SHARE * cost_a_us {
        Class::Gone
    } else if cost_b_us > cost_a_us {
        Class::Up
    } else {
        Class::Down
    }
}

#[cfg(test)]
mod bursts;
#[cfg(test)]
mod tests;
