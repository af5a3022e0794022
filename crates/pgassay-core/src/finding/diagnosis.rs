//! From evidence to findings: each signature at each point, and between points.

use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::{Confidence, Finding, SecondStage, signatures};
use crate::comparison::{Comparison, Verdict};
use crate::observation::Observation;
use crate::run::Run;

/// What weighs less than this share of the time is no finding, however sure.
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
            let noticeable_us = NOTICEABLE * (whole_us - evidence.run_queue_us);
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
