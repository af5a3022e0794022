//! pgbench's generator: xoroshiro128** 1.0, seeded by splitmix64.
//!
//! Bit-exact with PostgreSQL 15 and later (see `src/common/pg_prng.c`; 9.6–14 used erand48, which
//! is not supported). The algorithms are from Blackman and Vigna, "Scrambled Linear Pseudorandom
//! Number Generators", ACM TOMS 47 (2021), and Steele, Lea and Flood, "Fast Splittable Pseudorandom
//! Number Generators", OOPSLA 2014. Invariant: the state is never all zero, which would be a fixed
//! point.

/// A generator's state: 16 bytes, `Copy`, so that a retried transaction can restore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng {
    s0: u64,
    s1: u64,
}

impl Rng {
    /// Derives the state from a 64-bit seed as PostgreSQL does.
    pub fn from_seed(seed: u64) -> Rng {
        let mut mixer = seed;
        let (s0, s1) = (splitmix64(&mut mixer), splitmix64(&mut mixer));
        if s0 == 0 && s1 == 0 {
            // Knuth's LCG parameters, as in PostgreSQL; no known seed leads here.
            return Rng {
                s0: 0x5851_F42D_4C95_7F2D,
                s1: 0x1405_7B7E_F767_814F,
            };
        }
        Rng { s0, s1 }
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s0 = self.s0;
        let mixed = self.s1 ^ s0;
        self.s0 = s0.rotate_left(24) ^ mixed ^ (mixed << 16);
        self.s1 = mixed.rotate_left(37);
        s0.wrapping_mul(5).rotate_left(7).wrapping_mul(9)
    }

    /// Uniform in `[0, span]` by bitmask rejection; a span of 0 draws nothing.
    #[inline]
    pub fn up_to(&mut self, span: u64) -> u64 {
        if span == 0 {
            return 0;
        }
        let shift = span.leading_zeros();
        loop {
            let candidate = self.next_u64() >> shift;
            if candidate <= span {
                return candidate;
            }
        }
    }

    /// Uniform in `[min, max]`, both included; `max - min` must fit an i64 (expressions check it).
    #[inline]
    pub fn uniform(&mut self, min: i64, max: i64) -> i64 {
        let span = if max > min {
            max.wrapping_sub(min).cast_unsigned()
        } else {
            0
        };
        min.wrapping_add(self.up_to(span).cast_signed())
    }

    /// Uniform in `[0, 1)`, with 52 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        // 2^-52; the product is exact, as the C library's ldexp is.
        const SCALE: f64 = f64::EPSILON;
        (self.next_u64() >> 12) as f64 * SCALE
    }
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
