//! Backslash commands.
//!
//! A command takes the rest of its line, which a backslash directly before the newline continues.
//! `\set`, `\if` and `\elif` end in an expression; all others consist of words separated by blanks.
//! Errors show the command's text and a caret in the same cases as in pgbench. Sources: the INITIAL
//! state of exprscan.l and `process_backslash_command` in pgbench.c; 17 added `\syncpipeline`; 9.6
//! removed `\setrandom`, see `doCustom` in 9.5's pgbench.c.

use crate::command::{Capture, CommandKind, ScriptCommand, Shell, ShellWord, Sleep, SleepAmount};
use crate::error::{ParseError, ParseErrorKind, SyntaxError};
use crate::expr::{BuiltinFunction, Expr, Op};
use crate::expr_lexer::{ExprError, Mistake, continuation_length, line_end};
use crate::expr_parser;
use crate::names::{InvalidName, VariableNames};
use crate::number;
use crate::script::{Compat, ParseOptions};
use crate::value::ScriptValue;

/// The maximum number of words in a command, including its name; pgbench's `MAX_ARGS`.
const WORDS_MAX: usize = 256;

/// The result of parsing a backslash command.
#[derive(Debug)]
pub(crate) enum Meta {
    /// A backslash alone on its line.
    Nothing,
    /// A separate command.
    Command(ScriptCommand),
    /// `\gset` or `\aset`, which belongs to the preceding statement.
    Capture(Capture),
}

/// Parses the commands of one script.
pub(crate) struct MetaParser<'a> {
    pub script: &'a str,
    pub input: &'a [u8],
    pub options: &'a ParseOptions,
    pub names: &'a mut VariableNames,
}

/// A word delimited by blanks.
struct Word<'a> {
    text: &'a [u8],
    start: usize,
}

impl Word<'_> {
    fn display(&self) -> String {
        String::from_utf8_lossy(self.text).into_owned()
    }
}

/// The words of a command and its position.
struct CommandLine<'a> {
    /// The position of the backslash.
    start: usize,
    number: u32,
    words: Vec<Word<'a>>,
    /// The whole command as written, once it has been read to its end.
    text: Option<String>,
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c')
}

/// Returns the next word of the line, or `None` at its end; `position` moves past either.
fn next_word<'a>(input: &'a [u8], position: &mut usize) -> Option<Word<'a>> {
    loop {
        match input.get(*position) {
            None => return None,
            Some(b'\n') => {
                *position += 1;
                return None;
            }
            Some(&byte) if is_blank(byte) => *position += 1,
            Some(_) if continuation_length(input, *position) > 0 => {
                *position += continuation_length(input, *position);
            }
            Some(_) => break,
        }
    }
    let start = *position;
    while input
        .get(*position)
        .is_some_and(|&byte| !is_blank(byte) && byte != b'\n')
        && continuation_length(input, *position) == 0
    {
        *position += 1;
    }
    Some(Word {
        text: &input[start..*position],
        start,
    })
}

fn trimmed(text: &[u8]) -> String {
    let end = text
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'))
        .map_or(0, |last| last + 1);
    String::from_utf8_lossy(&text[..end]).into_owned()
}

impl<'a> MetaParser<'a> {
    /// Parses the command whose backslash is directly before `position`, on line `number`, and
    /// moves `position` to the next line.
    pub fn parse(&mut self, position: &mut usize, number: u32) -> Result<Meta, ParseError> {
        let start = *position - 1;
        let Some(name) = next_word(self.input, position) else {
            return Ok(Meta::Nothing);
        };
        let mut line = CommandLine {
            start,
            number,
            words: vec![name],
            text: None,
        };
        let lower = line.words[0].text.to_ascii_lowercase();
        let kind = match &lower[..] {
            b"set" => {
                let Some(target) = next_word(self.input, position) else {
                    return Err(self.error(&line, "missing argument", None));
                };
                let target_text = target.text;
                line.words.push(target);
                let mut expr = self.expression(&line, position)?;
                let slot = self.names.intern(target_text);
                if !self.names.is_valid(slot) {
                    // pgbench evaluates the expression first and then fails to assign, at run time.
                    let name = self.names.display(slot);
                    expr.invalid_target = Some(Box::new(InvalidName {
                        context: "set",
                        name,
                    }));
                }
                CommandKind::Set { slot, expr }
            }
            b"if" => {
                let condition = self.expression(&line, position)?;
                CommandKind::If {
                    condition,
                    otherwise: 0,
                }
            }
            b"elif" => {
                let condition = self.expression(&line, position)?;
                CommandKind::Elif {
                    condition,
                    otherwise: 0,
                    end: 0,
                }
            }
            _ => {
                self.collect_words(&mut line, position)?;
                if let Some(capture) = self.capture(&lower, &line)? {
                    return Ok(Meta::Capture(capture));
                }
                self.command(&lower, &line)?
            }
        };
        let first_line = trimmed(&self.input[start..*position]);
        let words = line.words.iter().map(Word::display).collect();
        Ok(Meta::Command(ScriptCommand {
            line: number,
            first_line,
            kind,
            words,
        }))
    }

