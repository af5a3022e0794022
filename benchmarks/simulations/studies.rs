//! Sequential comparisons in a study, and gates.

use pgassay_stats::Direction;
use pgassay_stats::Pair;
use pgassay_stats::sequential::{
    AnalysisSchedule, GateProspect, GateRule, SequentialComparison, SequentialMatrix,
    SequentialPlan, SequentialVerdict,
};

use crate::world::Draws;
use crate::{Share, row};

/// Which comparison gets the next block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Allocation {
    Equal,
    Adaptive,
}

/// What a study of 18 comparisons with 288 pairs finds, on average.
#[derive(Default)]
struct Study {
    false_sign: f64,
    false_equivalence: f64,
    decided: f64,
    pairs: f64,
}

/// `truths` of 18 comparisons; with `matrix`, judged together, otherwise each alone at 5%.
fn study(truths: &[f64; 18], allocation: Allocation, together: bool, runs: u32) -> Study {
    let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter);
    let alpha = 0.05;
    let template = SequentialMatrix::new(&[plan; 18], alpha).expect("it is a level");
    let mut draws = Draws::new(18);
    let mut sum = Study::default();
    for _ in 0..runs {
        let shared: Vec<f64> = (0..48).map(|_| draws.normal()).collect();
        let mut matrix = template.clone();
        let verdict = |matrix: &SequentialMatrix, index: usize| {
            if together {
                matrix.cell(index).verdict
            } else {
                matrix.comparisons()[index].verdict()
            }
        };
        let mut pairs = 0;
        while pairs < 288 {
            let open = (0..18).filter(|index| {
                let it = &matrix.comparisons()[*index];
                !it.is_at_cap() && verdict(&matrix, *index) == SequentialVerdict::Inconclusive
            });
            let next = match allocation {
                Allocation::Adaptive if together => matrix.next_block().map(|next| next.comparison),
                // Each its own 16 pairs.
                Allocation::Equal => open
                    .filter(|index| matrix.comparisons()[*index].units() < 16)
                    .min_by_key(|index| matrix.comparisons()[*index].units()),
                Allocation::Adaptive => {
                    open.min_by_key(|index| rest_alone(&matrix.comparisons()[*index]))
                }
            };
            let Some(next) = next else {
                break;
            };
            let sd = [0.01, 0.02, 0.03][next % 3];
            let from = matrix.comparisons()[next].units();
            let block = [0, 1].map(|at| {
                let noise = 0.5f64.sqrt() * (shared[from + at] + draws.normal());
                Pair {
                    baseline: 1.0,
                    variant: (truths[next] + sd * noise).exp(),
                }
            });
            matrix.push(next, &block).expect("figures are positive");
            pairs += 2;
        }
        let verdicts: Vec<_> = (0..18).map(|index| verdict(&matrix, index)).collect();
        let any = |wrong: &dyn Fn(SequentialVerdict, f64) -> bool| {
            let mut found = verdicts.iter().zip(truths);
            f64::from(u8::from(
                found.any(|(verdict, truth)| wrong(*verdict, *truth)),
            ))
        };
        sum.false_sign += any(&|verdict, truth| match verdict {
            SequentialVerdict::Faster { .. } => truth <= 0.0,
            SequentialVerdict::Slower { .. } => truth >= 0.0,
            _ => false,
        });
        sum.false_equivalence += any(&|verdict, truth| {
            verdict == SequentialVerdict::Equivalent && truth.abs() > 0.02f64.ln_1p() - 1e-9
        });
        sum.decided += verdicts.iter().filter(|it| it.is_conclusive()).count() as f64;
        sum.pairs += f64::from(pairs);
    }
    let each = |it: f64| it / f64::from(runs);
    Study {
        false_sign: each(sum.false_sign),
        false_equivalence: each(sum.false_equivalence),
        decided: each(sum.decided),
        pairs: each(sum.pairs),
    }
}

/// For each comparison alone: four pairs each first, then the one with the smallest error of its mean.
fn rest_alone(running: &SequentialComparison) -> (bool, u64) {
    let Some(last) = running.analyses().last() else {
        return (false, running.units() as u64);
    };
    let distance = last
        .mean_log
        .abs()
        .max(0.02f64.ln_1p() - last.mean_log.abs());
    (true, (1e6 * last.unit_sd_log / distance) as u64)
}

