//! Finds the end of an SQL statement, as psql and pgbench do.
//!
//! A statement ends at a semicolon outside quotes, comments, parentheses and the body of a `CREATE
//! FUNCTION … BEGIN ATOMIC … END`. A backslash outside quotes and comments begins a command, except
//! `\;` and `\:`, which stand for the bare character. White space and `--` comments before the
//! statement are dropped. Strings are standard-conforming (a backslash is special only in `E''`),
//! as pgbench assumes. Source: `src/fe_utils/psqlscan.l`, the same in 15 to 18 in all relevant
//! parts. Tokens are distinguished only as far as they determine where quotes, comments and words
//! begin.

/// Why scanning stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// After a semicolon that ends a statement.
    Semicolon,
    /// After a backslash that begins a command.
    Backslash,
    /// At the end of the text, with nothing left open.
    End,
    /// At the end of the text, inside a quote or comment that began at this byte.
    Unterminated(usize),
}

/// State that outlives a statement while a text is scanned.
#[derive(Debug, Default)]
pub(crate) struct SqlScanner {
    /// Plain SQL without script commands: any backslash stops the scan.
    is_plain: bool,
    pub parentheses: u32,
    pub begins: u32,
    /// First letters of the words that can introduce a function, by position.
    introduction: [u8; 4],
    words: usize,
}

/// The statement scanned so far.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub text: Vec<u8>,
    /// The position of its first byte in the input, or where scanning began if it has none.
    pub start: usize,
}

struct SqlCursor<'a> {
    input: &'a [u8],
    position: usize,
}

impl SqlCursor<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.input.get(self.position + ahead).copied()
    }

    fn skip_while(&mut self, accepts: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&accepts) {
            self.position += 1;
        }
    }

    fn starts_with(&self, text: &[u8]) -> bool {
        self.input[self.position..].starts_with(text)
    }
}

impl SqlScanner {
    /// Creates a scanner for plain SQL.
    pub fn plain() -> SqlScanner {
        SqlScanner {
            is_plain: true,
            ..SqlScanner::default()
        }
    }

    /// Scans from `position`, and moves it to where scanning stopped.
    pub fn scan(&mut self, input: &[u8], position: &mut usize) -> (Scanned, Stop) {
        let mut cursor = SqlCursor {
            input,
            position: *position,
        };
        let mut scanned = Scanned {
            text: Vec::new(),
            start: *position,
        };
        let stop = loop {
            let start = cursor.position;
            let Some(byte) = cursor.peek(0) else {
                break Stop::End;
            };
            let token = self.token(&mut cursor, byte);
            let text: &[u8] = match token {
                SqlToken::Backslash => break Stop::Backslash,
                SqlToken::Blank if scanned.text.is_empty() => continue,
                SqlToken::Replaced(text) => text,
                _ => &input[start..cursor.position],
            };
            if scanned.text.is_empty() {
                scanned.start = start;
            }
            scanned.text.extend_from_slice(text);
            match token {
                SqlToken::End => break Stop::Semicolon,
                SqlToken::Unterminated => break Stop::Unterminated(start),
                _ => {}
            }
        };
        *position = cursor.position;
        (scanned, stop)
    }

    fn token(&mut self, cursor: &mut SqlCursor, byte: u8) -> SqlToken {
        match byte {
            _ if is_blank(byte) => {
                cursor.skip_while(is_blank);
                SqlToken::Blank
            }
            b'-' if cursor.peek(1) == Some(b'-') => {
                cursor.skip_while(|byte| byte != b'\n' && byte != b'\r');
                SqlToken::Blank
            }
            b'/' if cursor.peek(1) == Some(b'*') => skip_comment(cursor),
            b'\'' => skip_string(cursor, 0, StringKind::Doubling),
            b'"' => skip_identifier(cursor, 0),
            b'$' => skip_dollar(cursor),
            b':' if !self.is_plain => colon(cursor),
            b'\\' if self.is_plain => {
                cursor.position += 1;
                SqlToken::Backslash
            }
            b'\\' => backslash(cursor, &mut self.words),
            b'0'..=b'9' => skip_number(cursor),
            b'.' if cursor.peek(1).is_some_and(|byte| byte.is_ascii_digit()) => skip_number(cursor),
            b';' => {
                cursor.position += 1;
                if self.parentheses == 0 && self.begins == 0 {
                    self.words = 0;
                    return SqlToken::End;
                }
                SqlToken::Other
            }
            b'(' | b')' => {
                cursor.position += 1;
                self.parentheses = if byte == b'(' {
                    self.parentheses.saturating_add(1)
                } else {
                    self.parentheses.saturating_sub(1)
                };
                SqlToken::Other
            }
            _ if is_word_start(byte) => self.word_or_prefix(cursor, byte),
            _ => {
                cursor.position += 1;
                SqlToken::Other
            }
        }
    }

