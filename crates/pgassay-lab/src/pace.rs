//! Whether a run takes as long as was announced: on a busy machine, or with transactions that take longer than a trial,
//! it takes longer.

use std::time::{Duration, Instant};

use pgassay_model::plan::{Plan, StoppingRule};
use pgassay_model::wording::estimated_time;

/// An estimate is wrong if it differs from what the blocks so far suggest by more than this share, and by more than
/// this time.
const SHARE_NOTICEABLE: f64 = 0.2;
const SECONDS_NOTICEABLE: f64 = 10.0;

/// The time that the blocks of this process take.
pub(crate) struct RunPace {
    began: Instant,
    /// The blocks of this process.
    blocks: u32,
    ended: u32,
    /// How long all of them take, as announced last, in seconds.
    announced_s: f64,
    /// Whether that is not the first estimate any more.
    is_revised: bool,
    limit_s: Option<f64>,
    stopping: StoppingRule,
}

impl RunPace {
    /// Before the block with this number. `None` for a plan whose blocks are unknown: that of a curve.
    pub(crate) fn before(plan: &Plan, first_block: u32) -> Option<Self> {
        let schedule = &plan.schedule;
        let blocks = schedule.blocks.checked_sub(first_block)?;
        if plan.variants.len() < 2 || blocks == 0 {
            return None;
        }
        let share = f64::from(blocks) / f64::from(schedule.blocks);
        let limit_s = schedule.max_time_us.map(|it| it as f64 / 1e6);
        let estimated_s = plan.estimated_us() as f64 / 1e6 * share;
        Some(Self {
            began: Instant::now(),
            blocks,
            ended: 0,
            announced_s: within(estimated_s, limit_s),
            is_revised: false,
            limit_s,
            stopping: schedule.stopping,
        })
    }

    /// After another block: a sentence if the run takes another time than was announced.
    pub(crate) fn block_ended(&mut self) -> Option<String> {
        self.block_ended_after(self.began.elapsed())
    }

    fn block_ended_after(&mut self, elapsed: Duration) -> Option<String> {
        self.ended += 1;
        if self.ended >= self.blocks {
            return None;
        }
        let all_s = elapsed.as_secs_f64() / f64::from(self.ended) * f64::from(self.blocks);
        let all_s = within(all_s, self.limit_s);
        let more_s = all_s - self.announced_s;
        // The first estimate is what trials take without delays, so nothing is gained on it.
        let is_wrong = more_s > 0.0 || self.is_revised;
        let noticeable_s = SECONDS_NOTICEABLE.max(SHARE_NOTICEABLE * self.announced_s);
        if !is_wrong || more_s.abs() <= noticeable_s {
            return None;
        }
        self.is_revised = true;
        let before_s = std::mem::replace(&mut self.announced_s, all_s);
        let comparison = if all_s > before_s {
            "longer"
        } else {
            "less time"
        };
        let (what, most) = match self.stopping {
            StoppingRule::AllBlocks => ("this run", ""),
            StoppingRule::Sequential => ("this run", "at most "),
            StoppingRule::Precision => ("the first stage", ""),
        };
        Some(format!(
            "trials take {comparison} than estimated: {what} takes {most}about {} plus setup, not {}",
            estimated_time(all_s),
            estimated_time(before_s)
        ))
    }
}

fn within(time_s: f64, limit_s: Option<f64>) -> f64 {
    limit_s.map_or(time_s, |limit_s| time_s.min(limit_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(stopping: StoppingRule, limit_s: Option<f64>) -> RunPace {
        RunPace {
            began: Instant::now(),
            blocks: 8,
            ended: 0,
            announced_s: 53.0,
            is_revised: false,
            limit_s,
            stopping,
        }
    }

    /// The sentences after blocks that end at these times.
    fn after(mut pace: RunPace, ends_s: &[u64]) -> Vec<Option<String>> {
        let ends = ends_s.iter().map(|it| Duration::from_secs(*it));
        ends.map(|it| pace.block_ended_after(it)).collect()
    }

    /// Regression: "about 18 to 53 s plus setup" took 91 s on a busy machine, without a word.
    #[test]
    fn a_run_that_takes_longer_than_announced_has_a_new_estimate() {
        let found = after(pace(StoppingRule::Sequential, None), &[12, 24, 36, 80]);
        let first = "trials take longer than estimated: this run takes at most about 96 s plus setup, not 53 s";
        assert_eq!(found[0].as_deref(), Some(first));
        assert_eq!(found[1..3], [None, None], "as announced meanwhile");
        let again = "trials take longer than estimated: this run takes at most about 160 s plus setup, not 96 s";
        assert_eq!(found[3].as_deref(), Some(again));
        let found = after(pace(StoppingRule::AllBlocks, None), &[12, 16]);
        let less =
            "trials take less time than estimated: this run takes about 64 s plus setup, not 96 s";
        assert_eq!(found[1].as_deref(), Some(less));
    }

    #[test]
    fn an_estimate_that_holds_is_not_repeated() {
        let holds = |pace: RunPace, ends_s: &[u64]| after(pace, ends_s).iter().all(Option::is_none);
        assert!(holds(pace(StoppingRule::AllBlocks, None), &[6, 13, 20, 27]));
        assert!(holds(pace(StoppingRule::AllBlocks, None), &[0, 0, 0]));
        let last = RunPace {
            blocks: 1,
            ..pace(StoppingRule::AllBlocks, None)
        };
        assert!(holds(last, &[500]), "the run is over");
        let short = RunPace {
            announced_s: 4.0,
            ..pace(StoppingRule::AllBlocks, None)
        };
        assert!(holds(short, &[1]), "a few seconds");
        let limited = pace(StoppingRule::Sequential, Some(60.0));
        assert!(holds(limited, &[100]), "the limit ends it");
    }
}
