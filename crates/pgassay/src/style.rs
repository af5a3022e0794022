//! Decides whether output is colored, and how wide it is.

use std::io::IsTerminal;

use pgassay_report::Style;
use ratatui::crossterm::terminal::window_size;

use crate::args::ColorWhen;

/// The style for stdout: see <https://no-color.org> and <https://bixense.com/clicolors>.
pub fn style(when: ColorWhen) -> Style {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let terminal = std::io::stdout().is_terminal();
    let color = match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto if set("NO_COLOR") => false,
        ColorWhen::Auto => {
            terminal
                || std::env::var("CLICOLOR_FORCE")
                    .is_ok_and(|value| !value.is_empty() && value != "0")
        }
    };
    Style {
        color,
        width: width(terminal),
    }
}

/// The columns of the terminal, or the default width if the output is not one.
fn width(is_terminal: bool) -> usize {
    let columns = is_terminal.then(window_size).and_then(Result::ok);
    let columns = columns.map(|it| usize::from(it.columns));
    // Zero is the width of a terminal that does not know its own.
    columns
        .filter(|it| *it > 0)
        .unwrap_or(Style::default().width)
}

/// Lines of text that has no color, in the columns of stdout. In a file or a pipe, every line stays whole, for `grep`.
pub fn folded(text: &str) -> String {
    if std::io::stdout().is_terminal() {
        style(ColorWhen::Never).fold(text)
    } else {
        whole_lines(text)
    }
}

/// The text, of which the last line ends as the others do.
fn whole_lines(text: &str) -> String {
    text.lines().flat_map(|line| [line, "\n"]).collect()
}

/// The columns for text that is [`folded`].
pub fn columns() -> usize {
    if std::io::stdout().is_terminal() {
        style(ColorWhen::Never).columns()
    } else {
        usize::MAX
    }
}

/// The same in the columns of stderr.
pub fn folded_stderr(text: &str) -> String {
    Style {
        color: false,
        width: width(std::io::stderr().is_terminal()),
    }
    .fold(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: in a pipe, the warnings of `curve` shared one line.
    #[test]
    fn the_last_line_ends_in_a_pipe_as_on_a_terminal() {
        let on_terminal = |text: &str| Style::default().fold(text);
        for (text, lines) in [("! one", "! one\n"), ("a\n\nb\n", "a\n\nb\n"), ("", "")] {
            assert_eq!(whole_lines(text), lines);
            assert_eq!(on_terminal(text), lines);
        }
    }
}
