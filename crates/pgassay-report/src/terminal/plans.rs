//! Differences of plans in sentences; the page has the trees.

use pgassay_explain::difference_sentences;
use pgassay_record::plans::RunPlans;
use pgassay_record::run::Run;

use super::style::{Style, heading};
use super::table::wrap;
use crate::outline::variant_name;
use crate::plans::{
    all_equal, cursor_note, differing, excerpt, generic_differs, generic_sentence, sentences,
    statements, title, without_counterpart,
};

/// Statements that get a paragraph, over all variants.
const STATEMENTS: usize = 5;
/// Differences of a statement.
const DIFFERENCES: usize = 5;
const GENERIC_DIFFERENCES: usize = 2;

/// The section; empty if no plans were taken.
pub(super) fn section(run: &Run, style: Style) -> String {
    let Some(plans) = &run.plans else {
        return String::new();
    };
    let mut body = String::new();
    let shown = variants(run, plans, style, &mut body);
    let total: usize = differing(plans).map(|it| it.statements.len()).sum();
    if total > shown {
        let more = total - shown;
        let differ = if more == 1 {
            "statement differs"
        } else {
            "statements differ"
        };
        let text = format!("{more} more {differ}; see the HTML report.");
        body.push_str(&wrap(&text, style.columns(), "  ", "  "));
    }
    for text in without_counterpart(run, plans) {
        body.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    for (point, statement) in generic_differs(plans).take(STATEMENTS) {
        let text = format!(
            "{}: {}. {}.",
            variant_name(run, point.variant),
            excerpt(&statement.text),
            generic_sentence(run, point, statement)
        );
        body.push_str(&wrap(&text, style.columns(), "  ", "    "));
        let difference = statement.generic_difference.iter();
        for line in difference.flat_map(|it| difference_sentences(it, GENERIC_DIFFERENCES)) {
            body.push_str(&wrap(&line, style.columns(), "      ", "        "));
        }
    }
    if body.is_empty() {
        let Some(text) = all_equal(plans) else {
            return String::new();
        };
        return heading("PLANS", &text, style);
    }
    let what = "what EXPLAIN shows after the trials; the HTML report has both trees";
    heading("PLANS", what, style) + &body
}

/// Adds the variants with differences and returns the number of statements shown.
fn variants(run: &Run, plans: &RunPlans, style: Style, body: &mut String) -> usize {
    let width = style.columns();
    let mut shown = 0;
    for it in differing(plans) {
        if shown == STATEMENTS {
            break;
        }
        body.push_str(&wrap(&format!("{}:", title(run, it)), width, "  ", "    "));
        for statement in it.statements.iter().take(STATEMENTS - shown) {
            let sides = statements(plans, it, statement);
            if let Some([_, of_variant]) = sides {
                let text = excerpt(&of_variant.text);
                body.push_str(&wrap(&text, width, "    ", "      "));
            }
            for line in sentences(statement, DIFFERENCES) {
                body.push_str(&wrap(&line, width, "      ", "        "));
            }
            if let Some(note) = sides.and_then(cursor_note) {
                body.push_str(&wrap(note, width, "      ", "        "));
            }
            shown += 1;
        }
    }
    shown
}
