//! The critical values of sequential comparisons, by numerical integration: the generator of the tables in
//! `crates/pgassay-stats/src/sequential/table.rs`.
//!
//! After n units with a true mean of 0, let R = S/√Q with the sum S and the sum of squares Q; then
//! t² = (n − 1)·R²/(n − R²). The direction of the vector of units is independent of its length √Q, so R is a
//! Markov chain: with θ = atan(x/√Q) for the next unit x, whose density is proportional to cosⁿ⁻¹ θ,
//! R′ = R·cos θ + sin θ. The program moves the distribution of |t| along this chain, and at each analysis
//! cuts off the tail that the spending function allows, as Armitage, McPherson and Rowe (1969) do for a
//! known variance. The spending function is α·n/cap (Kim and DeMets, 1987, with exponent 1).

// Names of the literature are not code.
#![allow(clippy::doc_markdown)]

/// When analyses take place.
#[derive(Clone, Copy)]
pub struct Times {
    /// Number of units at the first analysis; the program starts here with the distribution of t.
    pub first: usize,
    /// Units between analyses.
    pub step: usize,
    /// Number of units at the last analysis.
    pub cap: usize,
}

/// Resolution of the integration.
#[derive(Clone, Copy)]
pub struct Resolution {
    /// Points of |t|, at equal distances in asinh |t|.
    pub points: usize,
    /// Angles θ of a unit.
    pub angles: usize,
}

/// The table in the repository is computed with this resolution; half of it gives the same three decimals.
pub const FINE: Resolution = Resolution {
    points: 6_000,
    angles: 1_200,
};

/// Analyses of pairs and of units.
pub const TIMES: [Times; 2] = [
    Times {
        first: 4,
        step: 2,
        cap: 48,
    },
    Times {
        first: 4,
        step: 1,
        cap: 12,
    },
];

/// The rows of the tables.
const ALPHAS: [f64; 9] = [
    0.1,
    0.05,
    0.02,
    0.01,
    0.005,
    0.05 / 18.0,
    0.001,
    0.0001,
    0.00001,
];

/// asinh of the largest |t|: 1490.
const REACH: f64 = 8.0;

/// P(|T| > t) with three degrees of freedom.
fn tail_of_three(t: f64) -> f64 {
    let x = t / 3f64.sqrt();
    1.0 - std::f64::consts::FRAC_2_PI * (x / (1.0 + x * x) + x.atan())
}

/// The distribution of |t| for each level, over points at equal distances.
struct Distribution {
    points: usize,
    levels: usize,
    /// Mass of a point for each level, point by point.
    mass: Vec<f64>,
}

impl Distribution {
    fn width(&self) -> f64 {
        REACH / self.points as f64
    }

    /// Of four units; the distribution of t is known in closed form.
    fn of_four(points: usize, levels: usize) -> Self {
        let mut it = Self {
            points,
            levels,
            mass: vec![0.0; points * levels],
        };
        let width = it.width();
        for point in 0..points {
            let low = ((point as f64 - 0.5).max(0.0) * width).sinh();
            let high = ((point as f64 + 0.5) * width).sinh();
            let mass = tail_of_three(low) - tail_of_three(high);
            it.mass[point * levels..(point + 1) * levels].fill(mass);
        }
        it
    }

    /// One more unit, the `after`-th plus one.
    fn moved(&self, after: usize, angles: usize) -> Self {
        let mut next = Self {
            points: self.points,
            levels: self.levels,
            mass: vec![0.0; self.mass.len()],
        };
        let n = after as f64;
        let steps = angle_weights(after, angles);
        for point in 0..self.points {
            let from = &self.mass[point * self.levels..(point + 1) * self.levels];
            if from.iter().all(|mass| *mass <= 0.0) {
                continue;
            }
            let t = (point as f64 * self.width()).sinh();
            let r = t * (n / (t * t + n - 1.0)).sqrt();
            for (sin, cos, weight) in &steps {
                let moved = r * cos + sin;
                let t = moved.abs() * (n / (n + 1.0 - moved * moved).max(1e-12)).sqrt();
                // Divided between the two nearest points, so that the mean is kept.
                let place = (t.asinh() / self.width()).min(self.points as f64 - 1.001);
                let (below, share) = (place as usize, place.fract());
                for (level, mass) in from.iter().enumerate() {
                    next.mass[below * self.levels + level] += mass * weight * (1.0 - share);
                    next.mass[(below + 1) * self.levels + level] += mass * weight * share;
                }
            }
        }
        next
    }