fn matrices(runs: u32) {
    println!(
        "\nStudies of 18 comparisons, pair SD 1%, 2% and 3%, correlation 0.5, 288 pairs at most.\n"
    );
    row(&[
        "truth",
        "allocation",
        "error control",
        "any false sign",
        "any false equivalence",
        "decided",
        "pairs",
    ]);
    row(&["---"; 7]);
    let mixed: [f64; 18] = std::array::from_fn(|index| match index {
        0..6 => 0.0,
        6..10 => 0.02f64.ln_1p(),
        10..14 => 0.05f64.ln_1p(),
        _ => 0.2f64.ln_1p(),
    });
    for (name, truths, allocation, together) in [
        ("all 0", [0.0; 18], Allocation::Adaptive, false),
        ("all 0", [0.0; 18], Allocation::Adaptive, true),
        (
            "6 × 0, 4 × 2%, 4 × 5%, 4 × 20%",
            mixed,
            Allocation::Equal,
            true,
        ),
        ("the same", mixed, Allocation::Adaptive, true),
        ("all 5%", [0.05f64.ln_1p(); 18], Allocation::Equal, true),
        ("all 5%", [0.05f64.ln_1p(); 18], Allocation::Adaptive, true),
    ] {
        let found = study(&truths, allocation, together, runs);
        row(&[
            name,
            if allocation == Allocation::Equal {
                "16 each at most"
            } else {
                "adaptive"
            },
            if together { "Holm" } else { "each at 5%" },
            &Share(found.false_sign).to_string(),
            &Share(found.false_equivalence).to_string(),
            &format!("{:.1}", found.decided),
            &format!("{:.0}", found.pairs),
        ]);
        let limit = 0.05 + 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
        assert!(
            !together || found.false_sign <= limit,
            "{name} {allocation:?}"
        );
        assert!(
            !together || found.false_equivalence <= limit,
            "{name} {allocation:?}"
        );
        assert!(together || found.false_sign > 0.1, "each at 5% must fail");
    }
}

fn gates() {
    println!(
        "\nA gate `slower > 5%`: what it answers in most runs, and the median number of pairs (2000 runs each).\n"
    );
    let truths = [0.0, 2.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0];
    let mut head = vec!["pair SD".to_owned()];
    head.extend(truths.iter().map(|truth| format!("{truth}%")));
    row(&head.iter().map(String::as_str).collect::<Vec<_>>());
    row(&["---"; 9]);
    let rule = GateRule::slower_than(5.0).expect("it is a limit");
    for sd in [1.0, 3.0, 8.0] {
        let mut cells = vec![format!("{sd}%")];
        for truth in truths {
            let plan = (AnalysisSchedule::Pairs, 0.05);
            let found = GateProspect::new(&rule, plan, sd / 100.0, truth).expect("it is a gate");
            let wrong = if truth > 5.0 {
                found.pass
            } else {
                found.regression
            };
            assert!(wrong <= 0.025 + 0.007, "{sd} {truth} {wrong}");
            let open = 1.0 - found.pass - found.regression;
            let (answer, share) = [
                ("pass", found.pass),
                ("regression", found.regression),
                ("inconclusive", open),
            ]
            .into_iter()
            .max_by(|left, right| left.1.total_cmp(&right.1))
            .expect("there are three");
            let pairs = found
                .units_median
                .map_or(String::new(), |it| format!(", {it}"));
            cells.push(format!("{answer} {:.0}%{pairs}", 100.0 * share));
        }
        row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    println!();
}

pub fn tables(runs: u32) {
    matrices(runs);
    gates();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_with_adaptive_allocation_decides_more() {
        let mut truths = [0.0; 18];
        truths[9..].fill(0.05f64.ln_1p());
        let adaptive = study(&truths, Allocation::Adaptive, true, 30);
        let equal = study(&truths, Allocation::Equal, true, 30);
        assert!(
            adaptive.decided > equal.decided,
            "{} {}",
            adaptive.decided,
            equal.decided
        );
    }
}
