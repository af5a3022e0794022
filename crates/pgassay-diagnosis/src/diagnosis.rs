//! From evidence to findings: applies each signature to each point, and to pairs of points.

use std::collections::BTreeMap;

use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_model::plan::PointId;
use pgassay_record::finding::{Confidence, Fact, Finding, Source, TriedFix};
use pgassay_record::observation::Observation;
use pgassay_record::run::Run;

use super::evidence::Evidence;
use super::measured_fixes::{note_fix_result, note_measured_fixes};
use super::operators::{
    SAMPLES_MIN, SESSIONS_MIN, diagnose_with, explain_mechanisms, share_without_rows,
};
use super::remedy_trial::RemedyTrial;
use super::side::{EvidenceByBlock, interval};
use super::signatures::signatures;
use super::stalled::{in_sessions, share_of_work};
use crate::evaluation::{Evaluation, Signature};

/// A cause that weighs less than this share of the CPU time is not a finding.
const NOTICEABLE: f64 = 0.02;
/// A change of weight below this share of the baseline's response time is not a finding.
const CHANGE_MIN: f64 = 0.05;
/// To count as moved with the verdict, a cause must account for this share of the difference …
const PART_MIN: f64 = 0.2;
/// … and its smaller weight must be below this share of its larger weight.
const LEFT_MAX: f64 = 0.7;
/// In a closed loop a client waits for at most all the others, so a queue grows by no more than
/// (clients − 1) times the service it waits for. If it grows by more than this multiple of that, it
/// has a cause of its own. The multiple allows for errors of both figures.
const FOLLOWS_SLACK: f64 = 1.5;

/// A queue with an independent cause ranks below service time only if that is at least this share of it.
const SERVICE_MIN: f64 = 0.1;

/// States of the machine: they change with everything else, and do not cause a difference.
const MACHINE_STATES: [&str; 3] = ["cpu-saturation", "client-limited", "throttled"];

/// All findings of a run, strongest first.
pub fn diagnose(run: &Run) -> Vec<Finding> {
    let mut findings = Vec::new();
    for condition in 0..run.plan.conditions.len() {
        let mut sides: BTreeMap<usize, EvidenceByBlock> = BTreeMap::new();
        for variant in 0..run.plan.variants.len() {
            let Some(evidence) = Evidence::of_point(run, condition, variant) else {
                continue;
            };
            let at = (Some(condition), Some(variant));
            let side = EvidenceByBlock::new(run, evidence, condition, variant);
            findings.extend(findings_of_side(&side, at));
            sides.insert(variant, side);
        }
        for comparison in run
            .comparisons
            .iter()
            .filter(|it| it.condition == condition)
        {
            let baseline = run.plan.baseline_of(comparison.variant);
            // The answer is per value, the evidence per transaction: more per transaction is not more.
            let [of_baseline, of_variant] = [baseline, comparison.variant].map(|variant| {
                run.plan
                    .point(PointId::new(condition, variant))
                    .per_transaction()
            });
            if of_baseline != of_variant {
                continue;
            }
            if let (Some(baseline), Some(variant)) =
                (sides.get(&baseline), sides.get(&comparison.variant))
            {
                findings.extend(compare_sides(comparison, baseline, variant));
            }
        }
    }
    note_measured_fixes(run, &mut findings);
    sort(&mut findings);
    findings
}

/// Updates the findings whose suggested fixes the second stage has run, under the conditions in
/// which they were run: `Confirmed` if throughput rose and the cause shrank, `Hint` if the fix made
/// no difference or made it worse.
pub fn confirm(run: &mut Run, stage: &RemedyTrial) {
    if let Some(tried) = &run.fix_trials {
        apply_fix_results(
            &mut run.findings,
            stage,
            &tried.comparisons,
            &tried.findings,
        );
    }
}

