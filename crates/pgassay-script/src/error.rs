//! What goes wrong, in pgbench's words.
//!
//! `Display` gives what pgbench prints after `pgbench: error: `, since people and PostgreSQL's own
//! tests match on it; the fields carry the same facts for those who want them apart.
//! Sources: `syntax_error`, `ConditionError`, `parseQuery`, `addScript` and `evaluateExpr` in
//! pgbench.c.

use std::fmt;

use crate::command::Protocol;
use crate::names::InvalidName;
use crate::number;

/// Why a script can't be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The script's file name, or the title of the built-in one.
    pub script: String,
    /// The line where the offending command begins, from 1.
    pub line: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// The kinds of [`ParseError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// A backslash command is wrong.
    Syntax(Box<SyntaxError>),
    /// `\if`, `\elif`, `\else` and `\endif` don't match.
    Condition {
        /// The command at fault, from 1.
        command: usize,
        /// pgbench's message.
        message: &'static str,
    },
    /// A statement has more than 255 variables to bind.
    TooManyParameters {
        /// The statement.
        statement: String,
    },
    /// There is nothing to run.
    Empty,
    /// The text has a NUL byte, at which pgbench silently stops reading.
    NulByte,
}

/// A backslash command that can't be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyntaxError {
    /// pgbench's message, such as `unexpected character`.
    pub message: &'static str,
    /// What the message is about, such as the character.
    pub detail: Option<String>,
    /// The command's name as it was written, such as `set`.
    pub command: Option<String>,
    /// The command's whole text, from its backslash, without the newline that ends it.
    pub text: Option<String>,
    /// The byte in `text`, from 0, where the error was found.
    pub column: Option<usize>,
}

impl ParseError {
    /// The offending command's text and, below it, a caret where the error was found: the lines
    /// that pgbench prints without any prefix.
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

    /// The column of the error in its line, from 1, where it is known and on the first line.
    pub fn column(&self) -> Option<usize> {
        match &self.kind {
            ParseErrorKind::Syntax(error) => error.column.map(|column| column + 1),
            _ => None,
        }
    }

    /// The first line of [`Display`](fmt::Display): all but the excerpt.
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
                crate::command::PARAMETERS_MAX
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

/// Why an expression or the argument of a backslash command has no value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// A variable is read that nothing has set.
    #[error("undefined variable \"{name}\"")]
    UndefinedVariable {
        /// Its name.
        name: String,
    },
    /// A variable's text is none of pgbench's values.
    #[error("malformed variable \"{name}\" value: \"{value}\"")]
    MalformedVariable {
        /// Its name.
        name: String,
        /// Its text.
        value: String,
    },
    /// A variable's text looks like an integer but is none.
    #[error("invalid input syntax for type bigint: \"{value}\"")]
    NotInteger {
        /// Its text.
        value: String,
    },
    /// A variable's text is an integer beyond 64 bits.
    #[error("value \"{value}\" is out of range for type bigint")]
    IntegerOutOfRange {
        /// Its text.
        value: String,
    },
    /// A value is not of the kind that an operation takes.
    #[error("cannot coerce {from} to {to}")]
    CannotCoerce {
        /// Its kind.
        from: &'static str,
        /// The kind that is wanted.
        to: &'static str,
    },
    /// A double is too large, or NaN, where an integer is wanted.
    #[error("double to int overflow for {}", Fixed(*value))]
    DoubleToInt {
        /// The double, rounded.
        value: f64,
    },
    /// Integer arithmetic overflows.
    #[error("bigint {operation} out of range")]
    IntegerOverflow {
        /// `add`, `sub`, `mul` or `div`.
        operation: &'static str,
    },
    /// Division of an integer by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A function is called with more than 16 arguments.
    #[error(
        "too many function arguments, maximum is {}",
        crate::expr::ARGUMENTS_MAX
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
    /// `permute` over no values.
    #[error("permute size parameter must be greater than zero")]
    PermuteSize,
    /// A variable of that name can't be set.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// An argument of `\sleep`, `\shell` or `\setshell` reads a variable that nothing has set.
    #[error("{command}: undefined variable \"{name}\"")]
    UndefinedArgument {
        /// The command, as it was written.
        command: String,
        /// The variable as pgbench shows it there.
        name: String,
    },
    /// The variable of `\sleep` does not begin with a number.
    #[error("{command}: invalid sleep time \"{value}\" for variable \"{name}\"")]
    SleepTime {
        /// The command, as it was written.
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
    /// What the command of `\setshell` printed is not an integer.
    #[error("{command}: shell command must return an integer (not \"{output}\")")]
    ShellOutput {
        /// The first word of the command line.
        command: String,
        /// What it printed.
        output: String,
    },
}

impl EvalError {
    /// What pgbench says of the client that is aborted because of this error, in
    /// `client C aborted in command N (WORD) of script S; …`, for `\set`, `\if` and `\elif`.
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

/// What a script may not do at the point where it does it. pgbench finds these when the script
/// runs, since they depend on the branch taken; whoever runs scripts does too.
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
    /// The server answers with COPY.
    #[error("COPY is not supported in pgbench, aborting")]
    Copy,
}

impl Refusal {
    /// Whether `\startpipeline` is refused where a pipeline is open or not.
    pub fn of_start(protocol: Protocol, is_open: bool) -> Option<Refusal> {
        match protocol {
            Protocol::Simple => Some(Refusal::PipelineNeedsExtended),
            _ if is_open => Some(Refusal::AlreadyInPipeline),
            _ => None,
        }
    }
}
