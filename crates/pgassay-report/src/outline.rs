//! Grouping and ordering of a run's parts for display.
//!
//! Nothing is computed beyond sums of rows. Every lookup by index returns `None` or a placeholder if the
//! index is out of range, as in a file edited by hand: a report never panics over its data.

use pgassay_account::comparison::{Comparison, CostDifference, PointSummary, Verdict};
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_account::counters::{self, CounterDifference};
use pgassay_model::expression::is_explained;
use pgassay_model::profile::Profile;
use pgassay_record::run::Run;

use crate::number;

/// The equivalence margin: ratios within 1 ± this are equivalent (see
/// `pgassay_account::comparison::Verdict`).
pub(crate) const EQUIVALENCE_MARGIN: f64 = 0.02;

/// Conditions that differ only in their number of clients: one curve in a chart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// Their common label; empty if only the number of clients varies.
    pub label: &'a str,
    /// Indices into the plan's conditions, in the study's order.
    pub conditions: Vec<usize>,
}

/// The run's conditions by label, in the study's order.
pub(crate) fn groups(run: &Run) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (index, condition) in run.plan.conditions.iter().enumerate() {
        match groups
            .iter_mut()
            .find(|group| group.label == condition.label)
        {
            Some(group) => group.conditions.push(index),
            None => groups.push(Group {
                label: &condition.label,
                conditions: vec![index],
            }),
        }
    }
    groups
}

/// The unit of throughput: transactions, or what the study's scripts declare that a transaction yields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThroughputUnit {
    plural: Option<String>,
    rate: String,
}

impl ThroughputUnit {
    /// The run's unit: that of the first point with a declared one, else transactions.
    pub(crate) fn of(run: &Run) -> Self {
        let plural = run.plan.points.iter().find_map(|it| it.gives.as_ref());
        let plural = plural.map(|gives| gives.unit.clone());
        let rate = plural.as_ref().map(|plural| format!("{plural}/s"));
        Self {
            rate: rate.unwrap_or_else(|| "tps".to_owned()),
            plural,
        }
    }

    /// `tps`, `values/s`.
    pub(crate) fn rate(&self) -> &str {
        &self.rate
    }

    /// `transaction`, `value`.
    pub(crate) fn one(&self) -> &str {
        let plural = self.plural.as_deref();
        plural.map_or("transaction", |it| it.strip_suffix('s').unwrap_or(it))
    }

    /// `tx`, `value`.
    pub(crate) fn short(&self) -> &str {
        if self.plural.is_some() {
            self.one()
        } else {
            "tx"
        }
    }
}

/// What follows "per transaction" if the study has another unit: ` (50 inserts)`, or ` (1 value in one, 1,000 values in
/// many)`; empty if it has none. Ledgers and statistics are per transaction, because a client waits for whole ones.
pub(crate) fn yields(run: &Run, it: &Comparison) -> String {
    let [of_baseline, of_variant] = compared_variants(run, it).map(|variant| {
        let mut points = run.plan.points.iter();
        let point = points.find(|at| (at.condition, at.variant) == (it.condition, variant))?;
        point.gives.as_ref()
    });
    let (Some(before), Some(after)) = (of_baseline, of_variant) else {
        return String::new();
    };
    let unit = ThroughputUnit::of(run);
    let many = |count: u64| match count {
        1 => format!("1 {}", unit.one()),
        _ => format!("{} {}", number::whole(count as f64), before.unit),
    };
    let [before, after] = [before, after].map(|it| many(it.per_transaction));
    if before == after {
        return format!(" ({before})");
    }
    let [baseline, variant] = [
        baseline_name(run, it.variant),
        variant_name(run, it.variant),
    ];
    format!(" ({before} in {baseline}, {after} in {variant})")
}

/// What one transaction of a point yields, in the run's unit.
pub(crate) fn per_transaction(run: &Run, point: &PointSummary) -> f64 {
    let mut points = run.plan.points.iter();
    let planned = points.find(|it| (it.condition, it.variant) == (point.condition, point.variant));
    planned.map_or(1.0, |planned| planned.per_transaction() as f64)
}

/// A variant's name.
pub(crate) fn variant_name(run: &Run, variant: usize) -> &str {
    run.plan.variants.get(variant).map_or("?", String::as_str)
}

/// The name of what a variant is compared with.
pub(crate) fn baseline_name(run: &Run, variant: usize) -> &str {
    variant_name(run, run.plan.baseline_of(variant))
}

/// The variants of a comparison: what it is relative to, and its own.
pub(crate) fn compared_variants(run: &Run, it: &Comparison) -> [usize; 2] {
    [run.plan.baseline_of(it.variant), it.variant]
}

