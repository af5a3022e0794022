//! pgbench's random distributions, its pseudorandom permutation and its hashes.
//!
//! Bit-exact if the C library's `exp`, `log`, `pow` and `sin` are the ones that pgbench uses. The
//! order of floating-point operations is pgbench's and must not be simplified. The callers check
//! ranges and parameters. Sources: `getGaussianRand`, `getExponentialRand`, `getPoissonRand`,
//! `computeIterativeZipfian` (Devroye, "Non-Uniform Random Variate Generation", 1986, p. 550),
//! `permute`, `getHashFnv1a` and `getHashMurmur2` in pgbench.c, the same in 15 to 18.

use std::f64::consts::PI;

use crate::rng::Rng;

/// The minimum parameter of `random_gaussian`.
pub(crate) const GAUSSIAN_PARAMETER_MIN: f64 = 2.0;
/// The minimum parameter of `random_zipfian`.
pub(crate) const ZIPFIAN_PARAMETER_MIN: f64 = 1.001;
/// The maximum parameter of `random_zipfian`.
pub(crate) const ZIPFIAN_PARAMETER_MAX: f64 = 1000.0;

impl Rng {
    /// Uniform in `(0, 1]`.
    fn unit_above_zero(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Exponential in `[min, max]`, truncated where the density has fallen to `exp(-parameter)`.
    pub fn exponential(&mut self, min: i64, max: i64, parameter: f64) -> i64 {
        let cut = (-parameter).exp();
        let uniform = self.unit_above_zero();
        let fraction = -(cut + (1.0 - cut) * uniform).ln() / parameter;
        spread(min, max, fraction)
    }

    /// Gaussian in `[min, max]`, truncated `parameter` standard deviations from the middle.
    pub fn gaussian(&mut self, min: i64, max: i64, parameter: f64) -> i64 {
        // Box and Muller's transform; at worst one draw in twelve is out of bounds.
        let deviation = loop {
            let (radius, angle) = (self.unit_above_zero(), self.unit_above_zero());
            let deviation = (-2.0 * radius.ln()).sqrt() * (2.0 * PI * angle).sin();
            if deviation >= -parameter && deviation < parameter {
                break deviation;
            }
        };
        spread(min, max, (deviation + parameter) / (parameter * 2.0))
    }

    /// Zipfian in `[min, max]`: `min` is the most frequent.
    pub fn zipfian(&mut self, min: i64, max: i64, parameter: f64) -> i64 {
        let count = max.wrapping_sub(min).wrapping_add(1);
        min.wrapping_sub(1)
            .wrapping_add(self.zipfian_rank(count, parameter))
    }

    /// A rank from 1 to `count`, by rejection. Slow for `s` close to 1.
    fn zipfian_rank(&mut self, count: i64, s: f64) -> i64 {
        if count <= 1 {
            return 1;
        }
        let b = 2_f64.powf(s - 1.0);
        loop {
            let (u, v) = (self.unit(), self.unit());
            let x = u.powf(-1.0 / (s - 1.0)).floor();
            let t = (1.0 + 1.0 / x).powf(s - 1.0);
            if v * x * (t - 1.0) / (b - 1.0) <= t / b && x <= count as f64 {
                return x as i64;
            }
        }
    }

    /// Returns the rounded gap to the next event of a Poisson process with mean gap `mean`, in the
    /// unit of `mean`; `--rate` uses µs.
    pub fn poisson_gap(&mut self, mean: f64) -> i64 {
        (-self.unit_above_zero().ln() * mean + 0.5) as i64
    }
}

/// Returns the integer in `[min, max]` at `fraction` of the range; `fraction` is in `[0, 1)`.
fn spread(min: i64, max: i64, fraction: f64) -> i64 {
    let width = max.wrapping_sub(min).wrapping_add(1) as f64;
    min.wrapping_add((width * fraction) as i64)
}

/// pgbench's `hash_fnv1a`.
pub fn hash_fnv1a(value: i64, seed: i64) -> i64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let hash = value
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS ^ seed.cast_unsigned(), |hash, &octet| {
            (hash ^ u64::from(octet)).wrapping_mul(PRIME)
        });
    hash.cast_signed()
}

/// pgbench's `hash_murmur2`, which is also its `hash`.
pub fn hash_murmur2(value: i64, seed: i64) -> i64 {
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut key = value.cast_unsigned().wrapping_mul(MULTIPLIER);
    key ^= key >> SHIFT;
    key = key.wrapping_mul(MULTIPLIER);
    // The initial value includes the length of the input, 8 bytes.
    let mut hash = seed.cast_unsigned() ^ MULTIPLIER.wrapping_mul(8);
    hash = (hash ^ key).wrapping_mul(MULTIPLIER);
    hash ^= hash >> SHIFT;
    hash = hash.wrapping_mul(MULTIPLIER);
    (hash ^ hash >> SHIFT).cast_signed()
}

