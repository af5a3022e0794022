//! Fits the law to measured throughputs.

use std::collections::BTreeMap;

use super::MeasuredThroughput;
use super::law::ScalabilityLaw;
use super::linear::{Cholesky, Matrix3, Vector3, dot, invert, quadratic};
use crate::distribution::{normal_quantile, t_quantile};
use crate::error::StatsError;
use crate::pairs::Interval;
use crate::random::SplitMix64;

/// The level of all intervals.
const LEVEL: f64 = 0.95;
/// Rounds beyond the first of each number of clients from which the noise is estimated, at least.
const REPEATED_MIN: usize = 3;
/// Noise below this is not believable: the resolution of a rate, and rounding that repeats.
const NOISE_SD_MIN: f64 = 1e-3;
/// The misfit's standard deviations to choose from, in units of the noise between rounds.
const MISFIT_FACTORS: [f64; 18] = [
    0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 48.0, 96.0, 192.0,
    384.0,
];
/// Steps of the iteration; it converges quadratically, and the first is already close.
const STEPS: usize = 8;
/// Draws for the intervals: the ends of a 95% interval have a standard error of about 2% of its width.
const DRAWS: usize = 2_000;
const DRAWS_SEED: u64 = 0x55_5c_a1_ab;
/// A draw may not make the latency of one client vanish.
const FIRST_LATENCY_MIN: f64 = 1e-3;

/// A number of clients that the law implies, and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CriticalClients {
    /// The estimate, at least 1; infinite if there is none.
    pub clients: f64,
    /// Its interval; the upper end may be infinite, and both are if there is none at any plausible parameters.
    pub interval: Interval,
}

/// All rounds of one number of clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FittedPoint {
    /// Concurrent clients.
    pub clients: u32,
    /// Rounds.
    pub rounds: u32,
    /// Geometric mean of the rounds.
    pub throughput: f64,
    /// Its interval, from the noise of all points together.
    pub interval: Interval,
    /// Throughput according to the law.
    pub fitted: f64,
}

/// The law that fits measured throughputs, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalabilityFit {
    /// The parameters.
    pub law: ScalabilityLaw,
    /// Interval of the throughput of one client.
    pub per_client: Interval,
    /// Interval of the contention.
    pub contention: Interval,
    /// Interval of the crosstalk.
    pub crosstalk: Interval,
    /// Where latency begins to grow faster than throughput.
    pub knee: CriticalClients,
    /// Where throughput is greatest.
    pub peak: CriticalClients,
    /// The greatest throughput within the measured numbers of clients, according to the law.
    pub greatest: f64,
    /// Its interval.
    pub greatest_interval: Interval,
    /// Standard deviation of a round's throughput, relative to it.
    pub noise: f64,
    /// Standard deviation of the difference between server and law, relative to the throughput.
    pub misfit: f64,
    /// The measured points by number of clients.
    pub points: Vec<FittedPoint>,
}

/// Rounds of one number of clients, summarized.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadLevel {
    pub(super) clients: u32,
    pub(super) rounds: u32,
    /// Mean of ln X.
    pub(super) mean_log: f64,
}

/// What is fitted: the levels, and the noise between rounds.
pub(super) struct FitData {
    pub(super) levels: Vec<LoadLevel>,
    /// Variance of ln X of a round.
    pub(super) noise: f64,
    noise_df: f64,
}

/// The linear model N / X(N) = θ₀ + θ₁(N − 1)/M + θ₂N(N − 1)/M², where M, the most clients, only scales.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseModel {
    pub(super) theta: Vector3,
    pub(super) scale: f64,
}

/// Parameters without bounds, and their covariance.
pub(super) struct Estimate3 {
    theta: Vector3,
    pub(super) covariance: Matrix3,
    /// Logarithm of the restricted likelihood, except for a constant.
    likelihood: f64,
}

/// A fit, before anything is derived from it.
pub(super) struct RawFit {
    pub(super) levels: FitData,
    pub(super) model: ResponseModel,
    pub(super) estimate: Estimate3,
    /// Variance of the misfit.
    pub(super) misfit: f64,
}

