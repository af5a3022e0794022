//! Compares counts with earlier ones.
//!
//! Counts repeat only on one machine and one build. If either changed, a difference says nothing
//! about the code, so such counts are not compared.

use pgassay_account::instructions::margin::{self, Family};
use pgassay_account::instructions::{
    CountVerdict, CountedLoad, Counts, Difference, Machine, VariantCount,
};

/// The outcome of comparing one variant.
#[derive(Debug, Clone, PartialEq)]
pub enum VariantOutcome {
    /// The estimate is within the tolerance, or lower.
    Within(Difference),
    /// The whole interval is above the tolerance.
    Over(Difference),
    /// The estimate is above the tolerance, but not the whole interval; or the counts are too few, or not linear.
    Inconclusive(String),
    /// Cannot be compared, for this reason.
    NotComparable(String),
}

/// One variant then and now.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantComparison {
    /// The condition and the variant.
    pub title: String,
    /// The outcome.
    pub outcome: VariantOutcome,
}

/// Why nothing that is to be counted, on this machine and with this seed, can be compared with earlier counts; `None`
/// if something may be. `points` are conditions and variants.
pub fn refusal(
    then: &Counts,
    (machine, seed): (&Machine, u64),
    points: &[(&str, &str)],
) -> Option<String> {
    let reason = machines_differ(&then.machine, machine).or_else(|| seeds_differ(then.seed, seed));
    let of_condition = |title: &str| {
        let mut conditions = then.conditions.iter();
        let found = conditions.find(|it| it.title == title);
        found.map_or(&[][..], |it| &it.variants)
    };
    let is_known = |(condition, name): &(&str, &str)| {
        let mut variants = of_condition(condition).iter();
        variants.any(|it| it.name == *name)
    };
    reason.or_else(|| {
        let (condition, name) = points.first()?;
        let is_any_known = points.iter().any(is_known);
        let missing = || format!("\"{name}\" is {}", not_among(of_condition(condition)));
        (!is_any_known).then(missing)
    })
}

/// Compares every variant of `now` with the one of the same name in `then`. `tolerance` is a share.
pub fn compare(then: &Counts, now: &Counts, tolerance: f64) -> Vec<VariantComparison> {
    let reason = machines_differ(&then.machine, &now.machine);
    let reason = reason.or_else(|| seeds_differ(then.seed, now.seed));
    let all: usize = now.conditions.iter().map(|it| it.variants.len()).sum();
    let mut comparisons = Vec::new();
    for condition in &now.conditions {
        let mut conditions = then.conditions.iter();
        let before = conditions.find(|other| other.title == condition.title);
        let before = before.map_or(&[][..], |it| &it.variants);
        let points = before.iter().chain(&condition.variants);
        let family = Family {
            comparisons: all,
            points: points.map(VariantCount::cost_and_spread).collect(),
        };
        for variant in &condition.variants {
            let title = if condition.title.is_empty() {
                variant.name.clone()
            } else {
                format!("{}, {}", condition.title, variant.name)
            };
            let earlier = before.iter().find(|other| other.name == variant.name);
            let outcome = match (&reason, earlier) {
                (Some(reason), _) => VariantOutcome::NotComparable(reason.clone()),
                (None, None) => VariantOutcome::NotComparable(not_among(before)),
                (None, Some(earlier)) => one(earlier, variant, &family, tolerance),
            };
            comparisons.push(VariantComparison { title, outcome });
        }
    }
    comparisons
}

/// That a variant is not among the earlier ones, whose names depend on what was varied then.
fn not_among(before: &[VariantCount]) -> String {
    if before.is_empty() {
        return "not in the earlier file".to_owned();
    }
    let names: Vec<&str> = before.iter().map(|it| it.name.as_str()).collect();
    format!(
        "not in the earlier file, which has \"{}\"; give the same choices (such as --vs) as then",
        names.join("\", \"")
    )
}

fn one(then: &VariantCount, now: &VariantCount, family: &Family, tolerance: f64) -> VariantOutcome {
    if let Some(reason) = variants_differ(then, now) {
        return VariantOutcome::NotComparable(reason);
    }
    if let Some(reason) = not_linear(then, now) {
        return VariantOutcome::Inconclusive(reason);
    }
    let difference = Difference::between(then, now, family);
    if difference.verdict == CountVerdict::TooFewRounds {
        let (then, now) = (then.repeats.len(), now.repeats.len());
        return VariantOutcome::Inconclusive(format!(
            "counted in {then} rounds, now in {now}; a verdict requires {} in both (--repeats)",
            margin::ROUNDS_MIN
        ));
    }
    let allowed = tolerance * then.cost();
    if difference.per_transaction - difference.margin > allowed {
        VariantOutcome::Over(difference)
    } else if difference.per_transaction <= allowed {
        VariantOutcome::Within(difference)
    } else {
        VariantOutcome::Inconclusive(contains_tolerance(then, &difference, tolerance))
    }
}

