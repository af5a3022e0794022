//! What belongs together in a run, and what the reader should see first.
//!
//! Nothing is computed here beyond sums of rows. Every look-up is by index and gives `None` or a
//! placeholder where a file that was edited by hand points outside its own lists: a report never
//! panics over its data.

use pgassay_core::comparison::{
    Change, Comparison, CostDifference, CostRow, PointSummary, Verdict,
};
use pgassay_core::counters::{self, CountedDifference};
use pgassay_core::measure::is_explained;
use pgassay_core::profile::Profile;
use pgassay_core::run::Run;

use crate::number;

/// Half the width of the equivalence band around 1 (see `pgassay_core::comparison::Verdict`).
pub(crate) const BAND: f64 = 0.02;

/// Conditions that differ only in their number of clients: one curve in a chart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// What they share, empty when nothing else varies.
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

/// What a study counts: transactions, or what its scripts say that one gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    plural: Option<String>,
    rate: String,
}

impl Unit {
    /// The run's: that of any point which has one.
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

/// What a transaction of a point gives, in the run's unit.
pub(crate) fn per_transaction(run: &Run, point: &PointSummary) -> f64 {
    let mut points = run.plan.points.iter();
    let planned = points.find(|it| (it.condition, it.variant) == (point.condition, point.variant));
    planned.map_or(1.0, |planned| planned.per_transaction() as f64)
}

/// A variant's name.
pub(crate) fn variant_name(run: &Run, variant: usize) -> &str {
    run.plan.variants.get(variant).map_or("?", String::as_str)
}

/// The name of the variant that all others are compared with.
pub(crate) fn baseline_name(run: &Run) -> &str {
    variant_name(run, 0)
}

/// A condition's full name, as `f1, 8 clients`.
pub(crate) fn condition_title(run: &Run, condition: usize) -> String {
    run.plan
        .conditions
        .get(condition)
        .map_or_else(|| "?".to_owned(), pgassay_core::plan::Condition::title)
}

/// A condition's number of clients.
pub(crate) fn clients(run: &Run, condition: usize) -> u32 {
    run.plan
        .conditions
        .get(condition)
        .map_or(0, |condition| condition.clients)
}

/// The figures of a variant under a condition, if any trial of it was timed.
pub(crate) fn point(run: &Run, condition: usize, variant: usize) -> Option<&PointSummary> {
    run.points
        .iter()
        .find(|point| point.condition == condition && point.variant == variant)
        .filter(|point| point.trials > 0)
}

/// The profile of a variant under a condition, if it holds any sample.
pub(crate) fn profile(run: &Run, condition: usize, variant: usize) -> Option<&Profile> {
    let points = &run.plan.points;
    let index = points
        .iter()
        .position(|point| point.condition == condition && point.variant == variant)?;
    run.profiles
        .get(index)
        .filter(|profile| profile.total() > 0)
}

/// A variant against the baseline under a condition.
pub(crate) fn comparison(run: &Run, condition: usize, variant: usize) -> Option<&Comparison> {
    run.comparisons
        .iter()
        .find(|comparison| comparison.condition == condition && comparison.variant == variant)
}

/// The comparison whose costs are told in full: what the study wants explained, as far as it was
/// measured and has an account; else the most telling of all.
pub(crate) fn explained(run: &Run) -> Option<&Comparison> {
    let wanted = run.comparisons.iter().filter(|it| is_wanted(run, it));
    most_telling(run, wanted).or_else(|| most_telling(run, run.comparisons.iter()))
}

fn is_wanted(run: &Run, it: &Comparison) -> bool {
    is_explained(&run.study, &run.plan, it.condition, it.variant)
}

/// The comparison whose costs explain the most: among those with an account of costs, a verdict
/// of faster or slower comes before others; then fewer clients, because costs under queues mix
/// demand with waiting; then the larger relative change of the server's CPU time.
pub(crate) fn most_telling<'a>(
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

/// The counters that differ, the most telling first.
pub(crate) fn differing(comparison: &Comparison) -> Vec<&CountedDifference> {
    let mut rows: Vec<&CountedDifference> =
        comparison.counted.iter().filter(|it| it.differs).collect();
    rows.sort_by_key(|it| (counters::rank(&it.name), it.name.as_str()));
    rows
}

/// The comparison in which most counters differ, if any does.
pub(crate) fn most_counted(run: &Run) -> Option<&Comparison> {
    let comparisons = run.comparisons.iter();
    let most = comparisons.max_by_key(|it| differing(it).len())?;
    (!differing(most).is_empty()).then_some(most)
}

/// The comparison whose ledger is told in full: that of the account of costs, so that both tell of
/// the same; where there is none, one that the study wants explained, or a decided one of few clients.
pub(crate) fn explained_ledger(run: &Run) -> Option<&Comparison> {
    let of_cost = explained(run).filter(|it| it.ledger.is_some());
    let decided = |it: &&Comparison| matches!(it.verdict, Verdict::Faster | Verdict::Slower);
    let few = |it: &&Comparison| std::cmp::Reverse(clients(run, it.condition));
    let with_ledger = run.comparisons.iter().filter(|it| it.ledger.is_some());
    let order = |it: &&Comparison| (is_wanted(run, it), decided(it), few(it));
    of_cost.or_else(|| with_ledger.max_by_key(order))
}

/// Rows by the size of their difference, and one that holds all that is left out.
pub(crate) struct TopRows<'a> {
    /// The largest rows, largest first.
    pub shown: Vec<&'a CostRow>,
    /// How many are left out.
    pub left_out: usize,
    /// Their sum: baseline, variant and difference, µs per transaction.
    pub rest_us: [f64; 3],
}

