//! How many transactions the segments of a count have.

/// Maximum instructions in the shortest segment, about 150 ms on a free CPU. Then the longest ends
/// before the backend reports its statistics, which it does once per second. That code is not
/// counted, but collecting statistics starts over after it, which takes some thousand instructions.
const SHORTEST: u64 = 6_000_000;
/// Sizes of the shortest segment.
const UNITS: [u64; 7] = [20, 50, 100, 200, 500, 1000, 2000];
/// The largest size chosen by cost; larger ones are used only if the cost is not linear.
const UNIT_BY_COST_MAX: u64 = 500;
/// The cost from which on fewer transactions than [`UNITS`] are enough: it is large compared with what else differs
/// between segments.
pub(super) const HEAVY: u64 = 15_000_000;
/// Sizes of the shortest segment for such transactions, each up to a cost; beyond, one is enough. A round executes
/// up to three billion instructions then, in about 20 s under valgrind.
const FEW: [(u64, u64); 3] = [(10, 22_000_000), (5, 38_000_000), (2, 65_000_000)];
/// Transactions on each connection before those of a segment.
const FIRST: u64 = 10;
/// The same for fewer transactions than [`UNITS`]: PostgreSQL makes custom plans for the first five executions.
const FEW_FIRST: u64 = 6;
/// A variant uses the baseline's segments unless its transactions cost this many times more.
const COST_RATIO_MAX: u64 = 8;
/// The same for heavy transactions, in either direction, because a round of them takes long.
const HEAVY_RATIO_MAX: u64 = 3;

/// The size of the shortest segment for transactions of this cost, in instructions.
pub(super) fn unit(each: u64) -> u64 {
    if each >= HEAVY {
        let fits = |(_, cost_max): &&(u64, u64)| each < *cost_max;
        return FEW.iter().find(fits).map_or(1, |(unit, _)| *unit);
    }
    let fits = |unit: &u64| *unit <= UNIT_BY_COST_MAX && each * *unit <= SHORTEST;
    UNITS.into_iter().rfind(fits).unwrap_or(UNITS[0])
}

/// The next larger size of the shortest segment.
pub(super) fn larger(unit: u64) -> Option<u64> {
    UNITS.into_iter().find(|larger| *larger > unit)
}

/// The sizes of the three segments.
pub(super) fn of_unit(unit: u64) -> [u64; 3] {
    [unit, 2 * unit, 4 * unit]
}

/// How many transactions precede each of the segments of which the shortest has this size.
pub(super) fn first(unit: u64) -> u64 {
    if is_heavy(unit) { FEW_FIRST } else { FIRST }
}

/// Whether so few transactions are counted because they cost much.
pub(super) fn is_heavy(unit: u64) -> bool {
    unit < UNITS[0]
}

/// Whether a variant, for which this size was found, can have the baseline's segments.
pub(super) fn is_alike(unit: u64, of_baseline: [u64; 3]) -> bool {
    let baseline = of_baseline[0];
    if is_heavy(unit) || is_heavy(baseline) {
        return unit * HEAVY_RATIO_MAX >= baseline && unit <= baseline * HEAVY_RATIO_MAX;
    }
    unit * COST_RATIO_MAX >= baseline
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transactions of a round: those of the warm-up, and of three segments.
    fn of_round(unit: u64) -> u64 {
        4 * first(unit) + 11 * unit
    }

    /// Regressions: a statement of 100 ms was executed a thousand times under valgrind, and one of 20 ms 260 times in
    /// each round.
    #[test]
    fn a_heavy_statement_is_executed_a_few_times_only() {
        let costs = [
            1_000,
            50_000,
            1_000_000,
            HEAVY - 1,
            HEAVY,
            30_000_000,
            60_000_000,
        ];
        assert_eq!(costs.map(unit), [500, 100, 20, 20, 10, 5, 2]);
        assert_eq!([65_000_000, 1_000_000_000].map(unit), [1, 1]);
        for cost in (HEAVY..80_000_000).step_by(500_000) {
            let instructions = of_round(unit(cost)) * cost;
            assert!(instructions <= 3_050_000_000, "{cost}: {instructions}");
        }
    }

    #[test]
    fn variants_have_the_baselines_segments_unless_their_rounds_would_take_long() {
        let alike = [
            (500, 20),
            (20, 500),
            (1, 20),
            (20, 1),
            (1, 1),
            (10, 20),
            (20, 10),
            (1, 5),
            (1, 2),
        ]
        .map(|(unit, baseline)| is_alike(unit, of_unit(baseline)));
        let expected = [true, false, false, false, true, true, true, false, true];
        assert_eq!(alike, expected);
    }
}