/// The cost seems to exceed the tolerance, but the interval contains it.
fn contains_tolerance(then: &VariantCount, difference: &Difference, tolerance: f64) -> String {
    let percent = |instructions: f64| 100.0 * instructions / then.cost();
    format!(
        "the change of {:+.3}% ± {:.3}% may be within the tolerance of {}%; use more --repeats, or a larger --tolerance",
        percent(difference.per_transaction),
        percent(difference.margin),
        100.0 * tolerance
    )
}

/// Why counts of these machines cannot be compared; `None` if they can.
pub fn machines_differ(then: &Machine, now: &Machine) -> Option<String> {
    if then.counter != now.counter {
        let (then, now) = (&then.counter, &now.counter);
        return Some(format!("counted by {then}, now by {now}"));
    }
    if then.cpu_features != now.cpu_features {
        return Some(format!(
            "the CPU features were {}, now {}",
            then.cpu_features.join(" "),
            now.cpu_features.join(" ")
        ));
    }
    None
}

fn seeds_differ(then: u64, now: u64) -> Option<String> {
    (then != now).then(|| format!("the seed of the random numbers was {then}, now {now}"))
}

fn variants_differ(then: &VariantCount, now: &VariantCount) -> Option<String> {
    let major = |version: &str| major_of(version).to_owned();
    let pairs = [
        (
            "version",
            major(&then.build.version),
            major(&now.build.version),
        ),
        (
            "compiler",
            then.build.compiler.clone(),
            now.build.compiler.clone(),
        ),
        (
            "compiler flags",
            then.build.cflags.clone(),
            now.build.cflags.clone(),
        ),
        (
            "configuration",
            then.build.configure.clone(),
            now.build.configure.clone(),
        ),
    ];
    if let Some((what, then, now)) = pairs.into_iter().find(|(_, then, now)| then != now) {
        return Some(format!(
            "the server is another build: {what} was {then}, now {now}"
        ));
    }
    if let (Some(then), Some(now)) = (&then.load, &now.load)
        && let Some(what) = loads_differ(then, now)
    {
        return Some(format!("the earlier counts are of {what}"));
    }
    if then.settings != now.settings {
        let names = then.settings.keys().chain(now.settings.keys());
        let mut names = names.filter(|name| then.settings.get(*name) != now.settings.get(*name));
        let name = names.next()?;
        let shown = |variant: &VariantCount| {
            let value = variant.settings.get(name);
            value.map_or("not set".to_owned(), Clone::clone)
        };
        return Some(format!("{name} was {}, now {}", shown(then), shown(now)));
    }
    let segments =
        |variant: &VariantCount| variant.segments.map(|count| count.to_string()).join("/");
    if then.segments != now.segments {
        let (then, now) = (segments(then), segments(now));
        return Some(format!("counted over {then} transactions, now over {now}"));
    }
    None
}

fn loads_differ(then: &CountedLoad, now: &CountedLoad) -> Option<&'static str> {
    let different = [
        ("another script", then.scripts != now.scripts),
        ("another protocol", then.protocol != now.protocol),
        ("other session settings", then.session != now.session),
        ("another setup or scale", then.setup != now.setup),
    ];
    let mut different = different.into_iter();
    different.find_map(|(what, is_different)| is_different.then_some(what))
}

fn not_linear(then: &VariantCount, now: &VariantCount) -> Option<String> {
    let bent = [("earlier", then), ("current", now)]
        .into_iter()
        .find(|(_, variant)| !variant.is_linear());
    bent.map(|(when, variant)| {
        format!(
            "the {when} cost is not linear: the cost of a transaction changes by {:+.2}% in the second half of a run",
            100.0 * variant.bend()
        )
    })
}

