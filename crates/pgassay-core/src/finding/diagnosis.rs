//! From evidence to findings: each signature at each point, and between points.

use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::{Confidence, Finding, SecondStage, signatures};
use crate::comparison::{Comparison, Verdict};
use crate::observation::Observation;
use crate::run::Run;

/// What weighs less than this share of the CPU time is no finding, however sure.
const NOTICEABLE: f64 = 0.02;
/// A change of weight below this share of the baseline's response time is no finding.
const CHANGE_MIN: f64 = 0.05;
/// It must account for this share of the difference in time to be called its cause, …
const PART_MIN: f64 = 0.2;
/// … and weigh less than this share of itself on the other side.
const LEFT_MAX: f64 = 0.7;

/// States of the machine: they change with whatever else does, and cause no difference.
const OF_THE_MACHINE: [&str; 3] = ["cpu-saturation", "client-limited", "throttled"];

/// All findings of a run, the strongest first: those between points, then those about a point.
pub fn diagnose(run: &Run) -> Vec<Finding> {
    let mut findings = Vec::new();
    for condition in 0..run.plan.conditions.len() {
        let points: Vec<Option<Evidence>> = (0..run.plan.variants.len())
            .map(|variant| Evidence::of_point(run, condition, variant))
            .collect();
        for (variant, evidence) in points.iter().enumerate() {
            let Some(evidence) = evidence else { continue };
            let at = (Some(condition), Some(variant));
            findings.extend(of_point(evidence, evidence.response_us, at));
        }
        for comparison in run
            .comparisons
            .iter()
            .filter(|it| it.condition == condition)
        {
            let sides = (points.first(), points.get(comparison.variant));
            if let (Some(Some(baseline)), Some(Some(variant))) = sides {
                findings.extend(between(comparison, baseline, variant));
            }
        }
    }
    sort(&mut findings);
    findings
}

/// Raises what the second stage has proved: a finding whose remedy moved the throughput with it.
pub fn confirm(run: &mut Run, stage: &SecondStage) {
    let Some(tried) = &run.remedies else { return };
    let proved: Vec<&str> = tried
        .findings
        .iter()
        .filter(|it| it.confidence == Confidence::Confirmed)
        .filter_map(|it| {
            let of_remedy = stage.ids.get(it.variant?.checked_sub(1)?)?;
            (*of_remedy == it.id).then_some(it.id.as_str())
        })
        .collect();
    for finding in &mut run.findings {
        if finding.variant == Some(stage.variant) && proved.contains(&finding.id.as_str()) {
            finding.confidence = Confidence::Confirmed;
        }
    }
    sort(&mut run.findings);
}

/// All findings about a live server, the strongest first. Without transactions there are none.
pub fn diagnose_observation(observation: &Observation) -> Vec<Finding> {
    let Some(evidence) = Evidence::of_observation(observation) else {
        return Vec::new();
    };
    let mut findings = of_point(&evidence, evidence.response_us, (None, None));
    sort(&mut findings);
    findings
}

/// The surest first, among those the heaviest.
fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let sure = b.confidence.cmp(&a.confidence);
        sure.then(b.share.total_cmp(&a.share))
            .then_with(|| a.id.cmp(&b.id))
    });
}

type Place = (Option<usize>, Option<usize>);

fn of_point(evidence: &Evidence, whole_us: f64, at: Place) -> Vec<Finding> {
    signatures()
        .filter_map(|signature| {
            let measure = (signature.measure)(evidence);
            let confidence = measure.confidence();
            // Queueing for a processor inflates the response time, but nothing's weight.
            let whole_us = evidence.cpu_us.min(whole_us - evidence.run_queue_us);
            let noticeable_us = NOTICEABLE * whole_us;
            let is_seen =
                measure.matched && !measure.facts.is_empty() && measure.weight_us >= noticeable_us;
            is_seen.then(|| finding(signature, measure, confidence, whole_us, at))
        })
        .collect()
}

fn finding(
    signature: &Signature,
    measure: Measure,
    confidence: Confidence,
    whole_us: f64,
    (condition, variant): Place,
) -> Finding {
    Finding {
        id: signature.id.to_owned(),
        title: signature.title.to_owned(),
        condition,
        variant,
        difference_us: None,
        confidence,
        share: if whole_us > 0.0 {
            (measure.weight_us / whole_us).min(1.0)
        } else {
            0.0
        },
        weight_us: measure.weight_us,
        facts: measure.facts,
        against: measure.against,
        remedy: measure.remedy,
        manual: signature.manual.to_owned(),
        variants: measure.variants,
    }
}

