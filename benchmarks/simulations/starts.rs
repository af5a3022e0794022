//! Server starts, each of which has its own effect on B/A.

use pgassay_stats::{Estimate, Pair, PairContext, UnitOfIndependence, compare_in_context};

use crate::world::Draws;
use crate::{Share, row};

const PAIR_SD: f64 = 0.02;

/// How an interval accounts for starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// As in `pgassay run`: with four starts or more, the means of starts are the units.
    Rule,
    /// Pairs are always the units, as in earlier versions.
    Pairs,
    /// A mixed model: the larger of the two mean squares, with Satterthwaite's degrees of freedom.
    MixedModel,
}

fn estimate(pairs: &[Pair], boots: &[u32]) -> Estimate {
    let background = PairContext {
        boots,
        steps: [0.0; 2],
    };
    let found = compare_in_context(pairs, background, 0.95).expect("figures are positive");
    found.estimate().expect("there are several pairs").clone()
}

/// Whether the interval of a run contains no difference, which is the truth over all starts.
fn contains_one(
    draws: &mut Draws,
    way: Method,
    boots: u32,
    each: u32,
    boot_sd: f64,
) -> (bool, UnitOfIndependence) {
    let (mut pairs, mut of_pair) = (Vec::new(), Vec::new());
    for boot in 0..boots {
        let effect = boot_sd * draws.normal();
        for _ in 0..each {
            pairs.push(Pair {
                baseline: 1.0,
                variant: (PAIR_SD * (effect + draws.normal())).exp(),
            });
            of_pair.push(boot);
        }
    }
    let (by_pairs, by_rule) = (estimate(&pairs, &[]), estimate(&pairs, &of_pair));
    let found = match way {
        Method::Pairs => by_pairs,
        Method::Rule => by_rule,
        Method::MixedModel => {
            // If starts vary no more than their pairs do, their variance is estimated as 0.
            let of_start = |pairs: &[Pair]| Pair {
                baseline: 1.0,
                variant: pairs
                    .iter()
                    .map(|it| it.variant)
                    .product::<f64>()
                    .powf(1.0 / f64::from(each)),
            };
            let means: Vec<Pair> = pairs.chunks(each as usize).map(of_start).collect();
            let by_means = (boots > 1).then(|| estimate(&means, &[]));
            let is_larger = |it: &Estimate| it.std_err_log > by_pairs.std_err_log;
            by_means.filter(is_larger).unwrap_or(by_pairs)
        }
    };
    (!found.excludes_one(), found.unit)
}

pub fn false_positives(
    way: Method,
    boots: u32,
    each: u32,
    boot_sd: f64,
    runs: u32,
) -> (Share, UnitOfIndependence) {
    let mut draws = Draws::new(4);
    let mut unit = UnitOfIndependence::Pair;
    let hits = (0..runs).filter(|_| {
        let (holds, of_run) = contains_one(&mut draws, way, boots, each, boot_sd);
        unit = of_run;
        holds
    });
    let share = Share::of(hits.count(), runs).complement();
    (share, unit)
}

pub fn tables(runs: u32) {
    println!("## Server starts\n");
    println!(
        "False positives for a verdict about any start. The SD of the starts is given as a share of that of the pairs.\n"
    );
    row(&[
        "starts × pairs",
        "SD of starts",
        "pairs as units",
        "mixed model",
        "the rule",
        "its unit",
    ]);
    row(&["---"; 6]);
    for (boots, each) in [(1, 6), (2, 3), (3, 2), (4, 2), (6, 1), (6, 2), (12, 2)] {
        for boot_sd in [0.0, 0.25, 0.5] {
            let of_way = |way: Method| false_positives(way, boots, each, boot_sd, runs);
            let (rule, unit) = of_way(Method::Rule);
            row(&[
                &format!("{boots} × {each}"),
                &boot_sd.to_string(),
                &of_way(Method::Pairs).0.to_string(),
                &of_way(Method::MixedModel).0.to_string(),
                &rule.to_string(),
                &format!("{unit:?}"),
            ]);
            if unit == UnitOfIndependence::ServerStart {
                let chance = 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
                assert!(rule.0 <= 0.055 + chance, "{boots} × {each}, {boot_sd}");
            }
        }
    }
    assert!(
        false_positives(Method::Pairs, 4, 6, 0.5, runs).0.0 > 0.055,
        "pairs as units must have too many false positives"
    );
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_starts_give_a_valid_interval_and_their_pairs_do_not() {
        let rule = false_positives(Method::Rule, 4, 6, 0.5, 1_000).0;
        assert!(rule.0 <= 0.07, "{rule}");
        let pairs = false_positives(Method::Pairs, 4, 6, 0.5, 1_000).0;
        assert!(pairs.0 > 0.15, "{pairs}");
    }
}
