//! Messages on stderr in pgbench's format: `pgbench: error: …`, `pgbench: detail: …`.
//!
//! Source: `src/common/logging.c`, and `fe-protocol3.c` (`pqBuildErrorMessage3`) for libpq's format
//! of server errors.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pgassay_lab::connector::{failed_at, not_connected};
use pgassay_load::LoadError;
use pgassay_wire::{ExchangeError, ServerMessage};

use crate::exit::without_os_error;
use crate::output::print_stderr;

static PROGRAM: OnceLock<String> = OnceLock::new();
static COMMAND: OnceLock<String> = OnceLock::new();
static IS_DEBUGGING: AtomicBool = AtomicBool::new(false);

/// Sets the program name with which all lines begin, and the command to type.
pub fn set_program(name: &str, command: &str) {
    PROGRAM.get_or_init(|| name.to_owned());
    COMMAND.get_or_init(|| command.to_owned());
}

/// The program name with which all lines begin.
pub fn program() -> &'static str {
    PROGRAM.get().map_or("pgbench", String::as_str)
}

/// How the user calls this program: `pgbench`, or `pgassay bench`.
pub fn command() -> &'static str {
    COMMAND.get().map_or("pgbench", String::as_str)
}

/// Enables [`debug`].
pub fn set_debugging() {
    IS_DEBUGGING.store(true, Ordering::Relaxed);
}

/// Whether [`debug`] is enabled.
pub fn is_debugging() -> bool {
    IS_DEBUGGING.load(Ordering::Relaxed)
}

/// Writes to stderr and ignores errors.
pub fn write_stderr(text: &str) {
    print_stderr(text);
}

fn line(label: &str, text: &str) {
    write_stderr(&format!(
        "{}: {label}{}\n",
        program(),
        without_os_error(text.trim_end_matches('\n'))
    ));
}

/// Prints an error.
pub fn error(text: &str) {
    line("error: ", text);
}

/// Prints details about the previous error.
pub fn detail(text: &str) {
    line("detail: ", text);
}

/// Prints a hint about the previous error.
pub fn hint(text: &str) {
    line("hint: ", text);
}

/// Prints a warning.
pub fn warning(text: &str) {
    line("warning: ", text);
}

/// Prints an informational message.
pub fn info(text: &str) {
    line("", text);
}

/// Prints a debug message if enabled.
pub fn debug(text: &str) {
    if is_debugging() {
        line("", text);
    }
}

/// The exit code of a failure that was already reported.
#[derive(Debug)]
pub struct Exit(pub u8);

/// Prints an error and returns the exit code 1.
pub fn fatal(text: &str) -> Exit {
    error(text);
    Exit(1)
}

/// A server error in libpq's format; `sql` is the statement that its position refers to.
pub fn of_server(error: &ServerMessage, sql: Option<&str>) -> String {
    let mut text = format!("{}:  {}\n", error.severity, error.message);
    if let (Some(sql), Some(position)) = (sql, error.position) {
        text.push_str(&excerpt(sql, position));
    }
    for (label, more) in [
        ("DETAIL", &error.detail),
        ("HINT", &error.hint),
        ("QUERY", &error.internal_query),
        ("CONTEXT", &error.context),
    ] {
        if let Some(more) = more {
            let _ = writeln!(text, "{label}:  {more}");
        }
    }
    text
}

/// A notice or warning in libpq's format, which has the context of errors only by default.
pub fn of_notice(notice: &ServerMessage) -> String {
    let without_context = ServerMessage {
        context: None,
        ..notice.clone()
    };
    of_server(&without_context, None)
}

/// The columns that libpq shows of a line, and how many of them at least from the error on.
const EXCERPT_COLUMNS: usize = 60;
const COLUMNS_FROM_ERROR: usize = 10;

/// The line of a statement with a caret below; `position` counts characters from 1. Source:
/// `reportErrorPosition` in fe-protocol3.c.
fn excerpt(sql: &str, position: u32) -> String {
    let before: String = sql
        .chars()
        .take(position.saturating_sub(1) as usize)
        .collect();
    let number = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count();
    let Some(line) = sql.lines().nth(number - 1) else {
        return String::new();
    };
    // A tab would shift the caret.
    let line: Vec<char> = line
        .chars()
        .map(|it| if it == '\t' { ' ' } else { it })
        .collect();
    let end = if line.len() <= EXCERPT_COLUMNS {
        line.len()
    } else {
        EXCERPT_COLUMNS.max((column + COLUMNS_FROM_ERROR).min(line.len()))
    };
    let begin = end.saturating_sub(EXCERPT_COLUMNS);
    let dots = |is_cut: bool| if is_cut { "..." } else { "" };
    let label = format!("LINE {number}: {}", dots(begin > 0));
    let shown: String = line[begin..end].iter().collect();
    format!(
        "{label}{shown}{}\n{:>width$}\n",
        dots(end < line.len()),
        '^',
        width = label.len() + column - begin + 1
    )
}

/// The error of a setup connection.
pub fn of_exchange(error: &ExchangeError, sql: Option<&str>) -> String {
    match error {
        ExchangeError::Server(error) => of_server(error, sql),
        other => other.to_string(),
    }
}

/// A load error in libpq's format.
pub fn of_load(error: &LoadError) -> String {
    match error {
        LoadError::Refused { address, error, .. } => {
            format!("{}{}", failed_at(address), of_server(error, None))
        }
        LoadError::Connect {
            address, source, ..
        } => not_connected(address, source),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: lines were printed whole, however long. Expected is what pgbench 15 prints.
    #[test]
    fn a_long_line_of_a_statement_was_printed_whole() {
        let end = "y".repeat(28);
        let text = |before: usize, end: &str| {
            let sql = format!("select 1,\n'{}',\tnosuch{end};\nfrom t", "x".repeat(before));
            let position = sql.find("nosuch").unwrap() + 1;
            excerpt(&sql, u32::try_from(position).unwrap())
        };
        let (x20, x47) = ("x".repeat(20), "x".repeat(47));
        assert_eq!(
            text(20, ""),
            format!("LINE 2: '{x20}', nosuch;\n{:>33}\n", '^')
        );
        assert_eq!(
            text(20, &end),
            format!("LINE 2: '{x20}', nosuch{end};\n{:>33}\n", '^')
        );
        assert_eq!(
            text(30, &end),
            format!(
                "LINE 2: '{}', nosuch{}...\n{:>43}\n",
                "x".repeat(30),
                &end[..20],
                '^'
            )
        );
        assert_eq!(
            text(60, &end),
            format!("LINE 2: ...{x47}', nosuchyyyy...\n{:>62}\n", '^')
        );
        assert_eq!(
            text(60, ""),
            format!("LINE 2: ...{}', nosuch;\n{:>65}\n", "x".repeat(50), '^')
        );
    }
}
