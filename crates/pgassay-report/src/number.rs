//! Number formatting, the same in every kind of report.
//!
//! A minus is U+2212; a comma separates thousands; a no-break space precedes a unit, except the percent
//! sign, which follows its number directly. A terminal prints plain spaces. Values are rounded only when
//! printed.

use jiff::Timestamp;
use pgassay_account::counters::CounterUnit;
use pgassay_model::wording::grouped;
pub(crate) use pgassay_model::wording::{interval, ratio};

/// A whole number with separated thousands: `12,583`.
pub(crate) fn whole(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let digits = grouped(value.abs());
    if value < 0.0 && digits != "0" {
        return format!("−{digits}");
    }
    digits
}

/// Throughput: whole numbers, or two decimals below 100.
pub(crate) fn tps(value: f64) -> String {
    if value.abs() < 100.0 {
        decimals(value, 2)
    } else {
        whole(value)
    }
}

/// A figure of any size, to four digits or all digits before the point: `1,323,612`, `70.34`, `0.920`.
pub(crate) fn plain(value: f64) -> String {
    match value.abs() {
        1000.0.. => whole(value),
        100.0.. => decimals(value, 1),
        1.0.. => decimals(value, 2),
        _ => decimals(value, 3),
    }
}

/// A share as a percentage, with one more digit if it is small: `1.8%`, `0.04%`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent != 0.0 && percent.abs() < 0.1 {
        format!("{}%", decimals(percent, 2))
    } else {
        format!("{}%", decimals(percent, 1))
    }
}

/// A standard deviation as a percentage, without decimals from 10% on: `1.8%`, `34%`.
pub(crate) fn noise(share: f64) -> String {
    if share.abs() >= 0.1 {
        format!("{}%", decimals(share * 100.0, 0))
    } else {
        percent(share)
    }
}

/// A share as a percentage, rounded down so that only the whole prints as `100%`.
pub(crate) fn percent_of(part: u64, all: u64) -> String {
    if part == all {
        return "100%".to_owned();
    }
    let percent = part as f64 / all as f64 * 100.0;
    format!("{}%", decimals((percent * 10.0).floor() / 10.0, 1))
}

/// Microseconds: two decimals, fewer if the value is large.
pub(crate) fn micros(value: f64) -> String {
    match micros_places(value) {
        0 => whole(value),
        places => decimals(value, places),
    }
}

/// A difference in microseconds, always with its sign: `−14.12`, `+0.38`; `0.00` has none.
pub(crate) fn signed_micros(value: f64) -> String {
    let text = micros(value);
    if value > 0.0 && !text.trim_matches(['0', '.']).is_empty() {
        format!("+{text}")
    } else {
        text
    }
}

/// Milliseconds from microseconds, as pgbench prints latency: `0.112`.
pub(crate) fn millis(value_us: f64) -> String {
    let value = value_us / 1000.0;
    if value_us >= 1_000_000.0 {
        whole(value)
    } else {
        decimals(value, 3)
    }
}

/// A counter's value per transaction: three digits, or all digits before the point; below 0.01, four decimals, so that
/// figures and their difference agree.
pub(crate) fn counter_value(value: f64, unit: CounterUnit) -> String {
    let (value, unit) = match unit {
        CounterUnit::Count => (value, ""),
        CounterUnit::Micros => (value, "\u{a0}µs"),
        CounterUnit::Millis => (value, "\u{a0}ms"),
        CounterUnit::Bytes if value.abs() >= 1e6 => (value / 1e6, "\u{a0}MB"),
        CounterUnit::Bytes if value.abs() >= 1e4 => (value / 1e3, "\u{a0}kB"),
        CounterUnit::Bytes => (value, "\u{a0}B"),
    };
    let places = match value.abs() {
        none if none < 0.000_05 => 0,
        tiny if tiny < 0.01 => 4,
        small if small < 1.0 => 3,
        medium if medium < 10.0 => 2,
        large if large < 100.0 => 1,
        _ => return whole(value) + unit,
    };
    decimals(value, places) + unit
}

/// A difference of counter values, always with its sign.
pub(crate) fn signed_counter_value(value: f64, unit: CounterUnit) -> String {
    let text = counter_value(value, unit);
    if value > 0.0 && text.contains(|c: char| ('1'..='9').contains(&c)) {
        format!("+{text}")
    } else {
        text
    }
}

