//! Says how the figures of a count and its verdicts are computed, and how often a verdict is wrong.

use pgassay_account::instructions::{Counts, VariantCount, margin};

/// How figures and verdicts are computed.
pub(crate) fn how(baseline: &VariantCount, counts: &Counts) -> String {
    let segments = baseline.segments.map(|count| count.to_string()).join(", ");
    let rounds = baseline.repeats.len();
    let figures = format!(
        "Median of {rounds} {}, segments of {segments} transactions; ± of a cost is the range over the rounds.",
        if rounds == 1 { "round" } else { "rounds" }
    );
    let comparisons = counts.comparisons();
    match (margin::factor(rounds, comparisons), comparisons) {
        (_, 0) => figures,
        (None, _) => format!(
            "{figures} A verdict requires at least {} rounds (--repeats).",
            margin::ROUNDS_MIN
        ),
        (Some(factor), _) => format!(
            "{figures} ± of a difference is a bound on noise, which exceeds it in at most {}. It is {factor:.2} times \
             the larger of the two ranges (or the usual range of this script's variants, if that is more), plus the \
             uncertainty of a cost that depends on the number of transactions.",
            error(counts, rounds)
        ),
    }
}

/// How often noise exceeds its bound.
fn error(counts: &Counts, rounds: usize) -> String {
    let percent = 100.0 * margin::ERROR;
    let comparisons = match counts.comparisons() {
        1 => "1 comparison".to_owned(),
        several => format!("{several} comparisons"),
    };
    let points = counts.conditions.iter().map(|it| it.variants.len());
    let of_two = margin::error_of_two_values(rounds, points);
    let but = if of_two > margin::ERROR {
        // Rounded up: it is a bound.
        let of_two = (1_000.0 * of_two).ceil() / 10.0;
        format!("; {of_two:.1}% if noise has only two values, fewer with more --repeats")
    } else {
        String::new()
    };
    format!("{percent}% of counts ({comparisons} in total{but})")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pgassay_account::instructions::{Build, ConditionCount, Machine, SCHEMA};

    use super::*;

    /// Regression: "at most 1% of counts" was promised for noise of two values, too, with which 3% have a false
    /// difference.
    #[test]
    fn the_error_of_noise_with_two_values_is_printed_where_it_is_larger() {
        let of = |scripts: &[usize], rounds| {
            let condition = |variants: &usize| ConditionCount {
                title: String::new(),
                variants: vec![variant(); *variants],
            };
            let counts = Counts {
                schema: SCHEMA.to_owned(),
                question: String::new(),
                seed: 1,
                machine: Machine {
                    counter: String::new(),
                    cpu: String::new(),
                    cpu_features: Vec::new(),
                },
                ignored: Vec::new(),
                conditions: scripts.iter().map(condition).collect(),
            };
            error(&counts, rounds)
        };
        let two = "3.2% if noise has only two values, fewer with more --repeats";
        assert_eq!(
            of(&[2], 3),
            format!("1% of counts (1 comparison in total; {two})")
        );
        assert_eq!(of(&[2], 5), "1% of counts (1 comparison in total)");
        assert_eq!(of(&[11], 3), "1% of counts (10 comparisons in total)");
        assert!(of(&[2; 10], 3).contains("10 comparisons in total; 27.3% if"));
    }

    fn variant() -> VariantCount {
        VariantCount {
            name: String::new(),
            build: Build {
                version: String::new(),
                configure: String::new(),
                cflags: String::new(),
                compiler: String::new(),
            },
            settings: BTreeMap::new(),
            load: None,
            segments: [100, 200, 400],
            repeats: Vec::new(),
            transactions: 300,
            instructions: 0,
            system_calls: 0,
            system_calls_by_name: Vec::new(),
            subsystems: Vec::new(),
            functions: Vec::new(),
            calls: Vec::new(),
            tree: None,
        }
    }
}
