//! Measurements of several processes become one: they travel as bytes, and merge exactly.
//!
//! Histograms of equal precision have the same buckets, so the merged counts, and with them all
//! quantiles, are those of a single histogram of all values.

use hdrhistogram::Histogram;

use crate::measurement::{
    ClientTime, Instants, Measurement, Reconnecting, ScriptMeasurement, TimerLag,
};

const RESIZES: &str = "a histogram that resizes can hold any value";

impl Instants {
    /// Returns the instants on another clock, which shows `offset_ns` less.
    #[must_use]
    pub fn on_clock(self, offset_ns: i64) -> Self {
        let shown = |ns: u64| ns.saturating_add_signed(offset_ns.saturating_neg());
        Self {
            begin_ns: shown(self.begin_ns),
            window_begin_ns: shown(self.window_begin_ns),
            window_end_ns: shown(self.window_end_ns),
            idle_ns: shown(self.idle_ns),
        }
    }

    /// The instants of two pools that run together: from the first begin to the last end.
    fn merge(&mut self, other: Self) {
        self.begin_ns = self.begin_ns.min(other.begin_ns);
        self.window_begin_ns = self.window_begin_ns.min(other.window_begin_ns);
        self.window_end_ns = self.window_end_ns.max(other.window_end_ns);
        self.idle_ns = self.idle_ns.max(other.idle_ns);
    }
}

impl Measurement {
    /// Adds the measurement of another pool that ran the same scripts at the same time. The instants
    /// of both must be on the same clock. The other pool's clients and threads come after its own.
    ///
    /// # Panics
    /// Never: histograms resize.
    pub fn merge(&mut self, other: Self) {
        self.instants.merge(other.instants);
        let window_ns = self.instants.window_end_ns - self.instants.window_begin_ns;
        self.window_us = window_ns / 1000;
        self.transactions += other.transactions;
        self.credited_transactions += other.credited_transactions;
        self.transactions_total += other.transactions_total;
        self.settle_transactions += other.settle_transactions;
        self.failed += other.failed;
        self.failed_total += other.failed_total;
        self.failed_us += other.failed_us;
        add(&mut self.latency_ns, &other.latency_ns);
        match (&mut self.since_begin_ns, other.since_begin_ns) {
            (Some(sum), Some(other)) => add(sum, &other),
            (sum @ None, other) => *sum = other,
            (Some(_), None) => {}
        }
        for (sum, other) in self.scripts.iter_mut().zip(&other.scripts) {
            sum.merge(other);
        }
        self.clients.extend(other.clients);
        self.time.merge(other.time);
        self.threads.extend(other.threads);
        self.timer_lag.merge(other.timer_lag);
        self.client_limited |= other.client_limited;
        self.interrupted |= other.interrupted;
        self.unfinished += other.unfinished;
        self.aborted += other.aborted;
        self.skipped += other.skipped;
        self.unserved += other.unserved;
        for (sums, others) in self.commands.iter_mut().zip(&other.commands) {
            for (sum, other) in sums.iter_mut().zip(others) {
                sum.merge(other);
            }
        }
        self.reconnecting.merge(other.reconnecting);
        match (&mut self.openings, other.openings) {
            (Some(sum), Some(other)) => sum.merge(&other),
            (sum @ None, other) => *sum = other,
            (Some(_), None) => {}
        }
        self.io.is_uring &= other.io.is_uring;
        self.io.refusal = self.io.refusal.take().or(other.io.refusal);
    }

    /// Adds an earlier run of the same clients: both windows together are one window with a pause. The instants
    /// remain those of the later run.
    pub fn add_earlier(&mut self, earlier: Self) {
        let (instants, window_us) = (self.instants, self.window_us + earlier.window_us);
        let mut clients = self.clients.clone();
        for (sum, one) in clients.iter_mut().zip(&earlier.clients) {
            *sum += one;
        }
        let mut threads = self.threads.clone();
        for (sum, one) in threads.iter_mut().zip(&earlier.threads) {
            sum.add(*one);
        }
        self.merge(earlier);
        self.instants = instants;
        self.window_us = window_us;
        self.clients = clients;
        self.threads = threads;
    }
}

fn add(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    sum.auto(true);
    sum.add(other).expect(RESIZES);
}

impl ScriptMeasurement {
    fn merge(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.failed += other.failed;
        add(&mut self.latency_ns, &other.latency_ns);
    }
}

