//! Exit codes, and the one map from a failure to its code and words.

use std::io::ErrorKind;
use std::process::ExitCode;

/// All went well.
pub const OK: u8 = 0;
/// Usage, connection, input: nothing was measured.
pub const FAILURE: u8 = 1;
/// A run error; what had been measured was kept.
pub const PARTIAL: u8 = 2;
/// A gate: it costs more than it may.
pub const REGRESSION: u8 = 3;
/// A gate: it cannot be told.
pub const CANNOT_TELL: u8 = 4;
/// Ended by Ctrl-C (128 + SIGINT, as shells count).
pub const INTERRUPTED: u8 = 130;

/// A run that ended early; its results so far were kept.
#[derive(Debug, thiserror::Error)]
#[error("{reason}; what had been measured was kept as {id}")]
pub struct Partial {
    /// Why.
    pub reason: String,
    /// The run's id.
    pub id: String,
}

/// What a gate found, when it is not that all is well.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Gate {
    /// [`REGRESSION`] or [`CANNOT_TELL`].
    pub code: u8,
    /// In words.
    pub reason: String,
}

/// Ended by the user; anything worth keeping was kept.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Prints a failure on stderr, in one paragraph, and chooses the code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        // Whoever read our output has seen enough, as `pgassay list | head`.
        return ExitCode::from(OK);
    }
    let code = if error.is::<Interrupted>() {
        INTERRUPTED
    } else if error.is::<Partial>() {
        PARTIAL
    } else if let Some(gate) = error.downcast_ref::<Gate>() {
        gate.code
    } else {
        FAILURE
    };
    let causes: Vec<String> = error
        .chain()
        .map(|cause| cause.to_string().trim_end().to_owned())
        .collect();
    eprintln!("pgassay: {}", distinct(causes).join(": "));
    ExitCode::from(code)
}

/// Some error types repeat their source in their own words.
fn distinct(causes: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for cause in causes {
        if !kept.iter().any(|earlier| earlier.contains(&cause)) {
            kept.push(cause);
        }
    }
    kept
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
