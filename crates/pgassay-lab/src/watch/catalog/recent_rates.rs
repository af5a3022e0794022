//! Transactions per second of a watch that goes on: an interval ends between two readings of the count.

use pgassay_record::activity::{Activity, LoadInterval};

use super::transactions::{RECENT_RATE_US, TransactionRates, stalls};

/// Writes transactions per second into the timeline, if they can be right, and adds stalls to the marks. The last
/// interval has the present rate. The timeline begins at `since_us`.
pub(super) fn note(
    activity: &mut Activity,
    rates: &TransactionRates,
    (since_us, now_us): (f64, f64),
) {
    let present = rates.recent_per_s(now_us);
    let mut timeline = std::mem::take(&mut activity.timeline);
    rates.fill(&mut timeline, since_us);
    for interval in &mut timeline {
        // What ended since the last reading is counted by the next one.
        let end_us = since_us + interval.start_us + interval.length_us;
        if interval.transactions_per_s.is_none() && !rates.is_read(end_us) {
            interval.transactions_per_s = present;
        }
    }
    // A session can report a transaction of this window in the next one.
    let window_s = activity.window_us.max(RECENT_RATE_US) / 1e6;
    // Workers of autovacuum are among the sessions whose transactions were seen.
    let of_autovacuum = rates.recent_autovacuum_per_s(now_us).unwrap_or(0.0);
    let is_right = |per_s: &f64| {
        activity.is_transaction_count((per_s + of_autovacuum) * window_s)
            && activity.is_transaction_rate(*per_s)
    };
    let present = present.filter(is_right);
    let mean = mean_per_s(&timeline).filter(is_right);
    if present.is_none() && mean.is_none() {
        for interval in &mut timeline {
            interval.transactions_per_s = None;
        }
    }
    activity.unavailable.extend(rates.autovacuum_note());
    let stalls = stalls(&timeline, rates.most_per_s());
    activity.marks.splice(0..0, stalls);
    if let (Some(last), Some(present)) = (timeline.last_mut(), present) {
        last.transactions_per_s = Some(present);
    }
    activity.timeline = timeline;
}

/// The mean of the known rates.
fn mean_per_s(timeline: &[LoadInterval]) -> Option<f64> {
    let known = timeline.iter();
    let known = known.filter_map(|it| Some((it.transactions_per_s?, it.length_us)));
    let (ended, length_us) = known.fold((0.0, 0.0), |(ended, sum_us), (rate, length_us)| {
        (ended + rate * length_us, sum_us + length_us)
    });
    (length_us > 0.0).then(|| ended / length_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many intervals of a second with sessions that wait.
    fn waiting(seconds: u32) -> Activity {
        let interval = |second: u32| LoadInterval {
            start_us: f64::from(second) * 1e6,
            length_us: 1e6,
            active: vec![("Lock".to_owned(), 3.0)],
            idle_in_transaction: 0.0,
            transactions_per_s: None,
        };
        Activity {
            window_us: f64::from(seconds) * 1e6,
            timeline: (0..seconds).map(interval).collect(),
            ..Activity::default()
        }
    }

    /// Readings 0.3 s after each second, of 100 transactions per second before the first of these and from the second
    /// one on.
    fn rates(until: u32, stalled: (u32, u32)) -> TransactionRates {
        let mut rates = TransactionRates::default();
        let mut ended = 0.0;
        for second in 0..until {
            rates.add(f64::from(second) * 1e6 + 0.3e6, ended, 0);
            let is_stalled = (stalled.0..stalled.1).contains(&second);
            ended += if is_stalled { 0.0 } else { 100.0 };
        }
        rates
    }

    fn ended(activity: &Activity) -> Option<f64> {
        let rates = activity.timeline.iter();
        rates
            .map(|it| Some(it.transactions_per_s? * it.length_us / 1e6))
            .sum()
    }

    /// Regression: a snapshot of 60 s had 0 transactions, because none had ended in the last 2 s; the screen said
    /// nothing of stalls that began and ended within an interval of 5 s or more.
    #[test]
    fn an_interval_has_the_rates_and_stalls_within_it_and_not_those_of_its_last_two_seconds() {
        let mut long = waiting(60);
        note(&mut long, &rates(80, (77, 80)), (20e6, 80e6));
        let ended = ended(&long).unwrap();
        assert!((ended - 5730.0).abs() < 1.0, "{ended}");
        assert_eq!(long.timeline[59].transactions_per_s, Some(0.0));
        assert_eq!(long.marks.len(), 1);

        let mut within = waiting(10);
        note(&mut within, &rates(30, (23, 26)), (20e6, 30e6));
        assert_eq!(within.timeline[9].transactions_per_s, Some(100.0));
        let marks = within.marks.iter();
        let marks: Vec<_> = marks.map(|it| (it.at_us, it.length_us)).collect();
        assert_eq!(marks, [(4e6, 2e6)]);
    }

    /// Half a second between two readings has the present rate; and before 15, what is read every ten seconds.
    #[test]
    fn what_is_not_counted_yet_has_the_present_rate() {
        let mut short = waiting(1);
        (short.window_us, short.timeline[0].length_us) = (0.5e6, 0.5e6);
        note(&mut short, &rates(10, (0, 0)), (9.4e6, 9.9e6));
        assert_eq!(short.timeline[0].transactions_per_s, Some(100.0));
        let mut rare = TransactionRates::default();
        rare.add(0.0, 0.0, 0);
        rare.add(10e6, 500.0, 0);
        let mut activity = waiting(5);
        note(&mut activity, &rare, (11e6, 16e6));
        assert_eq!(ended(&activity), Some(250.0));
        // There is none.
        let mut first = waiting(5);
        note(&mut first, &TransactionRates::default(), (0.0, 5e6));
        assert_eq!(ended(&first), None);
    }

    #[test]
    fn fewer_than_were_seen_are_no_count() {
        let mut activity = waiting(5);
        activity.transactions_seen = 1100;
        note(&mut activity, &rates(10, (0, 0)), (4.5e6, 9.5e6));
        assert_eq!(ended(&activity), None);
        activity.transactions_seen = 900;
        note(&mut activity, &rates(10, (0, 0)), (4.5e6, 9.5e6));
        assert!(ended(&activity).is_some());
    }
}
