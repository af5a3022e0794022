//! What limited a run, each matter once: several probes are refused for the same reason, and each says so.

use pgassay_model::check::Check;
use pgassay_record::run::{Run, Warning};

use crate::sentence;

/// The warnings, without those whose reason is that of a [`limits`] line.
pub(crate) fn warnings(run: &Run) -> impl Iterator<Item = &Warning> {
    run.warnings.iter().filter(|it| !is_repeated(run, it))
}

/// What could not be measured, and how to permit it, without what another one includes.
pub(crate) fn limits(run: &Run) -> impl Iterator<Item = (String, Option<&str>)> {
    let kept = run.checks.iter().filter(|it| !is_included(run, it));
    kept.filter_map(|it| Some((sentence::limit(it)?, it.fix.as_deref())))
}

fn is_repeated(run: &Run, warning: &Warning) -> bool {
    let limits = run.checks.iter().filter_map(|it| it.limitation.as_deref());
    let mut reasons = limits.filter_map(|it| it.split_once(" is not permitted: "));
    reasons.any(|(_, reason)| warning.message.contains(reason))
}

/// Whether the fix of another check is this one's, or something else that a user may prefer.
fn is_included(run: &Run, check: &Check) -> bool {
    let Some(fix) = &check.fix else {
        return false;
    };
    let mut others = run.checks.iter().filter_map(|it| it.fix.as_ref());
    others.any(|other| other != fix && other.split("  or  ").any(|it| it == fix))
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::Activity;

    use super::*;

    /// Regression: "answers is not read: the server did not answer", and "tables is missing at times".
    #[test]
    fn what_was_not_read_is_not_called_so_twice() {
        let text = |value: &str| {
            let check = Check {
                name: Activity::TABLES.to_owned(),
                value: value.to_owned(),
                limitation: Some("a lock timeout".to_owned()),
                fix: None,
            };
            sentence::limit(&check).unwrap()
        };
        assert_eq!(text(Activity::NOT_READ), "tables: a lock timeout");
        let at_times = text(Activity::AT_TIMES);
        assert_eq!(at_times, "tables, missing at times: a lock timeout");
    }
}
