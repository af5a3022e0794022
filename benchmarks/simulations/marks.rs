//! Marks of functions: how often an A/A comparison marks any function as changed.

use pgassay_stats::{
    ChangeClass, CostTable, GroupedDifference, RowCounts, RowDifference, TrialTotals,
    grouped_cost_difference,
};

use crate::world::Draws;

pub const FUNCTIONS: usize = 300;
const GROUPS: usize = 20;

/// A simulated comparison.
#[derive(Clone, Copy)]
pub struct Case {
    pub blocks: usize,
    /// Samples per side, over all blocks.
    pub samples: f64,
    /// Coefficient of variation between blocks of an ordinary function.
    pub cv: f64,
    /// One in so many functions varies by 100%; 0 for none.
    pub bursty_every: usize,
}

/// Draws a comparison; every tenth function (from the fifth on) costs `effect` times as much in B.
pub fn draw(draws: &mut Draws, case: Case, effect: f64) -> CostTable {
    let norm: f64 = (1..=FUNCTIONS).map(|rank| 1.0 / rank as f64).sum();
    let mut table = CostTable {
        a: Vec::new(),
        b: Vec::new(),
        rows: vec![RowCounts::default(); FUNCTIONS],
    };
    for _ in 0..case.blocks {
        for is_b in [false, true] {
            let costs: Vec<f64> = (0..FUNCTIONS)
                .map(|function| {
                    let is_bursty = case.bursty_every > 0
                        && function % case.bursty_every == case.bursty_every / 2;
                    let cv = if is_bursty { 1.0 } else { case.cv };
                    let moved = if is_b && function % 10 == 4 {
                        effect
                    } else {
                        1.0
                    };
                    100.0 / norm / (function + 1) as f64 * draws.factor(cv) * moved
                })
                .collect();
            let total: f64 = costs.iter().sum();
            let per_trial = case.samples / case.blocks as f64;
            let counts: Vec<u64> = costs
                .iter()
                .map(|cost| draws.poisson(per_trial * cost / total))
                .collect();
            let totals = TrialTotals {
                on_cpu_us: total * 10_000.0 * draws.factor(0.005),
                transactions: 10_000,
                samples: counts.iter().sum::<u64>().max(1),
            };
            if is_b { &mut table.b } else { &mut table.a }.push(totals);
            for (row, count) in table.rows.iter_mut().zip(counts) {
                if is_b { &mut row.b } else { &mut row.a }.push(count);
            }
        }
    }
    table
}

/// Marks functions as `pgassay run` does.
pub fn judged(table: &CostTable) -> GroupedDifference {
    let group_of: Vec<usize> = (0..FUNCTIONS).map(|function| function % GROUPS).collect();
    grouped_cost_difference(table, &group_of, GROUPS, 0.05).expect("the table is whole")
}

/// Whether a row is marked: changed, and its interval does not contain 0.
pub fn is_marked(row: &RowDifference) -> bool {
    let changed = !matches!(
        row.class,
        ChangeClass::Unchanged { .. } | ChangeClass::Descriptive
    );
    let interval = row.change.delta_interval_us;
    let beyond = interval.is_some_and(|it| {
        let delta = row.change.delta_us;
        delta.abs() > (it.high - delta).max(delta - it.low)
    });
    changed && beyond
}

pub fn tables(runs: u32) {
    println!("## Marked functions\n");
    println!(
        "A/A comparisons of 300 functions in which any is marked. Bursty functions vary by 100% between blocks.\n"
    );
    println!("| blocks | samples a side | cv | bursty | false mark | ×1.5 found |");
    println!("|---|---|---|---|---|---|");
    for (blocks, samples, cv, bursty_every) in [
        (6, 6_000.0, 0.05, 0),
        (6, 6_000.0, 0.05, 20),
        (3, 6_000.0, 0.05, 0),
        (3, 6_000.0, 0.05, 20),
        (6, 40_000.0, 0.05, 0),
        (6, 40_000.0, 0.05, 20),
        (3, 40_000.0, 0.05, 20),
        (12, 12_000.0, 0.1, 20),
    ] {
        let case = Case {
            blocks,
            samples,
            cv,
            bursty_every,
        };
        let mut draws = Draws::new(8);
        let (mut marked, mut found, mut visible) = (0, 0, 0);
        for _ in 0..runs {
            let null = judged(&draw(&mut draws, case, 1.0));
            marked += u32::from(null.rows.rows.iter().any(is_marked));
        }
        for _ in 0..runs / 8 {
            let moved = judged(&draw(&mut draws, case, 1.5));
            for row in moved.rows.rows.iter().skip(4).step_by(10) {
                visible += 1;
                found += u32::from(is_marked(row));
            }
        }
        let chance = 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
        assert!(
            f64::from(marked) / f64::from(runs) <= 0.05 + chance,
            "{blocks} {samples}"
        );
        println!(
            "| {blocks} | {samples} | {:.0}% | {} | {:.1}% | {:.1}% |",
            cv * 100.0,
            if bursty_every > 0 {
                "one in 20"
            } else {
                "none"
            },
            100.0 * f64::from(marked) / f64::from(runs),
            100.0 * f64::from(found) / f64::from(visible),
        );
    }
}
