//! Findings in words: their cost, the evidence, and what to do.

use pgassay_account::counters::CounterUnit;
use pgassay_record::finding::{Confidence, Fact, FactUnit, Finding, ObjectKind, TriedFix};
use pgassay_record::run::Run;

use crate::outline::{EQUIVALENCE_MARGIN, baseline_name, condition_title, variant_name};
use crate::{activity, number};

/// A finding's first facts, each with its figure.
pub(crate) fn facts(finding: &Finding, most: usize) -> String {
    let facts: Vec<String> = finding.evidence.iter().take(most).map(fact).collect();
    facts.join("; ")
}

/// One fact, with its value and unit.
pub(crate) fn fact(fact: &Fact) -> String {
    let what = &fact.what;
    let Some(value) = fact.value else {
        return what.clone();
    };
    // "idle in transaction for 20 s" needs none.
    let colon = if what.ends_with(" for") { "" } else { ":" };
    match fact.unit {
        FactUnit::MicrosPerTransaction => format!("{what} {}\u{a0}µs/tx", number::micros(value)),
        FactUnit::PerTransaction => {
            format!(
                "{what} {}\u{a0}/tx",
                number::counter_value(value, CounterUnit::Count)
            )
        }
        FactUnit::BytesPerTransaction => {
            format!(
                "{what} {}/tx",
                number::counter_value(value, CounterUnit::Bytes)
            )
        }
        FactUnit::Share => format!("{} {what}", number::percent(value)),
        FactUnit::Sessions => format!("{what}{colon} {}", activity::load(value)),
        FactUnit::Count => format!("{what}{colon} {}", number::whole(value)),
        FactUnit::PerSecond => format!("{what}{colon} {}/s", number::plain(value)),
        FactUnit::Bytes => format!("{what}{colon} {}", activity::size(value.max(0.0) as u64)),
        FactUnit::Micros => format!("{what}{colon} {}", activity::age(value)),
        FactUnit::None => what.clone(),
    }
}

/// What the fix of a finding about an object would give back at most.
pub(crate) fn gain(finding: &Finding) -> Option<String> {
    let saved = finding.saved_sessions.filter(|it| *it > 0.0)?;
    let saved = activity::load(saved);
    // Of sessions that the server does not show, no load is known.
    if finding.share <= 0.0 {
        return Some(format!("{saved} sessions"));
    }
    let share = number::noise(finding.share);
    Some(format!("{saved} sessions ({share} of the load)"))
}

/// The SQL of a finding's fix as psql takes it: with a semicolon, before a comment at its end.
pub(crate) fn fix_sql(finding: &Finding) -> Option<String> {
    let sql = finding.fix_sql.as_deref()?;
    // A name in quotes may contain a dash, too.
    let is_comment = |it: &(&str, &str)| !it.1.contains(['\'', '"']);
    let (sql, comment) = sql
        .rsplit_once(" -- ")
        .filter(is_comment)
        .unwrap_or((sql, ""));
    let sql = sql.trim_end().trim_end_matches(';');
    Some(if comment.is_empty() {
        format!("{sql};")
    } else {
        format!("{sql}; -- {comment}")
    })
}

/// The first two sentences of a suggested fix.
pub(crate) fn first_sentences(text: &str) -> &str {
    let mut stops = text.match_indices(". ").map(|(at, _)| at);
    stops.nth(1).map_or(text, |at| &text[..=at])
}

/// What to do: these words about the suggested fix, unless it was run and did not help.
pub(crate) fn advice(finding: &Finding, words: &str) -> String {
    let is_unproven = |fix: &&TriedFix| fix.interval[0] <= 1.0;
    let Some(fix) = finding.fix_result.as_ref().filter(is_unproven) else {
        return format!("Suggested fix: {words}");
    };
    let [low, high] = fix.interval;
    let result = format!(
        "{} {}",
        number::ratio(fix.tps_ratio),
        number::interval(low, high)
    );
    let name = &fix.name;
    let margin = 1.0 + EQUIVALENCE_MARGIN;
    if high < 1.0 {
        format!("Not suggested: {name} lowered throughput ({result}).")
    } else if low > 1.0 / margin && high < margin {
        format!("Not suggested: {name} made no difference to throughput ({result}).")
    } else {
        format!("Not confirmed: the test of {name} was inconclusive ({result}). Run longer.")
    }
}

