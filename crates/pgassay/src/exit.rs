//! Exit codes, and the mapping from errors to exit codes and messages.

use std::process::ExitCode;

use anyhow::Result;
use pgassay_lab::Interrupted;

use crate::output::{ClosedOutput, print_line_stderr};

/// Success.
pub const OK: u8 = 0;
/// A usage, connection or input error: nothing was measured.
pub const FAILURE: u8 = 1;
/// The run failed midway; completed trials were saved, or a profile was printed as far as it came.
pub const PARTIAL: u8 = 2;
/// `gate`: a variant is slower than the limit; `count --against`: the cost increased beyond the tolerance.
pub const REGRESSION: u8 = 3;
/// `gate`: the limit lies within an interval; `count --against`: too few or inexact counts.
pub const INCONCLUSIVE: u8 = 4;
/// `gate --against`: there is no baseline, or it is from another machine, configuration or build; `count --against`:
/// the counts are of something else.
pub const NOT_COMPARABLE: u8 = 5;
/// `gate --bisect`: `git bisect run` skips the commit.
pub const BISECT_SKIP: u8 = 125;
/// `gate --bisect`: `git bisect run` stops.
pub const BISECT_ABORT: u8 = 128;
/// Interrupted by Ctrl-C (128 + SIGINT, the shell convention).
pub const INTERRUPTED: u8 = 130;

/// A run that failed midway; its completed trials were saved.
#[derive(Debug, thiserror::Error)]
#[error("{reason}; completed trials saved as {id}")]
pub struct Partial {
    /// The cause of the failure.
    pub reason: String,
    /// The run's ID.
    pub id: String,
}

/// A profile that was printed, but ended early.
#[derive(Debug, thiserror::Error)]
#[error("the profile is incomplete: {reason}")]
pub struct IncompleteProfile {
    /// What went wrong.
    pub reason: String,
}

/// A gate that a variant did not pass, or a failed `count --against`.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Gate {
    /// The exit code: [`REGRESSION`], [`INCONCLUSIVE`], [`NOT_COMPARABLE`], or one for `git bisect run`.
    pub code: u8,
    /// Printed on stderr; empty if the result on stdout says it.
    pub reason: String,
}

/// Prints an error on stderr as one paragraph and returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(report_code(error))
}

/// As [`report`]; the code is a number, for an exit in the middle.
pub fn report_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(is_closed_output) {
        // The reader closed the pipe, as in `pgassay list | head`.
        return OK;
    }
    let text = text_of(error);
    // That of a gate may have been printed on stdout.
    if !text.is_empty() {
        print_line_stderr(&format!("pgassay: {text}"));
    }
    if error.is::<Interrupted>() {
        INTERRUPTED
    } else if error.is::<Partial>() || error.is::<IncompleteProfile>() {
        PARTIAL
    } else if let Some(gate) = error.downcast_ref::<Gate>() {
        gate.code
    } else {
        FAILURE
    }
}

/// The exit status after printing: that of the verdict, also if the reader closed the pipe, as in
/// `pgassay gate | head -1`.
pub fn after_printing(printed: Result<()>, verdict: Result<()>) -> Result<()> {
    match printed {
        Err(error) if !error.chain().any(is_closed_output) => Err(error),
        _ => verdict,
    }
}

/// The exit status after an answer whose files were to be written: that of the answer, unless only the files failed.
pub fn after_writing(written: Result<()>, answer: Result<()>) -> Result<()> {
    match (written, answer) {
        (Err(error), Err(answer)) => {
            print_line_stderr(&format!("pgassay: {}", text_of(&error)));
            Err(answer)
        }
        (written, answer) => written.and(answer),
    }
}

/// An error and its causes, without those whose text an earlier one already contains.
pub fn text_of(error: &anyhow::Error) -> String {
    let mut kept: Vec<String> = Vec::new();
    for cause in error.chain() {
        let cause = without_os_error(cause.to_string().trim_end());
        if !kept.iter().any(|earlier| earlier.contains(&cause)) {
            kept.push(cause);
        }
    }
    kept.join(": ")
}

/// Without the numbers that Rust adds to the system's messages, as C's `%m` prints them.
pub fn without_os_error(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| {
        out + part.split_once(')').map_or(part, |(_, after)| after)
    })
}

/// Not any broken pipe: a server that has ended closes its connections.
fn is_closed_output(cause: &(dyn std::error::Error + 'static)) -> bool {
    let inner = cause
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    let closed = inner.and_then(|it| it.downcast_ref::<ClosedOutput>());
    closed.is_some()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn regression() -> Result<()> {
        Err(Gate {
            code: REGRESSION,
            reason: "slower".to_owned(),
        }
        .into())
    }

    /// Regression: `profile` printed nothing and succeeded if its server ended.
    #[test]
    fn a_connection_that_the_server_closed_is_an_error() {
        let lost = || std::io::Error::from(ErrorKind::BrokenPipe).into();
        assert!(after_printing(Err(lost()), Ok(())).is_err());
        assert_eq!(report(&lost()), ExitCode::from(FAILURE));
    }

    #[test]
    fn a_reader_that_closes_the_pipe_does_not_turn_a_regression_into_a_pass() {
        let closed = || Err(std::io::Error::new(ErrorKind::BrokenPipe, ClosedOutput).into());
        let ended = after_printing(closed(), regression()).unwrap_err();
        assert_eq!(ended.downcast_ref::<Gate>().unwrap().code, REGRESSION);
        assert!(after_printing(closed(), Ok(())).is_ok());
        let full = std::io::Error::from(ErrorKind::StorageFull);
        let ended = after_printing(Err(full.into()), Ok(())).unwrap_err();
        assert_eq!(ended.to_string(), "no storage space");
    }
}
