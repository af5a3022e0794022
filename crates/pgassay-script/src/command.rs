//! The commands of a parsed script.
//!
//! Jump targets are resolved when the script is parsed; [`CommandKind`] explains how to follow
//! them. Commands that pgbench rejects only at run time (`\gset` in a pipeline, COPY) parse without
//! an error here. The program that runs the script rejects them with the messages of
//! [`Refusal`](crate::Refusal).

use crate::error::EvalError;
use crate::expr::Expr;
use crate::names::SlotId;
use crate::number;
use crate::template::Template;
use crate::variables::Variables;

/// The maximum length of a `\shell` command line in bytes: pgbench's buffer minus two, as it
/// counts.
const SHELL_BYTES_MAX: usize = 254;

/// One command of a script.
#[derive(Clone, Debug)]
pub struct ScriptCommand {
    /// The line where it begins, from 1.
    pub line: u32,
    /// For reports: a backslash command's text, or the first line of SQL, at most 127 bytes.
    pub first_line: String,
    /// What the command does.
    pub kind: CommandKind,
    /// A backslash command's words without its expression; empty for SQL.
    pub words: Box<[String]>,
}

impl ScriptCommand {
    /// Returns the command's name in `client C aborted in command N (WORD) of script S`.
    pub fn word(&self) -> &str {
        match &self.kind {
            CommandKind::Sql(_) => "SQL",
            _ => &self.words[0],
        }
    }
}

/// What a command does.
///
/// Execution continues with the next command unless stated otherwise, and ends after the last one.
/// The numbers in conditionals are indices into [`Script::commands`](crate::ParsedScript::commands).
/// `otherwise` points to an `\elif`, after an `\else`, or to the `\endif`; `end` points to the
/// `\endif`. An `\elif` can be reached in two ways. After a jump by `otherwise`, its condition is
/// evaluated. In sequence, at the end of a taken branch, nothing is evaluated and execution
/// continues at `end`. If there is no `\else`, pgbench also skips the `\endif`; this crate does
/// not, which has no visible effect.
#[derive(Clone, Debug)]
pub enum CommandKind {
    /// One statement, or several joined by `\;`.
    Sql(SqlCommand),
    /// `\set`, and `\setrandom` from scripts before 9.6.
    Set {
        /// The variable.
        slot: SlotId,
        /// Its new value. Evaluation fails if the variable's name is invalid.
        expr: Expr,
    },
    /// `\sleep`.
    Sleep(Sleep),
    /// `\shell`: the program that runs the script decides whether it is allowed.
    Shell(Shell),
    /// `\setshell`: the same; the variable is set to the integer that the command prints.
    SetShell {
        /// The variable. Set it with [`Variables::assign`], because its name may be invalid.
        slot: SlotId,
        /// The command.
        shell: Shell,
    },
    /// `\if`: continue if true, otherwise jump.
    If {
        /// The condition; see [`Value::is_true`](crate::ScriptValue::is_true).
        condition: Expr,
        /// Jump target if it is false.
        otherwise: usize,
    },
    /// `\elif`: see above.
    Elif {
        /// The condition, evaluated only after a jump to this command.
        condition: Expr,
        /// Jump target if it is false.
        otherwise: usize,
        /// Jump target if this command was reached in sequence.
        end: usize,
    },
    /// `\else`, reached only in sequence, at the end of a taken branch.
    Else {
        /// Jump target.
        end: usize,
    },
    /// `\endif`: nothing to do.
    Endif,
    /// `\startpipeline`.
    StartPipeline,
    /// `\syncpipeline`, since 17.
    SyncPipeline,
    /// `\endpipeline`.
    EndPipeline,
}

/// What happens to a statement's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// They are discarded.
    #[default]
    None,
    /// `\gset`: the last query must return one row, whose columns are stored in variables.
    Gset {
        /// Prefix of the variables' names.
        prefix: Box<[u8]>,
    },
    /// `\aset`: the last row of every query that returns rows is stored in variables.
    Aset {
        /// Prefix of the variables' names.
        prefix: Box<[u8]>,
    },
}

/// SQL that is sent as one message.
#[derive(Clone, Debug)]
pub struct SqlCommand {
    pub(crate) template: Template,
    pub(crate) capture: Capture,
}

impl SqlCommand {
    /// Returns the SQL as written, from its first word to its semicolon, with `:name` not
    /// substituted.
    pub fn text(&self) -> &[u8] {
        self.template.source()
    }