/// The same, given the comparisons and the findings of the second stage.
pub(super) fn apply_fix_results(
    findings: &mut [Finding],
    stage: &RemedyTrial,
    comparisons: &[Comparison],
    found: &[Finding],
) {
    for comparison in comparisons.iter().filter(|it| it.has_interval()) {
        let id = comparison
            .variant
            .checked_sub(1)
            .and_then(|at| stage.ids.get(at));
        let (Some(id), Some(&condition)) = (id, stage.conditions.get(comparison.condition)) else {
            continue;
        };
        let shrank = found.iter().any(|it| {
            let at = (it.condition, it.variant);
            at == (Some(comparison.condition), Some(comparison.variant))
                && it.id == *id
                && it.confidence == Confidence::Correlated
                && it.difference_us < Some(0.0)
        });
        let fix = TriedFix {
            name: stage.fixes[comparison.variant - 1].clone(),
            tps_ratio: comparison.tps.ratio,
            interval: [comparison.tps.low, comparison.tps.high],
        };
        let its_own = findings.iter_mut().filter(|it| {
            it.id == *id
                && it.difference_us.is_none()
                && (it.condition, it.variant) == (Some(condition), Some(stage.variant))
        });
        for finding in its_own {
            note_fix_result(finding, fix.clone(), comparison.verdict, shrank);
        }
    }
    sort(findings);
}

/// All findings about a live server: those for operators, by what their fixes would give back, then the
/// mechanisms, strongest first. If no transaction ended, they are those that shares of the time show.
pub fn diagnose_observation(observation: &Observation) -> Vec<Finding> {
    let mut evidence = Evidence::of_observation(observation);
    let shown = evidence.as_mut().zip(observation.activity.as_ref());
    if let Some((evidence, activity)) = shown {
        evidence.leave_out_transaction_waits(share_without_rows(activity));
        if evidence.is_stalled {
            evidence.leave_out_writes(share_of_work(activity));
        }
    }
    let mut mechanisms = evidence.as_ref().map_or_else(Vec::new, |evidence| {
        findings_of_point(evidence, (None, None))
    });
    let transactions = observation.transactions.unwrap_or(0).max(1) as f64;
    let per_s = transactions / (observation.window_us / 1e6).max(f64::MIN_POSITIVE);
    let sample_us = observation.cpu_us_per_sample() / transactions;
    mechanisms.retain(|it| is_noticeable(it, per_s, sample_us));
    sort(&mut mechanisms);
    let Some(activity) = &observation.activity else {
        return mechanisms;
    };
    let major = observation.subject.major.as_deref();
    let transactions = observation.transactions;
    let mut findings = diagnose_with(activity, major, evidence.as_ref(), transactions);
    let sessions_of = |it: &Finding| it.weight_us * per_s / 1e6;
    explain_mechanisms(&mut mechanisms, &findings, sessions_of);
    if evidence.is_some_and(|it| it.is_stalled) {
        for mechanism in &mut mechanisms {
            in_sessions(mechanism, observation.window_us);
        }
    }
    findings.append(&mut mechanisms);
    findings
}

/// Whether a mechanism costs a live server as much as a finding for operators must, and is not chance: on a server
/// that does next to nothing, anything is a large share of it.
/// `per_s` transactions ended, and each sample stands for `sample_us` per transaction.
fn is_noticeable(mechanism: &Finding, per_s: f64, sample_us: f64) -> bool {
    mechanism.weight_us * per_s >= SESSIONS_MIN * 1e6 && !may_be_chance(mechanism, sample_us)
}

/// Whether all that shows a mechanism is a few samples, each of which stands for `sample_us` per transaction.
fn may_be_chance(mechanism: &Finding, sample_us: f64) -> bool {
    let is_other =
        |it: &Fact| !it.context && !matches!(it.source, Source::Stacks | Source::Conditions);
    // Half a sample: the weight is a sum of samples, with rounding errors.
    mechanism.weight_us < (SAMPLES_MIN as f64 - 0.5) * sample_us
        && !mechanism.evidence.iter().any(is_other)
}

