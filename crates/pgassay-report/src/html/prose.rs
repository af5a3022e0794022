//! Texts of the terminal, on the page.

use maud::{Markup, html};

/// A text whose command-line options are not broken at their hyphens.
pub(super) fn with_whole_options(text: &str) -> Markup {
    html! {
        @for word in text.split_inclusive(' ') {
            @if word.trim_start_matches('(').starts_with("--") {
                span.option { (word.trim_end()) }
                @if word.ends_with(' ') { " " }
            } @else { (word) }
        }
    }
}
