//! Differences of cumulative counters.

/// What was counted between two readings. If a counter fell, all of them, which are reset together, were reset
/// meanwhile, and what they show now was counted since then.
pub(super) fn counted<const N: usize>(now: [u64; N], then: [u64; N]) -> [u64; N] {
    if now.iter().zip(then).any(|(now, then)| *now < then) {
        return now;
    }
    std::array::from_fn(|at| now[at] - then[at])
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn after_a_reset_everything_is_new() {
        assert_eq!(counted([5, 7], [2, 7]), [3, 0]);
        assert_eq!(counted([5, 1], [2, 7]), [5, 1]);
    }
}