/// Sorts by confidence, then by weight. A queue comes right after the longest service time at the same point, with
/// which it may have grown, unless that is a small part of the queue and nothing says that the queue follows from it.
pub(super) fn sort(findings: &mut [Finding]) {
    let of = |it: &Finding| {
        let is_difference = it.difference_us.is_some();
        (it.condition, it.variant, it.confidence, is_difference)
    };
    let cost_us = |it: &Finding| it.difference_us.unwrap_or(it.weight_us).abs();
    // A state of the machine has many causes, of which the findings of one point are some.
    let is_state = |it: &&Finding| MACHINE_STATES.contains(&it.id.as_str());
    let services: Vec<_> = findings
        .iter()
        .filter(|it| !it.queueing && !is_state(it))
        .map(|it| (of(it), cost_us(it), it.share))
        .collect();
    let share_of_cause = |it: &Finding| {
        let enough_us = SERVICE_MIN * cost_us(it);
        let of_cause = services.iter().filter(|(place, us, _)| {
            *place == of(it) && (*us >= enough_us || it.explained_by.is_some())
        });
        let most = of_cause.map(|(_, _, share)| *share).max_by(f64::total_cmp);
        most.filter(|_| it.queueing && !is_state(&it))
    };
    let rank = |it: &Finding| {
        let of_cause = share_of_cause(it);
        (
            of_cause.map_or(it.share, |of_cause| it.share.min(of_cause)),
            of_cause.is_some(),
        )
    };
    findings.sort_by(|a, b| {
        let sure = b.confidence.cmp(&a.confidence);
        let (of_a, of_b) = (rank(a), rank(b));
        sure.then(of_b.0.total_cmp(&of_a.0))
            .then(of_a.1.cmp(&of_b.1))
            .then(b.share.total_cmp(&a.share))
            .then_with(|| a.id.cmp(&b.id))
    });
}

type PointIndex = (Option<usize>, Option<usize>);

/// The findings of a point of which the blocks are known.
pub(super) fn findings_of_side(side: &EvidenceByBlock, at: PointIndex) -> Vec<Finding> {
    let mut findings = findings_of_point(&side.whole, at);
    findings.retain(|it| !may_be_chance(it, side.whole.stacks.us_per_sample));
    for finding in &mut findings {
        let signature = signatures().find(|it| it.id == finding.id);
        let is_lasting = signature.is_none_or(|it| side.is_in_most_blocks(it));
        finding.confidence = limited(side.most(finding.confidence), is_lasting);
    }
    findings
}

pub(super) fn findings_of_point(evidence: &Evidence, at: PointIndex) -> Vec<Finding> {
    signatures()
        .filter_map(|signature| {
            let measure = (signature.measure)(evidence).without_chance(evidence);
            let confidence = measure.confidence();
            // Run-queue time inflates the response time, but not the weight of a cause.
            let at_work_us = evidence.response_us - evidence.run_queue_us;
            let noticeable_us = NOTICEABLE * evidence.cpu_us.min(at_work_us);
            let is_seen =
                measure.matched && !measure.facts.is_empty() && measure.weight_us >= noticeable_us;
            is_seen.then(|| finding(signature, measure, confidence, evidence.response_us, at))
        })
        .collect()
}

/// At most a hint at a cause that does not last: what happened in few of the blocks may be chance.
fn limited(confidence: Confidence, is_lasting: bool) -> Confidence {
    if is_lasting {
        confidence
    } else {
        confidence.min(Confidence::Hint)
    }
}

fn finding(
    signature: &Signature,
    measure: Evaluation,
    confidence: Confidence,
    whole_us: f64,
    (condition, variant): PointIndex,
) -> Finding {
    Finding {
        id: signature.id.to_owned(),
        title: signature.title.to_owned(),
        condition,
        variant,
        difference_us: None,
        difference_interval_us: None,
        confidence,
        share: if whole_us > 0.0 {
            (measure.weight_us / whole_us).min(1.0)
        } else {
            0.0
        },
        queueing: measure.is_queueing(),
        explained_by: None,
        fix_result: None,
        weight_us: measure.weight_us,
        evidence: measure.facts,
        evidence_against: measure.against,
        suggested_fix: measure.remedy,
        manual: signature.manual.to_owned(),
        fix_variants: measure.variants,
        object: None,
        statement: None,
        saved_sessions: None,
        fix_sql: None,
        risk: None,
    }
}

