//! Where to measure next, so that few trials determine knee and peak.
//!
//! The first blocks measure a coarse grid: powers of two. Then each block measures the three numbers of clients
//! that most reduce the variance of the elasticity at the estimated knee and at the estimated peak: a
//! sequential c-optimal design (Silvey, "Optimal design", 1980, chapter 3; Chaloner and Verdinelli, "Bayesian
//! experimental design: a review", 1995). The knee is where the elasticity is 1/2 and the peak where it is 0,
//! so these variances are those of knee and peak, and they exist even if knee and peak do not. The misfit of
//! the law counts as uncertainty, so that points spread out if the law does not hold.

use super::fit::{LoadLevel, RawFit, ResponseModel, information, level_covariance};
use super::linear::{Vector3, invert, quadratic};
use super::{CriticalClients, MeasuredThroughput};

/// Blocks that measure the coarse grid: the fewest from which noise can be estimated.
const COARSE_BLOCKS: u32 = 3;
/// Numbers of clients per later block.
const PER_BLOCK: usize = 3;
/// The search ends if half the width of the knee's interval is at most this share of it.
const PRECISION: f64 = 0.03;

/// Chooses numbers of clients to measure, block by block. Pure: the same rounds give the same choice.
#[derive(Debug, Clone)]
pub struct KneeSearch {
    /// In ascending order.
    candidates: Vec<u32>,
    measured: Vec<MeasuredThroughput>,
    blocks: u32,
}

impl KneeSearch {
    /// A search among these numbers of clients.
    pub fn new(candidates: &[u32]) -> Self {
        let mut candidates = candidates.to_vec();
        candidates.sort_unstable();
        candidates.dedup();
        Self {
            candidates,
            measured: Vec::new(),
            blocks: 0,
        }
    }

    /// Takes note of the rounds of a block.
    pub fn block_ended(&mut self, rounds: &[MeasuredThroughput]) {
        self.measured.extend_from_slice(rounds);
        self.blocks += 1;
    }

    /// The rounds so far.
    pub fn measured(&self) -> &[MeasuredThroughput] {
        &self.measured
    }

    /// The numbers of clients to measure in the next block, ascending; empty if the knee is known precisely
    /// enough.
    pub fn next_block(&self) -> Vec<u32> {
        if self.blocks < COARSE_BLOCKS {
            return coarse_grid(&self.candidates);
        }
        let Ok(raw) = RawFit::of(&self.measured) else {
            // With more rounds, there may be a fit.
            return coarse_grid(&self.candidates);
        };
        let most = self.candidates.last().copied().unwrap_or(1);
        if is_precise(&raw.knee(), f64::from(most)) {
            return Vec::new();
        }
        self.most_informative(&raw)
    }

    /// The candidates that reduce the uncertainty most, each in addition to those before.
    fn most_informative(&self, raw: &RawFit) -> Vec<u32> {
        let law = raw.model.law();
        let most = raw.model.scale;
        let gradients = [law.knee(), law.peak()]
            .map(|clients| elasticity_gradient(&raw.model, clients.clamp(1.0, most)));
        let mut levels = raw.levels.levels.clone();
        let mut chosen = Vec::new();
        for _ in 0..PER_BLOCK.min(self.candidates.len()) {
            let left = self.candidates.iter().filter(|it| !chosen.contains(*it));
            let after = |clients: u32| {
                let levels = with_round(&levels, clients);
                uncertainty(raw, &levels, &gradients).unwrap_or(f64::INFINITY)
            };
            let best = left.min_by(|a, b| after(**a).total_cmp(&after(**b)));
            let Some(best) = best.copied() else {
                break;
            };
            levels = with_round(&levels, best);
            chosen.push(best);
        }
        chosen.sort_unstable();
        chosen
    }
}

/// The candidates that are nearest to the smallest one times powers of two, and the largest.
pub fn coarse_grid(candidates: &[u32]) -> Vec<u32> {
    let (Some(&least), Some(&most)) = (candidates.iter().min(), candidates.iter().max()) else {
        return Vec::new();
    };
    let mut grid = Vec::new();
    let mut wanted = f64::from(least.max(1));
    while wanted < f64::from(most) {
        let far = |it: &u32| (f64::from(*it) / wanted).ln().abs();
        let nearest = candidates.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        grid.extend(nearest);
        wanted *= 2.0;
    }
    grid.push(most);
    grid.sort_unstable();
    grid.dedup();
    grid
}

/// Whether the knee is known well enough, or certainly beyond the most clients.
fn is_precise(knee: &CriticalClients, most: f64) -> bool {
    let (low, high) = (knee.interval.low, knee.interval.high);
    if low > most {
        return true;
    }
    let half = (high - low) / 2.0;
    high.is_finite() && half <= PRECISION * knee.clients
}

fn with_round(levels: &[LoadLevel], clients: u32) -> Vec<LoadLevel> {
    let mut levels = levels.to_vec();
    match levels.iter_mut().find(|it| it.clients == clients) {
        Some(level) => level.rounds += 1,
        None => levels.push(LoadLevel {
            clients,
            rounds: 1,
            mean_log: 0.0,
        }),
    }
    levels
}

/// The sum of the variances of functions of the parameters with these gradients.
fn uncertainty(raw: &RawFit, levels: &[LoadLevel], gradients: &[Vector3]) -> Option<f64> {
    let cholesky = level_covariance(levels, raw.levels.noise, raw.misfit)?;
    let row = |it: &LoadLevel| {
        let fitted = raw.model.response(it.clients);
        raw.model.row(it.clients).map(|entry| entry / fitted)
    };
    let rows: Vec<Vector3> = levels.iter().map(row).collect();
    let (covariance, _) = invert(&information(&cholesky, &rows).0)?;
    let variances = gradients.iter().map(|it| quadratic(&covariance, *it));
    Some(variances.sum())
}

/// The gradient of N·R′(N)/R(N) = 1 − E(N) by the model's parameters, where R = N/X is the latency.
fn elasticity_gradient(model: &ResponseModel, clients: f64) -> Vector3 {
    let scale = model.scale;
    let others = clients - 1.0;
    let rows = [1.0, others / scale, clients * others / (scale * scale)];
    let slopes = [0.0, 1.0 / scale, (2.0 * clients - 1.0) / (scale * scale)];
    let sum = |of: Vector3| of.iter().zip(model.theta).map(|(a, b)| a * b).sum::<f64>();
    let (response, slope) = (sum(rows), sum(slopes));
    [0, 1, 2].map(|at| clients * (slopes[at] * response - slope * rows[at]) / (response * response))
}
