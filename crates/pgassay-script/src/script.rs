//! Parses a script's text into commands.
//!
//! Statements and backslash commands alternate. The text that the SQL scanner collects up to a
//! semicolon, a backslash or the end is a statement unless it is blank; the text after a backslash
//! is a command up to the end of its line. Source: `ParseScript` in pgbench.c, the same in 15 to
//! 18.

use crate::command::{Capture, CommandKind, ScriptCommand, SqlCommand};
use crate::conditions;
use crate::error::{ParseError, ParseErrorKind, SyntaxError};
use crate::expr::Expr;
use crate::limits::PARAMETERS_MAX;
use crate::meta::{Meta, MetaParser};
use crate::names::VariableNames;
use crate::protocol::QueryProtocol;
use crate::sql_scanner::{SqlScanner, Stop};
use crate::template::Template;

/// The maximum length of [`ScriptCommand::first_line`] for SQL, in bytes; pgbench's buffer minus its NUL.
const FIRST_LINE_BYTES_MAX: usize = 127;

/// The pgbench version whose language is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Compat {
    /// 15 and 16: no `\syncpipeline`.
    V15,
    /// 17.
    V17,
    /// 18.
    #[default]
    V18,
}

/// Options for parsing a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParseOptions {
    /// The query protocol: only the simple protocol has no limit on parameters.
    pub protocol: QueryProtocol,
    /// The version of the language.
    pub compat: Compat,
}

/// A note for the user about an accepted script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line, from 1.
    pub line: u32,
    /// The note.
    pub text: String,
}

/// A parsed script. It never changes, so all threads of a run can share it in an `Arc`.
#[derive(Clone, Debug)]
pub struct ParsedScript {
    name: String,
    commands: Vec<ScriptCommand>,
    notes: Vec<Note>,
}

impl ParsedScript {
    /// Parses `text`, which need not be UTF-8. Variables are interned into `names`, which all
    /// scripts of a run share. `name` is the file's name, or a built-in script's title.
    pub fn parse(
        name: &str,
        text: &(impl AsRef<[u8]> + ?Sized),
        options: &ParseOptions,
        names: &mut VariableNames,
    ) -> Result<ParsedScript, ParseError> {
        let input = text.as_ref();
        let mut lines = LineCounter::new(input);
        let error = |line, kind| ParseError {
            script: name.to_owned(),
            line,
            kind,
        };
        if let Some(nul) = input.iter().position(|&byte| byte == 0) {
            return Err(error(lines.line_at(nul), ParseErrorKind::NulByte));
        }
        let mut parser = MetaParser {
            script: name,
            input,
            options,
            names,
        };
        let mut scanner = SqlScanner::default();
        let mut script = ParsedScript {
            name: name.to_owned(),
            commands: Vec::new(),
            notes: Vec::new(),
        };
        let mut position = 0;
        loop {
            let (scanned, stop) = scanner.scan(input, &mut position);
            if let Some(sql) = skip_blanks(&scanned.text) {
                let line = lines.line_at(scanned.start);
                script.commands.push(sql_command(sql, line, parser.names));
            }
            match stop {
                Stop::Semicolon => {}
                Stop::End | Stop::Unterminated(_) => break,
                Stop::Backslash => {
                    let line = lines.line_at(position - 1);
                    match parser.parse(&mut position, line)? {
                        Meta::Nothing => {}
                        Meta::Command(command) => script.push(command),
                        Meta::Capture(capture) => script.capture(capture).map_err(|syntax| {
                            error(line, ParseErrorKind::Syntax(Box::new(syntax)))
                        })?,
                    }
                }
            }
        }
        script
            .finish(*options)
            .map_err(|(line, kind)| error(line, kind))
    }

    fn push(&mut self, command: ScriptCommand) {
        if command.words[0].eq_ignore_ascii_case("setrandom") {
            self.notes.push(Note {
                line: command.line,
                text: "\\setrandom was removed in pgbench 9.6: use \\set and random()".to_owned(),
            });
        }
        self.commands.push(command);
    }

