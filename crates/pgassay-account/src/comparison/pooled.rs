//! The figures of several trials of one point taken together, as if they were one long trial.
//!
//! A mean of the trials' rates or quantiles is another figure. If one trial in eight has a tenth of the rate, the
//! geometric mean of the rates is 25% lower, but 11% of the transactions are missing; and the 99th percentile of ten
//! transactions is the slowest of them. The shorter the trials, the larger both errors.

use hdrhistogram::Histogram;
use pgassay_model::trial::{LatencyError, Trial};

/// Several trials of one point taken together.
#[derive(Debug)]
pub struct PooledTrials {
    rate: PooledRate,
    /// Latencies of all transactions, ns.
    pub latency_ns: Histogram<u64>,
    /// CPU time of the backends, µs; `None` if one of the trials has none.
    on_cpu_us: Option<f64>,
    /// Transactions inside and outside of the windows.
    transactions_total: u64,
}

impl PooledTrials {
    /// `None` without transactions.
    ///
    /// # Errors
    /// A corrupted latency histogram.
    pub fn of<'t>(
        trials: impl IntoIterator<Item = &'t Trial>,
    ) -> Result<Option<Self>, LatencyError> {
        let mut pooled = Self {
            rate: PooledRate::default(),
            // Three digits are within what the crate permits, 0 to 5.
            latency_ns: Histogram::new(3).map_err(|_| LatencyError)?,
            on_cpu_us: Some(0.0),
            transactions_total: 0,
        };
        for trial in trials {
            pooled.rate.add(trial);
            // An auto-resizing histogram accepts all values of another histogram.
            pooled
                .latency_ns
                .add(trial.latency.histogram()?)
                .map_err(|_| LatencyError)?;
            let on_cpu_us = trial.server.map(|it| it.on_cpu_us);
            pooled.on_cpu_us = pooled.on_cpu_us.zip(on_cpu_us).map(|(sum, us)| sum + us);
            pooled.transactions_total += trial.transactions_total;
        }
        Ok((pooled.rate.transactions > 0).then_some(pooled))
    }

    /// Transactions per second inside the windows.
    pub fn tps(&self) -> f64 {
        self.rate.per_second()
    }

    /// Mean latency, µs.
    pub fn latency_mean_us(&self) -> f64 {
        self.latency_ns.mean().max(1.0) / 1e3
    }

    /// A quantile of the latency, 0 to 1; µs.
    pub fn latency_quantile_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile).max(1) as f64 / 1e3
    }

    /// CPU time of the backends per transaction, µs, if available.
    pub fn server_cpu_us_per_tx(&self) -> Option<f64> {
        Some(self.on_cpu_us? / self.transactions_total as f64)
    }
}

/// The rate of several trials.
#[derive(Debug, Clone, Copy, Default)]
pub struct PooledRate {
    transactions: u64,
    credited: f64,
    window_us: f64,
}

impl PooledRate {
    /// Adds a trial.
    pub fn add(&mut self, trial: &Trial) {
        self.transactions += trial.transactions;
        self.credited += trial.credited_or_counted();
        self.window_us += trial.window_us;
    }

    /// Transactions per second inside the windows; not a number without trials.
    pub fn per_second(&self) -> f64 {
        self.credited / (self.window_us / 1e6)
    }
}