    /// Removes the tail of `level` with this mass, and returns the |t| at which it begins.
    fn cut(&mut self, level: usize, tail: f64) -> f64 {
        let mut above = 0.0;
        for point in (0..self.points).rev() {
            let mass = &mut self.mass[point * self.levels + level];
            if above + *mass < tail {
                above += *mass;
                *mass = 0.0;
            } else {
                let share = (tail - above) / *mass;
                *mass *= 1.0 - share;
                return ((point as f64 + 0.5 - share) * self.width()).sinh();
            }
        }
        0.0
    }
}

/// Sine, cosine and probability of equidistant angles of the unit that follows `after` others.
fn angle_weights(after: usize, angles: usize) -> Vec<(f64, f64, f64)> {
    let width = std::f64::consts::PI / angles as f64;
    let raw: Vec<(f64, f64, f64)> = (0..angles)
        .map(|at| ((at as f64 + 0.5) * width - std::f64::consts::FRAC_PI_2).sin_cos())
        .map(|(sin, cos)| (sin, cos, cos.powf(after as f64 - 1.0)))
        .collect();
    let whole: f64 = raw.iter().map(|it| it.2).sum();
    raw.into_iter()
        .map(|(sin, cos, weight)| (sin, cos, weight / whole))
        .collect()
}

/// The critical |t| of each analysis, one row for each of `alphas`.
pub fn critical_values(times: Times, alphas: &[f64], resolution: Resolution) -> Vec<Vec<f64>> {
    assert_eq!(times.first, 4, "the program starts with four units");
    let mut rows = vec![Vec::new(); alphas.len()];
    let mut spent = vec![0.0; alphas.len()];
    let mut now = Distribution::of_four(resolution.points, alphas.len());
    for units in times.first..=times.cap {
        if units > times.first {
            now = now.moved(units - 1, resolution.angles);
        }
        if !(units - times.first).is_multiple_of(times.step) {
            continue;
        }
        for (level, alpha) in alphas.iter().enumerate() {
            let allowed = alpha * units as f64 / times.cap as f64;
            rows[level].push(now.cut(level, allowed - spent[level]));
            spent[level] = allowed;
        }
    }
    rows
}

/// Prints the tables as Rust code.
pub fn tables(_runs: u32) {
    for times in TIMES {
        println!("[");
        for values in critical_values(times, &ALPHAS, FINE) {
            let values: Vec<String> = values.iter().map(|it| format!("{it:.3}")).collect();
            println!("    [{}],", values.join(", "));
        }
        println!("];");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_stats::sequential::AnalysisSchedule;

    /// Largest relative difference of the integration and the library's tables at `alphas`.
    fn difference(alphas: &[f64], resolution: Resolution, scale: f64) -> f64 {
        let schedules = [AnalysisSchedule::Pairs, AnalysisSchedule::Units];
        let mut largest: f64 = 0.0;
        for (times, schedule) in TIMES.into_iter().zip(schedules) {
            assert_eq!(
                (times.first, times.step),
                (schedule.first(), schedule.step())
            );
            assert_eq!(times.cap, schedule.cap());
            let rows = critical_values(times, alphas, resolution);
            for (alpha, row) in alphas.iter().zip(rows) {
                let table = schedule.critical_values(*alpha).expect("it is a level");
                assert_eq!(row.len(), table.values().len());
                for (found, tabulated) in row.iter().zip(table.values()) {
                    largest = largest.max((tabulated * scale / found - 1.0).abs());
                }
            }
        }
        largest
    }

    /// Coarse enough for a test: within 0.5% of the fine tables.
    const COARSE: Resolution = Resolution {
        points: 1_000,
        angles: 120,
    };

    #[test]
    fn the_tables_in_the_library_are_those_of_the_integration() {
        let found = difference(&ALPHAS, COARSE, 1.0);
        assert!(found < 0.005, "{found}");
        // The check notices tables that are 1% off.
        assert!(difference(&ALPHAS[..1], COARSE, 0.99) > 0.005);
    }

    #[test]
    fn levels_between_the_rows_are_interpolated_within_half_a_percent() {
        let between = [0.07, 0.03, 0.014, 0.007, 0.0035, 0.0017, 0.0003, 0.00003];
        let found = difference(&between, COARSE, 1.0);
        assert!(found < 0.005, "{found}");
    }
}
