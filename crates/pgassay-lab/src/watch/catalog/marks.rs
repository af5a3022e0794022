//! Marks on the time axis: checkpoints, vacuums and lock storms.

use pgassay_record::activity::{LoadMark, LoadMarkKind};

/// So many waiters at one reading are a lock storm, as in pganalyze's check `blocking_query`.
const STORM_WAITERS: usize = 3;

/// Marks so far.
#[derive(Debug, Default)]
pub(super) struct MarkWatch {
    finished: Vec<LoadMark>,
    storm: Option<LockStorm>,
}

/// Readings in a row with many waiters.
#[derive(Debug)]
struct LockStorm {
    began_us: f64,
    last_us: f64,
    waiters_max: usize,
    /// The root with the most waiters.
    behind: String,
}

impl LockStorm {
    fn mark(&self, is_over: bool) -> LoadMark {
        let length_us = if is_over { self.last_us - self.began_us } else { 0.0 };
        LoadMark {
            at_us: self.began_us,
            length_us,
            kind: LoadMarkKind::LockStorm,
            text: format!(
                "{} sessions waited for locks, most behind {}",
                self.waiters_max, self.behind
            ),
        }
    }
}

impl MarkWatch {
    /// Takes the number of waiters at a reading, and the root with the most of them.
    pub fn add_waiters(&mut self, at_us: f64, waiters: usize, behind: String) {
        if waiters < STORM_WAITERS {
            let over = self.storm.take();
            self.finished.extend(over.map(|storm| storm.mark(true)));
            return;
        }
        let storm = self.storm.get_or_insert_with(|| LockStorm {
            began_us: at_us,
            last_us: at_us,
            waiters_max: 0,
            behind: String::new(),
        });
        storm.last_us = at_us;
        if waiters >= storm.waiters_max {
            storm.waiters_max = waiters;
            storm.behind = behind;
        }
    }

    /// All marks in order of time.
    pub fn marks(&self) -> Vec<LoadMark> {
        let storm = self.storm.iter().map(|storm| storm.mark(false));
        let mut all: Vec<LoadMark> = self.finished.iter().cloned().chain(storm).collect();
        all.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_lasts_as_long_as_many_wait() {
        let mut watch = MarkWatch::default();
        for (second, waiters) in [2, 3, 5, 4, 0, 3].into_iter().enumerate() {
            watch.add_waiters(second as f64 * 1e6, waiters, format!("PID {waiters}"));
        }
        let marks = watch.marks();
        let spans: Vec<(f64, f64)> = marks.iter().map(|it| (it.at_us, it.length_us)).collect();
        assert_eq!(spans, [(1e6, 2e6), (5e6, 0.0)]);
        assert_eq!(
            marks[0].text,
            "5 sessions waited for locks, most behind PID 5"
        );
    }
}