/// Fits the law to the rounds of at least three numbers of clients, with at least three repeated rounds.
///
/// # Errors
/// Too few numbers of clients or rounds; throughput that is not positive; throughput from which none of
/// one client can be extrapolated.
pub fn fit_scalability(measured: &[MeasuredThroughput]) -> Result<ScalabilityFit, StatsError> {
    let raw = RawFit::of(measured)?;
    let most = raw.model.scale;
    let least = f64::from(raw.levels.levels[0].clients);
    let law = raw.model.law();
    let greatest = |law: &ScalabilityLaw| law.throughput(law.peak().clamp(least, most));
    let draws = raw.draws();
    let interval = |of: &dyn Fn(&ScalabilityLaw) -> f64| quantiles(draws.iter().map(of).collect());
    Ok(ScalabilityFit {
        law,
        per_client: interval(&|it| it.per_client),
        contention: interval(&|it| it.contention),
        crosstalk: interval(&|it| it.crosstalk),
        knee: raw.critical(&draws, ScalabilityLaw::knee),
        peak: raw.critical(&draws, ScalabilityLaw::peak),
        greatest: greatest(&law),
        greatest_interval: interval(&greatest),
        noise: raw.levels.noise.sqrt(),
        misfit: raw.misfit.sqrt(),
        points: raw.levels.points(&law),
    })
}

impl FitData {
    fn of(measured: &[MeasuredThroughput]) -> Result<Self, StatsError> {
        let mut logs: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for it in measured {
            let positive = it.throughput > 0.0 && it.throughput.is_finite() && it.clients > 0;
            if !positive {
                return Err(StatsError::NotAPositiveNumber {
                    name: "the throughput",
                    value: it.throughput,
                });
            }
            logs.entry(it.clients).or_default().push(it.throughput.ln());
        }
        let repeated = measured.len() - logs.len();
        if logs.len() < 3 || repeated < REPEATED_MIN {
            return Err(StatsError::TooFewLoads {
                loads: logs.len(),
                rounds: measured.len(),
            });
        }
        let mut squares = 0.0;
        let levels = logs.iter().map(|(clients, logs)| {
            let mean_log = logs.iter().sum::<f64>() / logs.len() as f64;
            squares += logs.iter().map(|it| (it - mean_log).powi(2)).sum::<f64>();
            LoadLevel {
                clients: *clients,
                rounds: logs.len() as u32,
                mean_log,
            }
        });
        let levels = levels.collect();
        let noise_df = repeated as f64;
        Ok(Self {
            levels,
            noise: (squares / noise_df).max(NOISE_SD_MIN * NOISE_SD_MIN),
            noise_df,
        })
    }

    fn points(&self, law: &ScalabilityLaw) -> Vec<FittedPoint> {
        let width = t_quantile(f64::midpoint(1.0, LEVEL), self.noise_df) * self.noise.sqrt();
        let point = |level: &LoadLevel| {
            let half = width / f64::from(level.rounds).sqrt();
            FittedPoint {
                clients: level.clients,
                rounds: level.rounds,
                throughput: level.mean_log.exp(),
                interval: Interval {
                    low: (level.mean_log - half).exp(),
                    high: (level.mean_log + half).exp(),
                    level: LEVEL,
                },
                fitted: law.throughput(f64::from(level.clients)),
            }
        };
        self.levels.iter().map(point).collect()
    }

    /// ln (N / X) of each level.
    fn log_responses(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.iter();
        levels.map(|it| f64::from(it.clients).ln() - it.mean_log)
    }
}

impl ResponseModel {
    pub(super) fn row(&self, clients: u32) -> Vector3 {
        let others = f64::from(clients) - 1.0;
        let pairs = f64::from(clients) * others;
        [1.0, others / self.scale, pairs / (self.scale * self.scale)]
    }

    pub(super) fn response(&self, clients: u32) -> f64 {
        dot(&self.row(clients), &self.theta)
    }

    pub(super) fn law(&self) -> ScalabilityLaw {
        let [first, serial, crosstalk] = self.theta;
        ScalabilityLaw {
            per_client: 1.0 / first,
            contention: serial / (self.scale * first),
            crosstalk: crosstalk / (self.scale * self.scale * first),
        }
    }
}

/// The covariance of the mean logarithms of the levels. Misfits of numbers of clients that differ by a
/// factor of two have a correlation of 1/e.
pub(super) fn level_covariance(levels: &[LoadLevel], noise: f64, misfit: f64) -> Option<Cholesky> {
    Cholesky::of(levels.len(), |row, column| {
        let (a, b) = (&levels[row], &levels[column]);
        let doublings = (f64::from(a.clients) / f64::from(b.clients)).log2().abs();
        let own = if row == column {
            noise / f64::from(a.rounds)
        } else {
            0.0
        };
        misfit * (-doublings).exp() + own
    })
}

