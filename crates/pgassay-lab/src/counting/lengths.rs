//! How many transactions the segments of a count have.

/// Maximum instructions in the shortest segment, about 150 ms on a free CPU. Then the longest ends
/// before the backend reports its statistics, which it does once per second. That code is not
/// counted, but collecting statistics starts over after it, which takes some thousand instructions.
const SHORTEST: u64 = 6_000_000;
/// Sizes of the shortest segment.
const UNITS: [u64; 7] = [20, 50, 100, 200, 500, 1000, 2000];
/// The largest size chosen by cost; larger ones are used only if the cost is not linear.
const UNIT_BY_COST_MAX: u64 = 500;
/// The cost of a transaction from which on one is enough: it takes seconds under valgrind, and is large compared with
/// what else differs between segments.
pub(super) const HEAVY: u64 = 200_000_000;
/// A variant uses the baseline's segments unless its transactions cost this many times more.
const COST_RATIO_MAX: u64 = 8;

/// The size of the shortest segment for transactions of this cost, in instructions.
pub(super) fn unit(each: u64) -> u64 {
    if each >= HEAVY {
        return 1;
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

/// Whether so few transactions are counted because they cost much.
pub(super) fn is_heavy(unit: u64) -> bool {
    unit < UNITS[0]
}

/// Whether a variant, for which this size was found, can have the baseline's segments.
pub(super) fn is_alike(unit: u64, of_baseline: [u64; 3]) -> bool {
    is_heavy(unit) == is_heavy(of_baseline[0]) && unit * COST_RATIO_MAX >= of_baseline[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a statement of 100 ms was executed a thousand times under valgrind.
    #[test]
    fn a_heavy_statement_is_executed_a_few_times_only() {
        let units = [1_000, 50_000, 1_000_000, HEAVY - 1, HEAVY].map(unit);
        assert_eq!(units, [500, 100, 20, 20, 1]);
        let alike = [(500, 20), (20, 500), (1, 20), (20, 1), (1, 1)]
            .map(|(unit, baseline)| is_alike(unit, of_unit(baseline)));
        assert_eq!(alike, [true, false, false, false, true]);
    }
}