impl ClientTime {
    fn merge(&mut self, other: Self) {
        self.in_transaction_us += other.in_transaction_us;
        self.asleep_us += other.asleep_us;
        self.between_us += other.between_us;
        let both = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        self.thread_busy_us = both(self.thread_busy_us, other.thread_busy_us);
        self.client_run_queue_us = both(self.client_run_queue_us, other.client_run_queue_us);
        self.possible_thread_busy_us =
            both(self.possible_thread_busy_us, other.possible_thread_busy_us);
        self.possible_run_queue_us = both(self.possible_run_queue_us, other.possible_run_queue_us);
    }
}

impl TimerLag {
    fn merge(&mut self, other: Self) {
        self.wakeups += other.wakeups;
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
    }
}

impl Reconnecting {
    fn merge(&mut self, other: Self) {
        self.opened += other.opened;
        self.sum_us += other.sum_us;
    }
}

/// A histogram as the bytes of `HdrHistogram`'s V2 encoding.
pub(crate) mod packed {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::{Deserializer as Unpacker, Serializer as _, V2Serializer};
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(histogram, &mut bytes)
            .map_err(S::Error::custom)?;
        bytes.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let mut histogram: Histogram<u64> = Unpacker::new()
            .deserialize(&mut &bytes[..])
            .map_err(D::Error::custom)?;
        histogram.auto(true);
        Ok(histogram)
    }
}

/// The same for a histogram that may be missing.
pub(crate) mod packed_if_any {
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct PackedRef<'a>(#[serde(with = "super::packed")] &'a Histogram<u64>);

    #[derive(Deserialize)]
    struct Packed(#[serde(with = "super::packed")] Histogram<u64>);

    #[allow(clippy::ref_option, reason = "serde calls it with this type")]
    pub fn serialize<S: Serializer>(
        histogram: &Option<Histogram<u64>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        histogram.as_ref().map(PackedRef).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Histogram<u64>>, D::Error> {
        let packed = Option::<Packed>::deserialize(deserializer)?;
        Ok(packed.map(|Packed(histogram)| histogram))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::recorder::latency_histogram;

    /// Values of several orders of magnitude, different ones for each rank.
    fn values(rank: u64) -> impl Iterator<Item = u64> {
        (1..5000_u64).map(move |n| (n * n * n * 7919 + rank * 104_729) % 40_000_000_000 + 1)
    }

    /// Bytes and back.
    fn sent(histogram: &Histogram<u64>) -> Histogram<u64> {
        let json = serde_json::to_string(&Opened {
            histogram: Some(histogram.clone()),
        });
        let back: Opened = serde_json::from_str(&json.unwrap()).unwrap();
        back.histogram.unwrap()
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Opened {
        #[serde(with = "packed_if_any")]
        histogram: Option<Histogram<u64>>,
    }

    #[test]
    fn merged_quantiles_are_those_of_all_values() {
        for empty in [latency_histogram as fn() -> _, || {
            Histogram::new(3).unwrap()
        }] {
            let (mut all, mut sum) = (empty(), empty());
            for rank in 0..4 {
                let mut own = empty();
                own.auto(true);
                all.auto(true);
                for value in values(rank) {
                    own.record(value).unwrap();
                    all.record(value).unwrap();
                }
                add(&mut sum, &sent(&own));
            }
            assert_eq!(sum.len(), 4 * 4999);
            for permille in 0..=1000 {
                let quantile = f64::from(permille) / 1000.0;
                let both = [&sum, &all].map(|it| it.value_at_quantile(quantile));
                assert_eq!(both[0], both[1], "{quantile}");
            }
            assert_eq!((sum.min(), sum.max()), (all.min(), all.max()));
            assert!((sum.mean() - all.mean()).abs() < 1e-6);
        }
    }

    #[test]
    fn instants_move_to_the_clock_that_shows_less() {
        let there = Instants {
            begin_ns: 1100,
            window_begin_ns: 1100,
            window_end_ns: 2100,
            idle_ns: 2150,
        };
        let mut merged = Instants {
            begin_ns: 1003,
            window_begin_ns: 1003,
            window_end_ns: 2000,
            idle_ns: 2001,
        };
        merged.merge(there.on_clock(100));
        let expected = Instants {
            begin_ns: 1000,
            window_begin_ns: 1000,
            window_end_ns: 2000,
            idle_ns: 2050,
        };
        assert_eq!(merged, expected);
        assert_eq!(there.on_clock(100).on_clock(-100), there);
    }
}
