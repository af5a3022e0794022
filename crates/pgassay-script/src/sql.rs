//! Splits set-up SQL into statements, as psql would.
//!
//! For SQL that runs once, outside any measurement, without variables and backslash commands.
//! Anything that needs psql or a COPY stream is rejected with its line number.

use crate::script::LineCounter;
use crate::sql_scanner::{SqlScanner, Stop, tokens};

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Its text, without its semicolon and any preceding comments.
    pub text: String,
    /// The line where it begins, from 1.
    pub line: u32,
}

/// Why SQL cannot be split, or would not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A backslash command of psql or pgbench.
    #[error(
        "line {line}: \\{command} is a psql command, not SQL, and is not supported here{}",
        instead_of(command)
    )]
    MetaCommand {
        /// The line, from 1.
        line: u32,
        /// The command's name.
        command: String,
    },
    /// `COPY … FROM STDIN`.
    #[error("line {line}: COPY FROM STDIN is not supported here: use INSERT, or COPY from a file")]
    CopyFromStdin {
        /// The line where the statement begins, from 1.
        line: u32,
    },
    /// A quote or comment is not terminated.
    #[error("line {line}: unterminated quote or comment")]
    Unterminated {
        /// The line, from 1.
        line: u32,
    },
    /// A parenthesis or a function's body is not closed.
    #[error("line {line}: unclosed {what} in the statement that begins here")]
    Unbalanced {
        /// The line where the statement begins, from 1.
        line: u32,
        /// `parenthesis` or `BEGIN`.
        what: &'static str,
    },
}

/// What to write instead of a psql command, after what is wrong with it.
fn instead_of(command: &str) -> &'static str {
    match command {
        "copy" => ": use INSERT, or COPY from a file that the server can read",
        "set" => ": write the value where it is used",
        "i" | "ir" | "include" | "include_relative" => ": write the file's statements here",
        "gexec" => ": use EXECUTE in a DO block",
        _ => "",
    }
}

impl SplitError {
    /// Returns the line of the error, from 1.
    pub fn line(&self) -> u32 {
        match self {
            Self::MetaCommand { line, .. }
            | Self::CopyFromStdin { line }
            | Self::Unterminated { line }
            | Self::Unbalanced { line, .. } => *line,
        }
    }
}

/// Returns the statements in `text`, which are separated by semicolons outside quotes, comments,
/// parentheses and `BEGIN ATOMIC` bodies. Statements that consist only of comments are left out.
pub fn statements(text: &str) -> Result<Vec<Statement>, SplitError> {
    let input = text.as_bytes();
    let mut lines = LineCounter::new(input);
    let mut statements = Vec::new();
    let mut position = 0;
    loop {
        let mut scanner = SqlScanner::plain();
        let (scanned, stop) = scanner.scan(input, &mut position);
        let line = lines.line_at(scanned.start);
        match stop {
            Stop::Backslash => {
                let guard = end_of_guard(&text[position..]);
                // What precedes it on the line would be lost.
                match guard.filter(|_| scanned.text.trim_ascii().is_empty()) {
                    Some(end) => position += end,
                    None => return Err(meta_command(text, position, &mut lines)),
                }
                continue;
            }
            Stop::Unterminated(start) => {
                return Err(SplitError::Unterminated {
                    line: lines.line_at(start),
                });
            }
            _ => {}
        }
        if scanner.parentheses > 0 {
            return Err(SplitError::Unbalanced {
                line,
                what: "parenthesis",
            });
        }
        if scanner.begins > 0 {
            return Err(SplitError::Unbalanced {
                line,
                what: "BEGIN",
            });
        }
        let tokens = tokens(&scanned.text);
        if is_copy_from_stdin(&tokens) {
            return Err(SplitError::CopyFromStdin { line });
        }
        let text = String::from_utf8_lossy(&scanned.text);
        let text = match stop {
            Stop::Semicolon => text.strip_suffix(';').unwrap_or(&text),
            _ => &text,
        };
        if !tokens.is_empty() {
            statements.push(Statement {
                text: text.trim_end().to_owned(),
                line,
            });
        }
        if stop == Stop::End {
            return Ok(statements);
        }
    }
}

/// Where the line of a `\restrict` or `\unrestrict` ends, which `pg_dump` writes around a dump against psql commands in
/// it. Here, there are none anyway.
fn end_of_guard(command: &str) -> Option<usize> {
    let line = command.lines().next()?;
    let name = line.split_whitespace().next()?;
    matches!(name, "restrict" | "unrestrict").then_some(line.len())
}

fn meta_command(text: &str, position: usize, lines: &mut LineCounter) -> SplitError {
    let command: String = text[position..]
        .chars()
        .take_while(|c| !c.is_whitespace())
        .take(40)
        .collect();
    SplitError::MetaCommand {
        line: lines.line_at(position - 1),
        command,
    }
}

fn is_copy_from_stdin(tokens: &[Vec<u8>]) -> bool {
    tokens.first().is_some_and(|word| word == b"copy")
        && tokens
            .windows(2)
            .any(|pair| pair[0] == b"from" && pair[1] == b"stdin")
}
