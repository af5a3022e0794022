//! What a sequential comparison can decide, before its first trial.
//!
//! The chances are simulated with normal pairs from a fixed seed. Outliers make the rule conservative: one pair in
//! 20 with five times the standard deviation lowers a chance of 97% to 84% (`docs/simulations.md`).
//!
//! Invariants: equal inputs give equal chances; the whole rule is simulated, including the margin, so an effect
//! within the margin may end as equivalent.

use super::boundary::{AnalysisSchedule, CriticalValues};
use super::comparison::SequentialPlan;
use super::gate::{GateAnswer, GateRule};
use super::path::{LogRange, SimulatedPath};
use crate::error::{StatsError, check_positive};
use crate::random::{SplitMix64, stream_seed};
use crate::verdict::Direction;

/// Simulated comparisons: the standard error of a chance of 80% is 0.9 points.
const SIMULATIONS: usize = 2_000;
/// Seed of the simulations.
const SEED: u64 = 1969;

/// What a comparison can find out about an effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prospect {
    /// The effect: ln(B/A).
    pub effect_log: f64,
    /// The chance that the comparison ends with the effect's sign, faster or slower.
    pub sign_chance: f64,
    /// The chance that it ends as equivalent; a false verdict if the effect is beyond the margin.
    pub equivalence_chance: f64,
    /// Median number of units until the verdict on the sign (until equivalence, if the effect is 0); `None` if
    /// fewer than half of the comparisons reach it.
    pub units_median: Option<usize>,
}

impl Prospect {
    /// For units with a standard deviation of `unit_sd_log` in ln(B/A).
    ///
    /// # Errors
    /// The deviation is not positive, or the plan's α not in (0, 0.1].
    pub fn new(
        plan: &SequentialPlan,
        unit_sd_log: f64,
        effect_log: f64,
    ) -> Result<Self, StatsError> {
        check_positive("the standard deviation of the units", unit_sd_log)?;
        let critical = plan.schedule.critical_values(plan.alpha)?;
        let margin_log = plan.margin.half_width_log();
        let answer = |range: LogRange| match range.side_of(0.0) {
            None if range.is_within(margin_log) => Some(None),
            None => None,
            side => Some(side),
        };
        let truth = effect_log.total_cmp(&0.0);
        let runs = simulate(&critical, [effect_log, unit_sd_log], answer);
        let signs = units_of(&runs, |side| side.is_some_and(|side| side == truth));
        let equivalences = units_of(&runs, Option::is_none);
        let is_null = effect_log.abs() <= 0.0;
        Ok(Self {
            effect_log,
            sign_chance: share(&signs),
            equivalence_chance: share(&equivalences),
            units_median: median(if is_null { equivalences } else { signs }),
        })
    }
}

/// What a gate can find out about a true slowdown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateProspect {
    /// The chance of [`GateAnswer::Regression`].
    pub regression: f64,
    /// The chance of [`GateAnswer::Pass`]; the rest are inconclusive.
    pub pass: f64,
    /// Median number of units until the answer; `None` if fewer than half of the comparisons have one.
    pub units_median: Option<usize>,
}

impl GateProspect {
    /// For a B that is slower by `slowdown_percent`%, and units with a standard deviation of `unit_sd_log`.
    ///
    /// # Errors
    /// The deviation is not positive, the slowdown is −100% or less, or α is not in (0, 0.1].
    pub fn new(
        rule: &GateRule,
        (schedule, alpha): (AnalysisSchedule, f64),
        unit_sd_log: f64,
        slowdown_percent: f64,
    ) -> Result<Self, StatsError> {
        check_positive("the standard deviation of the units", unit_sd_log)?;
        let slowdown = 1.0 + slowdown_percent / 100.0;
        check_positive("the slowdown, as a ratio,", slowdown)?;
        let critical = schedule.critical_values(alpha)?;
        let answer = |range: LogRange| {
            let found = rule.answer_on(range, Direction::LowerIsBetter);
            (found != GateAnswer::Inconclusive).then_some(found)
        };
        let runs = simulate(&critical, [slowdown.ln(), unit_sd_log], answer);
        let share_of = |wanted: GateAnswer| share(&units_of(&runs, |found| *found == wanted));
        Ok(Self {
            regression: share_of(GateAnswer::Regression),
            pass: share_of(GateAnswer::Pass),
            units_median: median(units_of(&runs, |_| true)),
        })
    }
}

