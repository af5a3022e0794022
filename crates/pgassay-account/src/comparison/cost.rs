//! Breaks down the difference in the backends' on-CPU time by function, phase and subsystem.
//!
//! The cost of a row is its share of the samples times the exact total; see `pgassay_stats::cost` for
//! the formulas and the corrections for many rows. The totals come from the timed trials, so no row
//! contains profiling overhead.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_knowledge::{FrameName, Phase, Subsystem, Symbols};
use pgassay_model::plan::{Plan, PointId, ServerPlan};
use pgassay_model::profile::{Frame, Profile};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats as stats;

use super::CostDifference;
use super::naming::{Key, Naming};
use crate::cost_row::{Change, CostRow};

/// Probability of any false claim among the rows of one list.
const ALPHA: f64 = 0.05;
/// Functions with fewer samples, both sides together, share one row.
const SAMPLES_MIN: u64 = 3;
/// Name of that row.
const RARE: &str = "(functions with few samples)";

/// One side of a comparison.
pub(super) struct ProfiledSide<'a> {
    /// The point's stacks.
    pub profile: &'a Profile,
    /// All trials of the run.
    pub trials: &'a [Trial],
    /// The point's condition.
    pub condition: usize,
    /// The point's variant.
    pub variant: usize,
    /// Major version of its server, as `18` or `9.6`.
    pub major: &'a str,
    /// Yield of a transaction in the study's unit; costs are per unit.
    pub units: u64,
}

/// Samples of each row, by block.
type CountsByBlock<K> = BTreeMap<K, Vec<u64>>;

/// The difference, or `None` if a side has no samples or no exact totals.
///
/// Subsystems and phases are corrected with Holm's procedure, functions with Benjamini and Hochberg's
/// within the subsystems in which something changed.
pub(super) fn cost_difference(
    plan: &Plan,
    a: &ProfiledSide<'_>,
    b: &ProfiledSide<'_>,
) -> Option<CostDifference> {
    let blocks = common_blocks(plan, a, b);
    let [server_a, server_b] = [a, b].map(|side| {
        let point = plan.point(PointId::new(side.condition, side.variant));
        &plan.servers[point.server]
    });
    let naming = if have_one_build(server_a, server_b) {
        Naming::of_one_build()
    } else {
        Naming::from_profiles(a.profile, b.profile)
    };
    let rows = |counts: &dyn Fn(&ProfiledSide<'_>) -> CountsByBlock<Key>| {
        CountTable::new(a, b, &blocks, counts(a), counts(b))
    };
    let functions = rows(&|side| by_function(side, &naming)).merge_rare_rows();
    let (group_of, groups) = functions.groups(&[a, b], &naming);
    let of_functions = stats::grouped_cost_difference(&functions.table, &group_of, groups, ALPHA)
        .ok()?
        .rows;
    let (phases, subsystems) = (rows(&by_phase), rows(&by_subsystem));
    let judge = |rows: &CountTable| -> Option<Vec<CostRow>> {
        let judged = stats::cost_difference(&rows.table, stats::Correction::Holm, ALPHA).ok()?;
        let mut named = rows.to_cost_rows(&judged);
        if !naming.stacks_are_comparable {
            // Without the same names on both sides, the same stacks fall into different rows.
            for row in &mut named {
                row.change = Change::Inconclusive;
            }
        }
        Some(named)
    };
    let total = &of_functions.total;
    Some(CostDifference {
        total: CostRow {
            name: "total".to_owned(),
            object: String::new(),
            baseline_us: of_functions.total_a_us,
            variant_us: of_functions.total_b_us,
            difference_us: total.delta_us,
            low_us: total
                .delta_interval_us
                .map_or(total.delta_us, |interval| interval.low),
            high_us: total
                .delta_interval_us
                .map_or(total.delta_us, |interval| interval.high),
            change: total_change(total),
        },
        minimum_detectable_us: median_detectable_us(&of_functions),
        functions: functions.to_cost_rows(&of_functions),
        phases: judge(&phases)?,
        subsystems: judge(&subsystems)?,
        objects_with_unequal_symbols: naming.partly_named(),
        profiled_tps_ratio: profiled_tps_ratio(a, b),
    })
}

/// Whether both servers run the same programs.
fn have_one_build(a: &ServerPlan, b: &ServerPlan) -> bool {
    (&a.version, &a.binaries, &a.dsn) == (&b.version, &b.binaries, &b.dsn)
}

fn by_function(side: &ProfiledSide<'_>, naming: &Naming) -> CountsByBlock<Key> {
    count_by_block(side.profile, |stack| naming.row(stack))
}

fn by_phase(side: &ProfiledSide<'_>) -> CountsByBlock<Key> {
    count_by_block(side.profile, |stack| {
        (Phase::of(&names(stack)).to_string(), String::new())
    })
}

fn by_subsystem(side: &ProfiledSide<'_>) -> CountsByBlock<Key> {
    let symbols = Symbols::for_major(side.major);
    count_by_block(side.profile, |stack| {
        (subsystem(&symbols, stack), String::new())
    })
}