/// What all variants are compared with, in words.
pub(crate) fn baseline_of_all(run: &Run) -> &str {
    if run.plan.stepwise {
        "the variant before"
    } else {
        variant_name(run, 0)
    }
}

/// A condition's full name, as `f1, 8 clients`.
pub(crate) fn condition_title(run: &Run, condition: usize) -> String {
    run.plan
        .conditions
        .get(condition)
        .map_or_else(|| "?".to_owned(), pgassay_model::plan::Condition::title)
}

/// A condition's number of clients.
pub(crate) fn clients(run: &Run, condition: usize) -> u32 {
    run.plan
        .conditions
        .get(condition)
        .map_or(0, |condition| condition.clients)
}

/// The figures of a variant under a condition, if any of its trials was timed.
pub(crate) fn point(run: &Run, condition: usize, variant: usize) -> Option<&PointSummary> {
    run.points
        .iter()
        .find(|point| point.condition == condition && point.variant == variant)
        .filter(|point| point.trials > 0)
}

/// The profile of a variant under a condition, if it has any samples.
pub(crate) fn profile(run: &Run, condition: usize, variant: usize) -> Option<&Profile> {
    let points = &run.plan.points;
    let index = points
        .iter()
        .position(|point| point.condition == condition && point.variant == variant)?;
    run.profiles
        .get(index)
        .filter(|profile| profile.total() > 0)
}

/// The comparison of a variant with the baseline under a condition.
pub(crate) fn comparison(run: &Run, condition: usize, variant: usize) -> Option<&Comparison> {
    run.comparisons
        .iter()
        .find(|comparison| comparison.condition == condition && comparison.variant == variant)
}

/// The comparison whose costs are shown in full: one that the study wants explained, if it was
/// measured and has an account of costs; else the most informative one.
pub(crate) fn explained(run: &Run) -> Option<&Comparison> {
    let wanted = run.comparisons.iter().filter(|it| is_wanted(run, it));
    most_informative(run, wanted).or_else(|| most_informative(run, run.comparisons.iter()))
}

fn is_wanted(run: &Run, it: &Comparison) -> bool {
    is_explained(&run.study, &run.plan, it.condition, it.variant)
}

/// The most informative comparison with an account of costs: first those with a verdict of faster or
/// slower; then those with fewer clients, because queueing mixes waiting into the costs; then the one
/// with the largest relative change of the server's CPU time.
pub(crate) fn most_informative<'a>(
    run: &Run,
    comparisons: impl Iterator<Item = &'a Comparison>,
) -> Option<&'a Comparison> {
    let decided = |it: &Comparison| matches!(it.verdict, Verdict::Faster | Verdict::Slower);
    let few = |it: &Comparison| std::cmp::Reverse(clients(run, it.condition));
    let change = |it: &Comparison| {
        let total = it.cost.as_ref().map(|cost| &cost.total);
        total.map_or(0.0, |total| {
            (total.variant_us / total.baseline_us).ln().abs()
        })
    };
    comparisons.filter(|it| it.cost.is_some()).max_by(|a, b| {
        (decided(a).cmp(&decided(b)))
            .then(few(a).cmp(&few(b)))
            .then(change(a).total_cmp(&change(b)))
    })
}

/// The counters that differ, the most informative first.
pub(crate) fn differing(comparison: &Comparison) -> Vec<&CounterDifference> {
    let mut rows: Vec<&CounterDifference> =
        comparison.counters.iter().filter(|it| it.differs).collect();
    rows.sort_by_key(|it| (counters::rank(&it.name), it.name.as_str()));
    rows
}

/// The comparison in which the most counters differ, if any do.
pub(crate) fn most_differing_counters(run: &Run) -> Option<&Comparison> {
    let comparisons = run.comparisons.iter();
    let most = comparisons.max_by_key(|it| differing(it).len())?;
    (!differing(most).is_empty()).then_some(most)
}

/// The comparison whose ledger is shown in full: the same as for the account of costs if it has a
/// ledger; else one that the study wants explained, or one with a verdict and few clients.
pub(crate) fn explained_ledger(run: &Run) -> Option<&Comparison> {
    let of_cost = explained(run).filter(|it| it.ledger.is_some());
    let decided = |it: &&Comparison| matches!(it.verdict, Verdict::Faster | Verdict::Slower);
    let few = |it: &&Comparison| std::cmp::Reverse(clients(run, it.condition));
    let with_ledger = run.comparisons.iter().filter(|it| it.ledger.is_some());
    let order = |it: &&Comparison| (is_wanted(run, it), decided(it), few(it));
    of_cost.or_else(|| with_ledger.max_by_key(order))
}