/// What can be decided at a given noise, for a sentence before the run.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidableEffects {
    /// When analyses take place.
    pub schedule: AnalysisSchedule,
    /// Standard deviation of ln(B/A) between units.
    pub unit_sd_log: f64,
    /// One for each effect, in the order of the request.
    pub prospects: Vec<Prospect>,
}

impl DecidableEffects {
    /// For effects in percent, as in "B is 5% faster".
    ///
    /// # Errors
    /// As [`Prospect::new`]; an effect is −100% or less.
    pub fn new(
        plan: &SequentialPlan,
        unit_sd_log: f64,
        effects_percent: &[f64],
    ) -> Result<Self, StatsError> {
        let of_effect = |percent: &f64| {
            let ratio = 1.0 + percent / 100.0;
            check_positive("the effect, as a ratio,", ratio)?;
            Prospect::new(plan, unit_sd_log, ratio.ln())
        };
        let prospects = effects_percent.iter().map(of_effect);
        Ok(Self {
            schedule: plan.schedule,
            unit_sd_log,
            prospects: prospects.collect::<Result<_, _>>()?,
        })
    }
}

impl std::fmt::Display for DecidableEffects {
    /// `assuming that ratios vary by 3% (SD) between pairs: 20% and 10% after about 4 pairs, 2% after 20, 1% rarely`. Effects whose
    /// sign is found in less than 80% of runs are shown with the chance, and below 50% as rare.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = self.schedule.unit_name();
        let sd = rounded(100.0 * self.unit_sd_log);
        write!(out, "assuming that ratios vary by {sd} (SD) between {unit}")?;
        let mut separator = ": ";
        let found = |it: &Prospect| it.units_median.map(|units| (units, chance(it)));
        for alike in self.prospects.chunk_by(|a, b| found(a) == found(b)) {
            let Some((units, chance)) = alike.first().and_then(found) else {
                continue;
            };
            let effects: Vec<String> = alike.iter().map(|it| percent(it.effect_log)).collect();
            let after = match separator {
                ": " => format!("about {units} {unit}"),
                _ => units.to_string(),
            };
            write!(
                out,
                "{separator}{} after {after}{chance}",
                effects.join(" and ")
            )?;
            separator = ", ";
        }
        let unlikely = self.prospects.iter().filter(|it| it.units_median.is_none());
        let unlikely: Vec<String> = unlikely.map(|it| percent(it.effect_log)).collect();
        if !unlikely.is_empty() {
            let separator = if separator == ": " { ": " } else { ", " };
            write!(out, "{separator}{} rarely", unlikely.join(" and "))?;
        }
        Ok(())
    }
}

/// The chance that the sign of the effect is found, if it may well not be.
fn chance(prospect: &Prospect) -> String {
    if prospect.sign_chance < 0.8 {
        format!(" (in {:.0}% of runs)", 100.0 * prospect.sign_chance)
    } else {
        String::new()
    }
}

/// A difference of logarithms as a percentage.
fn percent(log: f64) -> String {
    rounded(100.0 * log.exp_m1().abs())
}

/// A percentage with at most one decimal.
fn rounded(percent: f64) -> String {
    let rounded = if percent < 10.0 {
        (10.0 * percent).round() / 10.0
    } else {
        percent.round()
    };
    format!("{rounded}%")
}

/// Answers and numbers of units of simulated comparisons; `None` without an answer.
fn simulate<Answer>(
    critical: &CriticalValues,
    drift: [f64; 2],
    answer: impl Fn(LogRange) -> Option<Answer>,
) -> Vec<Option<(Answer, usize)>> {
    let mut stream = SplitMix64::new(stream_seed(SEED, &[critical.schedule().cap() as u64]));
    let answer = |[range]: [LogRange; 1]| answer(range);
    let run = |_| SimulatedPath::NEW.first_answer(&mut stream, [critical], drift, answer);
    (0..SIMULATIONS).map(run).collect()
}

/// The numbers of units of the runs with a wanted answer.
fn units_of<Answer>(
    runs: &[Option<(Answer, usize)>],
    is_wanted: impl Fn(&Answer) -> bool,
) -> Vec<usize> {
    let answered = runs.iter().flatten();
    let wanted = answered.filter(|(answer, _)| is_wanted(answer));
    wanted.map(|(_, units)| *units).collect()
}

fn share(units: &[usize]) -> f64 {
    units.len() as f64 / SIMULATIONS as f64
}

