//! A/A comparisons: how often pgassay finds a difference on this machine where there is none.
//!
//! Each comparison works like a study's: blocks, pairs, a verdict at 95%. Both sides are the same, so
//! every "faster" and "slower" is a false positive, of which at most 5% are expected.

use pgassay_model::plan::Plan;
use pgassay_model::trial::{LatencyError, Trial, TrialKind};
use pgassay_stats::random::stream_seed;
use pgassay_stats::share_interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::{Verdict, assess};

/// The value of [`Calibration::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.calibration/2";
/// Confidence level of the interval of a share.
const LEVEL: f64 = 0.95;

/// Identifies a machine: a hash of its description, as 16 hexadecimal digits. Stable across releases.
pub fn machine_key(description: &str) -> String {
    let letters: Vec<u64> = description.bytes().map(u64::from).collect();
    format!("{:016x}", stream_seed(letters.len() as u64, &letters))
}

/// The A/A comparisons of one `pgassay calibrate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// Name and version of the schema.
    pub schema: String,
    /// Version of pgassay.
    pub pgassay_version: String,
    /// Description of the machine.
    pub machine: String,
    /// Hash that identifies the machine; see [`machine_key`].
    pub machine_key: String,
    /// Start time, microseconds since 1970.
    pub started_us: i64,
    /// End time, microseconds since 1970.
    pub ended_us: i64,
    /// Random seed.
    pub seed: u64,
    /// Pairs per comparison.
    pub pairs: u32,
    /// Planned length of a trial's window, µs.
    pub trial_us: u64,
    /// Share of the machine's CPU time used by other programs, plus CPU steal.
    pub other_load: f64,
    /// Every comparison.
    pub comparisons: Vec<AaComparison>,
}

/// One comparison of a variant with itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AaComparison {
    /// Name of the load.
    pub load: String,
    /// Concurrent connections of each side.
    pub clients: u32,
    /// Number of servers: 1 if both sides share a server, 2 if each has its own.
    pub servers: u32,
    /// Throughput ratio of the two sides.
    pub ratio: f64,
    /// Lower end of the ratio's interval.
    pub low: f64,
    /// Upper end of the ratio's interval.
    pub high: f64,
    /// Standard deviation of the pairs' log ratios.
    pub pair_sd: f64,
    /// The verdict; see [`AaComparison::is_different`].
    pub verdict: Verdict,
}

impl AaComparison {
    /// Whether it is a false positive: faster or slower, or equivalent by an interval that does not contain 1, which a
    /// run that ends at its verdict calls a difference of less than 2%.
    pub fn is_different(&self) -> bool {
        let is_beyond = self.low > 1.0 || self.high < 1.0;
        match self.verdict {
            Verdict::Faster | Verdict::Slower => true,
            Verdict::Equivalent => is_beyond,
            Verdict::Inconclusive => false,
        }
    }
}

/// The number of false positives, with the interval of their share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationSummary {
    /// Number of A/A comparisons on this machine with this version.
    pub comparisons: u32,
    /// Number of them with a false positive.
    pub false_positives: u32,
    /// Lower end of the share's 95% interval (Clopper and Pearson), 0 to 1.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// End time of the latest one, microseconds since 1970.
    pub ended_us: i64,
}

impl CalibrationSummary {
    /// Summarizes comparisons; `None` if there are none.
    pub fn of<'a>(
        comparisons: impl IntoIterator<Item = &'a AaComparison>,
        ended_us: i64,
    ) -> Option<Self> {
        let (mut all, mut different) = (0u32, 0u32);
        for comparison in comparisons {
            all += 1;
            different += u32::from(comparison.is_different());
        }
        let (low, high) = share_interval(u64::from(different), u64::from(all), LEVEL)?;
        Some(Self {
            comparisons: all,
            false_positives: different,
            low,
            high,
            ended_us,
        })
    }
}