fn subsystem(symbols: &Symbols, stack: &[&Frame]) -> String {
    Subsystem::of(symbols, &names(stack)).to_string()
}

fn names<'a>(stack: &[&'a Frame]) -> Vec<FrameName<'a>> {
    stack
        .iter()
        .map(|frame| FrameName {
            symbol: frame.symbol.as_deref(),
            object: &frame.object,
            kernel: frame.kernel,
        })
        .collect()
}

/// Samples of each key by block. `key` is called once per node of the call tree.
fn count_by_block(profile: &Profile, key: impl Fn(&[&Frame]) -> Key) -> CountsByBlock<Key> {
    let mut counts: CountsByBlock<Key> = BTreeMap::new();
    for (index, node) in (0u32..).zip(&profile.nodes) {
        if node.total() == 0 {
            continue;
        }
        let row = counts
            .entry(key(&profile.stack(index)))
            .or_insert_with(|| vec![0; node.samples.len()]);
        for (total, samples) in row.iter_mut().zip(&node.samples) {
            *total += u64::from(*samples);
        }
    }
    counts
}

/// Blocks in which both sides have samples and exact totals.
fn common_blocks(plan: &Plan, a: &ProfiledSide<'_>, b: &ProfiledSide<'_>) -> Vec<usize> {
    let usable = |side: &ProfiledSide<'_>, block: usize| {
        samples(side.profile, block) > 0
            && totals(side, block).is_some_and(|(cpu_us, _)| cpu_us > 0.0)
    };
    (0..plan.schedule.blocks as usize)
        .filter(|&block| usable(a, block) && usable(b, block))
        .collect()
}

fn samples(profile: &Profile, block: usize) -> u64 {
    profile
        .nodes
        .iter()
        .map(|node| u64::from(node.samples.get(block).copied().unwrap_or(0)))
        .sum()
}

/// Exact on-CPU time and transactions of the block's timed trials.
fn totals(side: &ProfiledSide<'_>, block: usize) -> Option<(f64, u64)> {
    let timed = of_point(side, TrialKind::Timed).filter(|trial| trial.block as usize == block);
    let exact = timed.filter_map(|trial| Some((trial, trial.server?)));
    let sum = exact.fold((0.0, 0), |(cpu_us, transactions), (trial, server)| {
        (
            cpu_us + server.on_cpu_us,
            transactions + trial.transactions_total * side.units,
        )
    });
    (sum.1 > 0).then_some(sum)
}

fn of_point<'a>(side: &ProfiledSide<'a>, kind: TrialKind) -> impl Iterator<Item = &'a Trial> {
    let (condition, variant) = (side.condition, side.variant);
    side.trials.iter().filter(move |trial| {
        trial.condition == condition && trial.variant == variant && trial.kind == kind
    })
}

/// Geometric mean over both sides of profiled over timed throughput.
fn profiled_tps_ratio(a: &ProfiledSide<'_>, b: &ProfiledSide<'_>) -> f64 {
    let mean_log = |side: &ProfiledSide<'_>, kind| {
        let logs: Vec<f64> = of_point(side, kind)
            .map(|trial| trial.tps().max(1e-9).ln())
            .collect();
        logs.iter().sum::<f64>() / (logs.len().max(1)) as f64
    };
    let of_side = |side: &ProfiledSide<'_>| {
        mean_log(side, TrialKind::Profiled) - mean_log(side, TrialKind::Timed)
    };
    f64::midpoint(of_side(a), of_side(b)).exp()
}

/// The names of the rows, and the table of their counts for the statistics.
struct CountTable {
    keys: Vec<Key>,
    table: stats::CostTable,
}

