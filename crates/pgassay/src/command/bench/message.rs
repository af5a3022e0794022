//! What pgbench says on stderr, in its form: `pgbench: error: …`, `pgbench: detail: …`.
//!
//! Source: `src/common/logging.c`, and `fe-protocol3.c` (`pqBuildErrorMessage3`) for a server's
//! error as libpq words it.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pgassay_load::LoadError;
use pgassay_wire::{ExchangeError, ServerError};

use crate::connector::failed_at;

static PROGRAM: OnceLock<String> = OnceLock::new();
static IS_DEBUGGING: AtomicBool = AtomicBool::new(false);

/// Sets the name that all lines begin with.
pub fn set_program(name: &str) {
    PROGRAM.get_or_init(|| name.to_owned());
}

/// The name that all lines begin with.
pub fn program() -> &'static str {
    PROGRAM.get().map_or("pgbench", String::as_str)
}

/// Lets [`debug`] be heard.
pub fn set_debugging() {
    IS_DEBUGGING.store(true, Ordering::Relaxed);
}

/// Whether [`debug`] is heard.
pub fn is_debugging() -> bool {
    IS_DEBUGGING.load(Ordering::Relaxed)
}

/// Writes to stderr what need not be read by anybody.
pub fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn line(label: &str, text: &str) {
    say(&format!(
        "{}: {label}{}\n",
        program(),
        text.trim_end_matches('\n')
    ));
}

/// An error.
pub fn error(text: &str) {
    line("error: ", text);
}

/// More about the error before.
pub fn detail(text: &str) {
    line("detail: ", text);
}

/// What to do about it.
pub fn hint(text: &str) {
    line("hint: ", text);
}

/// Something that is not as it should be.
pub fn warning(text: &str) {
    line("warning: ", text);
}

/// Something to know.
pub fn info(text: &str) {
    line("", text);
}

/// Every step, if asked for.
pub fn debug(text: &str) {
    if is_debugging() {
        line("", text);
    }
}

/// A failure that was told, if there was anything to tell, and the exit code it leads to.
#[derive(Debug)]
pub struct Exit(pub u8);

/// Tells an error that ends the program.
pub fn fatal(text: &str) -> Exit {
    error(text);
    Exit(1)
}

/// A server's error as libpq words it; `sql` is what the position in it refers to.
pub fn of_server(error: &ServerError, sql: Option<&str>) -> String {
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

/// The line of a statement with a caret below, `position` being in characters from 1.
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
    let label = format!("LINE {number}: ");
    format!(
        "{label}{line}\n{:>width$}\n",
        '^',
        width = label.len() + column + 1
    )
}

/// The error of a setup connection.
pub fn of_exchange(error: &ExchangeError, sql: Option<&str>) -> String {
    match error {
        ExchangeError::Server(error) => of_server(error, sql),
        other => other.to_string(),
    }
}

/// The error of a load as libpq would word it.
pub fn of_load(error: &LoadError) -> String {
    match error {
        LoadError::Refused { error, .. } => of_server(error, None),
        LoadError::Connect {
            address, source, ..
        } => format!("{}{source}", failed_at(address)),
        other => other.to_string(),
    }
}