/// The precision of the parameters, JᵀC⁻¹J, and the columns of the whitened J.
pub(super) fn information(cholesky: &Cholesky, rows: &[Vector3]) -> (Matrix3, [Vec<f64>; 3]) {
    let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<f64>>();
    let columns = [0, 1, 2].map(|at| cholesky.whiten(&column(at)));
    let mut matrix = [[0.0; 3]; 3];
    for (row, line) in matrix.iter_mut().enumerate() {
        for (column, entry) in line.iter_mut().enumerate() {
            *entry = dot(&columns[row], &columns[column]);
        }
    }
    (matrix, columns)
}

impl RawFit {
    pub(super) fn of(measured: &[MeasuredThroughput]) -> Result<Self, StatsError> {
        let levels = FitData::of(measured)?;
        let most = levels.levels.last().map_or(1, |it| it.clients);
        let mut model = ResponseModel {
            theta: [0.0; 3],
            scale: f64::from(most),
        };
        let mut misfit = 0.0;
        let mut last = None;
        for step in 0..STEPS {
            if step == STEPS / 2 {
                misfit = most_likely_misfit(&levels, &model);
            }
            let estimate = Estimate3::of(&levels, &model, misfit);
            let estimate = estimate.ok_or(StatsError::NoScalabilityFit)?;
            model.theta = within_bounds(estimate.theta, &estimate.covariance);
            if model.theta[0] <= 0.0 {
                return Err(StatsError::NoScalabilityFit);
            }
            last = Some(estimate);
        }
        Ok(Self {
            levels,
            model,
            estimate: last.ok_or(StatsError::NoScalabilityFit)?,
            misfit,
        })
    }

    /// The knee.
    pub(super) fn knee(&self) -> CriticalClients {
        self.critical(&self.draws(), ScalabilityLaw::knee)
    }

    fn critical(
        &self,
        draws: &[ScalabilityLaw],
        of: fn(&ScalabilityLaw) -> f64,
    ) -> CriticalClients {
        CriticalClients {
            clients: of(&self.model.law()),
            interval: quantiles(draws.iter().map(of).collect()),
        }
    }

    /// Laws drawn from the distribution of the parameters.
    fn draws(&self) -> Vec<ScalabilityLaw> {
        let covariance = &self.estimate.covariance;
        let Some(cholesky) = Cholesky::of(3, |row, column| covariance[row][column]) else {
            return vec![self.model.law()];
        };
        let tail = f64::midpoint(1.0, LEVEL);
        let wider = t_quantile(tail, self.degrees_of_freedom()) / normal_quantile(tail);
        let mut stream = SplitMix64::new(DRAWS_SEED);
        let draw = |_| {
            let normal = [(); 3].map(|()| wider * stream.next_normal());
            let mut theta = self.estimate.theta;
            for (parameter, step) in theta.iter_mut().zip(cholesky.apply(normal)) {
                *parameter += step;
            }
            let mut theta = within_bounds(theta, covariance);
            theta[0] = theta[0].max(FIRST_LATENCY_MIN * self.model.theta[0]);
            ResponseModel {
                theta,
                ..self.model
            }
            .law()
        };
        (0..DRAWS).map(draw).collect()
    }

    /// Welch and Satterthwaite's, from the degrees of freedom of noise and misfit by their shares of the
    /// points' variance.
    fn degrees_of_freedom(&self) -> f64 {
        let levels = &self.levels.levels;
        let noise = |it: &LoadLevel| self.levels.noise / f64::from(it.rounds);
        let share = |it: &LoadLevel| self.misfit / (self.misfit + noise(it));
        let share = levels.iter().map(share).sum::<f64>() / levels.len() as f64;
        let misfit_df = (levels.len() as f64 - 3.0).max(1.0);
        1.0 / (share.powi(2) / misfit_df + (1.0 - share).powi(2) / self.levels.noise_df)
    }
}