/// The signatures whose weight differs between variant and baseline. Sets which queueing follows from
/// which service time.
pub(super) fn compare_sides(
    comparison: &Comparison,
    baseline: &EvidenceByBlock,
    variant: &EvidenceByBlock,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> = signatures()
        .filter(|it| !MACHINE_STATES.contains(&it.id))
        .filter_map(|signature| finding_of_change(comparison, signature, baseline, variant))
        .collect();
    let moved = |it: &&Finding| it.confidence == Confidence::Correlated;
    let services: Vec<(String, f64)> = findings
        .iter()
        .filter(moved)
        .filter(|it| !it.queueing)
        .filter_map(|it| Some((it.id.clone(), it.difference_us?)))
        .collect();
    let clients = baseline.whole.clients.max(variant.whole.clients);
    let reach = FOLLOWS_SLACK * (clients - 1.0).max(1.0);
    for queue in findings.iter_mut().filter(|it| it.queueing) {
        let Some(queue_us) = queue.difference_us else {
            continue;
        };
        // All of them moved with the verdict, so in the same direction.
        let service_us: f64 = services.iter().map(|(_, us)| us).sum();
        let largest = services
            .iter()
            .max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
        if queue.confidence == Confidence::Correlated && queue_us.abs() <= reach * service_us.abs()
        {
            queue.explained_by = largest.map(|(id, _)| id.clone());
        }
    }
    findings
}

