//! Figures of load, age and size.

use crate::number;

/// A load in average sessions: `5.21`, `12.4`.
pub fn load(sessions: f64) -> String {
    number::decimals(sessions, if sessions < 9.995 { 2 } else { 1 })
}

/// Transactions per second: `1,234`, `12.40`.
pub fn rate(per_s: f64) -> String {
    number::tps(per_s)
}

/// A part of a whole, without decimals from 10% on: `62%`, `4.1%`. Zero if the whole is.
pub fn share(part: f64, whole: f64) -> String {
    number::noise(if whole > 0.0 { part / whole } else { 0.0 })
}

/// An age or a duration of any size, from microseconds: `420 µs`, `4.2 ms`, `42 s`, `3.5 h`, `12 days`.
pub fn age(value_us: f64) -> String {
    let hours = value_us / 3.6e9;
    if (0.05..1e3).contains(&value_us) {
        let places = usize::from(value_us < 9.95);
        format!("{}\u{a0}µs", number::decimals(value_us, places))
    } else if (1e6..1e7).contains(&value_us) {
        format!("{}\u{a0}s", number::decimals(value_us / 1e6, 1))
    } else if hours < 2.0 {
        number::duration(value_us)
    } else if hours < 48.0 {
        format!("{}\u{a0}h", number::decimals(hours, 1))
    } else {
        number::count((hours / 24.0) as u64, "day")
    }
}

/// A size as `pg_size_pretty` prints it: in units of 1024.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 10_240.0 {
            return format!("{}\u{a0}{unit}", number::whole(value));
        }
        value /= 1024.0;
    }
    format!("{}\u{a0}TB", number::whole(value))
}

/// The size of a table or an index by `relpages`, which is 0 until it is vacuumed or analyzed for the first time: a
/// size that is not known has no figure.
pub fn relation_size(bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        size(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: tables and indexes that were never vacuumed or analyzed had "0 B".
    #[test]
    fn a_size_that_is_not_known_yet_is_not_zero() {
        assert_eq!(relation_size(0), "");
        assert_eq!(relation_size(8192), "8,192\u{a0}B");
    }

    #[test]
    fn figures_choose_their_unit() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        assert_eq!([load(5.214), load(12.36)], ["5.21", "12.4"]);
        assert_eq!([share(0.62, 1.0), share(0.0, 0.0)], ["62%", "0.0%"]);
        for (us, text) in [
            (0.0, "0.0 ms"),
            (4.26, "4.3 µs"),
            (420.0, "420 µs"),
            (4200.0, "4.2 ms"),
            (4.1e6, "4.1 s"),
            (42e6, "42 s"),
            (3600e6, "60 min"),
            (12_600e6, "3.5 h"),
            (86_400e6 * 12.4, "12 days"),
        ] {
            assert_eq!(plain(age(us)), text);
        }
        assert_eq!(plain(size(8192)), "8,192 B");
        assert_eq!(plain(size(3 << 30)), "3,072 MB");
        assert_eq!(plain(size(u64::MAX)), "16,777,216 TB");
    }
}
