//! Whether a server keeps up with a rate of transactions.

/// A rate is sustained if at least this share of its transactions ended in time.
const SUSTAINED: f64 = 0.95;
/// Standard deviations of the number of due transactions that count as chance.
const DUE_DEVIATIONS: f64 = 2.0;

/// What a server completed of a requested rate.
#[derive(Debug, Clone, Copy)]
pub struct PacedThroughput {
    /// Requested transactions per second.
    pub rate: f64,
    /// Completed transactions per second.
    pub tps: f64,
    /// The time in which they were counted; infinite if it is not known.
    pub seconds: f64,
}

impl PacedThroughput {
    /// Transactions are due at random times (a Poisson process), so their number differs from rate × seconds by
    /// chance.
    fn is_sustained(&self) -> bool {
        let chance = DUE_DEVIATIONS * (self.rate / self.seconds).sqrt();
        self.tps >= SUSTAINED * self.rate - chance
    }
}

/// The number of rates, in ascending order, up to the first that the server did not sustain.
///
/// Of a rate that is too high, the clients complete as many transactions as they can. If that is less than a lower
/// rate, which fell short as well, then that was not chance.
pub fn sustained_count(measured: &[PacedThroughput]) -> usize {
    let mut each = measured.iter();
    let alone = each.position(|it| !it.is_sustained());
    let Some(alone) = alone else {
        return measured.len();
    };
    let (lower, higher) = measured.split_at(alone);
    let most = higher.iter().map(|it| it.tps).fold(0.0, f64::max);
    let mut lower = lower.iter();
    let short = lower.position(|it| SUSTAINED * it.rate > it.tps.max(most));
    short.unwrap_or(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count<const N: usize>(measured: [(f64, f64); N], seconds: f64) -> usize {
        let each = measured.map(|(rate, tps)| PacedThroughput { rate, tps, seconds });
        sustained_count(&each)
    }

    #[test]
    fn a_rate_is_sustained_up_to_the_first_that_is_not() {
        let points = [(100.0, 99.0), (200.0, 196.0), (400.0, 250.0)];
        assert_eq!(count(points, f64::INFINITY), 2);
        assert_eq!(count([points[2]], f64::INFINITY), 0);
        assert_eq!(count([], 1.0), 0);
        // Regression: with 10 due transactions in a second, an idle server was called saturated half of the time.
        assert_eq!(count([(10.0, 8.0)], 4.0), 1);
        assert_eq!(count([(10.0, 5.0)], 4.0), 0);
        assert_eq!(count([(10_000.0, 9_000.0)], 4.0), 0);
    }

    /// Regression: "The server sustained 200 tps; of 250 tps, it completed 182", with 178 of 200.
    #[test]
    fn a_rate_above_all_that_the_server_completed_was_sustained() {
        let points = [(100.0, 103.0), (200.0, 178.0), (250.0, 182.0)];
        assert_eq!(count(points, 3.0), 1);
        // What it completed of a higher rate shows that 178 was chance.
        let points = [(100.0, 90.0), (200.0, 178.0), (400.0, 250.0)];
        assert_eq!(count(points, 3.0), 2);
        // A server that completes less under overload.
        assert_eq!(count([(200.0, 195.0), (400.0, 150.0)], 3.0), 1);
    }
}