impl CountTable {
    fn new(
        a: &ProfiledSide<'_>,
        b: &ProfiledSide<'_>,
        blocks: &[usize],
        mut counts_a: CountsByBlock<Key>,
        mut counts_b: CountsByBlock<Key>,
    ) -> Self {
        let side_totals = |side: &ProfiledSide<'_>| -> Vec<stats::TrialTotals> {
            let of_block = |&block: &usize| {
                let (on_cpu_us, transactions) = totals(side, block)?;
                Some(stats::TrialTotals {
                    on_cpu_us,
                    transactions,
                    samples: samples(side.profile, block),
                })
            };
            blocks.iter().filter_map(of_block).collect()
        };
        let mut keys: Vec<Key> = counts_a.keys().chain(counts_b.keys()).cloned().collect();
        keys.sort();
        keys.dedup();
        let chosen = |counts: &mut CountsByBlock<Key>, key: &Key| -> Vec<u64> {
            let row = counts.remove(key).unwrap_or_default();
            blocks
                .iter()
                .map(|&block| row.get(block).copied().unwrap_or(0))
                .collect()
        };
        let rows = keys
            .iter()
            .map(|key| stats::RowCounts {
                a: chosen(&mut counts_a, key),
                b: chosen(&mut counts_b, key),
            })
            .collect();
        Self {
            keys,
            table: stats::CostTable {
                a: side_totals(a),
                b: side_totals(b),
                rows,
            },
        }
    }

    fn merge_rare_rows(self) -> Self {
        let Self { keys, table } = self;
        let zero = |totals: &[stats::TrialTotals]| vec![0; totals.len()];
        let mut rare = stats::RowCounts {
            a: zero(&table.a),
            b: zero(&table.b),
        };
        let (mut kept_keys, mut kept_rows) = (Vec::new(), Vec::new());
        for (key, row) in keys.into_iter().zip(table.rows) {
            if row.a.iter().chain(&row.b).sum::<u64>() >= SAMPLES_MIN {
                kept_keys.push(key);
                kept_rows.push(row);
                continue;
            }
            rare.a
                .iter_mut()
                .zip(&row.a)
                .for_each(|(total, count)| *total += count);
            rare.b
                .iter_mut()
                .zip(&row.b)
                .for_each(|(total, count)| *total += count);
        }
        if rare.a.iter().chain(&rare.b).sum::<u64>() > 0 {
            kept_keys.push((RARE.to_owned(), String::new()));
            kept_rows.push(rare);
        }
        Self {
            keys: kept_keys,
            table: stats::CostTable {
                rows: kept_rows,
                ..table
            },
        }
    }

    /// The index of each row's subsystem, and the number of subsystems. A function that serves several,
    /// such as `memcpy`, belongs to the one with most of its samples.
    fn groups(&self, sides: &[&ProfiledSide<'_>], naming: &Naming) -> (Vec<usize>, usize) {
        let mut samples: BTreeMap<Key, BTreeMap<String, u64>> = BTreeMap::new();
        for side in sides {
            let symbols = Symbols::for_major(side.major);
            for (index, node) in (0u32..)
                .zip(&side.profile.nodes)
                .filter(|(_, node)| node.total() > 0)
            {
                let stack = side.profile.stack(index);
                let of_function = samples.entry(naming.row(&stack)).or_default();
                *of_function.entry(subsystem(&symbols, &stack)).or_default() += node.total();
            }
        }
        let largest = |key: &Key| {
            let of_function = samples.get(key)?;
            of_function
                .iter()
                .max_by_key(|(_, samples)| **samples)
                .map(|(name, _)| name.clone())
        };
        let names: Vec<String> = self
            .keys
            .iter()
            .map(|key| largest(key).unwrap_or_default())
            .collect();
        let distinct: Vec<&String> = names.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |name: &String| distinct.binary_search(&name).unwrap_or(0);
        (names.iter().map(number).collect(), distinct.len())
    }

    /// The judged rows under their names, largest difference first.
    fn to_cost_rows(&self, judged: &stats::ProfileDifference) -> Vec<CostRow> {
        let mut rows: Vec<CostRow> = self
            .keys
            .iter()
            .zip(&judged.rows)
            .map(|(key, row)| cost_row(key, row))
            .collect();
        // The remainder is not a function, so it comes last regardless of its size.
        let rank = |row: &CostRow| (row.name == RARE, -row.difference_us.abs());
        rows.sort_by(|x, y| {
            let ((last_x, size_x), (last_y, size_y)) = (rank(x), rank(y));
            last_x.cmp(&last_y).then(size_x.total_cmp(&size_y))
        });
        rows
    }
}

fn cost_row((name, object): &Key, row: &stats::RowDifference) -> CostRow {
    let difference_us = row.change.delta_us;
    let interval = row.change.delta_interval_us;
    let (low_us, high_us) = interval.map_or((difference_us, difference_us), |at| (at.low, at.high));
    // For rows with few samples, the test and the interval are different methods. If they disagree, an
    // interval that contains 0 must not have a mark. Such intervals are also asymmetric, and reports
    // show their longer side.
    let beyond_noise = difference_us.abs() > (high_us - difference_us).max(difference_us - low_us);
    let is_significant = beyond_noise && (low_us > 0.0 || high_us < 0.0);
    CostRow {
        name: name.clone(),
        object: object.clone(),
        baseline_us: row.a.us,
        variant_us: row.b.us,
        difference_us,
        low_us,
        high_us,
        change: if is_significant {
            row.class.into()
        } else {
            Change::Inconclusive
        },
    }
}

fn total_change(total: &stats::cost::CostChange) -> Change {
    match total.delta_interval_us {
        Some(interval) if interval.low > 0.0 => Change::Increased,
        Some(interval) if interval.high < 0.0 => Change::Decreased,
        _ => Change::Inconclusive,
    }
}

/// The median, over unchanged functions, of the change that would have gone undetected.
fn median_detectable_us(judged: &stats::ProfileDifference) -> f64 {
    let mut limits: Vec<f64> = judged
        .rows
        .iter()
        .filter_map(|row| match row.class {
            stats::ChangeClass::Unchanged {
                detectable_us: resolvable_us,
            } if resolvable_us.is_finite() => Some(resolvable_us),
            _ => None,
        })
        .collect();
    limits.sort_by(f64::total_cmp);
    limits.get(limits.len() / 2).copied().unwrap_or(0.0)
}
