//! What a gate asks of the comparisons of a plan, and how well it can tell.
//!
//! A gate asks whether a variant is slower than its baseline by more than a limit. If it compares with an
//! earlier run, it asks whether the variant became slower: rates of different days differ with the state of the
//! machine, so it compares the variant's ratio to a baseline that ran next to it, then and now. The ratio of the two
//! ratios lies between `low now / high then` and `high now / low then` whenever both intervals cover the truth.
//! Each interval has half of the error rate, so that this holds with the gate's own, however each run ended
//! (Bonferroni). What is constant during a run and differs between runs is in neither interval.

use pgassay_model::plan::{EarlierRatio, Plan, StoppingRule};
use pgassay_model::trial::Trial;
use pgassay_stats::Interval;
use pgassay_stats::sequential::{
    GateAnswer, GateProspect, GateRule, Outlook, SequentialComparison,
};

use super::sequential::{ALPHA, RunningComparisons, UNIT_SD_USUAL, sequential_plan};

/// What a gate asks of one comparison.
#[derive(Debug, Clone)]
pub(super) struct ComparisonGate {
    /// None if the plan compares with an earlier run that does not have this comparison.
    rules: Option<GateRules>,
    /// What an earlier run found.
    earlier: Option<EarlierRatio>,
    /// Error rate of the interval: of K comparisons, none may pass or fail by mistake.
    alpha: f64,
}

/// The two sides of the limit. They differ by the width of the earlier run's interval, if there is one.
#[derive(Debug, Clone, Copy)]
struct GateRules {
    regression: GateRule,
    pass: GateRule,
    /// The limits of both, in percent, compared with the baseline of this run.
    percent: [f64; 2],
}

impl GateRules {
    /// `None` if a limit is out of range.
    fn of(limit_percent: f64, earlier: Option<&EarlierRatio>) -> Option<Self> {
        let (low, high) = earlier.map_or((1.0, 1.0), |it| (it.low, it.high));
        let relative_to = |ratio: f64| 100.0 * ((1.0 + limit_percent / 100.0) / ratio - 1.0);
        let percent = match earlier {
            // Exact, without the rounding of a division by 1.
            None => [limit_percent; 2],
            Some(_) => [relative_to(low), relative_to(high)],
        };
        Some(Self {
            regression: GateRule::slower_than(percent[0]).ok()?,
            pass: GateRule::slower_than(percent[1]).ok()?,
            percent,
        })
    }
}

impl ComparisonGate {
    /// One for each of these comparisons (condition and variant); empty if the plan has no gate.
    pub fn all(plan: &Plan, compared: &[(usize, usize)]) -> Vec<Self> {
        let Some(limit) = plan.schedule.gate_limit_percent else {
            return Vec::new();
        };
        let of_comparison = |&(condition, variant): &(usize, usize)| {
            let title = plan.conditions[condition].title();
            let mut known = plan.gate_against.iter();
            let name = &plan.variants[variant];
            let earlier = known.find(|it| it.variant == *name && it.condition == title);
            let is_missing = earlier.is_none() && !plan.gate_against.is_empty();
            let rules = GateRules::of(limit, earlier).filter(|_| !is_missing);
            Self {
                rules,
                earlier: earlier.cloned(),
                alpha: alpha_of(plan, compared.len()),
            }
        };
        compared.iter().map(of_comparison).collect()
    }

    /// The answer from the units so far.
    pub fn answer(&self, running: &SequentialComparison) -> GateAnswer {
        let Some(rules) = &self.rules else {
            return GateAnswer::Inconclusive;
        };
        let of_rule = |rule: GateRule| rule.answer_at(running, self.alpha);
        match (of_rule(rules.regression), of_rule(rules.pass)) {
            (Ok(GateAnswer::Regression), _) => GateAnswer::Regression,
            (_, Ok(GateAnswer::Pass)) => GateAnswer::Pass,
            _ => GateAnswer::Inconclusive,
        }
    }

    /// Whether no further unit can give an answer, because the interval already lies within the width of the
    /// earlier one.
    pub fn is_hopeless(&self, running: &SequentialComparison) -> bool {
        self.rules.is_some_and(|rules| {
            let of_rule = |rule: GateRule| rule.answer_at(running, self.alpha).ok();
            of_rule(rules.regression) == Some(GateAnswer::Pass)
                && of_rule(rules.pass) == Some(GateAnswer::Regression)
        })
    }

    /// Whether the intervals so far contradict each other, so that further units change nothing.
    pub fn is_unstable(&self, running: &SequentialComparison) -> bool {
        let is_analyzed = !running.analyses().is_empty();
        is_analyzed && matches!(running.interval_at(self.alpha), Ok(None))
    }

    /// What to expect of the rest of a comparison without an answer: of the side that is nearer.
    pub fn outlook(&self, running: &SequentialComparison) -> Option<Outlook> {
        let rules = self.rules.as_ref()?;
        let both = [rules.regression, rules.pass].map(|rule| rule.outlook(running, self.alpha));
        both.into_iter()
            .flatten()
            .max_by(|a, b| a.chance.total_cmp(&b.chance))
    }