/// A duration in a suitable unit: `403 ms`, `2.5 s`, `66 s`, `12 min`, `2.5 h`, `347 h`.
pub(crate) fn duration(value_us: f64) -> String {
    if value_us < 1_000_000.0 {
        let ms = value_us / 1000.0;
        format!("{}\u{a0}ms", decimals(ms, usize::from(ms < 10.0)))
    } else if value_us < 9_950_000.0 {
        let seconds = decimals(value_us / 1e6, 1);
        format!("{}\u{a0}s", seconds.strip_suffix(".0").unwrap_or(&seconds))
    } else if value_us < 600_000_000.0 {
        format!("{:.0}\u{a0}s", value_us / 1e6)
    } else if value_us < 6_000_000_000.0 {
        format!("{:.0}\u{a0}min", value_us / 60e6)
    } else if value_us < 360e9 {
        format!("{:.1}\u{a0}h", value_us / 3600e6)
    } else {
        format!("{}\u{a0}h", whole(value_us / 3600e6))
    }
}

/// A timestamp in UTC: `2026-11-21 23:43:51 UTC`.
pub(crate) fn moment(since_1970_us: i64) -> String {
    Timestamp::from_microsecond(since_1970_us).map_or_else(
        |_| format!("{since_1970_us} µs since 1970"),
        |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

/// `1 pair`, `6 pairs`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{}\u{a0}{noun}{plural}", whole(number as f64))
}

/// A fixed number of decimals; zero is never negative, and a non-finite value prints as `?`.
pub(crate) fn decimals(value: f64, places: usize) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let text = format!("{:.places$}", value.abs());
    if value < 0.0 && !text.trim_matches(['0', '.']).is_empty() {
        format!("−{text}")
    } else {
        text
    }
}

/// Significant decimals: a sampled cost has three or four digits at best.
fn micros_places(value: f64) -> usize {
    match value.abs() {
        small if small < 100.0 => 2,
        medium if medium < 1000.0 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces no-break spaces by plain ones.
    fn plain(text: impl AsRef<str>) -> String {
        text.as_ref().replace('\u{a0}', " ")
    }

    #[test]
    fn thousands_are_separated() {
        for (value, text) in [
            (0.0, "0"),
            (999.6, "1,000"),
            (12_583.2, "12,583"),
            (-1_234_567.0, "−1,234,567"),
            (-0.2, "0"),
            (f64::NAN, "?"),
        ] {
            assert_eq!(plain(whole(value)), text);
        }
    }

    #[test]
    fn a_sign_is_printed_where_there_is_a_difference() {
        for (value, text) in [
            (-14.123, "−14.12"),
            (0.384, "+0.38"),
            (0.001, "0.00"),
            (-0.001, "0.00"),
            (1234.5, "+1,234"),
            (123.45, "+123.5"),
        ] {
            assert_eq!(plain(signed_micros(value)), text);
        }
    }

    #[test]
    fn shares_keep_what_is_small_and_never_round_up_to_all() {
        assert_eq!(percent(0.018), "1.8%");
        assert_eq!(percent(0.0004), "0.04%");
        assert_eq!(percent(0.0), "0.0%");
        assert_eq!(percent_of(99_999, 100_000), "99.9%");
        assert_eq!(percent_of(5, 5), "100%");
    }

    #[test]
    fn counters_have_three_digits_and_their_unit() {
        for (value, unit, text) in [
            (0.0, CounterUnit::Count, "0"),
            (1.0, CounterUnit::Count, "1.00"),
            (0.000_31, CounterUnit::Count, "0.0003"),
            (130.2, CounterUnit::Count, "130"),
            (273.96, CounterUnit::Bytes, "274 B"),
            (12_345.0, CounterUnit::Bytes, "12.3 kB"),
            (2.5e7, CounterUnit::Bytes, "25.0 MB"),
            (5.25, CounterUnit::Micros, "5.25 µs"),
        ] {
            assert_eq!(plain(counter_value(value, unit)), text);
        }
        assert_eq!(
            plain(signed_counter_value(0.5, CounterUnit::Count)),
            "+0.500"
        );
        assert_eq!(
            plain(signed_counter_value(-2.0, CounterUnit::Bytes)),
            "−2.00 B"
        );
        assert_eq!(plain(signed_counter_value(0.0, CounterUnit::Count)), "0");
    }

    #[test]
    fn times_and_moments_choose_their_unit() {
        assert_eq!(plain(duration(403_200.0)), "403 ms");
        assert_eq!(plain(duration(66_000_000.0)), "66 s");
        assert_eq!(plain(duration(1_200_000_000.0)), "20 min");
        assert_eq!(plain(duration(63_360_000_000.0)), "17.6 h");
        assert_eq!(plain(duration(1_250_280_000_000.0)), "347 h");
        assert_eq!(millis(112.4), "0.112");
        assert_eq!(moment(1_795_304_631_000_000), "2026-11-21 23:43:51 UTC");
        assert_eq!(moment(i64::MAX), "9223372036854775807 µs since 1970");
    }
}
