//! The commands of a parsed script.
//!
//! Where control goes is resolved when the script is parsed; see [`CommandKind`] for how to follow
//! it. A command that pgbench refuses only when it runs (`\gset` in a pipeline, COPY) is parsed
//! without complaint and refused by whoever runs it, with [`Refusal`](crate::Refusal)'s words.

use crate::error::EvalError;
use crate::expr::Expr;
use crate::names::SlotId;
use crate::number;
use crate::template::Template;
use crate::variables::Variables;

/// The most parameters of one statement; pgbench's `MAX_ARGS` less the statement itself.
pub const PARAMETERS_MAX: usize = 255;

/// The longest command line of `\shell`, in bytes; pgbench's buffer less two, as it counts.
const SHELL_BYTES_MAX: usize = 254;

/// How statements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Simple query, variables substituted in the text.
    #[default]
    Simple,
    /// Extended query, unnamed statements.
    Extended,
    /// Extended query, statements prepared once.
    Prepared,
}

impl Protocol {
    /// pgbench's name for it, as in `-M` and `query mode:`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Simple => "simple",
            Protocol::Extended => "extended",
            Protocol::Prepared => "prepared",
        }
    }

    /// The protocol of that name; pgbench compares exactly.
    pub fn from_name(name: &str) -> Option<Protocol> {
        [Protocol::Simple, Protocol::Extended, Protocol::Prepared]
            .into_iter()
            .find(|protocol| protocol.name() == name)
    }
}

/// One command of a script.
#[derive(Clone, Debug)]
pub struct Command {
    /// The line where it begins, from 1.
    pub line: u32,
    /// For reports: a backslash command's text, or the first line of SQL, at most 127 bytes.
    pub first_line: String,
    /// What to do.
    pub kind: CommandKind,
    /// A backslash command's words, without its expression; empty for SQL.
    pub words: Box<[String]>,
}

impl Command {
    /// What pgbench calls the command in `client C aborted in command N (WORD) of script S`.
    pub fn word(&self) -> &str {
        match &self.kind {
            CommandKind::Sql(_) => "SQL",
            _ => &self.words[0],
        }
    }
}

/// What a command does.
///
/// Control goes to the next command unless said otherwise; a script ends after its last command.
/// The numbers in the conditionals are indices into [`Script::commands`](crate::Script::commands).
/// `otherwise` leads to an `\elif`, past an `\else`, or to the `\endif`; `end` leads to the
/// `\endif`. Only `\elif` can be reached in two ways: by `otherwise`, and then its condition is
/// due; in sequence, at the end of a branch that was taken, and then nothing is evaluated and `end`
/// is next. Where no `\else` is, pgbench skips the `\endif` itself and we don't, which shows in no
/// output.
#[derive(Clone, Debug)]
pub enum CommandKind {
    /// A statement, or several joined by `\;`.
    Sql(SqlCommand),
    /// `\set`, and `\setrandom` of scripts before 9.6.
    Set {
        /// The variable.
        slot: SlotId,
        /// Its new value. Where the variable's name is not allowed, evaluating fails.
        expr: Expr,
    },
    /// `\sleep`.
    Sleep(Sleep),
    /// `\shell`: whoever runs scripts decides whether it may.
    Shell(Shell),
    /// `\setshell`: likewise; the variable takes the integer that the command prints.
    SetShell {
        /// The variable; set it with [`Variables::assign`], its name may not be allowed.
        slot: SlotId,
        /// The command.
        shell: Shell,
    },
    /// `\if`: go on if true, else jump.
    If {
        /// The condition; see [`Value::is_true`](crate::Value::is_true).
        condition: Expr,
        /// Where to jump if it is false.
        otherwise: usize,
    },
    /// `\elif`: see above.
    Elif {
        /// The condition, due only if this command was jumped to.
        condition: Expr,
        /// Where to jump if it is false.
        otherwise: usize,
        /// Where to go if this command was reached in sequence.
        end: usize,
    },
    /// `\else`, reached only in sequence, at the end of a branch that was taken.
    Else {
        /// Where to go.
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

/// What becomes of a statement's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// They are thrown away.
    #[default]
    None,
    /// `\gset`: the last query must give one row, whose columns go into variables.
    Gset {
        /// What the variables' names begin with.
        prefix: Box<[u8]>,
    },
    /// `\aset`: of every query that gives rows, the last one goes into variables.
    Aset {
        /// What the variables' names begin with.
        prefix: Box<[u8]>,
    },
}

/// SQL to be sent as one message.
#[derive(Clone, Debug)]
pub struct SqlCommand {
    pub(crate) template: Template,
    pub(crate) capture: Capture,
}

impl SqlCommand {
    /// The SQL as it was written, from its first word to its semicolon, `:name` not substituted.
    pub fn text(&self) -> &[u8] {
        self.template.source()
    }

    /// For the simple protocol: appends the SQL with the values of variables in the place of
    /// their names, those of undefined ones left as they are. Does not allocate but for `out`.
    #[inline]
    pub fn render(&self, variables: &Variables, out: &mut Vec<u8>) {
        self.template.render(variables, out);
    }

    /// For the other protocols: the SQL with `$1`, `$2`, … in the place of variables.
    pub fn statement(&self) -> &[u8] {
        self.template.statement()
    }

    /// What to bind to `$1`, `$2`, …: the text of these variables, NULL where they are undefined.
    /// A variable that appears twice is there twice, as pgbench has it.
    pub fn parameters(&self) -> &[SlotId] {
        self.template.parameters()
    }

    /// What becomes of the rows.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }
}

/// `\sleep`.
#[derive(Clone, Debug)]
pub struct Sleep {
    pub(crate) amount: SleepAmount,
    /// The unit of the amount.
    pub(crate) unit_us: i64,
    /// The command as it was written, for messages.
    pub(crate) word: String,
}

#[derive(Clone, Debug)]
pub(crate) enum SleepAmount {
    Fixed(i64),
    Variable(SlotId),
}

impl Sleep {
    /// How long to sleep, in µs; nothing where the amount is negative.
    pub fn duration_us(&self, variables: &Variables) -> Result<u64, EvalError> {
        let amount = match self.amount {
            SleepAmount::Fixed(amount) => amount,
            SleepAmount::Variable(slot) => self.variable_amount(variables, slot)?,
        };
        Ok(amount.saturating_mul(self.unit_us).max(0) as u64)
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
    /// The first word as it was written, for messages.
    pub(crate) program: String,
}

#[derive(Clone, Debug)]
pub(crate) enum ShellWord {
    Literal(Box<[u8]>),
    Variable(SlotId),
}

impl Shell {
    /// The command line for the shell: words joined by blanks, `:name` substituted.
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

    /// The integer that the command of `\setshell` printed on the first line of its output.
    pub fn parse_output(&self, output: &[u8]) -> Result<i64, EvalError> {
        number::parse_shell_integer(output).ok_or_else(|| EvalError::ShellOutput {
            command: self.program.clone(),
            output: String::from_utf8_lossy(output).into_owned(),
        })
    }

    /// The first word, with which pgbench's messages about the command begin.
    pub fn program(&self) -> &str {
        &self.program
    }
}
