//! The lexical structure of SQL, as far as statements and deparsed conditions need it.
//!
//! After PostgreSQL's manual, "Lexical Structure", and `src/backend/parser/scan.l`, with
//! `standard_conforming_strings` on.

/// What a lexeme is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LexemeKind {
    /// A keyword or an unquoted name.
    Word,
    /// `"name"`.
    QuotedName,
    /// A text constant in any notation.
    Text,
    Number,
    /// `$1`.
    Parameter,
    /// An operator of any length, or a single other character.
    Symbol,
}

/// A lexeme of a text: `text` is `source[start..end]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lexeme<'a> {
    pub(crate) kind: LexemeKind,
    pub(crate) text: &'a str,
    pub(crate) start: usize,
}

impl Lexeme<'_> {
    /// One past the last byte.
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Whether it is this keyword, in any case.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == LexemeKind::Word && self.text.eq_ignore_ascii_case(word)
    }

    pub(crate) fn is_symbol(&self, symbol: &str) -> bool {
        self.kind == LexemeKind::Symbol && self.text == symbol
    }

    /// The number of a parameter.
    pub(crate) fn parameter(&self) -> Option<u32> {
        let number = self.text.strip_prefix('$')?;
        (self.kind == LexemeKind::Parameter).then(|| number.parse().ok())?
    }
}

/// The lexemes of a text without comments. `None` if a constant, a name or a comment does not end.
pub(crate) fn lexemes(source: &str) -> Option<Vec<Lexeme<'_>>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let white = skipped(rest)?;
        if white > 0 {
            at += white;
            continue;
        }
        let (kind, length) = lexeme(rest)?;
        let text = &rest[..length];
        found.push(Lexeme {
            kind,
            text,
            start: at,
        });
        at += length;
    }
    Some(found)
}

/// The length of white space or a comment at the beginning, or 0. `None` if a comment does not end.
fn skipped(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    if first.is_whitespace() {
        Some(first.len_utf8())
    } else if rest.starts_with("--") {
        Some(rest.find(['\n', '\r']).unwrap_or(rest.len()))
    } else if rest.starts_with("/*") {
        comment(rest)
    } else {
        Some(0)
    }
}

/// The length of a comment, in which others can be nested.
fn comment(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn lexeme(rest: &str) -> Option<(LexemeKind, usize)> {
    let bytes = rest.as_bytes();
    let second = bytes.get(1).copied().unwrap_or(b' ');
    Some(match bytes[0] {
        b'\'' => (LexemeKind::Text, quoted(rest, 0, false)?),
        b'e' | b'E' if second == b'\'' => (LexemeKind::Text, quoted(rest, 1, true)?),
        b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if second == b'\'' => {
            (LexemeKind::Text, quoted(rest, 1, false)?)
        }
        b'u' | b'U' if rest[1..].starts_with("&'") => (LexemeKind::Text, quoted(rest, 2, false)?),
        b'u' | b'U' if rest[1..].starts_with("&\"") => {
            (LexemeKind::QuotedName, quoted(rest, 2, false)?)
        }
        b'"' => (LexemeKind::QuotedName, quoted(rest, 0, false)?),
        b'$' if second.is_ascii_digit() => (LexemeKind::Parameter, 1 + digits(&rest[1..])),
        b'$' => match dollar_tag(rest) {
            Some(tag) => (LexemeKind::Text, dollar_quoted(rest, tag)?),
            None => (LexemeKind::Symbol, 1),
        },
        b'0'..=b'9' => (LexemeKind::Number, number(rest)),
        b'.' if second.is_ascii_digit() => (LexemeKind::Number, number(rest)),
        first if is_start_of_word(first) => (LexemeKind::Word, word(rest)),
        first if is_operator(first) => (LexemeKind::Symbol, operator(rest)),
        b':' if matches!(second, b':' | b'=') => (LexemeKind::Symbol, 2),
        _ => (LexemeKind::Symbol, 1),
    })
}

fn is_start_of_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

fn word(rest: &str) -> usize {
    let is_part = |byte: u8| is_start_of_word(byte) || byte.is_ascii_digit() || byte == b'$';
    let length = rest.bytes().position(|byte| !is_part(byte));
    length.unwrap_or(rest.len())
}

fn is_operator(byte: u8) -> bool {
    b"+-*/<>=~!@#%^&|`?".contains(&byte)
}

/// The length of an operator, which ends where a comment begins.
fn operator(rest: &str) -> usize {
    let length = rest.bytes().position(|byte| !is_operator(byte));
    let text = &rest[..length.unwrap_or(rest.len())];
    let comments = ["--", "/*"].into_iter().filter_map(|it| text.find(it));
    comments.min().unwrap_or(text.len()).max(1)
}

fn digits(rest: &str) -> usize {
    let length = rest.bytes().position(|byte| !byte.is_ascii_digit());
    length.unwrap_or(rest.len())
}

/// The length of a number: digits, a point, an exponent; `0x1f` and `1_000` since 16.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let is_sign = matches!(byte, b'+' | b'-')
            && matches!(bytes[at - 1], b'e' | b'E')
            && !rest.starts_with("0x");
        // Two points are a range in PL/pgSQL, not part of a number.
        let is_point = *byte == b'.' && !rest[..at].contains('.');
        if !(byte.is_ascii_alphanumeric() || *byte == b'_' || is_sign || is_point) {
            break;
        }
        at += 1;
    }
    at
}

