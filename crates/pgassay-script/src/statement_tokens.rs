//! The lexical elements of a statement.

use crate::sql_scanner::{SqlLexeme, lexemes};

/// Characters of operators (`scan.l`, `op_chars`).
const OPERATOR: &str = "+-*/<>=~!@#%^&|`?";
/// Words of values that do not depend on the row: types to cast to, and functions of the current time.
const VALUE_WORDS: [&str; 38] = [
    "now",
    "current_date",
    "current_timestamp",
    "localtimestamp",
    "interval",
    "date",
    "timestamp",
    "timestamptz",
    "time",
    "int",
    "integer",
    "bigint",
    "smallint",
    "text",
    "numeric",
    "uuid",
    "varchar",
    "character",
    "varying",
    "boolean",
    "bool",
    "any",
    "array",
    "and",
    "true",
    "false",
    "int2",
    "int4",
    "int8",
    "decimal",
    "real",
    "float4",
    "float8",
    "double",
    "precision",
    "char",
    "json",
    "jsonb",
];

/// Operators and punctuation of such values.
const VALUE_SYMBOLS: [&str; 12] = ["(", ")", ",", "::", "+", "-", "*", "/", "||", "[", "]", "."];

/// Words that end a WHERE clause.
const AFTER_WHERE: [&str; 13] = [
    "group",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
    "union",
    "intersect",
    "except",
    "returning",
    "having",
    "window",
    ";",
];

/// A lexical element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementToken {
    /// What it is.
    pub kind: TokenKind,
    /// Key words and plain identifiers in lower case; quoted identifiers without their quotes.
    pub text: String,
}

/// Kinds of [`StatementToken`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
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

    /// Whether it ends a WHERE clause.
    pub fn ends_where(&self) -> bool {
        self.is_any(&AFTER_WHERE)
    }

    /// Whether it can be a part of a value that does not depend on the row: constants, casts, arithmetic and the
    /// functions of the current time.
    pub fn is_of_value(&self) -> bool {
        match self.kind {
            TokenKind::Constant => true,
            TokenKind::Quoted => false,
            TokenKind::Word => VALUE_WORDS.contains(&self.text.as_str()),
            TokenKind::Symbol => self.is_any(&VALUE_SYMBOLS),
        }
    }
}

/// The lexical elements of a statement, without comments.
pub fn tokens(text: &str) -> Vec<StatementToken> {
    let mut tokens: Vec<StatementToken> = Vec::new();
    let mut follows_operator = false;
    for (lexeme, own) in lexemes(text) {
        let is_operator = lexeme == SqlLexeme::Other && own.chars().all(is_of_operator);
        if let Some(last) = tokens
            .last_mut()
            .filter(|_| is_operator && follows_operator)
        {
            last.text.push_str(own);
            continue;
        }
        follows_operator = is_operator;
        let (kind, text) = match lexeme {
            SqlLexeme::Blank | SqlLexeme::Cut => continue,
            SqlLexeme::Word => (TokenKind::Word, own.to_lowercase()),
            SqlLexeme::Constant | SqlLexeme::Parameter => (TokenKind::Constant, own.to_owned()),
            SqlLexeme::Other => match own.strip_prefix('"') {
                Some(name) => {
                    let name = name.strip_suffix('"').unwrap_or(name);
                    (TokenKind::Quoted, name.replace("\"\"", "\""))
                }
                None => (TokenKind::Symbol, own.to_owned()),
            },
        };
        tokens.push(StatementToken { kind, text });
    }
    tokens
}

/// Whether consecutive ones form an operator, or a cast.
fn is_of_operator(c: char) -> bool {
    OPERATOR.contains(c) || c == ':'
}
