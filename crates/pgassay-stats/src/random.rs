//! The seedable random number generator for the order of trials and the simulations.
//!
//! `SplitMix64`: Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
//! (OOPSLA 2014), with the constants of Vigna's public-domain `splitmix64.c`. It is implemented here
//! because the order of a study must stay reproducible from its seed, regardless of changes in a
//! random-number crate.

/// A stream of 64-bit numbers determined by its seed.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A stream from `seed`; any seed is suitable, including 0.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1) with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box and Muller, "A note on the generation of random normal deviates",
    /// 1958).
    pub fn next_normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_f64()).cos()
    }

    /// A number in 0..`bound`, without modulo bias; `bound` 0 gives 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Numbers below 2⁶⁴ mod bound would favor small results, so they are redrawn.
        let reject_below = bound.wrapping_neg() % bound;
        loop {
            let drawn = self.next_u64();
            if drawn >= reject_below {
                return drawn % bound;
            }
        }
    }

    /// Puts `items` into a uniformly random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            items.swap(last, chosen);
        }
    }
}

/// The seed of an independent stream, from the run's seed and the numbers that identify the stream.
///
/// Neighboring and permuted identifiers give unrelated seeds: `[1, 2]` is not `[2, 1]`. The mapping never
/// changes, because stored results contain only the run's seed.
pub fn stream_seed(seed: u64, name: &[u64]) -> u64 {
    let mixed = |state: u64, number: &u64| {
        let number = SplitMix64::new(*number).next_u64();
        SplitMix64::new(state.rotate_left(17) ^ number).next_u64()
    };
    name.iter().fold(SplitMix64::new(seed).next_u64(), mixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn streams_of_neighboring_names_are_unrelated() {
        let mut seeds = BTreeSet::new();
        for seed in 0..4 {
            for block in 0..16 {
                for condition in 0..8 {
                    for variant in 0..4 {
                        seeds.insert(stream_seed(seed, &[block, condition, variant]));
                    }
                }
            }
        }
        assert_eq!(seeds.len(), 4 * 16 * 8 * 4);
        // Half of the bits differ between neighbors: the streams are independent.
        let differing: u32 = (0..64)
            .map(|n| (stream_seed(1, &[n, 0]) ^ stream_seed(1, &[n, 1])).count_ones())
            .sum();
        assert!((1_800..=2_300).contains(&differing), "{differing} of 4096");
        assert_eq!(stream_seed(2026, &[3, 1, 0]), FIXED_SEED);
    }

    /// Must never change: stored results depend on it.
    const FIXED_SEED: u64 = 11_290_375_188_358_098_771;

    #[test]
    fn the_stream_is_that_of_the_reference() {
        // First outputs of Vigna's splitmix64.c with the state 1234567.
        let mut stream = SplitMix64::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for number in expected {
            assert_eq!(stream.next_u64(), number);
        }
    }

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut stream = SplitMix64::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[stream.below(6) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (9_600..=10_400).contains(&count)),
            "{seen:?}"
        );
        assert_eq!(stream.below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&stream.next_f64())));
    }
}