impl Estimate3 {
    /// One step of the iteration from the model's parameters; with all of them 0, the relative least squares
    /// of N/X, which need no start.
    fn of(levels: &FitData, model: &ResponseModel, misfit: f64) -> Option<Self> {
        let cholesky = level_covariance(&levels.levels, levels.noise, misfit)?;
        let mut rows = Vec::new();
        let mut residuals = Vec::new();
        for (level, log) in levels.levels.iter().zip(levels.log_responses()) {
            let fitted = model.response(level.clients);
            let (by, residual) = if fitted > 0.0 {
                (fitted, log - fitted.ln())
            } else {
                (log.exp(), 1.0)
            };
            rows.push(model.row(level.clients).map(|it| it / by));
            residuals.push(residual);
        }
        let (precision, columns) = information(&cholesky, &rows);
        let (covariance, log_determinant) = invert(&precision)?;
        let residuals = cholesky.whiten(&residuals);
        let right: Vec<f64> = columns.iter().map(|it| dot(it, &residuals)).collect();
        let step = covariance.map(|line| dot(&line, &right));
        let mut theta = model.theta;
        for (parameter, step) in theta.iter_mut().zip(step) {
            *parameter += step;
        }
        let left = dot(&residuals, &residuals) - dot(&step, &right);
        let likelihood = -0.5 * (cholesky.log_determinant() + log_determinant + left);
        Some(Self {
            theta,
            covariance,
            likelihood,
        })
    }

    /// The distance from the nearest parameters within their bounds, in standard deviations.
    fn deviations_beyond_bounds(&self) -> f64 {
        let nearest = within_bounds(self.theta, &self.covariance);
        let distance = [0, 1, 2].map(|at| self.theta[at] - nearest[at]);
        invert(&self.covariance).map_or(0.0, |(precision, _)| {
            quadratic(&precision, distance).max(0.0).sqrt()
        })
    }
}

/// The misfit with the greatest restricted likelihood, as a variance, or a greater one that the bounds ask for.
fn most_likely_misfit(levels: &FitData, model: &ResponseModel) -> f64 {
    let mut best = (f64::NEG_INFINITY, 0.0);
    for factor in MISFIT_FACTORS {
        let misfit = levels.noise * factor * factor;
        let estimate = Estimate3::of(levels, model, misfit);
        let likelihood = estimate.map_or(f64::NEG_INFINITY, |it| it.likelihood);
        if likelihood > best.0 {
            best = (likelihood, misfit);
        }
    }
    explaining_bounds(levels, model, best.1)
}

/// The misfit, or a greater one if points that ask for a negative contention or crosstalk, such as more than twice the
/// throughput with twice the clients, are not noise: the law misses them, since its parameters have bounds.
fn explaining_bounds(levels: &FitData, model: &ResponseModel, misfit: f64) -> f64 {
    let beyond = |misfit: f64| {
        Estimate3::of(levels, model, misfit).map_or(0.0, |it| it.deviations_beyond_bounds())
    };
    let by_chance = t_quantile(f64::midpoint(1.0, LEVEL), levels.noise_df);
    if beyond(misfit) <= by_chance {
        return misfit;
    }
    let all = MISFIT_FACTORS.map(|factor| levels.noise * factor * factor);
    let mut greater = all.into_iter().filter(|it| *it > misfit);
    let explaining = greater.find(|it| beyond(*it) <= 1.0);
    explaining.unwrap_or(all[all.len() - 1])
}

/// The nearest parameters, in units of their covariance, with no negative contention and crosstalk.
fn within_bounds(theta: Vector3, covariance: &Matrix3) -> Vector3 {
    if theta[1] >= 0.0 && theta[2] >= 0.0 {
        return theta;
    }
    let without = |at: usize| {
        let times = theta[at] / covariance[at][at];
        let mut nearest = [0, 1, 2].map(|it| theta[it] - times * covariance[it][at]);
        nearest[at] = 0.0;
        (theta[at] * times, nearest)
    };
    let ones = [without(1), without(2)];
    let feasible = ones.iter().filter(|(_, it)| it[1] >= 0.0 && it[2] >= 0.0);
    let nearest = feasible.min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, nearest)) = nearest {
        return *nearest;
    }
    let [_, [_, b, both], [_, _, c]] = *covariance;
    let determinant = b * c - both * both;
    let times = [
        (c * theta[1] - both * theta[2]) / determinant,
        (b * theta[2] - both * theta[1]) / determinant,
    ];
    let first = theta[0] - times[0] * covariance[0][1] - times[1] * covariance[0][2];
    [first, 0.0, 0.0]
}

/// The interval of drawn values.
fn quantiles(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let last = (values.len() - 1) as f64;
    let at = |share: f64| values[(share * last).round() as usize];
    Interval {
        low: at((1.0 - LEVEL) / 2.0),
        high: at(f64::midpoint(1.0, LEVEL)),
        level: LEVEL,
    }
}
