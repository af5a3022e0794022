//! Whether a server keeps up with a rate of transactions.

use crate::scalability::CurvePoint;

/// A rate is sustained if at least this share of its transactions ended in time.
const SUSTAINED: f64 = 0.95;
/// Standard deviations of the number of due transactions that count as chance.
const DUE_DEVIATIONS: f64 = 2.0;

/// Whether this throughput, measured for this time, is that of a server that keeps up with the rate. Transactions are
/// due at random times (a Poisson process), so their number differs from rate × seconds by chance.
pub fn is_sustained(rate: f64, tps: f64, seconds: f64) -> bool {
    tps >= SUSTAINED * rate - DUE_DEVIATIONS * (rate / seconds).sqrt()
}

/// The highest rate below the first one that was not sustained.
pub(crate) fn sustained_rate(points: &[CurvePoint]) -> Option<f64> {
    let kept = points.iter().take_while(|it| it.is_sustained());
    kept.filter_map(|it| it.rate).last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalability::CurveFigure;

    #[test]
    fn a_rate_is_sustained_up_to_the_first_that_is_not() {
        let point = |rate: f64, tps: f64| CurvePoint {
            clients: 8,
            rate: Some(rate),
            rounds: 2,
            seconds: 0.0,
            throughput: CurveFigure {
                estimate: Some(tps),
                low: None,
                high: None,
            },
            fitted: None,
            latency_mean_us: 0.0,
            latency_p50_us: 0.0,
            latency_p95_us: 0.0,
            latency_p99_us: 0.0,
            limit: None,
        };
        let points = [point(100.0, 99.0), point(200.0, 196.0), point(400.0, 250.0)];
        assert_eq!(sustained_rate(&points), Some(200.0));
        assert_eq!(sustained_rate(&points[2..]), None);
        // Regression: with 10 due transactions in a second, an idle server was called saturated half of the time.
        let short = |rate: f64, tps: f64| CurvePoint {
            seconds: 4.0,
            ..point(rate, tps)
        };
        assert!(short(10.0, 8.0).is_sustained() && !short(10.0, 5.0).is_sustained());
        assert!(!short(10_000.0, 9_000.0).is_sustained());
    }
}