    fn expression(&mut self, line: &CommandLine, position: &mut usize) -> Result<Expr, ParseError> {
        match expr_parser::parse(self.input, *position, self.names) {
            Ok((expr, next)) => {
                *position = next;
                Ok(expr)
            }
            Err(ExprError(mistake)) => {
                let Mistake {
                    message,
                    detail,
                    end,
                } = *mistake;
                // An error at a newline was detected after it; any other error leaves the rest of
                // the line to show.
                let is_at_newline = self.input[..end].last() == Some(&b'\n');
                let text_end = if is_at_newline {
                    end
                } else {
                    line_end(self.input, end)
                };
                let syntax = SyntaxError {
                    message,
                    detail,
                    command: Some(line.words[0].display()),
                    text: Some(trimmed(&self.input[line.start..text_end])),
                    column: Some(end - 1 - line.start),
                };
                Err(self.parse_error(line.number, syntax))
            }
        }
    }

    fn collect_words(
        &self,
        line: &mut CommandLine<'a>,
        position: &mut usize,
    ) -> Result<(), ParseError> {
        while let Some(word) = next_word(self.input, position) {
            if line.words.len() == WORDS_MAX {
                return Err(self.error(line, "too many arguments", None));
            }
            line.words.push(word);
        }
        line.text = Some(trimmed(&self.input[line.start..*position]));
        Ok(())
    }

    fn parse_error(&self, line: u32, error: SyntaxError) -> ParseError {
        ParseError {
            script: self.script.to_owned(),
            line,
            kind: ParseErrorKind::Syntax(Box::new(error)),
        }
    }

    /// Returns an error about a whole command, or about the byte `at` of the input and its text.
    fn error(
        &self,
        line: &CommandLine,
        message: &'static str,
        at: Option<(usize, String)>,
    ) -> ParseError {
        let (column, detail) = at.map(|(at, detail)| (at - line.start, detail)).unzip();
        let syntax = SyntaxError {
            message,
            detail: detail.filter(|detail| !detail.is_empty()),
            command: Some(line.words[0].display()),
            text: line.text.clone(),
            column,
        };
        self.parse_error(line.number, syntax)
    }

    fn capture(&self, name: &[u8], line: &CommandLine) -> Result<Option<Capture>, ParseError> {
        if !matches!(name, b"gset" | b"aset") {
            return Ok(None);
        }
        if line.words.len() > 2 {
            return Err(self.error(line, "too many arguments", None));
        }
        let prefix: Box<[u8]> = line
            .words
            .get(1)
            .map(|word| word.text.into())
            .unwrap_or_default();
        Ok(Some(if name == b"gset" {
            Capture::Gset { prefix }
        } else {
            Capture::Aset { prefix }
        }))
    }

    /// Parses a command that consists of words.
    fn command(&mut self, name: &[u8], line: &CommandLine) -> Result<CommandKind, ParseError> {
        let has_syncpipeline = self.options.compat >= Compat::V17;
        let kind = match name {
            b"sleep" => return self.sleep(line).map(CommandKind::Sleep),
            b"setshell" if line.words.len() < 3 => {
                return Err(self.error(line, "missing argument", None));
            }
            b"setshell" => {
                let slot = self.names.intern(line.words[1].text);
                return Ok(CommandKind::SetShell {
                    slot,
                    shell: self.shell(&line.words[2..]),
                });
            }
            b"shell" if line.words.len() < 2 => {
                return Err(self.error(line, "missing command", None));
            }
            b"shell" => return Ok(CommandKind::Shell(self.shell(&line.words[1..]))),
            b"setrandom" => return self.set_random(line),
            b"else" => CommandKind::Else { end: 0 },
            b"endif" => CommandKind::Endif,
            b"startpipeline" => CommandKind::StartPipeline,
            b"syncpipeline" if has_syncpipeline => CommandKind::SyncPipeline,
            b"endpipeline" => CommandKind::EndPipeline,
            _ => return Err(self.error(line, "invalid command", None)),
        };
        if line.words.len() == 1 {
            Ok(kind)
        } else {
            Err(self.error(line, "unexpected argument", None))
        }
    }

    /// Parses `\shell`'s words: `:name` is a variable, `::text` is the text `:text`.
    fn shell(&mut self, words: &[Word]) -> Shell {
        let program = words[0].display();
        let words = words.iter().map(|word| match word.text {
            [b':', b':', ..] => ShellWord::Literal(word.text[1..].into()),
            [b':', name @ ..] => ShellWord::Variable(self.names.intern(name)),
            text => ShellWord::Literal(text.into()),
        });
        Shell {
            words: words.collect(),
            program,
        }
    }