/// The rows with the largest differences, and the sum of all others.
pub(crate) struct TopRows<'a> {
    /// The largest rows, largest first; after them those that combine others.
    pub shown: Vec<&'a CostRow>,
    /// Number of rows left out.
    pub left_out: usize,
    /// Their sum: baseline, variant and difference, in µs per transaction.
    pub rest_us: [f64; 3],
}

impl TopRows<'_> {
    /// The largest difference shown, without its sign. A row that combines others comes last, and can be the largest.
    pub(crate) fn largest_us(&self) -> f64 {
        let differences = self.shown.iter().map(|it| it.difference_us.abs());
        differences.fold(0.0, f64::max)
    }
}

/// The `count` rows with the largest differences; rows within noise only if `keep_noise` is set.
/// The other rows are summed, so that the parts still add up.
pub(crate) fn top_rows(rows: &[CostRow], count: usize, keep_noise: bool) -> TopRows<'_> {
    let mut order: Vec<&CostRow> = rows.iter().collect();
    // Rows that combine others have names in parentheses and come last.
    let pooled = |row: &CostRow| row.name.starts_with('(');
    order.sort_by(|a, b| {
        let size = b.difference_us.abs().total_cmp(&a.difference_us.abs());
        pooled(a).cmp(&pooled(b)).then(size)
    });
    let wanted = |row: &&CostRow| keep_noise || row.change != Change::Inconclusive;
    let (wanted, unwanted): (Vec<&CostRow>, Vec<&CostRow>) = order.into_iter().partition(wanted);
    let (shown, beyond) = wanted.split_at(wanted.len().min(count));
    let mut rest_us = [0.0; 3];
    for row in beyond.iter().chain(&unwanted) {
        for (sum, part) in
            rest_us
                .iter_mut()
                .zip([row.baseline_us, row.variant_us, row.difference_us])
        {
            *sum += part;
        }
    }
    TopRows {
        shown: shown.to_vec(),
        left_out: beyond.len() + unwanted.len(),
        rest_us,
    }
}

/// Sum of the differences of the rows within noise, in µs per transaction.
pub(crate) fn within_noise_us(rows: &[CostRow]) -> f64 {
    rows.iter()
        .filter(|row| row.change == Change::Inconclusive)
        .map(|row| row.difference_us)
        .sum()
}

/// The coarsest list with more than one row: phases, else subsystems, else functions.
pub(crate) fn coarse_rows(cost: &CostDifference) -> (&'static str, &[CostRow]) {
    if cost.phases.len() > 1 {
        ("phase", &cost.phases)
    } else if cost.subsystems.len() > 1 {
        ("subsystem", &cost.subsystems)
    } else {
        ("function", &cost.functions)
    }
}

/// Half the width of a row's interval: the larger side if they differ; `None` for a single pair,
/// which has no spread.
pub(crate) fn plus_minus_us(row: &CostRow) -> Option<f64> {
    let half_us = (row.high_us - row.difference_us).max(row.difference_us - row.low_us);
    (half_us > 0.0 || row.difference_us.abs() <= 0.0).then_some(half_us)
}

/// A row's difference with half the width of its interval, as `−17.10 ±0.40`; alone if that is unknown.
pub(crate) fn with_margin(row: &CostRow) -> String {
    let difference = number::signed_micros(row.difference_us);
    plus_minus_us(row).map_or_else(
        || difference.clone(),
        |half_us| format!("{difference} ±{}", number::micros(half_us)),
    )
}

/// [`plus_minus_us`] as text; `?` if unknown.
pub(crate) fn plus_minus(row: &CostRow) -> String {
    plus_minus_us(row).map_or_else(|| "?".to_owned(), number::micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(name: &str, difference_us: f64) -> CostRow {
        CostRow {
            name: name.to_owned(),
            object: String::new(),
            baseline_us: 30.0,
            variant_us: 30.0 + difference_us,
            difference_us,
            low_us: difference_us - 0.1,
            high_us: difference_us + 0.1,
            change: Change::Decreased,
        }
    }

    /// Regression: the bars of −1.71 µs in one function and of −16.88 µs in those with few samples were equally long.
    #[test]
    fn bars_are_relative_to_a_combined_row_if_it_is_the_largest() {
        let rows = [
            row_of("(functions with few samples)", -16.88),
            row_of("base_yyparse", -1.71),
        ];
        let top = top_rows(&rows, 10, false);
        assert_eq!(top.shown[0].name, "base_yyparse");
        assert!((top.largest_us() - 16.88).abs() < 1e-9);
    }
}
