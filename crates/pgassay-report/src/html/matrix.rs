//! All verdicts at a glance: one row per condition, one column per variant.

use maud::{Markup, html};
use pgassay_record::run::Run;

use crate::outline::{comparison, condition_title, variant_name};
use crate::{number, sentence};

/// The matrix with its key; nothing if the sentences are clear without it.
pub(super) fn matrix(run: &Run) -> Markup {
    let variants = 1..run.plan.variants.len();
    html! {
        @if sentence::has_matrix(run) {
            table.matrix {
                caption { (sentence::matrix_key(run)) }
                tr {
                    th {}
                    @for variant in variants.clone() { th { (variant_name(run, variant)) } }
                }
                @for condition in 0..run.plan.conditions.len() {
                    tr {
                        th { (condition_title(run, condition)) }
                        @for variant in variants.clone() {
                            @if let Some(it) = comparison(run, condition, variant) {
                                td {
                                    span class={ "verdict " (sentence::verdict_word(it.verdict)) } {
                                        (sentence::verdict_mark(it.verdict)) " " (number::ratio(it.tps.ratio))
                                    }
                                }
                            } @else { td {} }
                        }
                    }
                }
            }
        }
    }
}