/// The comparisons in the trials of an A/A plan with two variants: each condition's blocks, in groups of
/// `pairs`. Incomplete groups, for example after Ctrl-C, are ignored.
///
/// # Errors
/// A corrupted latency histogram.
pub fn comparisons(
    plan: &Plan,
    majors: &[String],
    trials: &[Trial],
    pairs: u32,
) -> Result<Vec<AaComparison>, LatencyError> {
    let mut found = Vec::new();
    for condition in 0..plan.conditions.len() {
        let alone = single_condition_plan(plan, condition, pairs);
        for first in (0..plan.schedule.blocks).step_by(pairs.max(1) as usize) {
            let blocks = first..first + pairs;
            let of_group: Vec<Trial> = trials
                .iter()
                .filter(|it| it.condition == condition && blocks.contains(&it.block))
                .map(|trial| Trial {
                    condition: 0,
                    block: trial.block - first,
                    ..trial.clone()
                })
                .collect();
            let timed = of_group.iter().filter(|it| it.kind == TrialKind::Timed);
            if timed.count() < 4 * pairs as usize {
                continue;
            }
            let assessed = assess(&alone, majors, &of_group, &[])?;
            found.extend(assessed.comparisons.iter().map(|it| AaComparison {
                load: load(plan, condition),
                clients: plan.conditions[condition].clients,
                servers: plan.servers.len() as u32,
                ratio: it.tps.ratio,
                low: it.tps.low,
                high: it.tps.high,
                pair_sd: it.tps.pair_sd,
                verdict: it.verdict,
            }));
        }
    }
    Ok(found)
}

fn load(plan: &Plan, condition: usize) -> String {
    let condition = &plan.conditions[condition];
    condition
        .values
        .get("script")
        .unwrap_or(&condition.label)
        .clone()
}

/// A plan with a single condition, so that its comparison is not corrected for others.
fn single_condition_plan(plan: &Plan, condition: usize, pairs: u32) -> Plan {
    let mut alone = plan.clone();
    alone.conditions = vec![plan.conditions[condition].clone()];
    alone.points.retain(|point| point.condition == condition);
    for point in &mut alone.points {
        point.condition = 0;
    }
    alone.schedule.blocks = pairs;
    alone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::trial;
    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;
    use pgassay_model::trial::Latency;

    const STUDY: &str = "question = \"?\"\n[[script]]\nname = \"s\"\ntext = \"select 1\"\n\
[[script]]\nname = \"t\"\ntext = \"select 2\"\n[[variant]]\nname = \"A\"\n[[variant]]\nname = \"A again\"\n\
[conditions]\nscript = [\"s\", \"t\"]\nclients = [1]\n[length]\npairs = 7\n";

    fn of_study() -> Plan {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: STUDY.to_owned(),
        };
        plan(&source.parse().unwrap(), &source, &Overrides::default()).unwrap()
    }

    /// Two trials of each point in each block; `faster` makes the second variant of script `t` differ.
    fn trials(plan: &Plan, faster: u64) -> Vec<Trial> {
        let mut histogram = hdrhistogram::Histogram::<u64>::new(3).unwrap();
        histogram.record(1_000).unwrap();
        let mut all = Vec::new();
        for block in 0..plan.schedule.blocks {
            for (condition, variant) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                for again in 0..2u64 {
                    let of_noise = u64::from(block) * 7 % 5 + again * 3 + variant as u64;
                    let gain = if (condition, variant) == (1, 1) {
                        faster
                    } else {
                        0
                    };
                    all.push(Trial {
                        block,
                        condition,
                        variant,
                        transactions: 10_000 + of_noise + gain,
                        transactions_total: 11_000,
                        latency: Latency::from_histogram(&histogram),
                        ..trial()
                    });
                }
            }
        }
        all
    }

    #[test]
    fn incomplete_groups_of_blocks_are_ignored() {
        let plan = of_study();
        let majors = vec!["18".to_owned()];
        let found = comparisons(&plan, &majors, &trials(&plan, 0), 3).unwrap();
        // Seven blocks are two comparisons of three pairs for each of two conditions.
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|it| !it.is_different()), "{found:?}");
        let loads: Vec<&str> = found.iter().map(|it| it.load.as_str()).collect();
        assert_eq!(loads, ["s", "s", "t", "t"]);
    }

    #[test]
    fn false_positives_are_counted_per_load() {
        let plan = of_study();
        let majors = vec!["18".to_owned()];
        let found = comparisons(&plan, &majors, &trials(&plan, 1_000), 3).unwrap();
        let different: Vec<bool> = found.iter().map(AaComparison::is_different).collect();
        assert_eq!(different, [false, false, true, true]);
        let summary = CalibrationSummary::of(&found, 0).unwrap();
        assert_eq!((summary.false_positives, summary.comparisons), (2, 4));
        assert!(summary.low < 0.5 && summary.high > 0.5);
        assert_eq!(CalibrationSummary::of(&[], 0), None);
    }

    #[test]
    fn the_machine_key_depends_on_every_character() {
        assert_eq!(machine_key("a").len(), 16);
        assert_ne!(machine_key("EPYC, 2 CPUs"), machine_key("EPYC, 4 CPUs"));
    }
}
