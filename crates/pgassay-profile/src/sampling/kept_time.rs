//! The part of the time that is kept in detail, so that details do not grow with time.

/// Length of a stretch of time that is kept or not.
const STRETCH_NS: u64 = 250_000_000;
/// An odd number, for a multiplication that mixes bits: 2⁶⁴ divided by the golden ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stretches of time that are kept: at first all of them, then half of them, a quarter, and so on. What is kept
/// after more halvings was kept before, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptTime {
    halvings: u32,
}

impl KeptTime {
    /// Whether details of this time, on `CLOCK_MONOTONIC`, are kept.
    pub fn has(self, time_ns: u64) -> bool {
        // Irregular, so that a load with a period does not matter.
        let mixed = (time_ns / STRETCH_NS + 1).wrapping_mul(MIXER);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(MIXER);
        mixed.leading_zeros() >= self.halvings
    }

    /// All of the time is kept.
    pub fn is_whole(self) -> bool {
        self.halvings == 0
    }

    /// Keeps half of what is kept.
    pub fn halve(&mut self) {
        self.halvings += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_halving_keeps_half_of_the_stretches_that_were_kept() {
        let mut kept = KeptTime::default();
        assert!(kept.is_whole() && kept.has(0) && kept.has(u64::MAX));
        let mut before: Vec<u64> = (0..40_000).map(|n| n * STRETCH_NS).collect();
        for _ in 0..6 {
            kept.halve();
            let after: Vec<u64> = (0..40_000)
                .map(|n| n * STRETCH_NS)
                .filter(|&it| kept.has(it))
                .collect();
            assert!(after.iter().all(|it| before.binary_search(it).is_ok()));
            let share = after.len() as f64 / before.len() as f64;
            assert!((share - 0.5).abs() < 0.06, "{share}");
            let even = after
                .iter()
                .filter(|&it| (it / STRETCH_NS).is_multiple_of(2))
                .count();
            let share = even as f64 / after.len() as f64;
            assert!((share - 0.5).abs() < 0.08, "{share}");
            before = after;
        }
        assert!(!kept.is_whole());
    }
}
