//! Statements without their constants, so that executions of one statement can be counted together.
//!
//! The rules are those of `pg_stat_statements` (`generate_normalized_query` in
//! `contrib/pg_stat_statements`, 9.6 to 18) as far as a scanner can know them: constants become
//! parameters that are numbered after the statement's own ones, and a list of constants in `IN (…)` or
//! `ARRAY[…]` becomes its first element, as since 18. Beyond them, comments are dropped, since they can
//! contain request identifiers, and the rows of `VALUES` are folded if they look alike. `TRUE`, `FALSE`,
//! `NULL` and the field of `EXTRACT` are constants for the server as well: they stay in the text, where they are
//! no secret, but the fingerprint does not depend on them. The fingerprint is not the server's
//! `query_id`: that one depends on OIDs.

use sha2::{Digest, Sha256};

use crate::sql_scanner::{SqlLexeme, lexemes};

/// What PostgreSQL 18 writes after the first element of a list.
const FOLDED: &str = "/*, ... */";
/// Ends a text that was cut within a quote or a comment.
pub(crate) const CUT: &str = "…";

/// A statement without its constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalizedStatement {
    /// The text: constants are `$n`, blanks are single spaces, comments and the last semicolon are
    /// dropped. Words keep their case.
    pub text: String,
    /// 64 bits of a hash of the text, as 16 hexadecimal digits. It is the same for a constant and a
    /// parameter, and ignores blanks and the case of words.
    pub fingerprint: String,
}

/// What a question mark means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuestionMark {
    /// An operator, or a part of one.
    Operator,
    /// A constant.
    Constant,
}

/// A part of the normalized text.
#[derive(Clone, Debug)]
pub(crate) struct StatementPart {
    pub text: String,
    /// What enters the fingerprint.
    pub canonical: String,
    /// A blank or a comment precedes it.
    is_spaced: bool,
    pub kind: StatementPartKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementPartKind {
    /// A constant or a parameter.
    Value,
    Word,
    Other,
}

/// Replaces the constants of a statement, also of one whose end is cut off. Any text is accepted.
///
/// ```
/// let one = pgassay_script::normalize("SELECT * FROM t WHERE a = 'x' AND b IN (1, 2)");
/// assert_eq!(one.text, "SELECT * FROM t WHERE a = $1 AND b IN ($2 /*, ... */)");
/// let other = pgassay_script::normalize("select * from t where a = $1 and b in (7)");
/// assert_eq!(one.fingerprint, other.fingerprint);
/// ```
pub fn normalize(sql: &str) -> NormalizedStatement {
    let mut parts = folded_parts(sql, QuestionMark::Operator);
    number(&mut parts, parameters_max(sql));
    let mut text = String::with_capacity(sql.len());
    let mut hash = Sha256::new();
    for part in &parts {
        if part.is_spaced && !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&part.text);
        if !part.canonical.is_empty() {
            hash.update(part.canonical.as_bytes());
            hash.update([0]);
        }
    }
    let bytes = hash.finalize();
    let fingerprint = bytes.iter().take(8).map(|byte| format!("{byte:02x}"));
    NormalizedStatement {
        text,
        fingerprint: fingerprint.collect(),
    }
}

/// The statement's parts without what is folded, and without the semicolons at its end. Constants have no text yet.
pub(crate) fn folded_parts(sql: &str, question_mark: QuestionMark) -> Vec<StatementPart> {
    let mut parts = fold_rows(&fold_lists(&parts(sql, question_mark)));
    while parts.last().is_some_and(|part| part.text == ";") {
        parts.pop();
    }
    parts
}

/// The statement's parts, with a sign before a constant as part of it.
fn parts(sql: &str, question_mark: QuestionMark) -> Vec<StatementPart> {
    let mut parts: Vec<StatementPart> = Vec::new();
    let mut is_spaced = false;
    for (lexeme, lexed) in lexemes(sql) {
        if lexeme == SqlLexeme::Blank {
            is_spaced = true;
            continue;
        }
        let value = value_text(lexeme, lexed, &parts, question_mark);
        if value.is_some() {
            is_spaced |= absorb_signs(&mut parts);
        }
        let (text, canonical, kind) = match (value, lexeme) {
            (Some(text), _) => (text.to_owned(), "$".to_owned(), StatementPartKind::Value),
            (None, SqlLexeme::Word) => {
                let canonical = lexed.to_lowercase();
                (lexed.to_owned(), canonical, StatementPartKind::Word)
            }
            (None, SqlLexeme::Cut) => (CUT.to_owned(), String::new(), StatementPartKind::Other),
            (None, _) => (lexed.to_owned(), lexed.to_owned(), StatementPartKind::Other),
        };
        // `in'x'` must not become `in$1`, which is a word, nor `'x'$` become `$1$`.
        let can_join = |text: &str, kind| kind != StatementPartKind::Other || text == "$";
        let touches =
            |before: &StatementPart| can_join(&before.text, before.kind) && can_join(&text, kind);
        is_spaced |= parts.last().is_some_and(touches);
        let is_ambiguous = lexeme == SqlLexeme::Constant && ends_in_backslash(lexed);
        parts.push(StatementPart {
            text,
            canonical,
            is_spaced,
            kind,
        });
        if is_ambiguous {
            parts.push(StatementPart {
                text: CUT.to_owned(),
                canonical: String::new(),
                is_spaced: true,
                kind: StatementPartKind::Other,
            });
            break;
        }
        is_spaced = false;
    }
    parts
}

