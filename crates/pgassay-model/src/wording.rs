//! Numbers of things, in words, and ratios with their intervals.

/// A number of things whose plural ends in `s`: `1 point`, `2 points`.
pub fn counted(count: usize, one: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {one}{s}")
}

/// A time that was estimated: `96 s`, `9 min`.
pub fn estimated_time(seconds: f64) -> String {
    if seconds < 300.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// A whole number with separated thousands: `26,079`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && out != "-" && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A ratio: `×1.412`. One that would be all zeros is written as `×3.8e-5`.
pub fn ratio(value: f64) -> String {
    if value > 0.0 && value < SMALL_RATIO {
        return format!("×{value:.1e}");
    }
    format!("×{}", decimals(value, ratio_digits(value)))
}

/// A smaller ratio has no digit other than 0 among the first three after the point.
const SMALL_RATIO: f64 = 0.001;

/// The digits of a ratio after the point: four in all, at least three below 1, and at least two that are not 0.
fn ratio_digits(value: f64) -> usize {
    match value.abs() {
        small if small > 0.0 && small < 0.01 => 4,
        below if below < 10.0 => 3,
        below if below < 100.0 => 2,
        below if below < 1000.0 => 1,
        _ => 0,
    }
}

/// An interval of ratios: `[1.396, 1.428]`. Extreme bounds, as from two pairs that differ, are written
/// as `[1e-12, 4e12]`. A bound next to 1 has as many digits as show on which side it is: `[0.749,
/// 0.9998]`, since an interval without 1 is a verdict.
pub fn interval(low: f64, high: f64) -> String {
    format!("[{}, {}]", ratio_bound(low), ratio_bound(high))
}

fn ratio_bound(value: f64) -> String {
    if value.is_finite() && (value >= 10_000.0 || (value > 0.0 && value < SMALL_RATIO)) {
        return format!("{value:.0e}");
    }
    let digits = ratio_digits(value);
    let is_on_its_side = |text: &String| {
        let printed: f64 = text.parse().unwrap_or(f64::NAN);
        printed.partial_cmp(&1.0) == value.partial_cmp(&1.0)
    };
    (digits..=RATIO_DIGITS_MAX)
        .map(|digits| decimals(value, digits))
        .find(is_on_its_side)
        .unwrap_or_else(|| decimals(value, digits))
}

/// A bound that differs from 1 by less than 0.0000005 is printed as 1.000.
const RATIO_DIGITS_MAX: usize = 6;

/// A fixed number of decimals of a ratio, which is never negative; one that is not finite prints as `?`.
fn decimals(value: f64, places: usize) -> String {
    if value.is_finite() {
        format!("{value:.places$}")
    } else {
        "?".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, grouped, interval, ratio};

    #[test]
    fn thousands_are_separated() {
        let all = [0.4, 999.0, 26_079.4, 1_935_183.0, -123.0].map(grouped);
        assert_eq!(all, ["0", "999", "26,079", "1,935,183", "-123"]);
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(1, "trial"), "1 trial");
        assert_eq!(counted(0, "trial"), "0 trials");
        assert_eq!(counted(2, "trial"), "2 trials");
    }

    #[test]
    fn ratios_have_no_more_digits_than_they_can_support() {
        assert_eq!(ratio(0.9876), "×0.988");
        assert_eq!(ratio(12.3456), "×12.35");
        assert_eq!(interval(83.381, 172.446), "[83.38, 172.4]");
    }

    #[test]
    fn a_bound_next_to_one_is_not_rounded_to_the_other_side() {
        assert_eq!(interval(0.749, 0.9998), "[0.749, 0.9998]");
        assert_eq!(interval(1.000_04, 1.2), "[1.00004, 1.200]");
        assert_eq!(interval(0.9995, 1.0005), "[0.9995, 1.0005]");
        assert_eq!(interval(1.0, 1.000_000_01), "[1.000, 1.000]");
    }

    #[test]
    fn a_small_ratio_has_no_row_of_zeros() {
        assert_eq!(ratio(0.000_038_2), "×3.8e-5");
        assert_eq!(ratio(0.001), "×0.0010");
        assert_eq!(ratio(0.0), "×0.000");
    }

    /// Regression: `×0.002 [0.001, 0.002]`, where the estimate is the upper bound and the bounds differ by half.
    #[test]
    fn a_ratio_of_hundreds_to_one_differs_from_its_bounds() {
        assert_eq!(ratio(0.001_69), "×0.0017");
        assert_eq!(interval(0.001_32, 0.002_16), "[0.0013, 0.0022]");
    }

    #[test]
    fn an_extreme_bound_has_no_row_of_zeros() {
        assert_eq!(interval(0.000_03, 20_876.646), "[3e-5, 2e4]");
        assert_eq!(interval(0.0, f64::INFINITY), "[0.000, ?]");
    }
}