/// One signature under both variants; `None` if it does not match on the heavier side, or if too
/// little changed.
///
/// It has moved with the verdict if the verdict is clear, the weight changed in the same direction
/// with an interval that excludes 0, and the change accounts for a good part of the difference in
/// response time, in response time without queueing, or in CPU time. CPU time counts only if it is a good
/// part of the difference in service and think time: the rest may be a sleep, or a disk.
fn finding_of_change(
    comparison: &Comparison,
    signature: &Signature,
    baseline: &EvidenceByBlock,
    variant: &EvidenceByBlock,
) -> Option<Finding> {
    let (a, b) = (&baseline.whole, &variant.whole);
    let by_cpu_us = b.cpu_us - a.cpu_us;
    let is_cpu = by_cpu_us.abs() >= PART_MIN * (b.work_us - a.work_us).abs();
    let moved_us = [
        Some(b.response_us - a.response_us),
        Some((b.response_us - b.queued_us) - (a.response_us - a.queued_us)),
        is_cpu.then_some(by_cpu_us),
    ];
    let (of_baseline, of_variant) = ((signature.measure)(a), (signature.measure)(b));
    let difference_us = of_variant.weight_us - of_baseline.weight_us;
    let is_less = of_variant.weight_us.min(of_baseline.weight_us)
        <= LEFT_MAX * of_variant.weight_us.max(of_baseline.weight_us);
    let (heavier, its) = if difference_us > 0.0 {
        (of_variant, variant)
    } else {
        (of_baseline, baseline)
    };
    let heavier = heavier.without_chance(&its.whole);
    // Queueing may be many times the service time that it waits for.
    let is_matched = heavier.matched
        || !heavier.is_queueing() && {
            let without_queues = its.whole.without_queues();
            let measure = (signature.measure)(&without_queues);
            measure.without_chance(&without_queues).matched
        };
    let enough = difference_us.abs() >= CHANGE_MIN * a.cpu_us.min(a.response_us);
    if !is_matched || heavier.facts.is_empty() || !enough {
        return None;
    }
    let accounts = moved_us.iter().flatten().any(|moved| {
        moved.signum() == difference_us.signum() && difference_us.abs() >= PART_MIN * moved.abs()
    });
    let went_with_it = match comparison.verdict {
        Verdict::Slower => difference_us > 0.0,
        Verdict::Faster => difference_us < 0.0,
        Verdict::Equivalent | Verdict::Inconclusive => false,
    };
    let interval_us = interval(signature, baseline, variant);
    let is_beyond_noise = interval_us.is_some_and(|[low, high]| low > 0.0 || high < 0.0);
    let confidence = if went_with_it && accounts && is_less && is_beyond_noise {
        Confidence::Correlated
    } else {
        let is_lasting = its.is_in_most_blocks(signature);
        limited(
            baseline.most(variant.most(heavier.confidence())),
            is_lasting,
        )
    };
    let whole_us = a.response_us.max(b.response_us);
    let at = (Some(comparison.condition), Some(comparison.variant));
    let mut finding = finding(signature, heavier, confidence, whole_us, at);
    finding.share = (difference_us.abs() / whole_us).min(1.0);
    finding.difference_us = Some(difference_us);
    finding.difference_interval_us = interval_us;
    Some(finding)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::stacks::Stacks;
    use crate::stacks::tests::profile;
    use pgassay_model::study::Protocol;

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
        findings_of_point(evidence, (None, None))
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    #[test]
    fn signature_ids_are_unique_and_empty_evidence_matches_none() {
        let all: Vec<&str> = signatures().map(|it| it.id).collect();
        let distinct: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
        assert!(all.len() >= 40, "{}", all.len());
        assert_eq!(ids(&Evidence::default()), Vec::<String>::new());
    }

    #[test]
    fn every_signature_has_a_fix_and_a_reference() {
        for signature in signatures() {
            let measure = (signature.measure)(&Evidence::default());
            assert!(
                measure.remedy.ends_with('.'),
                "{}: must end with a period",
                signature.id
            );
            assert!(!signature.manual.is_empty() && !signature.title.ends_with('.'));
        }
    }

    #[test]
    fn page_images_with_full_page_writes_off_are_not_a_finding() {
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

    /// Regression: on servers that do nothing, planning the queries of monitoring was a finding.
    #[test]
    fn a_mechanism_of_an_idle_server_is_none() {
        let stacks = [("standard_planner", 6), ("ExecutePlan", 4)];
        let found = findings_of_point(&evidence(&stacks, Protocol::Simple), (None, None));
        let planning = &found[0];
        assert_eq!(
            (planning.id.as_str(), planning.weight_us),
            ("parse-and-plan", 60.0)
        );
        // 60 µs of planning in each transaction, and a sample for each 10 µs.
        assert!(is_noticeable(planning, 1000.0, 10.0));
        assert!(!is_noticeable(planning, 800.0, 10.0), "0.048 sessions");
        assert!(!is_noticeable(planning, 1000.0, 15.0), "4 samples");
    }

    /// Regression: one of three samples of a short run was in the parser, and a finding advised to prepare statements.
    #[test]
    fn a_single_sample_of_planning_is_no_finding() {
        let chance = |planned: u32, executed: u32| {
            let stacks = [("standard_planner", planned), ("ExecutePlan", executed)];
            let evidence = evidence(&stacks, Protocol::Simple);
            let found = findings_of_point(&evidence, (None, None));
            assert_eq!(found[0].id, "parse-and-plan");
            may_be_chance(&found[0], evidence.stacks.us_per_sample)
        };
        assert!(chance(1, 2));
        assert!(chance(4, 2));
        assert!(!chance(5, 2));
    }

    /// Regression: the parse tree of a long IN list, whose memory is returned after each statement, was taken
    /// for shared memory.
    #[test]
    fn faults_of_a_long_list_of_constants_are_not_on_shared_memory() {
        let of = |stack: &str| {
            let stacks = [(stack, 30), ("ExecutePlan", 70)];
            ids(&evidence(&stacks, Protocol::Prepared)).contains(&"page-faults".to_owned())
        };
        for private in [
            "transformAExprIn;coerce_type;asm_exc_page_fault;exc_page_fault;handle_mm_fault;clear_page_erms",
            "base_yyparse;lappend;asm_exc_page_fault;do_anonymous_page;alloc_anon_folio",
            "base_yyparse;lappend;asm_exc_page_fault",
        ] {
            assert!(!of(private), "{private}");
        }
        for shared in [
            "PinBuffer;asm_exc_page_fault;handle_mm_fault;do_fault;shmem_fault",
            "hash_search;exc_page_fault;handle_mm_fault;filemap_map_pages",
        ] {
            assert!(of(shared), "{shared}");
        }
    }

    #[test]
    fn a_reset_is_not_catalog_churn() {
        // Each commit checks whether there is something to do; relcache entries are rebuilt.
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
    fn stacks_alone_are_a_hint() {
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
        let found = findings_of_point(&simple, (None, None));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].id, "parse-and-plan");
        assert_eq!(found[0].confidence, Confidence::Hint);
        assert!((found[0].weight_us - 50.0).abs() < 1e-9);
        assert_eq!(found[0].fix_variants[0].name, "protocol=prepared");
        let unknown = Evidence {
            protocol: None,
            ..simple
        };
        let found = findings_of_point(&unknown, (None, None));
        assert_eq!(found[0].confidence, Confidence::Hint);
        assert!(
            found[0].fix_variants.is_empty(),
            "a live server has no study"
        );
        assert_eq!(
            ids(&evidence(&stacks, Protocol::Prepared)),
            ["custom-plans"]
        );
    }
}
