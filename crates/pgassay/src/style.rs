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
    // Zero is the width of a terminal that does not know its own.
    let columns = terminal.then(window_size).and_then(Result::ok);
    let columns = columns.map(|it| usize::from(it.columns));
    Style {
        color,
        width: columns
            .filter(|it| *it > 0)
            .unwrap_or(Style::default().width),
    }
}