/// The `count` rows with the largest differences; rows that cannot be told from noise only where
/// `keep_unresolved` says so. What is left out is summed, so that the parts still make the whole.
pub(crate) fn top_rows(rows: &[CostRow], count: usize, keep_unresolved: bool) -> TopRows<'_> {
    let mut order: Vec<&CostRow> = rows.iter().collect();
    // Rows that pool others have names in parentheses and stand behind those with names of their own.
    let pooled = |row: &CostRow| row.name.starts_with('(');
    order.sort_by(|a, b| {
        let size = b.difference_us.abs().total_cmp(&a.difference_us.abs());
        pooled(a).cmp(&pooled(b)).then(size)
    });
    let wanted = |row: &&CostRow| keep_unresolved || row.change != Change::Unresolved;
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

/// Sum of the differences of the rows that cannot be told from noise, in µs per transaction.
pub(crate) fn unresolved_us(rows: &[CostRow]) -> f64 {
    rows.iter()
        .filter(|row| row.change == Change::Unresolved)
        .map(|row| row.difference_us)
        .sum()
}

/// The list that tells the story in the fewest rows: phases, else subsystems, else functions.
pub(crate) fn coarse_rows(cost: &CostDifference) -> (&'static str, &[CostRow]) {
    if cost.phases.len() > 1 {
        ("phase", &cost.phases)
    } else if cost.subsystems.len() > 1 {
        ("subsystem", &cost.subsystems)
    } else {
        ("function", &cost.functions)
    }
}

/// Half the width of a row's interval: the larger side, where the two differ; `None` of a single pair,
/// which tells no spread.
pub(crate) fn plus_minus_us(row: &CostRow) -> Option<f64> {
    let half_us = (row.high_us - row.difference_us).max(row.difference_us - row.low_us);
    (half_us > 0.0 || row.difference_us.abs() <= 0.0).then_some(half_us)
}

/// The same in words.
pub(crate) fn plus_minus(row: &CostRow) -> String {
    plus_minus_us(row).map_or_else(|| "?".to_owned(), number::micros)
}
