//! The order in which pgbench draws the states of its generators.
//!
//! With the same seed, clients and threads, a run draws the same numbers as pgbench. One generator
//! seeds all others: first each client's, then `:default_seed` unless it is defined, then for each
//! thread the generators that choose scripts, pace transactions and sample the log. Source: `main`
//! and `initRandomState` in pgbench.c, the same in 15 to 18.

use crate::rng::Rng;

/// The generators of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRngs {
    /// Chooses the next transaction's script.
    pub choose: Rng,
    /// Draws the pacing gaps of `--rate`.
    pub throttle: Rng,
    /// Decides which transactions `--sampling-rate` logs.
    pub sample: Rng,
}

/// All generators of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeding {
    /// The value of `:random_seed`.
    pub random_seed: i64,
    /// The value of `:default_seed`; `None` if it was defined and therefore not drawn.
    pub default_seed: Option<i64>,
    /// One per client: the state at the beginning of its first transaction.
    pub clients: Vec<Rng>,
    /// The generators of each thread.
    pub threads: Vec<ThreadRngs>,
}

impl Seeding {
    /// Draws everything from `seed`. `is_default_seed_defined` means that `-D default_seed=…` was
    /// given: pgbench then does not draw it, which shifts all later draws.
    pub fn new(
        seed: u64,
        clients: usize,
        threads: usize,
        is_default_seed_defined: bool,
    ) -> Seeding {
        let mut base = Rng::from_seed(seed);
        let mut draw = || Rng::from_seed(base.next_u64());
        let clients = (0..clients).map(|_| draw()).collect();
        let default_seed = (!is_default_seed_defined).then(|| base.next_u64().cast_signed());
        let mut draw = || Rng::from_seed(base.next_u64());
        let threads = (0..threads)
            .map(|_| ThreadRngs {
                choose: draw(),
                throttle: draw(),
                sample: draw(),
            })
            .collect();
        Seeding {
            random_seed: seed.cast_signed(),
            default_seed,
            clients,
            threads,
        }
    }
}

/// Parses the number in `--random-seed=TEXT` or `PGBENCH_RANDOM_SEED`; the caller handles `time`
/// and `rand`. As with C's `%lu`, a sign is allowed and wraps.
pub fn parse_seed(text: &str) -> Option<u64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // C's strtoul saturates.
    let value = digits.parse().unwrap_or(u64::MAX);
    Some(if is_negative && value != u64::MAX {
        value.wrapping_neg()
    } else {
        value
    })
}