/// pgbench's `permute`: maps `value` by the bijection of `[0, size)` that `seed` selects.
pub fn permute(value: i64, size: i64, seed: i64) -> i64 {
    if size < 2 {
        return 0;
    }
    let mut rng = Rng::from_seed(seed.cast_unsigned());
    let size = size.cast_unsigned();
    let mut v = value.cast_unsigned() % size;
    let bits = size.ilog2();
    let mask = (1_u64 << bits) - 1;
    let scramble = |x: u64, factor: u64, flip: u64| {
        let x = (x.wrapping_mul(factor) ^ flip) & mask;
        ((x << 1) & mask) | (x >> (bits - 1))
    };
    // Each round applies a bijection to the lower `mask + 1` values, one to the upper ones, and a
    // rotation to all. The random numbers are drawn even if they are not used.
    for _ in 0..6 {
        let (factor, flip) = (rng.next_u64() & mask | 1, rng.next_u64() & mask);
        if v <= mask {
            v = scramble(v, factor, flip);
        }
        let (factor, flip) = (rng.next_u64() & mask | 1, rng.next_u64() & mask);
        let mirrored = size - 1 - v;
        if mirrored <= mask {
            v = size - 1 - scramble(mirrored, factor, flip);
        }
        // Both are below 2^63, so that the sum does not wrap.
        v = (v + rng.up_to(size - 1)) % size;
    }
    v.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permute_is_a_bijection_of_small_sizes() {
        for size in 1..70 {
            let mut images: Vec<i64> = (0..size).map(|v| permute(v, size, size * 7)).collect();
            images.sort_unstable();
            assert!(images.into_iter().eq(0..size), "size {size}");
        }
    }

    #[test]
    fn permute_matches_postgresql() {
        let size = i64::MAX - 10;
        let expected = [
            520_382_784_483_822_430,
            1_143_715_004_660_802_862,
            447_293_596_416_496_998,
            916_527_772_266_572_956,
            2_763_809_008_686_028_849,
            8_648_551_549_198_294_572,
            4_542_876_852_200_565_125,
        ];
        for (back, expected) in (1..).zip(expected) {
            assert_eq!(permute(size - back, size, 5432), expected);
        }
        assert_eq!([permute(0, 2, 5431), permute(1, 2, 5431)], [0, 1]);
        assert_eq!([permute(0, 2, 5433), permute(1, 2, 5433)], [1, 0]);
        // A negative value is reinterpreted as unsigned: 2^64 - 1 is 0 modulo 5.
        assert_eq!(permute(-1, 5, 3), permute(0, 5, 3));
    }

    #[test]
    fn hashes_match_postgresql() {
        assert_eq!(hash_murmur2(10, 5432), -5_817_877_081_768_721_676);
        assert_eq!(hash_fnv1a(10, 5432), -7_793_829_335_365_542_153);
    }

    #[test]
    fn truncated_distributions_stay_in_their_range_and_have_their_shape() {
        let mut rng = Rng::from_seed(1);
        let draws = 20_000;
        let mut means = [0.0; 3];
        for _ in 0..draws {
            let values = [
                rng.exponential(1, 100, 5.0),
                rng.gaussian(1, 100, 2.0),
                rng.zipfian(1, 100, 1.5),
            ];
            for (mean, value) in means.iter_mut().zip(values) {
                assert!((1..=100).contains(&value), "{value}");
                *mean += value as f64 / f64::from(draws);
            }
        }
        // Truncated exponential: mean of 100·x with density 5·exp(-5x)/(1-exp(-5)), plus a half.
        let exponential = 100.0 * (0.2 - (-5_f64).exp() / (1.0 - (-5_f64).exp())) + 0.5;
        assert!(
            (means[0] - exponential).abs() < 0.6,
            "{means:?} against {exponential}"
        );
        assert!((means[1] - 50.5).abs() < 0.7, "{means:?}");
        let weight = |power: f64| (1..=100).map(|k| f64::from(k).powf(power)).sum::<f64>();
        assert!(
            (means[2] - weight(-0.5) / weight(-1.5)).abs() < 0.5,
            "{means:?}"
        );
    }

    #[test]
    fn poisson_gaps_have_their_mean() {
        let mut rng = Rng::from_seed(2);
        let total: i64 = (0..20_000).map(|_| rng.poisson_gap(1000.0)).sum();
        assert!((total - 20_000_000).abs() < 600_000, "{total}");
    }
}
