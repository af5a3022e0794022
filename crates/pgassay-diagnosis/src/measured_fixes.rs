//! Suggested fixes that the run has measured already: a variant differs from the affected one in nothing else.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_model::plan::{Point, PointId, ServerPlan};
use pgassay_record::finding::{Confidence, Finding, TriedFix};
use pgassay_record::remedy::RemedyVariant;
use pgassay_record::run::Run;

/// Notes in each finding what its suggested fix did, if a variant of the same run is that fix. Such a fix
/// does not have to be tried again.
pub(super) fn note_measured_fixes(run: &Run, findings: &mut [Finding]) {
    for comparison in &run.comparisons {
        if !comparison.has_interval() {
            continue;
        }
        let variant = comparison.variant;
        let baseline = run.plan.baseline_of(variant);
        for [affected, treated] in [[baseline, variant], [variant, baseline]] {
            note_measured_fix(run, findings, comparison, [affected, treated]);
        }
    }
    // Other fixes are tried at a point, not at a difference.
    let differences = findings.iter_mut().filter(|it| it.difference_us.is_some());
    for difference in differences {
        difference.fix_variants.clear();
    }
}

/// `[affected, treated]` are the variants of the comparison, in either order.
fn note_measured_fix(
    run: &Run,
    findings: &mut [Finding],
    comparison: &Comparison,
    [affected, treated]: [usize; 2],
) {
    let points =
        [affected, treated].map(|it| run.plan.point(PointId::new(comparison.condition, it)));
    let is_inverse = affected == comparison.variant;
    let tps = &comparison.tps;
    let (tps_ratio, interval, verdict) = if is_inverse {
        let verdict = match comparison.verdict {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            other => other,
        };
        (1.0 / tps.ratio, [1.0 / tps.high, 1.0 / tps.low], verdict)
    } else {
        (tps.ratio, [tps.low, tps.high], comparison.verdict)
    };
    let shrank = shrunk_causes(findings, comparison, is_inverse);
    for finding in findings
        .iter_mut()
        .filter(|it| it.fix_result.is_none() && is_seen_at(it, comparison, affected, is_inverse))
    {
        let mut fixes = finding.fix_variants.iter();
        let Some(place) = fixes.position(|fix| is_difference(run, fix, points)) else {
            continue;
        };
        let fix = TriedFix {
            name: finding.fix_variants.remove(place).name,
            tps_ratio,
            interval,
        };
        // A difference is at most correlated.
        let has_shrunk = finding.difference_us.is_none() && shrank.contains(&finding.id);
        note_fix_result(finding, fix, verdict, has_shrunk);
    }
}

/// Whether a finding is about the affected variant, or about a difference that costs more there.
fn is_seen_at(
    finding: &Finding,
    comparison: &Comparison,
    affected: usize,
    is_inverse: bool,
) -> bool {
    let Some(difference_us) = finding.difference_us else {
        let at = (Some(comparison.condition), Some(affected));
        return (finding.condition, finding.variant) == at;
    };
    is_of(comparison, finding) && (difference_us > 0.0) == is_inverse
}

/// Whether a finding is about the difference of this comparison.
fn is_of(comparison: &Comparison, finding: &Finding) -> bool {
    let at = (Some(comparison.condition), Some(comparison.variant));
    (finding.condition, finding.variant) == at && finding.difference_us.is_some()
}

/// Notes what a finding's suggested fix did: `Confirmed` if throughput rose and the cause shrank, `Hint` if
/// the fix made no difference or made it worse.
pub(super) fn note_fix_result(
    finding: &mut Finding,
    fix: TriedFix,
    verdict: Verdict,
    has_shrunk: bool,
) {
    // With a fixed number of pairs, a small rise is called equivalent.
    let verdict = match verdict {
        Verdict::Equivalent if fix.interval[0] > 1.0 => Verdict::Faster,
        other => other,
    };
    finding.fix_result = Some(fix);
    match verdict {
        Verdict::Faster if has_shrunk => finding.confidence = Confidence::Confirmed,
        Verdict::Equivalent | Verdict::Slower => {
            finding.confidence = Confidence::Hint;
            let words = "throughput did not rise with the suggested fix";
            finding.evidence_against.push(words.to_owned());
        }
        Verdict::Faster | Verdict::Inconclusive => {}
    }
}

/// The causes that are less on the treated side of a comparison, beyond noise.
fn shrunk_causes(
    findings: &[Finding],
    comparison: &Comparison,
    is_inverse: bool,
) -> BTreeSet<String> {
    let has_shrunk = |it: &&Finding| {
        let change = it.difference_us.map(|us| if is_inverse { -us } else { us });
        is_of(comparison, it) && it.confidence == Confidence::Correlated && change < Some(0.0)
    };
    let shrunk = findings.iter().filter(has_shrunk);
    shrunk.map(|it| it.id.clone()).collect()
}

/// Whether a fix makes the first of two points the second one, and changes something.
fn is_difference(run: &Run, fix: &RemedyVariant, [affected, treated]: [&Point; 2]) -> bool {
    let of_run = [affected, treated].map(|it| run.effective_settings(it.server));
    let [Some(before), Some(after)] = of_run else {
        return false;
    };
    let servers = [affected, treated].map(|it| &run.plan.servers[it.server]);
    if !fix.changes(affected, servers[0], before) {
        return false;
    }
    let all = |parts: &[&BTreeMap<String, String>]| -> BTreeMap<String, String> {
        let parts = parts.iter().flat_map(|part| part.iter());
        parts
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let with_fix = all(&[before, &fix.settings, &affected.session, &fix.session]);
    // Settings are compared as a whole: a session may set what the other server sets.
    let server = |plan: ServerPlan| ServerPlan {
        settings: BTreeMap::new(),
        connections: 0,
        ..plan
    };
    let point = Point {
        variant: treated.variant,
        server: treated.server,
        protocol: fix.protocol.unwrap_or(affected.protocol),
        session: treated.session.clone(),
        ..affected.clone()
    };
    with_fix == all(&[after, &treated.session])
        && server(fix.server(servers[0], 0)) == server(servers[1].clone())
        && point == *treated
}