    /// Attaches a `\gset` or `\aset` to the preceding statement.
    fn capture(&mut self, capture: Capture) -> Result<(), SyntaxError> {
        // pgbench's message names \gset in either case.
        let fail = |detail| SyntaxError {
            message: "\\gset must follow an SQL command",
            detail,
            ..SyntaxError::default()
        };
        let command = self.commands.last_mut().ok_or_else(|| fail(None))?;
        match &mut command.kind {
            CommandKind::Sql(sql) if sql.capture == Capture::None => {
                sql.capture = capture;
                Ok(())
            }
            // pgbench has not yet set a statement's first line when it reports this.
            CommandKind::Sql(_) => Err(fail(None)),
            _ => Err(fail(Some(command.first_line.clone()))),
        }
    }

    /// Performs the checks that need the whole script.
    fn finish(mut self, options: ParseOptions) -> Result<ParsedScript, (u32, ParseErrorKind)> {
        let Some(last) = self.commands.last() else {
            return Err((1, ParseErrorKind::Empty));
        };
        let last_line = last.line;
        conditions::resolve(&mut self.commands).map_err(|mismatch| {
            let line = self
                .commands
                .get(mismatch.command)
                .map_or(last_line, |at| at.line);
            let (command, message) = (mismatch.command + 1, mismatch.message);
            (line, ParseErrorKind::Condition { command, message })
        })?;
        for command in &self.commands {
            let CommandKind::Sql(sql) = &command.kind else {
                continue;
            };
            if options.protocol != QueryProtocol::Simple && sql.parameters().len() > PARAMETERS_MAX
            {
                let statement = String::from_utf8_lossy(sql.text()).into_owned();
                return Err((
                    command.line,
                    ParseErrorKind::TooManyParameters { statement },
                ));
            }
        }
        Ok(self)
    }

    /// The file's name, or the built-in script's title.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the commands; there is at least one.
    pub fn commands(&self) -> &[ScriptCommand] {
        &self.commands
    }

    /// Returns a copy with changed expressions.
    pub(crate) fn with_expressions(&self, change: impl Fn(&Expr) -> Expr) -> ParsedScript {
        let mut copy = self.clone();
        for command in &mut copy.commands {
            if let CommandKind::Set { expr, .. }
            | CommandKind::If {
                condition: expr, ..
            }
            | CommandKind::Elif {
                condition: expr, ..
            } = &mut command.kind
            {
                *expr = change(expr);
            }
        }
        copy
    }

    /// Returns notes for the user, such as that `\setrandom` was removed.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

fn sql_command(sql: &[u8], line: u32, names: &mut VariableNames) -> ScriptCommand {
    let first_line = sql
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .next()
        .unwrap_or_default();
    let length = match first_line.len() {
        whole @ ..=FIRST_LINE_BYTES_MAX => whole,
        // Do not cut a character in half; a valid one ends within three bytes.
        _ => (FIRST_LINE_BYTES_MAX - 3..=FIRST_LINE_BYTES_MAX)
            .rev()
            .find(|&at| first_line[at] & 0xC0 != 0x80)
            .unwrap_or(FIRST_LINE_BYTES_MAX),
    };
    ScriptCommand {
        line,
        first_line: String::from_utf8_lossy(&first_line[..length]).into_owned(),
        kind: CommandKind::Sql(SqlCommand {
            template: Template::new(sql, names),
            capture: Capture::None,
        }),
        words: Box::default(),
    }
}

/// Returns the part of `sql` after leading blanks and `--` comments, if any. The scanner has
/// already dropped most of them, except blanks that only C treats as such.
fn skip_blanks(mut sql: &[u8]) -> Option<&[u8]> {
    loop {
        match sql {
            [] => return None,
            [b' ' | b'\t'..=b'\r', rest @ ..] => sql = rest,
            [b'-', b'-', rest @ ..] => {
                let newline = rest.iter().position(|&byte| byte == b'\n')?;
                sql = &rest[newline + 1..];
            }
            _ => return Some(sql),
        }
    }
}

/// Counts lines while moving forward through a text.
pub(crate) struct LineCounter<'a> {
    input: &'a [u8],
    position: usize,
    line: u32,
}

impl<'a> LineCounter<'a> {
    pub fn new(input: &'a [u8]) -> LineCounter<'a> {
        LineCounter {
            input,
            position: 0,
            line: 1,
        }
    }

    /// Returns the line of the byte at `position`, which must not be before the previous call's.
    pub fn line_at(&mut self, position: usize) -> u32 {
        let passed = &self.input[self.position..position];
        self.line += passed.split(|&byte| byte == b'\n').count() as u32 - 1;
        self.position = position;
        self.line
    }
}