/// The word for a finding's confidence.
pub(crate) fn confidence_word(finding: &Finding) -> &'static str {
    match finding.confidence {
        Confidence::Hint => "hint",
        Confidence::Likely => "likely",
        Confidence::Correlated => "correlated",
        // Older versions called this confirmed, although no fix was run.
        Confidence::Confirmed if finding.difference_us.is_some() => "correlated",
        Confidence::Confirmed => "confirmed",
    }
}

/// For queueing that another finding may cause, that finding. If it is known which sessions wait behind which: `These
/// waits are caused by "…": fix that first.` That two durations differ between the same variants proves less: `These
/// waits may follow from "Each commit waits for the disk", which differs between the same variants.`
pub(crate) fn cause_of(findings: &[Finding], finding: &Finding) -> Option<String> {
    let id = finding.explained_by.as_ref()?;
    let cause = findings.iter().find(|it| it.id == *id)?;
    let object = cause.object.as_ref();
    let blocker = object.filter(|it| {
        matches!(
            it.kind,
            ObjectKind::Session | ObjectKind::PreparedTransaction
        )
    });
    let blocker = blocker.map_or_else(String::new, |it| format!(" ({it})"));
    let cause = &cause.title;
    Some(if is_cause_certain(finding) {
        format!("These waits are caused by \"{cause}\"{blocker}: fix that first.")
    } else {
        format!(
            "These waits may follow from \"{cause}\", which differs between the same variants: then fixing that is \
             enough."
        )
    })
}

/// Whether a queue's cause was observed, and not inferred from the sizes of two differences: only then its fix can take
/// the place of the queue's.
pub(crate) fn is_cause_certain(finding: &Finding) -> bool {
    finding.difference_us.is_none()
}

/// The result of a finding's own fix: `with work_mem=64MB: throughput ×1.595 [1.490, 1.707]`.
pub(crate) fn fix_result(finding: &Finding) -> Option<String> {
    let fix = finding.fix_result.as_ref()?;
    let [low, high] = fix.interval;
    Some(format!(
        "with {}: throughput {} {}",
        fix.name,
        number::ratio(fix.tps_ratio),
        number::interval(low, high)
    ))
}

/// Whether a finding compares two points whose difference is within noise. It is then shown as the cost at
/// the point where it costs more.
fn is_within_noise(finding: &Finding) -> bool {
    let interval = finding.difference_interval_us;
    interval.is_some_and(|[low, high]| low <= 0.0 && high >= 0.0)
}

/// Whether a finding is shown as the difference between two points.
pub(crate) fn is_difference(finding: &Finding) -> bool {
    finding.difference_us.is_some() && !is_within_noise(finding)
}

/// The point or comparison of a finding: `simple, plain, 8 clients`, or `prepared vs simple, 1
/// client`.
pub(crate) fn point_name(run: &Run, finding: &Finding) -> String {
    let (Some(condition), Some(variant)) = (finding.condition, finding.variant) else {
        return String::new();
    };
    let (name, title) = (variant_name(run, variant), condition_title(run, condition));
    match finding.difference_us {
        Some(difference_us) if is_within_noise(finding) && difference_us < 0.0 => {
            format!("{}, {title}", baseline_name(run, variant))
        }
        Some(_) if is_difference(finding) => {
            format!("{name} vs {}, {title}", baseline_name(run, variant))
        }
        _ => format!("{name}, {title}"),
    }
}

/// A finding's cost, as a difference if it compares two points.
pub(crate) fn weight(finding: &Finding) -> String {
    match finding.difference_us {
        Some(difference_us) if !is_within_noise(finding) => {
            format!(
                "{}{}",
                number::signed_micros(difference_us),
                interval(finding)
            )
        }
        // Of a live server on which no transaction ended.
        _ if finding.weight_us <= 0.0 => "–".to_owned(),
        _ => number::micros(finding.weight_us),
    }
}

/// A finding's cost as a share of the response time.
pub(crate) fn share(finding: &Finding) -> f64 {
    match finding.difference_us {
        // The stored share is that of the difference.
        Some(difference_us) if is_within_noise(finding) && difference_us != 0.0 => {
            (finding.share * finding.weight_us / difference_us.abs()).min(1.0)
        }
        _ => finding.share,
    }
}

/// The interval of a finding's difference, or an empty text.
fn interval(finding: &Finding) -> String {
    finding
        .difference_interval_us
        .map_or_else(String::new, |it| {
            let [low, high] = it.map(number::signed_micros);
            format!(" [{low}, {high}]")
        })
}
