//! The cost of each function or subsystem per transaction, and its difference between A and B.
//!
//! Samples only apportion an exact total: costᵢ = total µs per transaction × kᵢ / Σk, where the total
//! comes from the kernel's accounting. So the rows add up to the total by construction, and differences
//! are in µs per transaction, never in shares.
//!
//! The tests for changed rows are corrected for the number of rows: with Holm's procedure for the few
//! rows of subsystems, then with Benjamini and Hochberg's within the subsystems in which something
//! changed. A subsystem is also examined if its sum is unchanged but its functions are not (Simes'
//! test), because a cost that moved from one function to another is a change, too.
//!
//! A row is marked only if its difference has the same sign in three of four blocks, and a function that
//! occurs in bursts is judged by its own noise ([`crate::dispersion::prior`]): a burst in one block is not
//! a change.
//!
//! Invariants: a single trial of a variant gives figures without intervals ([`ChangeClass::Descriptive`]);
//! rows keep the caller's order; trial j of A and trial j of B are neighbors. The formulas are in
//! [`change`] and [`crate::dispersion`].

pub mod change;
mod difference;
mod side;
mod table;

use crate::dispersion::{Dispersion, FunctionDispersion, FunctionNoise, Prior, prior};
use crate::distribution::t_quantile;
use crate::error::{StatsError, check_probability};
use crate::multiplicity::{benjamini_hochberg, holm, simes};
use change::CountedRow;
use side::{VariantTotals, check_rows, has_consistent_sign};

pub use difference::{
    ChangeClass, Cost, CostChange, GroupedDifference, ProfileDifference, RowDifference,
};
pub use table::{CostTable, RowCounts, TrialTotals};

/// The correction of p-values for multiple rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correction {
    /// None: for a single row chosen in advance.
    None,
    /// Holm's: with probability 1 − α there is no false claim.
    Holm,
    /// Benjamini and Hochberg's: on average, at most a share α of the claims is false.
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

    /// The α for one more row, given `claims` among `tests`.
    fn effective_alpha(self, alpha: f64, tests: usize, claims: usize) -> f64 {
        let tests = tests.max(1);
        match self {
            Self::None => alpha,
            Self::Holm => alpha / (tests - claims.min(tests - 1)) as f64,
            Self::BenjaminiHochberg => alpha * claims.clamp(1, tests) as f64 / tests as f64,
        }
    }
}

/// The difference of every row at the family-wise error rate `alpha` (0.05).
pub fn cost_difference(
    table: &CostTable,
    correction: Correction,
    alpha: f64,
) -> Result<ProfileDifference, StatsError> {
    let mut draft = TestedDifference::of(table, alpha)?;
    let everything: Vec<usize> = (0..table.rows.len()).collect();
    draft.judge(&everything, correction, alpha);
    Ok(draft.difference)
}

/// The differences of groups, and of the rows within changed groups.
///
/// `group_of[row]` is the row's group, from 0 to `groups` − 1. Rows of unchanged groups are
/// [`ChangeClass::Unchanged`].
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
    // Check the rows before summing them, so that errors name the caller's rows.
    let mut draft = TestedDifference::of(table, alpha)?;
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
        // Two tests can detect a changed group, so each gets half the error rate.
        let opened = by_group.rows[group].p_adjusted.min(moved_inside[group]) <= alpha / 2.0;
        // An α of 0 leaves all rows of an unchanged group unchanged.
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

/// A difference whose rows are tested but not yet classified.
struct TestedDifference {
    difference: ProfileDifference,
    /// Degrees of freedom of each row's standard error.
    df: Vec<f64>,
    /// Whether each row's difference has the same sign in most blocks.
    steady: Vec<bool>,
    alpha: f64,
}

impl TestedDifference {
    fn of(table: &CostTable, alpha: f64) -> Result<Self, StatsError> {
        check_probability("alpha", alpha)?;
        let (a, b) = (
            VariantTotals::of('A', &table.a)?,
            VariantTotals::of('B', &table.b)?,
        );
        check_rows(table)?;
        let level = 1.0 - alpha;
        let spreads: Vec<Vec<FunctionDispersion>> = table
            .rows
            .iter()
            .map(|row| {
                let of_a = FunctionDispersion::of(&row.a, &a.samples_by_trial);
                let of_b = FunctionDispersion::of(&row.b, &b.samples_by_trial);
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
            let (row, row_df) = unclassified_row(&a, &b, counts, noise, level);
            rows.push(row);
            df.push(row_df);
            steady.push(has_consistent_sign(&a, &b, counts));
        }
        let dispersion = judged.then_some(prior.usual);
        let total = change::total_change(&a, &b, level);
        let (total_a_us, total_b_us) = (a.us_per_transaction, b.us_per_transaction);
        Ok(Self {
            difference: ProfileDifference {
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

    /// Corrects the p-values of one family of rows and classifies each row.
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
        let totals = [self.difference.total_a_us, self.difference.total_b_us];
        for (index, p_adjusted) in family.iter().zip(adjusted) {
            let resolvable =
                t_quantile(1.0 - held_to / 2.0, self.df[*index]) + t_quantile(0.8, self.df[*index]);
            let row = &mut self.difference.rows[*index];
            row.p_adjusted = p_adjusted;
            row.class = if opened && p_adjusted <= alpha && self.steady[*index] {
                ChangeClass::of_significant([row.a.us, row.b.us], totals)
            } else {
                ChangeClass::Unchanged {
                    detectable_us: resolvable * row.change.std_err_us.unwrap_or(f64::INFINITY),
                }
            };
        }
    }
}

fn unclassified_row(
    a: &VariantTotals,
    b: &VariantTotals,
    counts: &RowCounts,
    noise: Option<[FunctionNoise; 2]>,
    level: f64,
) -> (RowDifference, f64) {
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
            let tested = CountedRow {
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
    let row = RowDifference {
        a: cost_a,
        b: cost_b,
        change,
        p_value,
        p_adjusted: 1.0,
        class: ChangeClass::Descriptive,
    };
    (row, df)
}

#[cfg(test)]
mod bursts;
#[cfg(test)]
mod tests;
