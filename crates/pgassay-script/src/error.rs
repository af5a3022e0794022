//! Errors, with pgbench's messages.
//!
//! `Display` writes what pgbench prints after `pgbench: error: `, because users and PostgreSQL's
//! own tests match on it; the fields contain the same facts separately. Sources: `syntax_error`,
//! `ConditionError`, `parseQuery`, `addScript` and `evaluateExpr` in pgbench.c.

use std::fmt;

use crate::names::InvalidName;
use crate::number;
use crate::protocol::QueryProtocol;

/// A parse error in a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The script's file name, or the title of a built-in script.
    pub script: String,
    /// The line where the offending command begins, from 1.
    pub line: u32,
    /// The error.
    pub kind: ParseErrorKind,
}

/// The kinds of [`ParseError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// A backslash command is invalid.
    Syntax(Box<SyntaxError>),
    /// `\if`, `\elif`, `\else` and `\endif` do not match.
    Condition {
        /// The offending command, from 1.
        command: usize,
        /// pgbench's message.
        message: &'static str,
    },
    /// A statement has more than 255 variables to bind.
    TooManyParameters {
        /// The statement.
        statement: String,
    },
    /// The script has no commands.
    Empty,
    /// The text contains a NUL byte, at which pgbench silently stops reading.
    NulByte,
}

/// An invalid backslash command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyntaxError {
    /// pgbench's message, such as `unexpected character`.
    pub message: &'static str,
    /// The subject of the message, such as the character.
    pub detail: Option<String>,
    /// The command's name as written, such as `set`.
    pub command: Option<String>,
    /// The command's whole text, from its backslash, without the final newline.
    pub text: Option<String>,
    /// The byte offset in `text` of the error, from 0.
    pub column: Option<usize>,
}

impl ParseError {
    /// Returns the offending command's text and, below it, a caret at the error: the lines that
    /// pgbench prints without a prefix.
    pub fn excerpt(&self) -> Option<String> {
        let ParseErrorKind::Syntax(error) = &self.kind else {
            return None;
        };
        let text = error.text.as_deref()?;
        Some(match error.column {
            Some(column) => format!(
                "{text}\n{:>width$} error found here",
                '^',
                width = column + 1
            ),
            None => text.to_owned(),
        })
    }

    /// Returns the column of the error in its line, from 1, if it is known and on the first line.
    pub fn column(&self) -> Option<usize> {
        match &self.kind {
            ParseErrorKind::Syntax(error) => error.column.map(|column| column + 1),
            _ => None,
        }
    }