/// What is shown of a constant or a parameter until constants have numbers; `None` if it is neither.
fn value_text<'a>(
    lexeme: SqlLexeme,
    lexed: &'a str,
    before: &[StatementPart],
    question_mark: QuestionMark,
) -> Option<&'a str> {
    match lexeme {
        SqlLexeme::Constant => Some(""),
        SqlLexeme::Parameter => Some(lexed),
        SqlLexeme::Word => is_constant_word(lexed, before).then_some(lexed),
        SqlLexeme::Other => {
            (lexed == "?" && question_mark == QuestionMark::Constant).then_some(lexed)
        }
        SqlLexeme::Blank | SqlLexeme::Cut => None,
    }
}

/// Whether the server makes a constant of this word: `NULL` and the truth values, except in tests such as `IS NOT
/// NULL`, and the field in `EXTRACT(YEAR FROM …)`.
fn is_constant_word(word: &str, before: &[StatementPart]) -> bool {
    let is = |at: usize, word: &str| {
        let part = before.len().checked_sub(at).and_then(|at| before.get(at));
        part.is_some_and(|part| part.canonical == word)
    };
    if ["null", "true", "false"]
        .iter()
        .any(|it| word.eq_ignore_ascii_case(it))
    {
        let is_test = is(1, "is") || (is(1, "not") && is(2, "is"));
        return !is_test;
    }
    is(1, "(") && is(2, "extract")
}

/// Whether a plain string ends with a backslash. With `standard_conforming_strings` off, which the text does not
/// show, the quote after it does not end the string, and what follows may be a secret.
fn ends_in_backslash(constant: &str) -> bool {
    constant.starts_with('\'') && constant.ends_with("\\'")
}

/// Removes the signs that belong to the following constant. Returns whether a blank preceded them.
fn absorb_signs(parts: &mut Vec<StatementPart>) -> bool {
    let mut is_spaced = false;
    // Again, so that the normalized text of `= - -1` stays as it is.
    while let Some(sign) = absorb_sign(parts) {
        is_spaced = sign.is_spaced;
    }
    is_spaced
}

/// Removes a sign that belongs to the following constant: one that follows no operand.
fn absorb_sign(parts: &mut Vec<StatementPart>) -> Option<StatementPart> {
    const BEFORE_OPERAND: [&str; 24] = [
        "select",
        "where",
        "and",
        "or",
        "not",
        "in",
        "values",
        "between",
        "then",
        "else",
        "when",
        "limit",
        "offset",
        "returning",
        "by",
        "set",
        "from",
        "having",
        "on",
        "case",
        "distinct",
        "all",
        "like",
        "ilike",
    ];
    let [.., before, sign] = &parts[..] else {
        return None;
    };
    let follows_operand = match before.kind {
        StatementPartKind::Value => true,
        StatementPartKind::Word => !BEFORE_OPERAND.contains(&before.canonical.as_str()),
        StatementPartKind::Other => {
            matches!(before.text.as_str(), ")" | "]") || before.text.starts_with('"')
        }
    };
    if sign.text != "-" || follows_operand {
        return None;
    }
    parts.pop()
}

/// The highest number of a parameter in the text.
fn parameters_max(sql: &str) -> u32 {
    let parameters = lexemes(sql).filter(|(lexeme, _)| *lexeme == SqlLexeme::Parameter);
    let numbers = parameters.filter_map(|(_, text)| text[1..].parse().ok());
    numbers.max().unwrap_or(0)
}

/// Gives constants their numbers.
fn number(parts: &mut [StatementPart], mut last: u32) {
    for part in parts {
        if part.kind == StatementPartKind::Value && part.text.is_empty() {
            last = last.saturating_add(1);
            part.text = format!("${last}");
        }
    }
}

/// Reduces lists of values in `IN (…)` and `ARRAY[…]` to their first elements.
fn fold_lists(parts: &[StatementPart]) -> Vec<StatementPart> {
    let mut folded: Vec<StatementPart> = Vec::with_capacity(parts.len());
    let mut at = 0;
    while at < parts.len() {
        let part = &parts[at];
        let introduced = folded.last().map(|it| it.canonical.as_str());
        let closing = match (introduced, part.text.as_str()) {
            (Some("in"), "(") => ")",
            (Some("array"), "[") => "]",
            _ => "",
        };
        folded.push(part.clone());
        at += 1;
        if closing.is_empty() {
            continue;
        }
        if let Some((first, end)) = list_of_values(&parts[at..], closing) {
            let is_long = end > first;
            folded.extend_from_slice(&parts[at..at + first]);
            if is_long {
                folded.push(note(true));
            }
            at += end;
        }
    }
    folded
}