/// What weighs differently under the variant than under the baseline.
///
/// It is confirmed where the verdict is clear, the weight went with it, and it accounts for a good
/// part of the difference in CPU or in response time.
fn between(comparison: &Comparison, baseline: &Evidence, variant: &Evidence) -> Vec<Finding> {
    let moved_us = [
        variant.response_us - baseline.response_us,
        variant.cpu_us - baseline.cpu_us,
    ];
    let is_clear = matches!(comparison.verdict, Verdict::Faster | Verdict::Slower);
    let found = |signature: &Signature| {
        if OF_THE_MACHINE.contains(&signature.id) {
            return None;
        }
        let (of_baseline, of_variant) =
            ((signature.measure)(baseline), (signature.measure)(variant));
        let difference_us = of_variant.weight_us - of_baseline.weight_us;
        let is_less = of_variant.weight_us.min(of_baseline.weight_us)
            <= LEFT_MAX * of_variant.weight_us.max(of_baseline.weight_us);
        let heavier = if difference_us > 0.0 {
            of_variant
        } else {
            of_baseline
        };
        let enough = difference_us.abs() >= CHANGE_MIN * baseline.cpu_us.min(baseline.response_us);
        if !heavier.matched || heavier.facts.is_empty() || !enough {
            return None;
        }
        let accounts = moved_us.iter().any(|moved| {
            moved.signum() == difference_us.signum()
                && difference_us.abs() >= PART_MIN * moved.abs()
        });
        let went_with_it = (comparison.verdict == Verdict::Slower) == (difference_us > 0.0);
        let confidence = if is_clear && went_with_it && accounts && is_less {
            Confidence::Confirmed
        } else {
            heavier.confidence()
        };
        let whole_us = baseline.response_us.max(variant.response_us);
        let at = (Some(comparison.condition), Some(comparison.variant));
        let mut finding = finding(signature, heavier, confidence, whole_us, at);
        finding.share = (difference_us.abs() / whole_us).min(1.0);
        finding.difference_us = Some(difference_us);
        // The comparison has tried it already.
        finding.variants.clear();
        Some(finding)
    };
    signatures().filter_map(found).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::finding::stacks::{Stacks, tests::profile};
    use crate::study::Protocol;

    fn evidence(stacks: &[(&str, u32)], protocol: Protocol) -> Evidence {
        Evidence {
            major: 18,
            protocol: Some(protocol),
            response_us: 150.0,
            cpu_us: 100.0,
            stacks: Stacks::new(&profile(stacks), 100.0),
            ..Evidence::default()
        }
    }

    fn ids(evidence: &Evidence) -> Vec<String> {
        of_point(evidence, evidence.response_us, (None, None))
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    #[test]
    fn signatures_have_names_of_their_own_and_nothing_is_found_in_nothing() {
        let all: Vec<&str> = signatures().map(|it| it.id).collect();
        let distinct: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
        assert!(all.len() >= 40, "{}", all.len());
        assert_eq!(ids(&Evidence::default()), Vec::<String>::new());
    }

    #[test]
    fn every_signature_says_what_to_do_and_where_to_read() {
        for signature in signatures() {
            let measure = (signature.measure)(&Evidence::default());
            assert!(
                measure.remedy.ends_with('.'),
                "{}: a sentence",
                signature.id
            );
            assert!(!signature.manual.is_empty() && !signature.title.ends_with('.'));
        }
    }

    #[test]
    fn page_images_where_they_are_off_are_those_of_new_pages() {
        let counters = [("pg_stat_wal.wal_fpi", 1.0), ("wal.insert_bytes", 8000.0)];
        let mut evidence = evidence(
            &[("XLogInsert", 50), ("ExecutePlan", 50)],
            Protocol::Prepared,
        );
        evidence.counters = counters.map(|(name, it)| (name.to_owned(), it)).into();
        assert!(ids(&evidence).contains(&"full-page-images".to_owned()));
        let off = ("full_page_writes".to_owned(), "off".to_owned());
        evidence.settings.extend([off]);
        assert!(!ids(&evidence).contains(&"full-page-images".to_owned()));
    }

    #[test]
    fn a_studys_own_reset_is_no_churn_of_the_catalog() {
        // Each commit looks whether there is something to do; descriptions are read anew.
        let reset = [
            ("PreCommit_on_commit_actions", 1),
            ("RelationBuildDesc", 40),
            ("ExecutePlan", 59),
        ];
        assert!(!ids(&evidence(&reset, Protocol::Prepared)).contains(&"catalog-churn".to_owned()));
        let made = [
            ("DefineRelation", 20),
            ("RelationBuildDesc", 20),
            ("ExecutePlan", 60),
        ];
        assert!(ids(&evidence(&made, Protocol::Prepared)).contains(&"catalog-churn".to_owned()));
    }

    #[test]
    fn stacks_alone_are_a_hint_and_the_protocol_makes_it_likely() {
        let stacks = [
            (
                "PostgresMain;exec_simple_query;pg_parse_query;raw_parser",
                20,
            ),
            (
                "PostgresMain;exec_simple_query;pg_plan_query;standard_planner",
                30,
            ),
            ("PostgresMain;exec_simple_query;PortalRun;ExecutePlan", 50),
        ];
        let simple = evidence(&stacks, Protocol::Simple);
        let found = of_point(&simple, 150.0, (None, None));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].id, "parse-and-plan");
        assert_eq!(found[0].confidence, Confidence::Likely);
        assert!((found[0].weight_us - 50.0).abs() < 1e-9);
        assert_eq!(found[0].variants[0].name, "protocol=prepared");
        let unknown = Evidence {
            protocol: None,
            ..simple
        };
        let found = of_point(&unknown, 150.0, (None, None));
        assert_eq!(found[0].confidence, Confidence::Hint);
        assert!(found[0].variants.is_empty(), "a live server has no study");
        assert_eq!(
            ids(&evidence(&stacks, Protocol::Prepared)),
            ["custom-plans"]
        );
    }
}
