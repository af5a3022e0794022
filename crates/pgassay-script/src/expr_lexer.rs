//! Tokens of expressions.
//!
//! An expression ends at the end of its line; a backslash directly before the newline continues it.
//! The longest token wins, keywords and function names are case-insensitive, and bytes outside
//! ASCII are letters. Source: the EXPR state of exprscan.l, the same in 15 to 18.

use crate::names::{is_name_continuation, is_name_start};
use crate::number;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ExprToken {
    /// The end of the line or of the text.
    End,
    Operator(Operator),
    Not,
    Tilde,
    Is,
    IsNull,
    NotNull,
    OpenParenthesis,
    CloseParenthesis,
    Comma,
    Case,
    When,
    Then,
    Else,
    EndCase,
    Null,
    Bool(bool),
    Int(i64),
    /// 2^63, which is valid only after a minus sign.
    IntMaxPlusOne,
    Double(f64),
    /// `:name`; the name is the token's text without its first byte.
    Variable,
    /// Any other word.
    Word,
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    BitOr,
    BitXor,
    BitAnd,
    ShiftLeft,
    ShiftRight,
    Plus,
    Minus,
    Times,
    Divide,
    Modulo,
}

/// An error in an expression. Boxed because the parser recurses and each of its frames has room for
/// several.
#[derive(Debug)]
pub(crate) struct ExprError(pub Box<Mistake>);

/// The error, and the end of the token at which it was detected.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub message: &'static str,
    pub detail: Option<String>,
    pub end: usize,
}

/// Splits text into tokens, starting at `position`.
#[derive(Debug)]
pub(crate) struct ExprLexer<'a> {
    pub input: &'a [u8],
    /// Where the current token begins.
    pub start: usize,
    /// Where the current token ends and the search for the next one begins.
    pub position: usize,
}

impl ExprLexer<'_> {
    /// The text of the current token.
    pub fn text(&self) -> &[u8] {
        &self.input[self.start..self.position]
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.input.get(self.position + ahead).copied()
    }

    fn error(&self, message: &'static str) -> ExprError {
        let detail = Some(String::from_utf8_lossy(self.text()).into_owned());
        ExprError(Box::new(Mistake {
            message,
            detail,
            end: self.position,
        }))
    }

    /// Returns the next token.
    pub fn next(&mut self) -> Result<ExprToken, ExprError> {
        self.skip_blanks();
        self.start = self.position;
        let Some(byte) = self.peek(0) else {
            return Ok(ExprToken::End);
        };
        if byte.is_ascii_digit() || (byte == b'.' && self.peek(1).is_some_and(is_digit)) {
            return self.number();
        }
        if is_name_start(byte) {
            self.skip_while(is_name_continuation);
            return Ok(word(self.text()));
        }
        if byte == b':' && self.peek(1).is_some_and(is_name_continuation) {
            self.position += 1;
            self.skip_while(is_name_continuation);
            return Ok(ExprToken::Variable);
        }
        let (token, length) = symbol(byte, self.peek(1));
        self.position += length;
        token.ok_or_else(|| self.error("unexpected character"))
    }

    fn skip_blanks(&mut self) {
        loop {
            match self.peek(0) {
                Some(b' ' | b'\t' | b'\r' | b'\x0c' | b'\x0b') => self.position += 1,
                Some(b'\\') if continuation_length(self.input, self.position) > 0 => {
                    self.position += continuation_length(self.input, self.position);
                }
                _ => return,
            }
        }
    }

    fn skip_while(&mut self, accepts: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&accepts) {
            self.position += 1;
        }
    }

    fn number(&mut self) -> Result<ExprToken, ExprError> {
        self.skip_while(is_digit);
        let mut is_integer = true;
        if self.peek(0) == Some(b'.') {
            is_integer = false;
            self.position += 1;
            self.skip_while(is_digit);
        }
        if matches!(self.peek(0), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
            // Without digits, the e begins a separate word.
            if self.peek(1 + sign).is_some_and(is_digit) {
                is_integer = false;
                self.position += 1 + sign;
                self.skip_while(is_digit);
            }
        }
        if self.text() == b"9223372036854775808" {
            return Ok(ExprToken::IntMaxPlusOne);
        }
        if is_integer {
            let number = number::parse_integer(self.text()).map(ExprToken::Int);
            return number.map_err(|_| self.error("bigint constant overflow"));
        }
        let number = number::parse_double(self.text()).map(ExprToken::Double);
        number.map_err(|_| self.error("double constant overflow"))
    }
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