    /// Returns the first line of [`Display`](fmt::Display): everything except the excerpt.
    pub fn headline(&self) -> String {
        let script = &self.script;
        match &self.kind {
            ParseErrorKind::Syntax(error) => {
                let about = |before: &str, text: &Option<String>, after: &str| {
                    text.as_ref()
                        .map_or(String::new(), |text| format!("{before}{text}{after}"))
                };
                let detail = about(" (", &error.detail, ")");
                let command = about(" in command \"", &error.command, "\"");
                format!("{script}:{}: {}{detail}{command}", self.line, error.message)
            }
            ParseErrorKind::Condition { command, message } => {
                format!("condition error in script \"{script}\" command {command}: {message}")
            }
            ParseErrorKind::TooManyParameters { statement } => format!(
                "statement has too many arguments (maximum is {}): {statement}",
                crate::limits::PARAMETERS_MAX
            ),
            ParseErrorKind::Empty => format!("empty command list for script \"{script}\""),
            ParseErrorKind::NulByte => format!("{script}:{}: unexpected NUL byte", self.line),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        match self.excerpt() {
            Some(excerpt) => write!(f, "\n{excerpt}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ParseError {}

/// A double as C's `%f` prints it.
struct Fixed(f64);

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_finite() {
            write!(f, "{:.6}", self.0)
        } else {
            f.write_str(number::special_name(self.0))
        }
    }
}

/// A run-time error in an expression or in the argument of a backslash command.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// The variable is not set.
    #[error("undefined variable \"{name}\"")]
    UndefinedVariable {
        /// The variable.
        name: String,
    },
    /// A variable's text is not a valid pgbench value.
    #[error("malformed variable \"{name}\" value: \"{value}\"")]
    MalformedVariable {
        /// The variable.
        name: String,
        /// The variable's text.
        value: String,
    },
    /// A variable's text looks like an integer but is not one.
    #[error("invalid input syntax for type bigint: \"{value}\"")]
    NotInteger {
        /// The variable's text.
        value: String,
    },
    /// A variable's text is an integer that does not fit 64 bits.
    #[error("value \"{value}\" is out of range for type bigint")]
    IntegerOutOfRange {
        /// The variable's text.
        value: String,
    },
    /// A value has the wrong type for an operation.
    #[error("cannot coerce {from} to {to}")]
    CannotCoerce {
        /// Its type.
        from: &'static str,
        /// The required type.
        to: &'static str,
    },
    /// A double that must be converted to an integer is too large or NaN.
    #[error("double to int overflow for {}", Fixed(*value))]
    DoubleToInt {
        /// The double, rounded.
        value: f64,
    },
    /// Integer overflow.
    #[error("bigint {operation} out of range")]
    IntegerOverflow {
        /// `add`, `sub`, `mul` or `div`.
        operation: &'static str,
    },
    /// Integer division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A function has more than 16 arguments.
    #[error(
        "too many function arguments, maximum is {}",
        crate::limits::ARGUMENTS_MAX
    )]
    TooManyArguments,
    /// `random(min, max)` with min > max.
    #[error("empty range given to random")]
    EmptyRange,
    /// The width of the range of a random function overflows 64 bits.
    #[error("random range is too large")]
    RangeTooLarge,
    /// The parameter of `random_gaussian` is below 2.
    #[error("gaussian parameter must be at least {} (not {})", Fixed(2.0), Fixed(*value))]
    GaussianParameter {
        /// The parameter.
        value: f64,
    },
    /// The parameter of `random_zipfian` is out of its range.
    #[error("zipfian parameter must be in range [1.001, 1000] (not {})", Fixed(*value))]
    ZipfianParameter {
        /// The parameter.
        value: f64,
    },
    /// The parameter of `random_exponential` is not positive.
    #[error("exponential parameter must be greater than zero (not {})", Fixed(*value))]
    ExponentialParameter {
        /// The parameter.
        value: f64,
    },
    /// `permute` with a size of zero or less.
    #[error("permute size parameter must be greater than zero")]
    PermuteSize,
    /// The variable's name is invalid.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// An argument of `\sleep`, `\shell` or `\setshell` uses a variable that is not set.
    #[error("{command}: undefined variable \"{name}\"")]
    UndefinedArgument {
        /// The command, as written.
        command: String,
        /// The variable as pgbench displays it there.
        name: String,
    },
    /// The value of `\sleep`'s variable does not begin with a number.
    #[error("{command}: invalid sleep time \"{value}\" for variable \"{name}\"")]
    SleepTime {
        /// The command, as written.
        command: String,
        /// The variable's text.
        value: String,
        /// The variable's name.
        name: String,
    },
    /// The command line of `\shell` or `\setshell` has 255 bytes or more.
    #[error("{command}: shell command is too long")]
    ShellTooLong {
        /// The first word of the command line.
        command: String,
    },
    /// The command of `\setshell` did not print an integer.
    #[error("{command}: shell command must return an integer (not \"{output}\")")]
    ShellOutput {
        /// The first word of the command line.
        command: String,
        /// Its output.
        output: String,
    },
}

impl EvalError {
    /// Returns pgbench's reason for aborting the client, in `client C aborted in command N (WORD)
    /// of script S; …`, for `\set`, `\if` and `\elif`.
    pub fn abort_reason(&self) -> &'static str {
        match self {
            EvalError::InvalidName(_) => "assignment of meta-command failed",
            EvalError::UndefinedArgument { .. }
            | EvalError::SleepTime { .. }
            | EvalError::ShellTooLong { .. }
            | EvalError::ShellOutput { .. } => "execution of meta-command failed",
            _ => "evaluation of meta-command failed",
        }
    }
}

/// A command that is not allowed in the current state. pgbench detects these at run time, because
/// they depend on the branch taken; so must the program that runs the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `\startpipeline` in the simple protocol.
    #[error("cannot use pipeline mode with the simple query protocol")]
    PipelineNeedsExtended,
    /// `\startpipeline` in a pipeline.
    #[error("already in pipeline mode")]
    AlreadyInPipeline,
    /// `\syncpipeline` or `\endpipeline` outside a pipeline.
    #[error("not in pipeline mode")]
    NotInPipeline,
    /// `\gset` in a pipeline.
    #[error("\\gset is not allowed in pipeline mode")]
    GsetInPipeline,
    /// `\aset` in a pipeline.
    #[error("\\aset is not allowed in pipeline mode")]
    AsetInPipeline,
    /// The script ends in a pipeline: `client C aborted: …`.
    #[error("end of script reached with pipeline open")]
    PipelineOpenAtEnd,
    /// The script ends in a transaction: `client C aborted: …`.
    #[error("end of script reached without completing the last transaction")]
    TransactionOpenAtEnd,
    /// The server started a COPY.
    #[error("COPY is not supported in pgbench, aborting")]
    Copy,
}

impl Refusal {
    /// Returns why `\startpipeline` is rejected, if it is; `is_open` is whether a pipeline is open.
    pub fn of_start(protocol: QueryProtocol, is_open: bool) -> Option<Refusal> {
        match protocol {
            QueryProtocol::Simple => Some(Refusal::PipelineNeedsExtended),
            _ if is_open => Some(Refusal::AlreadyInPipeline),
            _ => None,
        }
    }
}
