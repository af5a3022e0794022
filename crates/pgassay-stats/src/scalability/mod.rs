//! How throughput grows with the number of clients: the Universal Scalability Law, its knee and its peak.
//!
//! # The law
//! X(N) = λN / (1 + σ(N − 1) + κN(N − 1)) is the throughput of N clients: λ is that of one client, σ the
//! contention (the share of work that is done one after the other) and κ the crosstalk (work that grows with
//! each pair of clients, such as keeping caches coherent). Gunther, "Guerrilla Capacity Planning" (2007),
//! chapter 4.
//!
//! # Knee and peak
//! The elasticity E(N) = N·X′(N)/X(N) says by how many percent throughput grows if the number of clients grows
//! by 1%. Latency is N/X in a closed loop without think time, so its elasticity is 1 − E.
//! - The *knee* is where E = 1/2: with more clients, latency grows faster than throughput. Throughput divided by
//!   latency, X²/N, is greatest there: this is the power of Kleinrock, "Power and deterministic rules of
//!   thumb for probabilistic problems in computer communications" (ICC 1979). Of a queue that takes c
//!   clients at once and no more, it is at c, where the two asymptotes of Lazowska et al., "Quantitative
//!   System Performance" (1984), section 5.2, intersect.
//! - The *peak* is where E = 0, at √((1 − σ)/κ) clients: more clients lose throughput.
//!
//! # The fit
//! N/X(N) is linear in (1/λ, σ/λ, κ/λ), so the law is fitted to the logarithm of N/X by Gauss and Newton's
//! iteration, with σ ≥ 0 and κ ≥ 0. The covariance of the measured points has two parts: the noise between rounds,
//! from repeated rounds of the same number of clients; and the *misfit*, because no server follows the law exactly.
//! The misfit is a random function of ln N whose values are related within a doubling of N (Kennedy and
//! O'Hagan, "Bayesian calibration of computer models", 2001, section 4.1), with its standard deviation from
//! restricted maximum likelihood, and large enough for points that ask for σ < 0 or κ < 0. So many points close
//! together are not taken for many independent ones, and two designs agree within their intervals even if the
//! law does not hold.
//!
//! Intervals come from draws of the parameters' distribution (Krinsky and Robb, "On approximating the
//! statistical properties of elasticities", 1986), each projected to σ, κ ≥ 0.
//!
//! # Invariants
//! Equal inputs give equal results; a knee or peak that does not exist is infinite.

mod fit;
mod law;
mod linear;
mod placement;
#[cfg(test)]
mod tests;

pub use fit::{CriticalClients, FittedPoint, ScalabilityFit, fit_scalability};
pub use law::ScalabilityLaw;
pub use placement::{KneeSearch, coarse_grid};

/// The throughput of one round: the geometric mean of its trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredThroughput {
    /// Concurrent clients.
    pub clients: u32,
    /// Transactions per second.
    pub throughput: f64,
}
