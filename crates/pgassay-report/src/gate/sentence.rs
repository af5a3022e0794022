//! The sentence that decides.

use super::result::{GateLimit, GateResult, GateVerdict};

/// What makes a gate on time with a limit of `percent` decide.
fn to_decide(percent: f64) -> String {
    let counts = GateLimit::Instructions(percent);
    format!(
        " To decide, give it more time (a longer --length, and no or a longer --max-time) or a machine without \
         other load, or compare instructions (--fail-if '{counts}')."
    )
}

/// The sentence that decides: of the worst comparison with the verdict of all.
pub fn deciding_sentence(results: &[GateResult], limit: GateLimit) -> String {
    let verdict = GateVerdict::of(results);
    let deciding = results.iter().filter(|it| it.verdict == verdict);
    // What is unknown is worst.
    let cost = |it: &GateResult| it.cost_ratio.unwrap_or(f64::INFINITY);
    let worst = deciding.clone().max_by(|a, b| cost(a).total_cmp(&cost(b)));
    let Some(worst) = worst else {
        return "inconclusive: there is no complete comparison".to_owned();
    };
    let names = &worst.names;
    let (variant, condition) = (&names.variant, &names.condition);
    let word = verdict.word();
    let others = others(results, verdict, deciding.count());
    if verdict == GateVerdict::NotComparable {
        return format!(
            "{word}: {variant} with {condition}: {}.{others}",
            worst.figures.trim_end_matches('.')
        );
    }
    let what = comparative(worst, limit);
    let advice = match (verdict, limit) {
        (GateVerdict::Inconclusive, GateLimit::Slower(percent)) => {
            let early_end = worst.early_end.as_ref().map(|why| format!(" {why}"));
            early_end.unwrap_or_default() + &to_decide(percent)
        }
        _ => String::new(),
    };
    format!(
        "{word}: {variant} {what} with {condition}: {}.{others}{advice}",
        worst.figures
    )
}

/// `is slower than old by more than 5%`.
fn comparative(worst: &GateResult, limit: GateLimit) -> String {
    let baseline = &worst.names.baseline;
    let is_better = worst.is_better && worst.verdict == GateVerdict::Pass;
    match limit {
        GateLimit::Slower(percent) if is_better && percent >= 0.0 => {
            format!("is faster than {baseline}")
        }
        GateLimit::Instructions(percent) if is_better && percent >= 0.0 => {
            format!("executes fewer instructions than {baseline}")
        }
        GateLimit::Slower(percent) if percent < 0.0 => {
            let wanted = -percent;
            match worst.verdict {
                GateVerdict::Pass => format!("is faster than {baseline} by {wanted}% or more"),
                GateVerdict::Regression => format!("is not faster than {baseline} by {wanted}%"),
                _ => format!("may not be faster than {baseline} by {wanted}%"),
            }
        }
        GateLimit::Instructions(percent) if percent < 0.0 => {
            let what = match worst.verdict {
                GateVerdict::Pass => "executes at least",
                GateVerdict::Regression => "does not execute",
                _ => "may not execute",
            };
            format!("{what} {}% fewer instructions than {baseline}", -percent)
        }
        GateLimit::Slower(percent) => {
            let what = match worst.verdict {
                GateVerdict::Pass => "is not slower than",
                GateVerdict::Regression => "is slower than",
                GateVerdict::Inconclusive | GateVerdict::NotComparable => "may be slower than",
            };
            format!("{what} {baseline} by more than {percent}%")
        }
        GateLimit::Instructions(percent) => {
            let what = match worst.verdict {
                GateVerdict::Pass => "does not execute",
                GateVerdict::Regression => "executes",
                GateVerdict::Inconclusive | GateVerdict::NotComparable => "may execute",
            };
            format!("{what} over {percent}% more instructions than {baseline}")
        }
    }
}

/// How many comparisons have the verdict, and how many are better.
fn others(results: &[GateResult], verdict: GateVerdict, deciding: usize) -> String {
    let all = results.len();
    let same = match (verdict, deciding) {
        (_, 1) if all == 1 => String::new(),
        (GateVerdict::Pass, _) => format!(" This is the worst of {all} comparisons."),
        (_, 1) => format!(" 1 of {all} comparisons has this verdict."),
        _ => format!(" {deciding} of {all} comparisons have this verdict."),
    };
    match results.iter().filter(|it| it.is_better).count() {
        0 => same,
        _ if all == 1 => same,
        better => format!("{same} {better} of {all} improved."),
    }
}
