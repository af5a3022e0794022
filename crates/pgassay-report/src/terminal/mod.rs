//! A run as text, for a terminal of up to 100 columns.
//!
//! From the top: the question, all verdicts at a glance, and the answer in sentences; one line per comparison;
//! the figures of every point; what differs in memory, volumes and plans; where the difference in CPU time and
//! in response time lies, for the most informative comparison; findings; then limitations and warnings. The
//! text is complete without color. The HTML page has the details.

mod activity;
mod answer;
mod cost;
mod differences;
mod expectations;
mod figures;
mod findings;
mod instructions;
mod ledger;
mod matrix;
mod notes;
mod observation;
mod plans;
mod price;
mod scalability;
mod statements;
mod statistics;
mod style;
mod table;
mod variant_names;

pub use observation::observation_text;
pub use scalability::scalability_text;
pub use style::Style;
pub use table::{cut, fit, visible};

use pgassay_record::run::Run;

use crate::{calibration, outlook, sentence};
use table::{TextStyle, paint, wrap};

/// The run as text, with a final newline.
pub fn terminal(run: &Run, style: &Style) -> String {
    let sections = [
        opening(run, *style),
        answer::section(run, *style),
        expectations::reference(run, *style),
        expectations::expectations(run, *style),
        figures::section(run, *style),
        price::section(run, *style),
        plans::section(run, *style),
        cost::section(run, *style),
        instructions::section(run, *style),
        ledger::section(run, *style),
        statements::section(run, *style),
        expectations::watched(run, *style),
        statistics::section(run, *style),
        findings::section(run, *style),
        findings::fixes_tried(run, *style),
        notes::section(run, *style),
    ];
    let written: Vec<String> = sections.into_iter().filter(|it| !it.is_empty()).collect();
    written.join("\n")
}

/// The question, the answers in sentences, and what was run.
fn opening(run: &Run, style: Style) -> String {
    let width = style.columns();
    let mut out = String::new();
    for line in wrap(&run.study.question, width, "", "").lines() {
        out.push_str(&paint(line, TextStyle::Strong, style.color));
        out.push('\n');
    }
    out.push_str(&matrix::section(run, style));
    for answer in sentence::answers(run) {
        out.push_str(&wrap(&answer.text, width, "→ ", "  "));
    }
    if let Some(why) = outlook::without_comparison(run) {
        out.push_str(&wrap(&why, width, "→ ", "  "));
    }
    out.push_str(&notes::of_question(run, style));
    let mut context = vec![sentence::what_was_run(run)];
    context.extend(calibration::notes(run));
    for text in context {
        for line in wrap(&text, width, "  ", "  ").lines() {
            out.push_str(&paint(line, TextStyle::Faint, style.color));
            out.push('\n');
        }
    }
    out
}
