//! The lexical elements of a statement, after the server's rules (`src/backend/parser/scan.l`).

/// Characters of operators (`scan.l`, `op_chars`).
const OPERATOR: &str = "+-*/<>=~!@#%^&|`?";
/// A lexical element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatementToken {
    /// What it is.
    pub kind: TokenKind,
    /// Key words and plain identifiers in lower case; quoted identifiers without their quotes.
    pub text: String,
}

/// Kinds of [`StatementToken`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A key word or a plain identifier.
    Word,
    /// An identifier in quotes.
    Quoted,
    /// `$n`, a number or a string.
    Constant,
    /// An operator or punctuation.
    Symbol,
}

impl StatementToken {
    /// Whether it is this key word or symbol.
    pub fn is(&self, word: &str) -> bool {
        matches!(self.kind, TokenKind::Word | TokenKind::Symbol) && self.text == word
    }

    /// Whether it is one of these key words or symbols.
    pub fn is_any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }

    /// Whether it can be an identifier.
    pub fn is_name(&self) -> bool {
        matches!(self.kind, TokenKind::Word | TokenKind::Quoted)
    }
}

/// The lexical elements of a statement, without comments.
pub(super) fn tokens(text: &str) -> Vec<StatementToken> {
    let mut rest = text;
    let mut tokens = Vec::new();
    while let Some(c) = rest.chars().next() {
        let (length, kind) = element(rest, c);
        let (own, after) = rest.split_at(length);
        rest = after;
        let Some(kind) = kind else { continue };
        let text = match kind {
            TokenKind::Quoted => own
                .trim_start_matches('"')
                .trim_end_matches('"')
                .replace("\"\"", "\""),
            TokenKind::Word => own.to_lowercase(),
            TokenKind::Constant | TokenKind::Symbol => own.to_owned(),
        };
        tokens.push(StatementToken { kind, text });
    }
    tokens
}

/// The length of the element that begins `text`, at least 1, and its kind; `None` for white space and
/// comments.
fn element(text: &str, c: char) -> (usize, Option<TokenKind>) {
    let span = |of: &dyn Fn(char) -> bool| text.find(|c: char| !of(c)).unwrap_or(text.len());
    let begins_dollar_quote = || {
        let tag = text[1..].find('$').map(|at| &text[1..=at]);
        tag.is_some_and(|tag| tag.chars().all(|c| c.is_alphanumeric() || c == '_'))
    };
    match c {
        _ if c.is_whitespace() => (span(&char::is_whitespace), None),
        '-' if text.starts_with("--") => (text.find('\n').unwrap_or(text.len()), None),
        '/' if text.starts_with("/*") => (comment(text), None),
        '"' => (quoted(text, '"'), Some(TokenKind::Quoted)),
        '\'' => (quoted(text, '\''), Some(TokenKind::Constant)),
        '$' if text[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            let digits = text[1..].find(|c: char| !c.is_ascii_digit());
            (
                digits.map_or(text.len(), |at| at + 1),
                Some(TokenKind::Constant),
            )
        }
        '$' if begins_dollar_quote() => (dollar_quoted(text), Some(TokenKind::Constant)),
        _ if c.is_ascii_digit() => {
            let of = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
            (span(&of), Some(TokenKind::Constant))
        }
        _ if c.is_alphabetic() || c == '_' => {
            let of = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
            (span(&of), Some(TokenKind::Word))
        }
        ':' if text.starts_with("::") => (2, Some(TokenKind::Symbol)),
        _ if OPERATOR.contains(c) => {
            let length = span(&|c| OPERATOR.contains(c));
            let comment = ["--", "/*"]
                .iter()
                .filter_map(|it| text[1..length].find(it));
            (
                comment.min().map_or(length, |at| at + 1),
                Some(TokenKind::Symbol),
            )
        }
        _ => (c.len_utf8(), Some(TokenKind::Symbol)),
    }
}

/// The length of a nested comment.
fn comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a quoted text in which a doubled quote stands for one.
fn quoted(text: &str, quote: char) -> usize {
    let mut at = 1;
    while let Some(end) = text[at..].find(quote) {
        at += end + 1;
        if !text[at..].starts_with(quote) {
            return at;
        }
        at += 1;
    }
    text.len()
}

fn dollar_quoted(text: &str) -> usize {
    let tag_end = text[1..].find('$').map_or(text.len(), |at| at + 2);
    let tag = &text[..tag_end];
    text[tag_end..]
        .find(tag)
        .map_or(text.len(), |at| tag_end + at + tag.len())
}
