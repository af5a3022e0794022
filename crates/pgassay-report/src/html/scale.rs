//! Axes: positions of values, and ticks.

/// A linear or logarithmic axis from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// A linear axis. An empty or invalid range is replaced by one that starts at its value.
    pub(super) fn linear(low: f64, high: f64) -> Self {
        let (low, high) = if low.is_finite() && high.is_finite() {
            (low, high)
        } else {
            (0.0, 1.0)
        };
        let high = if high > low {
            high
        } else {
            low + low.abs().max(1.0)
        };
        Self {
            low,
            high,
            log: false,
        }
    }

    /// A logarithmic axis. Values without a logarithm are placed at its lower end.
    pub(super) fn log(low: f64, high: f64) -> Self {
        let usable = low > 0.0 && low.is_finite() && high.is_finite();
        let (low, high) = if usable { (low, high) } else { (0.5, 2.0) };
        let high = if high > low { high } else { low * 1.02 };
        Self {
            low,
            high,
            log: true,
        }
    }

    /// The position of a value: 0 at the lower end, 1 at the upper, clamped to them.
    pub(super) fn place(self, value: f64) -> f64 {
        let position = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if position.is_nan() {
            0.0
        } else {
            position.clamp(0.0, 1.0)
        }
    }

    /// Round values along the axis, about `wanted` at most.
    pub(super) fn ticks(self, wanted: usize) -> Vec<f64> {
        if self.log && self.high / self.low > 4.0 {
            return self.round_ratios(wanted);
        }
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|number| number as f64 * step).collect()
    }

    /// 1, 2, 5 of each decade, or powers of ten if those would be too many.
    fn round_ratios(self, wanted: usize) -> Vec<f64> {
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let of = |factors: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
                .filter(|value| (self.low..=self.high).contains(value))
                .collect()
        };
        let dense = of(&[1.0, 2.0, 5.0]);
        if dense.len() <= wanted + 1 {
            dense
        } else {
            of(&[1.0])
        }
    }
}

/// A share as a CSS or SVG percentage with enough digits for any screen.
pub(super) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// A position in a drawing's own units, to a tenth: finer than a pixel of any screen.
pub(super) fn px(value: f64) -> String {
    format!("{value:.1}")
}

/// A tick's label, with enough digits to distinguish it from its neighbors.
pub(super) fn tick_label(value: f64, ticks: &[f64]) -> String {
    let step = ticks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).abs())
        .fold(f64::INFINITY, f64::min);
    let places = if step.is_finite() && step > 0.0 {
        let exact = |places: &i32| {
            let scaled = step * 10f64.powi(*places);
            (scaled - scaled.round()).abs() < 1e-6
        };
        (0..=6).find(exact).unwrap_or(3) as usize
    } else {
        2
    };
    if places == 0 {
        crate::number::whole(value)
    } else {
        crate::number::decimals(value, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_run_from_end_to_end_and_never_beyond() {
        let scale = Scale::log(0.5, 2.0);
        for (value, position) in [(0.5, 0.0), (1.0, 0.5), (2.0, 1.0), (9.0, 1.0), (-1.0, 0.0)] {
            assert!((scale.place(value) - position).abs() < 1e-12, "{value}");
        }
        assert!((Scale::linear(0.0, 4.0).place(1.0) - 0.25).abs() < 1e-12);
        assert!(Scale::linear(f64::NAN, 1.0).place(f64::NAN).abs() < 1e-12);
    }

    #[test]
    fn ticks_are_round_and_labelled_apart() {
        let ticks = Scale::log(0.93, 1.31).ticks(5);
        let labels: Vec<String> = ticks.iter().map(|tick| tick_label(*tick, &ticks)).collect();
        assert_eq!(labels, ["1.0", "1.1", "1.2", "1.3"]);
        let ticks = Scale::linear(0.0, 127_000.0).ticks(5);
        let labels: Vec<String> = ticks.iter().map(|tick| tick_label(*tick, &ticks)).collect();
        assert_eq!(labels, ["0", "50,000", "100,000"]);
        assert_eq!(
            Scale::log(0.04, 3.0).ticks(7),
            [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
        );
    }
}