/// The length of the first element of a list of values, and of all of them; `None` if it contains
/// anything else. A list that the end of the text cuts off has at least two elements, and ends with the text.
fn list_of_values(parts: &[StatementPart], closing: &str) -> Option<(usize, usize)> {
    let closed = parts.iter().position(|part| part.text == closing);
    let end = closed.unwrap_or(parts.len());
    let elements: Vec<_> = parts[..end].split(|part| part.text == ",").collect();
    let (last, before) = elements.split_last()?;
    let is_last_value = match closed {
        Some(_) => is_value(last),
        None => !before.is_empty() && can_become_value(last),
    };
    let are_values = is_last_value && before.iter().all(|it| is_value(it));
    are_values.then_some((elements[0].len(), end))
}

/// Whether these parts, the last of which may be cut, can be the beginning of a value.
fn can_become_value(parts: &[StatementPart]) -> bool {
    match parts {
        [] => true,
        [only] if only.kind == StatementPartKind::Word => {
            let begins = |it: &&str| it.starts_with(&only.canonical);
            ["null", "true", "false"].iter().any(begins)
        }
        [only] => only.kind == StatementPartKind::Value || matches!(only.text.as_str(), "-" | CUT),
        [value, colon] => {
            value.kind == StatementPartKind::Value && matches!(colon.text.as_str(), ":" | CUT)
        }
        [value, first, second] => {
            value.kind == StatementPartKind::Value
                && (first.text.as_str(), second.text.as_str()) == (":", ":")
        }
        _ => is_value(parts),
    }
}

/// Whether these parts are a value, perhaps with a cast.
pub(crate) fn is_value(parts: &[StatementPart]) -> bool {
    match parts {
        [value] => value.kind == StatementPartKind::Value,
        [value, first, second, kind @ ..] => {
            value.kind == StatementPartKind::Value
                && (first.text.as_str(), second.text.as_str()) == (":", ":")
                && !kind.is_empty()
                && kind.iter().all(|part| part.kind == StatementPartKind::Word)
        }
        _ => false,
    }
}

/// Reduces the rows of `VALUES` to the first if all look like it.
fn fold_rows(parts: &[StatementPart]) -> Vec<StatementPart> {
    let mut folded: Vec<StatementPart> = Vec::with_capacity(parts.len());
    let mut at = 0;
    while at < parts.len() {
        let is_values =
            parts[at].canonical == "values" && parts[at].kind == StatementPartKind::Word;
        folded.push(parts[at].clone());
        at += 1;
        let Some(first) = is_values.then(|| row(&parts[at..])).flatten() else {
            continue;
        };
        let canonical = |from: usize| parts[from..from + first].iter().map(|it| &it.canonical);
        let mut end = at + first;
        let is_same = |end: usize| {
            parts.get(end).is_some_and(|part| part.text == ",")
                && row(&parts[end + 1..]) == Some(first)
                && canonical(end + 1).eq(canonical(at))
        };
        while is_same(end) {
            end += 1 + first;
        }
        if is_cut_row(&parts[end..], &parts[at..at + first]) {
            end = parts.len();
        }
        folded.extend_from_slice(&parts[at..at + first]);
        if end > at + first {
            folded.push(note(true));
        }
        at = end;
    }
    folded
}

/// Whether these parts are a comma and the beginning of a row like this one, up to the end of the text. Its last word
/// may be cut.
fn is_cut_row(parts: &[StatementPart], row: &[StatementPart]) -> bool {
    let Some((comma, rest)) = parts.split_first() else {
        return false;
    };
    let certain = &rest[..rest.len().saturating_sub(1)];
    comma.text == ","
        && rest.len() < row.len()
        && certain
            .iter()
            .zip(row)
            .all(|(it, same)| it.canonical == same.canonical)
}

/// The length of the row in parentheses with which the parts begin.
pub(crate) fn row(parts: &[StatementPart]) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, part) in parts.iter().enumerate() {
        match part.text.as_str() {
            "(" => depth += 1,
            ")" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (at > 0).then_some(at + 1);
        }
    }
    None
}

/// Stands for what was folded. The fingerprint ignores it: a list of one value is the same statement.
fn note(is_spaced: bool) -> StatementPart {
    StatementPart {
        text: FOLDED.to_owned(),
        canonical: String::new(),
        is_spaced,
        kind: StatementPartKind::Other,
    }
}

#[cfg(test)]
mod tests;
