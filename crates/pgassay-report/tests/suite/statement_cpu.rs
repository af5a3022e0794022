//! What the reports say of the CPU time of single statements.

use pgassay_report::{Style, observation_html, observation_text};

use crate::fixture::activity::with_stacks;

/// Regression: CPU time by phase and function was that of the whole server only.
#[test]
fn a_statement_has_its_cpu_time_by_phase_and_function() {
    let seen = with_stacks();
    let style = Style {
        color: false,
        width: 72,
    };
    let text = observation_text(&seen, &style);
    for line in [
        "      CPU by phase: other 100% (120 samples)\n      by function: heap_getnextslot 100%\n",
        "      CPU by phase: other 100% (40 samples)\n      by function: ExecModifyTable 100%\n",
    ] {
        assert!(text.replace('\u{a0}', " ").contains(line), "{text}");
    }
    let page = observation_html(&seen).replace('\u{a0}', " ");
    let cell = "CPU (120 samples) by phase: other 100%; by function: heap_getnextslot 100%";
    assert!(page.contains(cell), "{page}");
    // Of a few samples, nothing is said.
    let mut few = with_stacks();
    for node in &mut few.profile.as_mut().unwrap().nodes {
        node.samples[2] = node.samples[2].min(9);
    }
    let text = observation_text(&few, &style);
    assert!(!text.contains("by function: heap_getnextslot"), "{text}");
}