    /// Scans a word, or a prefix letter that determines the kind of the following quote.
    fn word_or_prefix(&mut self, cursor: &mut SqlCursor, byte: u8) -> SqlToken {
        match (byte.to_ascii_lowercase(), cursor.peek(1), cursor.peek(2)) {
            (b'e', Some(b'\''), _) => return skip_string(cursor, 1, StringKind::Escaping),
            (b'b' | b'x', Some(b'\''), _) => return skip_string(cursor, 1, StringKind::Plain),
            (b'n', Some(b'\''), _) => return skip_string(cursor, 1, StringKind::Doubling),
            (b'u', Some(b'&'), Some(b'\'')) => {
                return skip_string(cursor, 2, StringKind::Doubling);
            }
            (b'u', Some(b'&'), Some(b'"')) => return skip_identifier(cursor, 2),
            (b'u', Some(b'&'), _) => {
                cursor.position += 1;
                return SqlToken::Other;
            }
            _ => {}
        }
        let start = cursor.position;
        cursor.skip_while(is_word_continuation);
        self.count_word(&cursor.input[start..cursor.position]);
        SqlToken::Word
    }

    /// Follows `CREATE [OR REPLACE] {FUNCTION|PROCEDURE} … BEGIN … CASE … END … END`, the only
    /// statement that contains semicolons.
    fn count_word(&mut self, word: &[u8]) {
        const INTRODUCTION: [&[u8]; 5] = [b"create", b"function", b"procedure", b"or", b"replace"];
        if self.words == 0 {
            self.introduction = [0; 4];
        }
        let is = |known: &[u8]| word.eq_ignore_ascii_case(known);
        if self.words < self.introduction.len() && INTRODUCTION.into_iter().any(is) {
            self.introduction[self.words] = word[0].to_ascii_lowercase();
        }
        self.words += 1;
        let is_function = matches!(
            self.introduction,
            [b'c', b'f' | b'p', _, _] | [b'c', b'o', b'r', b'f' | b'p']
        );
        if !is_function || self.parentheses > 0 {
            return;
        }
        if is(b"begin") || (is(b"case") && self.begins > 0) {
            self.begins += 1;
        } else if is(b"end") {
            self.begins = self.begins.saturating_sub(1);
        }
    }
}

/// Returns the tokens of a statement except blanks and comments, with words in lower case.
pub(crate) fn tokens(sql: &[u8]) -> Vec<Vec<u8>> {
    let mut scanner = SqlScanner::plain();
    let mut tokens = Vec::new();
    let mut cursor = SqlCursor {
        input: sql,
        position: 0,
    };
    while let Some(byte) = cursor.peek(0) {
        let start = cursor.position;
        match scanner.token(&mut cursor, byte) {
            SqlToken::Blank | SqlToken::Comment | SqlToken::End => {}
            SqlToken::Word => tokens.push(sql[start..cursor.position].to_ascii_lowercase()),
            _ => tokens.push(sql[start..cursor.position].to_vec()),
        }
    }
    tokens
}

/// A lexical element of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlLexeme {
    /// White space or a comment.
    Blank,
    /// A number or a string.
    Constant,
    /// `$1`.
    Parameter,
    /// A keyword or an identifier without quotes.
    Word,
    /// A quoted identifier, an operator's character, or a separator.
    Other,
    /// A quote or a comment that the end of the text cuts off.
    Cut,
}