/// The length of a quoted text or name whose quote is at `open`; a doubled quote does not end it.
fn quoted(rest: &str, open: usize, has_escapes: bool) -> Option<usize> {
    let bytes = rest.as_bytes();
    let quote = bytes[open];
    let mut at = open + 1;
    loop {
        let byte = *bytes.get(at)?;
        let is_doubled = byte == quote && bytes.get(at + 1) == Some(&quote);
        if is_doubled || (has_escapes && byte == b'\\') {
            at += 2;
        } else if byte == quote {
            return Some(at + 1);
        } else {
            at += 1;
        }
    }
}

/// `$tag$` at the beginning of a dollar-quoted constant.
fn dollar_tag(rest: &str) -> Option<&str> {
    let end = 1 + rest[1..].find('$')?;
    let tag = &rest[1..end];
    let is_tag = tag.is_empty() || (word(tag) == tag.len() && is_start_of_word(tag.as_bytes()[0]));
    is_tag.then(|| &rest[..=end])
}

fn dollar_quoted(rest: &str, tag: &str) -> Option<usize> {
    let end = rest[tag.len()..].find(tag)?;
    Some(tag.len() + end + tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        let found = lexemes(source).unwrap();
        found.iter().map(|it| it.text).collect()
    }

    #[test]
    fn constants_comments_and_names_are_single_lexemes() {
        assert_eq!(
            texts("select 'a;''b', E'\\';', $$;$$, $a$ $$ ; $a$, \"x;\"\"y\", U&'z' -- ; end\n, 1"),
            [
                "select",
                "'a;''b'",
                ",",
                "E'\\';'",
                ",",
                "$$;$$",
                ",",
                "$a$ $$ ; $a$",
                ",",
                "\"x;\"\"y\"",
                ",",
                "U&'z'",
                ",",
                "1"
            ]
        );
        assert_eq!(texts("a /* x /* ; */ ; */ b"), ["a", "b"]);
        assert_eq!(
            texts("t.id >= 1.5e-3::float8 and k<>$12"),
            [
                "t", ".", "id", ">=", "1.5e-3", "::", "float8", "and", "k", "<>", "$12"
            ]
        );
        assert_eq!(texts("1-- 2"), ["1"]);
        assert_eq!(texts("a$b naïve ein_é"), ["a$b", "naïve", "ein_é"]);
    }

    #[test]
    fn text_without_an_end_is_refused() {
        for source in ["'a", "\"a", "$$a", "/* a", "E'\\'", "$x$ $y$"] {
            assert_eq!(lexemes(source), None, "{source}");
        }
    }
}
