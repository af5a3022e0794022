//! How to write for a terminal, and the headings of its sections.

use pgassay_record::run::Run;

use super::table::{TextStyle, fold, paint, wrap};
use crate::outline;

/// How to write for a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to use ANSI colors; the caller decides by `NO_COLOR` and the output device.
    pub color: bool,
    /// Columns of the terminal, clamped to 60 to 100.
    pub width: usize,
}

impl Default for Style {
    /// Plain text of 100 columns.
    fn default() -> Self {
        Self {
            color: false,
            width: 100,
        }
    }
}

impl Style {
    /// The columns used: lines above 100 are hard to read, and tables need at least 60.
    pub fn columns(self) -> usize {
        self.width.clamp(60, 100)
    }

    /// Text without color, with each line that is too wide for the terminal broken between words.
    pub fn fold(self, text: &str) -> String {
        fold(text, self.columns())
    }
}

/// A section's heading and its explanation.
pub(super) fn heading(title: &str, explanation: &str, style: Style) -> String {
    let text = wrap(explanation, style.columns(), &format!("{title}  "), "  ");
    let explanation = text.strip_prefix(title).unwrap_or(&text).trim_end();
    let mut out = paint(title, TextStyle::Strong, style.color);
    for (at, line) in explanation.split('\n').enumerate() {
        let line = if at == 0 {
            line.to_owned()
        } else {
            format!("\n{line}")
        };
        out.push_str(&paint(&line, TextStyle::Faint, style.color));
    }
    out + "\n"
}

/// A condition's number of clients, as its table prints it.
pub(super) fn clients(run: &Run, condition: usize) -> String {
    match outline::clients(run, condition) {
        1 => "1 client".to_owned(),
        clients => format!("{clients} clients"),
    }
}