/// The lexical elements of a text, in order: together they are the text.
pub fn lexemes(sql: &str) -> impl Iterator<Item = (SqlLexeme, &str)> {
    let mut scanner = SqlScanner::plain();
    let mut cursor = SqlCursor {
        input: sql.as_bytes(),
        position: 0,
    };
    std::iter::from_fn(move || {
        let start = cursor.position;
        let byte = cursor.peek(0)?;
        let token = scanner.token(&mut cursor, byte);
        // Tokens end before or after an ASCII character, so never within another one.
        let text = &sql[start..cursor.position];
        let lexeme = match token {
            SqlToken::Blank | SqlToken::Comment => SqlLexeme::Blank,
            SqlToken::Unterminated => SqlLexeme::Cut,
            SqlToken::Word => SqlLexeme::Word,
            _ => lexeme(text),
        };
        Some((lexeme, text))
    })
}

/// What a token is that is neither a word nor a blank.
fn lexeme(text: &str) -> SqlLexeme {
    match text.as_bytes() {
        [b'$', b'0'..=b'9', ..] => SqlLexeme::Parameter,
        [b'\'' | b'0'..=b'9', ..]
        | [b'.', b'0'..=b'9', ..]
        | [_, b'\'', ..]
        | [_, b'&', b'\'', ..]
        | [b'$', _, ..] => SqlLexeme::Constant,
        _ => SqlLexeme::Other,
    }
}

