//! Compares counts with earlier ones.
//!
//! Counts repeat only on one machine and one build. If either changed, a difference says nothing
//! about the code, so such counts are not compared.

use pgassay_account::instructions::margin::{self, Family};
use pgassay_account::instructions::{CountVerdict, Counts, Difference, Machine, VariantCount};

/// The outcome of comparing one variant.
#[derive(Debug, Clone, PartialEq)]
pub enum VariantOutcome {
    /// Within the tolerance, or cheaper.
    Within(Difference),
    /// More expensive than the tolerance allows.
    Over(Difference),
    /// The counts are too few, or not exact enough, for this reason.
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

/// Compares every variant of `now` with the one of the same name in `then`. `tolerance` is a share.
pub fn compare(then: &Counts, now: &Counts, tolerance: f64) -> Vec<VariantComparison> {
    let reason = machines_differ(&then.machine, &now.machine).or_else(|| seeds_differ(then, now));
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
                (None, None) => VariantOutcome::NotComparable("not in the earlier file".to_owned()),
                (None, Some(earlier)) => one(earlier, variant, &family, tolerance),
            };
            comparisons.push(VariantComparison { title, outcome });
        }
    }
    comparisons
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
    // Variation across repeats is not a regression.
    let allowed = (tolerance * then.cost()).max(difference.margin);
    if difference.per_transaction > allowed {
        VariantOutcome::Over(difference)
    } else {
        VariantOutcome::Within(difference)
    }
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

fn seeds_differ(then: &Counts, now: &Counts) -> Option<String> {
    if then.seed != now.seed {
        return Some(format!(
            "the seed of the random numbers was {}, now {}",
            then.seed, now.seed
        ));
    }
    None
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