    /// Whether it compares with an earlier run.
    pub fn is_relative(&self) -> bool {
        self.earlier.is_some()
    }

    /// A ratio now, relative to the earlier run if there is one.
    pub fn relative(&self, ratio: f64) -> f64 {
        ratio / self.earlier.as_ref().map_or(1.0, |it| it.ratio)
    }

    /// The interval of [`Self::relative`]; `None` before the first analysis, or if the comparison is unstable.
    pub fn interval(&self, running: &SequentialComparison) -> Option<Interval> {
        let now = running.interval_at(self.alpha).ok().flatten()?;
        Some(match &self.earlier {
            None => now,
            Some(then) => Interval {
                low: now.low / then.high,
                high: now.high / then.low,
                level: now.level - self.alpha,
            },
        })
    }
}

/// The error rate of one comparison's interval.
fn alpha_of(plan: &Plan, comparisons: usize) -> f64 {
    let alpha = ALPHA / comparisons.max(1) as f64;
    if plan.gate_against.is_empty() {
        alpha
    } else {
        alpha / 2.0
    }
}

/// The ratios of a run, for a gate that compares a later run with it. A comparison without an interval, for
/// example after fewer than four server starts, is left out.
pub fn earlier_ratios(plan: &Plan, trials: &[Trial]) -> Vec<EarlierRatio> {
    let mut sequential = plan.clone();
    // The intervals are valid at all analyses, so also after a number of pairs that was fixed.
    sequential.schedule.stopping = StoppingRule::Sequential;
    let known = are_of_plan(plan, trials).then(|| RunningComparisons::of(&sequential));
    let Some(mut running) = known.flatten() else {
        return Vec::new();
    };
    running.add_blocks(trials);
    let alpha = ALPHA / running.all().count().max(1) as f64 / 2.0;
    running
        .all()
        .filter_map(|(condition, variant, running)| {
            let interval = running.interval_at(alpha).ok().flatten()?;
            interval.is_bounded().then_some(())?;
            Some(EarlierRatio {
                variant: plan.variants[variant].clone(),
                condition: plan.conditions[condition].title(),
                ratio: interval.clamped(running.analyses().last()?.ratio()),
                low: interval.low,
                high: interval.high,
            })
        })
        .collect()
}

/// Whether these can be trials of the plan: those of a file that was edited may be of conditions, variants or blocks
/// that no plan has.
fn are_of_plan(plan: &Plan, trials: &[Trial]) -> bool {
    let (conditions, variants) = (plan.conditions.len(), plan.variants.len());
    let is_whole = plan.points.len() == conditions * variants;
    let is_of_plan =
        |it: &Trial| it.condition < conditions && it.variant < variants && it.block < u32::MAX;
    is_whole && trials.iter().all(is_of_plan)
}

/// What a gate can tell, in words: `assuming that ratios vary by 2% (SD) between server starts: passes an
/// equal variant in 99% of runs, …`. If it compares with an
/// earlier run, of the comparison with the widest interval then. `None` if the plan has no gate.
pub fn gate_power(plan: &Plan) -> Option<String> {
    let limit = plan.schedule.gate_limit_percent?;
    let comparisons = plan.conditions.len() * (plan.variants.len() - 1);
    let schedule = sequential_plan(plan, ALPHA).schedule;
    let width = |it: &&EarlierRatio| it.high / it.low;
    let earlier = plan.gate_against.iter();
    let widest = earlier.max_by(|a, b| width(a).total_cmp(&width(b)));
    let rules = GateRules::of(limit, widest)?;
    let usual = widest.map_or(1.0, |it| it.ratio);
    let prospect = |percent: f64, slower_percent: f64| {
        let rule = GateRule::slower_than(percent).ok()?;
        let slowdown = 100.0 * ((1.0 + slower_percent / 100.0) / usual - 1.0);
        let level = (schedule, alpha_of(plan, comparisons));
        GateProspect::new(&rule, level, UNIT_SD_USUAL, slowdown).ok()
    };
    let twice = limit.max(1.0) * 2.0;
    let (equal, then) = match widest {
        None => ("equal", String::new()),
        Some(it) => (
            "unchanged",
            format!(
                " and the earlier interval is ±{:.1}%",
                50.0 * (it.high / it.low).ln()
            ),
        ),
    };
    Some(format!(
        "assuming that ratios vary by {:.0}% (SD) between {}{then}: passes an {equal} variant in {} of runs, and fails one that is slower by {twice}% in {}",
        100.0 * UNIT_SD_USUAL,
        schedule.unit_name(),
        chance(prospect(rules.percent[1], 0.0)?.pass),
        chance(prospect(rules.percent[0], twice)?.regression),
    ))
}

/// A chance as a percentage. No run is certain, so none is shown as 100%.
fn chance(share: f64) -> String {
    if share < 0.995 {
        format!("{:.0}%", 100.0 * share)
    } else {
        "over 99%".to_owned()
    }
}