/// `18` from `18.6`, `9.6` from `9.6.24`.
fn major_of(version: &str) -> &str {
    let dots = if version.starts_with('9') { 2 } else { 1 };
    let end = version
        .match_indices('.')
        .nth(dots - 1)
        .map_or(version.len(), |(at, _)| at);
    &version[..end]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pgassay_account::instructions::{Build, ConditionCount, Repeat};

    use super::*;

    /// A variant that costs `cost` instructions per transaction, give or take 1.
    fn variant(cost: i64, protocol: &str) -> VariantCount {
        let total = |count: i64| count as u64 * 100;
        let repeat = |shift: i64| Repeat {
            instructions: [
                total(cost + shift),
                2 * total(cost + shift),
                4 * total(cost + shift),
            ],
            position: 1,
        };
        VariantCount {
            name: "v".to_owned(),
            build: Build {
                version: "18.6".to_owned(),
                configure: String::new(),
                cflags: String::new(),
                compiler: String::new(),
            },
            settings: BTreeMap::new(),
            load: Some(CountedLoad {
                protocol: protocol.to_owned(),
                session: BTreeMap::new(),
                scripts: vec!["select 1".to_owned()],
                setup: Vec::new(),
            }),
            segments: [100, 200, 400],
            repeats: [-1, 0, 1].map(repeat).to_vec(),
            transactions: 300,
            instructions: 300 * cost,
            system_calls: 0,
            system_calls_by_name: Vec::new(),
            subsystems: Vec::new(),
            functions: Vec::new(),
            calls: Vec::new(),
            tree: None,
        }
    }

    fn outcome(then: &VariantCount, now: &VariantCount, tolerance: f64) -> VariantOutcome {
        let family = Family {
            comparisons: 1,
            points: vec![then.cost_and_spread(), now.cost_and_spread()],
        };
        one(then, now, &family, tolerance)
    }

    /// Regression: +0.11% ± 0.06% was "over 0.1%", although +0.05% is in the interval.
    #[test]
    fn an_increase_that_may_be_within_the_tolerance_is_inconclusive() {
        let then = variant(10_000, "simple");
        let of = |cost| outcome(&then, &variant(cost, "simple"), 0.001);
        assert!(matches!(of(10_000), VariantOutcome::Within(_)));
        assert!(matches!(of(10_009), VariantOutcome::Within(_)));
        let near = of(10_011);
        let VariantOutcome::Inconclusive(reason) = &near else {
            panic!("{near:?}");
        };
        assert!(reason.starts_with("the change of +0.110% ± "), "{reason}");
        assert!(matches!(of(10_100), VariantOutcome::Over(_)));
    }

    /// Regression: "default: not comparable: not in the earlier file", of the same script, which was "simple" there.
    #[test]
    fn a_variant_that_is_not_among_the_earlier_ones_names_them() {
        let earlier = [variant(1, "simple")];
        let reason = not_among(&earlier);
        assert!(
            reason.contains("which has \"v\"; give the same"),
            "{reason}"
        );
        assert_eq!(not_among(&[]), "not in the earlier file");
    }

    /// Regression: names were looked at only after minutes of counting.
    #[test]
    fn counts_that_cannot_be_compared_are_known_before_counting() {
        let machine = |counter: &str| Machine {
            counter: counter.to_owned(),
            cpu: String::new(),
            cpu_features: Vec::new(),
        };
        let then = Counts {
            schema: String::new(),
            question: String::new(),
            seed: 1,
            machine: machine("valgrind-3"),
            ignored: Vec::new(),
            conditions: vec![ConditionCount {
                title: String::new(),
                variants: vec![variant(1, "simple")],
            }],
        };
        let of = |counter, seed, names: &[&'static str]| {
            let points: Vec<_> = names.iter().map(|name| ("", *name)).collect();
            refusal(&then, (&machine(counter), seed), &points)
        };
        assert_eq!(of("valgrind-3", 1, &["w", "v"]), None);
        let reason = of("valgrind-3", 1, &["default", "jit=off"]).unwrap();
        let expected = "\"default\" is not in the earlier file, which has \"v\"; give the same";
        assert!(reason.starts_with(expected), "{reason}");
        assert!(of("valgrind-3", 2, &["v"]).unwrap().contains("the seed"));
        assert!(of("valgrind-4", 1, &["v"]).unwrap().contains("counted by"));
        let elsewhere = refusal(&then, (&then.machine, 1), &[("script=b", "v")]);
        assert_eq!(elsewhere.unwrap(), "\"v\" is not in the earlier file");
    }

    /// Regression: counts of `-M prepared` were "within" those of `-M simple`.
    #[test]
    fn counts_of_another_load_are_not_compared() {
        let found = outcome(
            &variant(10_000, "simple"),
            &variant(9_000, "prepared"),
            0.001,
        );
        let VariantOutcome::NotComparable(reason) = &found else {
            panic!("{found:?}");
        };
        assert_eq!(reason, "the earlier counts are of another protocol");
        let mut old = variant(10_000, "simple");
        old.load = None;
        let found = outcome(&old, &variant(9_000, "prepared"), 0.001);
        assert!(matches!(found, VariantOutcome::Within(_)), "{found:?}");
    }
}