/// Returns the length of a backslash-newline at `position`, or 0 if there is none.
pub(crate) fn continuation_length(input: &[u8], position: usize) -> usize {
    match input.get(position..) {
        Some([b'\\', b'\n', ..]) => 2,
        Some([b'\\', b'\r', b'\n', ..]) => 3,
        _ => 0,
    }
}

/// Returns the end of the line that continues at `position`: after its newline, or the end of the
/// text.
pub(crate) fn line_end(input: &[u8], mut position: usize) -> usize {
    while position < input.len() {
        match continuation_length(input, position) {
            0 if input[position] == b'\n' => return position + 1,
            0 => position += 1,
            length => position += length,
        }
    }
    position
}

fn word(text: &[u8]) -> ExprToken {
    const KEYWORDS: [(&[u8], ExprToken); 14] = [
        (b"and", ExprToken::Operator(Operator::And)),
        (b"or", ExprToken::Operator(Operator::Or)),
        (b"not", ExprToken::Not),
        (b"is", ExprToken::Is),
        (b"isnull", ExprToken::IsNull),
        (b"notnull", ExprToken::NotNull),
        (b"case", ExprToken::Case),
        (b"when", ExprToken::When),
        (b"then", ExprToken::Then),
        (b"else", ExprToken::Else),
        (b"end", ExprToken::EndCase),
        (b"null", ExprToken::Null),
        (b"true", ExprToken::Bool(true)),
        (b"false", ExprToken::Bool(false)),
    ];
    let keyword = KEYWORDS
        .into_iter()
        .find(|(keyword, _)| keyword.eq_ignore_ascii_case(text));
    keyword.map_or(ExprToken::Word, |(_, token)| token)
}

/// Returns a token of one or two symbols and its length; `None` for a byte that begins no token.
fn symbol(first: u8, second: Option<u8>) -> (Option<ExprToken>, usize) {
    use Operator as Op;
    let two = match (first, second) {
        (b'<', Some(b'>')) | (b'!', Some(b'=')) => Some(Op::NotEqual),
        (b'<', Some(b'=')) => Some(Op::LessOrEqual),
        (b'>', Some(b'=')) => Some(Op::GreaterOrEqual),
        (b'<', Some(b'<')) => Some(Op::ShiftLeft),
        (b'>', Some(b'>')) => Some(Op::ShiftRight),
        _ => None,
    };
    if let Some(operator) = two {
        return (Some(ExprToken::Operator(operator)), 2);
    }
    let one = match first {
        b'\n' => Some(ExprToken::End),
        b'(' => Some(ExprToken::OpenParenthesis),
        b')' => Some(ExprToken::CloseParenthesis),
        b',' => Some(ExprToken::Comma),
        b'~' => Some(ExprToken::Tilde),
        b'<' => Some(ExprToken::Operator(Op::Less)),
        b'>' => Some(ExprToken::Operator(Op::Greater)),
        b'=' => Some(ExprToken::Operator(Op::Equal)),
        b'|' => Some(ExprToken::Operator(Op::BitOr)),
        b'#' => Some(ExprToken::Operator(Op::BitXor)),
        b'&' => Some(ExprToken::Operator(Op::BitAnd)),
        b'+' => Some(ExprToken::Operator(Op::Plus)),
        b'-' => Some(ExprToken::Operator(Op::Minus)),
        b'*' => Some(ExprToken::Operator(Op::Times)),
        b'/' => Some(ExprToken::Operator(Op::Divide)),
        b'%' => Some(ExprToken::Operator(Op::Modulo)),
        _ => None,
    };
    (one, 1)
}
