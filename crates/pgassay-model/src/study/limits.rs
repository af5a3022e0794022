//! Whole numbers that a study and the command line accept.

use std::ops::RangeInclusive;

/// Pairs per comparison: one pair gives no confidence interval, and more than these would take weeks.
pub const PAIRS: RangeInclusive<u32> = 2..=100_000;
/// Blocks between restarts of the servers; 0 disables restarts.
pub const RESTART_EVERY: RangeInclusive<u32> = 0..=*PAIRS.end();
/// Threads of the load generator.
pub const THREADS: RangeInclusive<u32> = 1..=1024;
/// Clients of a condition. A server has at most that many connections: `MAX_BACKENDS` in
/// `src/include/postmaster/postmaster.h`, PostgreSQL 9.6 to 17 (`storage/procnumber.h` in 18).
pub const CLIENTS: RangeInclusive<u32> = 1..=0x3_ffff;

/// The numbers that the key before a value accepts.
pub(super) fn of_key(before_value: &str) -> RangeInclusive<u32> {
    let before = before_value.rsplit_once('=').map_or("", |(key, _)| key);
    let key = before.trim_end().rsplit(|c: char| !is_of_name(c)).next();
    match key.unwrap_or_default() {
        "pairs" => PAIRS,
        "restart_every" => RESTART_EVERY,
        "threads" => THREADS,
        "clients" => CLIENTS,
        "idle_connections" => 0..=*CLIENTS.end(),
        "weight" => 1..=u32::MAX,
        _ => 0..=u32::MAX,
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_value_is_the_last_one_before_it() {
        assert_eq!(of_key("[length]\npairs = "), PAIRS);
        assert_eq!(of_key("length.threads="), THREADS);
        assert_eq!(of_key("[length]\nthreads = 2\npairs ="), PAIRS);
        assert_eq!(of_key("clients = [\n  1,\n  "), CLIENTS);
        assert_eq!(of_key("script = [{ name = \"a\", weight = "), 1..=u32::MAX);
        assert_eq!(of_key(""), 0..=u32::MAX);
    }
}