/// The median over all simulations, of which those that are missing took longest.
fn median(mut units: Vec<usize>) -> Option<usize> {
    units.sort_unstable();
    units.get(SIMULATIONS / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::EquivalenceMargin;

    fn plan(schedule: AnalysisSchedule) -> SequentialPlan {
        SequentialPlan::new(schedule, Direction::HigherIsBetter)
    }

    #[test]
    fn the_sentence_before_a_run_is_that_of_the_simulation() {
        let plan = plan(AnalysisSchedule::Pairs);
        let found = DecidableEffects::new(&plan, 0.03, &[5.0, 2.0, 1.0]).unwrap();
        assert_eq!(
            found.to_string(),
            "assuming that ratios vary by 3% (SD) between pairs: 5% after about 8 pairs, 2% after 20, 1% rarely"
        );
        // Regression: "50% in about 4 pairs, 20% in 4".
        let alike = DecidableEffects::new(&plan, 0.03, &[50.0, 20.0]).unwrap();
        assert_eq!(
            alike.to_string(),
            "assuming that ratios vary by 3% (SD) between pairs: 50% and 20% after about 4 pairs"
        );
        let none = DecidableEffects::new(&plan, 0.25, &[5.0]).unwrap();
        assert_eq!(
            none.to_string(),
            "assuming that ratios vary by 25% (SD) between pairs: 5% rarely"
        );
        assert!(DecidableEffects::new(&plan, 0.0, &[5.0]).is_err());
        assert!(DecidableEffects::new(&plan, 0.03, &[-100.0]).is_err());
    }

    #[test]
    fn chances_are_those_of_the_tables() {
        // Truth 2% at SD 3%: 97%, 20 pairs; 0 at SD 3%: equivalent in 94%, 28 pairs; 2% at SD 8%: 30%.
        let pairs = plan(AnalysisSchedule::Pairs);
        let of = |sd: f64, effect: f64| Prospect::new(&pairs, sd, effect).unwrap();
        let found = of(0.03, 0.02f64.ln_1p());
        assert!((found.sign_chance - 0.97).abs() < 0.015, "{found:?}");
        assert!(found.equivalence_chance < 0.025, "{found:?}");
        let null = of(0.03, 0.0);
        assert!((null.equivalence_chance - 0.94).abs() < 0.02, "{null:?}");
        assert!(
            null.units_median.is_some_and(|it| (26..=30).contains(&it)),
            "{null:?}"
        );
        assert!((of(0.08, 0.02f64.ln_1p()).sign_chance - 0.30).abs() < 0.04);
        // Slower and faster have the same chances, apart from the simulation's error.
        let slower = of(0.03, -(0.02f64.ln_1p()));
        assert!((slower.sign_chance - found.sign_chance).abs() < 0.02);
        // Without a margin a missing difference is never equivalent.
        let without = SequentialPlan {
            margin: EquivalenceMargin::none(),
            ..pairs
        };
        assert!(
            Prospect::new(&without, 0.03, 0.0)
                .unwrap()
                .equivalence_chance
                <= 0.0
        );
    }

    #[test]
    fn a_gate_knows_its_power() {
        let rule = GateRule::slower_than(5.0).unwrap();
        let of = |sd: f64, slowdown: f64| {
            GateProspect::new(&rule, (AnalysisSchedule::Pairs, 0.05), sd, slowdown).unwrap()
        };
        // SD 1%: 0 passes after 4 pairs, 10% fails after 4. SD 3%: 4% is inconclusive in 53%.
        assert!(of(0.01, 0.0).pass > 0.99 && of(0.01, 0.0).units_median == Some(4));
        assert!(of(0.01, 10.0).regression > 0.99 && of(0.01, 10.0).units_median == Some(4));
        let near = of(0.03, 4.0);
        assert!(
            (1.0 - near.pass - near.regression - 0.53).abs() < 0.04,
            "{near:?}"
        );
        assert!(near.regression < 0.025 && near.units_median.is_none());
        let limit = of(0.03, 5.0);
        assert!(limit.regression < 0.035 && limit.pass < 0.035, "{limit:?}");
    }

    #[test]
    fn percentages_have_a_decimal_where_it_matters() {
        assert_eq!(percent(0.03), "3%");
        assert_eq!(percent(1.025f64.ln()), "2.5%");
        assert_eq!(percent(-0.2f64.ln_1p()), "17%");
    }
}