    /// Parses `\sleep N [us|ms|s]`; the unit may follow the number without a blank.
    fn sleep(&mut self, line: &CommandLine) -> Result<Sleep, ParseError> {
        let words = &line.words;
        if words.len() < 2 {
            return Err(self.error(line, "missing argument", None));
        }
        if words.len() > 3 {
            return Err(self.error(
                line,
                "too many arguments",
                Some((words[3].start, String::new())),
            ));
        }
        let amount = &words[1];
        let mut unit = words.get(2).map(|word| (word.text, word.start));
        let amount_value = if let [b':', name @ ..] = amount.text {
            SleepAmount::Variable(self.names.intern(name))
        } else {
            let sign = usize::from(matches!(amount.text.first(), Some(b'+' | b'-')));
            let digits = amount.text[sign..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let (number, rest) = amount.text.split_at(sign + digits);
            if !rest.is_empty() {
                if unit.is_some() || digits == 0 {
                    let at = Some((amount.start, amount.display()));
                    return Err(self.error(line, "invalid sleep time, must be an integer", at));
                }
                unit = Some((rest, amount.start + number.len()));
            }
            SleepAmount::Fixed(number::leading_integer(number))
        };
        let unit_us = match unit {
            None => 1_000_000,
            Some((text, _)) if text.eq_ignore_ascii_case(b"us") => 1,
            Some((text, _)) if text.eq_ignore_ascii_case(b"ms") => 1_000,
            Some((text, _)) if text.eq_ignore_ascii_case(b"s") => 1_000_000,
            Some((text, start)) => {
                let at = Some((start, String::from_utf8_lossy(text).into_owned()));
                let message = "unrecognized time unit, must be us, ms or s";
                return Err(self.error(line, message, at));
            }
        };
        Ok(Sleep {
            amount: amount_value,
            unit_us,
            word: words[0].display(),
        })
    }

    /// Parses `\setrandom var min max [uniform | gaussian x | exponential x]` as the equivalent
    /// `\set`. The bounds were integers, and the parameter a double, or variables.
    fn set_random(&mut self, line: &CommandLine) -> Result<CommandKind, ParseError> {
        let words = &line.words;
        if words.len() < 4 {
            return Err(self.error(line, "missing argument", None));
        }
        let lower = words.get(4).map(|word| word.text.to_ascii_lowercase());
        let function = match lower.as_deref() {
            None | Some(b"uniform") => BuiltinFunction::Random,
            Some(b"gaussian") => BuiltinFunction::RandomGaussian,
            Some(b"exponential") => BuiltinFunction::RandomExponential,
            Some(_) => {
                let at = Some((words[4].start, words[4].display()));
                return Err(self.error(line, "unexpected argument", at));
            }
        };
        let wanted = if function == BuiltinFunction::Random {
            5
        } else {
            6
        };
        if wanted == 6 && words.len() < wanted {
            let at = Some((words[4].start, words[4].display()));
            return Err(self.error(line, "missing parameter", at));
        }
        if let Some(extra) = words.get(wanted) {
            let at = Some((extra.start, extra.display()));
            return Err(self.error(line, "too many arguments", at));
        }
        let arguments = if wanted == 6 {
            &[2, 3, 5][..]
        } else {
            &[2, 3][..]
        };
        let mut code = Vec::new();
        for &index in arguments {
            code.push(self.set_random_argument(line, index)?);
        }
        let depth = code.len() as u32;
        let folded = match code[..] {
            [Op::Constant(min), Op::Constant(max)] => expr_parser::fold(function, &[min, max]),
            _ => None,
        };
        match folded {
            Some(op) => code = vec![op],
            None => code.push(Op::Call {
                function,
                arguments: depth,
            }),
        }
        let slot = self.names.intern(words[1].text);
        let invalid_target = (!self.names.is_valid(slot)).then(|| {
            Box::new(InvalidName {
                context: "setrandom",
                name: self.names.display(slot),
            })
        });
        let expr = Expr {
            code: code.into_boxed_slice(),
            depth,
            invalid_target,
        };
        Ok(CommandKind::Set { slot, expr })
    }

    fn set_random_argument(&mut self, line: &CommandLine, index: usize) -> Result<Op, ParseError> {
        let word = &line.words[index];
        if let [b':', name @ ..] = word.text {
            return Ok(Op::Variable(self.names.intern(name)));
        }
        let value = match index {
            5 => number::parse_double(word.text).map(ScriptValue::Double),
            _ => number::parse_integer(word.text).map(ScriptValue::Int),
        };
        value.map(Op::Constant).map_err(|_| {
            let at = Some((word.start, word.display()));
            self.error(
                line,
                "invalid argument, must be a number or a :variable",
                at,
            )
        })
    }
}