    /// For the simple protocol: appends the SQL with variables replaced by their values; undefined
    /// variables stay as they are. Allocates only to grow `out`.
    #[inline]
    pub fn render(&self, variables: &Variables, out: &mut Vec<u8>) {
        self.template.render(variables, out);
    }

    /// For the other protocols: returns the SQL with `$1`, `$2`, … in place of variables.
    pub fn statement(&self) -> &[u8] {
        self.template.statement()
    }

    /// Returns the variables to bind to `$1`, `$2`, …; undefined ones are bound as NULL. A variable
    /// that occurs twice is listed twice, as in pgbench.
    pub fn parameters(&self) -> &[SlotId] {
        self.template.parameters()
    }

    /// Returns what happens to the rows.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }
}

/// `\sleep`.
#[derive(Clone, Debug)]
pub struct Sleep {
    pub(crate) amount: SleepAmount,
    /// The unit of the amount in µs.
    pub(crate) unit_us: i64,
    /// The command as written, for messages.
    pub(crate) word: String,
}

#[derive(Clone, Debug)]
pub(crate) enum SleepAmount {
    Fixed(i64),
    Variable(SlotId),
}

impl Sleep {
    /// Returns the sleep time in µs; 0 if the amount is negative.
    pub fn duration_us(&self, variables: &Variables) -> Result<u64, EvalError> {
        let amount = match self.amount {
            SleepAmount::Fixed(amount) => amount,
            SleepAmount::Variable(slot) => self.variable_amount(variables, slot)?,
        };
        Ok(amount.saturating_mul(self.unit_us).max(0) as u64)
    }

    /// The variable that gives the amount, if one does.
    pub(crate) fn reads(&self) -> Vec<SlotId> {
        match self.amount {
            SleepAmount::Fixed(_) => Vec::new(),
            SleepAmount::Variable(slot) => vec![slot],
        }
    }

    fn variable_amount(&self, variables: &Variables, slot: SlotId) -> Result<i64, EvalError> {
        let (command, name) = (self.word.clone(), variables.names().display(slot));
        let mut text = Vec::new();
        if !variables.write_text(slot, &mut text) {
            return Err(EvalError::UndefinedArgument { command, name });
        }
        let amount = number::leading_integer(&text);
        if amount == 0 && !text.first().is_some_and(u8::is_ascii_digit) {
            let value = String::from_utf8_lossy(&text).into_owned();
            return Err(EvalError::SleepTime {
                command,
                value,
                name,
            });
        }
        Ok(amount)
    }
}

/// The command line of `\shell` or `\setshell`.
#[derive(Clone, Debug)]
pub struct Shell {
    pub(crate) words: Box<[ShellWord]>,
    /// The first word as written, for messages.
    pub(crate) program: String,
}

#[derive(Clone, Debug)]
pub(crate) enum ShellWord {
    Literal(Box<[u8]>),
    Variable(SlotId),
}

impl Shell {
    /// Returns the command line for the shell: words joined by blanks, with `:name` substituted.
    pub fn render(&self, variables: &Variables) -> Result<Vec<u8>, EvalError> {
        let mut line = Vec::new();
        for (index, word) in self.words.iter().enumerate() {
            if index > 0 {
                line.push(b' ');
            }
            match word {
                ShellWord::Literal(text) => line.extend_from_slice(text),
                ShellWord::Variable(slot) => {
                    if !variables.write_text(*slot, &mut line) {
                        return Err(EvalError::UndefinedArgument {
                            command: self.program.clone(),
                            name: format!(":{}", variables.names().display(*slot)),
                        });
                    }
                }
            }
            if line.len() > SHELL_BYTES_MAX {
                return Err(EvalError::ShellTooLong {
                    command: self.program.clone(),
                });
            }
        }
        Ok(line)
    }

    /// The variables in the command line.
    pub(crate) fn reads(&self) -> Vec<SlotId> {
        let slot = |word: &ShellWord| match word {
            ShellWord::Literal(_) => None,
            ShellWord::Variable(slot) => Some(*slot),
        };
        self.words.iter().filter_map(slot).collect()
    }

    /// Parses the integer that `\setshell`'s command printed on its first line of output.
    pub fn parse_output(&self, output: &[u8]) -> Result<i64, EvalError> {
        number::parse_shell_integer(output).ok_or_else(|| EvalError::ShellOutput {
            command: self.program.clone(),
            output: String::from_utf8_lossy(output).into_owned(),
        })
    }

    /// Returns the first word, which begins pgbench's messages about the command.
    pub fn program(&self) -> &str {
        &self.program
    }
}