enum SqlToken {
    /// White space or a comment to the end of the line.
    Blank,
    /// A block comment, which is part of the statement.
    Comment,
    /// A keyword or an identifier without quotes.
    Word,
    /// Copied unchanged.
    Other,
    /// Replaced by other text.
    Replaced(&'static [u8]),
    /// The semicolon that ends the statement.
    End,
    /// A consumed backslash that begins a command.
    Backslash,
    /// A quote or comment that the end of the text cuts off.
    Unterminated,
}

/// How a string literal treats quotes and backslashes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StringKind {
    /// Two quotes stand for one.
    Doubling,
    /// The same, and a backslash escapes.
    Escaping,
    /// Neither.
    Plain,
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c')
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

fn is_word_continuation(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_variable(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit()
}

fn skip_comment(cursor: &mut SqlCursor) -> SqlToken {
    let mut depth = 0_u32;
    while cursor.position < cursor.input.len() {
        if cursor.starts_with(b"/*") {
            depth += 1;
            cursor.position += 2;
        } else if cursor.starts_with(b"*/") {
            depth -= 1;
            cursor.position += 2;
            if depth == 0 {
                return SqlToken::Comment;
            }
        } else {
            cursor.position += 1;
        }
    }
    SqlToken::Unterminated
}

/// A string literal after `prefix` bytes, including its continuations on later lines.
fn skip_string(cursor: &mut SqlCursor, prefix: usize, kind: StringKind) -> SqlToken {
    cursor.position += prefix + 1;
    while let Some(byte) = cursor.peek(0) {
        cursor.position += 1;
        if byte == b'\\' && kind == StringKind::Escaping {
            cursor.position = cursor.input.len().min(cursor.position + 1);
        } else if byte == b'\'' {
            if kind != StringKind::Plain && cursor.peek(0) == Some(b'\'') {
                cursor.position += 1;
            } else if let Some(next) = continued_string(cursor) {
                cursor.position = next;
            } else {
                return SqlToken::Other;
            }
        }
    }
    SqlToken::Unterminated
}

/// Returns where a string continues that ended before the cursor: at the next quote, if only
/// comments and blanks with a newline among them come before it.
fn continued_string(cursor: &SqlCursor) -> Option<usize> {
    let mut ahead = SqlCursor {
        input: cursor.input,
        position: cursor.position,
    };
    let mut has_newline = false;
    while let Some(byte) = ahead.peek(0) {
        if is_blank(byte) {
            has_newline |= byte == b'\n' || byte == b'\r';
            ahead.position += 1;
        } else if ahead.starts_with(b"--") {
            ahead.skip_while(|byte| byte != b'\n' && byte != b'\r');
        } else {
            return (byte == b'\'' && has_newline).then_some(ahead.position + 1);
        }
    }
    None
}

fn skip_identifier(cursor: &mut SqlCursor, prefix: usize) -> SqlToken {
    cursor.position += prefix + 1;
    while let Some(byte) = cursor.peek(0) {
        cursor.position += 1;
        if byte == b'"' {
            if cursor.peek(0) != Some(b'"') {
                return SqlToken::Other;
            }
            cursor.position += 1;
        }
    }
    SqlToken::Unterminated
}

/// A dollar-quoted string, a parameter, or a literal dollar.
fn skip_dollar(cursor: &mut SqlCursor) -> SqlToken {
    let start = cursor.position;
    cursor.position += 1;
    if cursor.peek(0).is_some_and(|byte| byte.is_ascii_digit()) {
        // Letters directly after a parameter do not form a separate word.
        cursor.skip_while(is_word_continuation);
        return SqlToken::Other;
    }
    if cursor.peek(0).is_some_and(is_word_start) {
        cursor.skip_while(is_variable);
    }
    if cursor.peek(0) != Some(b'$') {
        cursor.position = start + 1;
        return SqlToken::Other;
    }
    cursor.position += 1;
    let delimiter = &cursor.input[start..cursor.position];
    let body = &cursor.input[cursor.position..];
    if let Some(length) = body
        .windows(delimiter.len())
        .position(|window| window == delimiter)
    {
        cursor.position += length + delimiter.len();
        SqlToken::Other
    } else {
        cursor.position = cursor.input.len();
        SqlToken::Unterminated
    }
}

/// `::`, `:=`, `:name` and similar, which pgbench substitutes later, or a bare colon.
fn colon(cursor: &mut SqlCursor) -> SqlToken {
    let start = cursor.position;
    cursor.position += 1;
    match cursor.peek(0) {
        Some(b':' | b'=') => cursor.position += 1,
        Some(byte) if is_variable(byte) => cursor.skip_while(is_variable),
        Some(quote @ (b'\'' | b'"')) => {
            cursor.position += 1;
            cursor.skip_while(is_variable);
            let is_name = cursor.position > start + 2 && cursor.peek(0) == Some(quote);
            cursor.position = if is_name {
                cursor.position + 1
            } else {
                start + 1
            };
        }
        Some(b'{') if cursor.peek(1) == Some(b'?') => {
            cursor.position += 2;
            cursor.skip_while(is_variable);
            if cursor.position > start + 3 && cursor.peek(0) == Some(b'}') {
                cursor.position += 1;
                // psql's test of whether a variable is defined; pgbench's lexer has no variables.
                return SqlToken::Replaced(b"FALSE");
            }
            cursor.position = start + 1;
        }
        _ => {}
    }
    SqlToken::Other
}

fn backslash(cursor: &mut SqlCursor, words: &mut usize) -> SqlToken {
    cursor.position += 1;
    match cursor.peek(0) {
        Some(b';') => {
            cursor.position += 1;
            *words = 0;
            SqlToken::Replaced(b";")
        }
        Some(b':') => {
            cursor.position += 1;
            SqlToken::Replaced(b":")
        }
        _ => SqlToken::Backslash,
    }
}

/// A number and directly following letters, which do not form a separate word.
fn skip_number(cursor: &mut SqlCursor) -> SqlToken {
    let is_digit = |byte: u8| byte.is_ascii_digit();
    cursor.skip_while(is_digit);
    if cursor.peek(0) == Some(b'.') && cursor.peek(1) != Some(b'.') {
        cursor.position += 1;
        cursor.skip_while(is_digit);
    }
    if matches!(cursor.peek(0), Some(b'e' | b'E')) && matches!(cursor.peek(1), Some(b'+' | b'-')) {
        cursor.position += 2;
        cursor.skip_while(is_digit);
    }
    if cursor.peek(0).is_some_and(is_word_start) {
        cursor.skip_while(is_word_continuation);
    }
    SqlToken::Other
}
