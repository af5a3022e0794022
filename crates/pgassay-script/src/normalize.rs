//! Statements without their constants, so that executions of one statement can be counted together.
//!
//! The rules are those of `pg_stat_statements` (`generate_normalized_query` in
//! `contrib/pg_stat_statements`, 9.6 to 18) as far as a scanner can know them: constants become
//! parameters that are numbered after the statement's own ones, and a list of constants in `IN (…)` or
//! `ARRAY[…]` becomes its first element, as since 18. Beyond them, comments are dropped, since they can
//! contain request identifiers, and the rows of `VALUES` are folded if they look alike. The
//! fingerprint is not the server's `query_id`: that one depends on OIDs.

use sha2::{Digest, Sha256};

use crate::sql_scanner::{SqlLexeme, lexemes};

/// What PostgreSQL 18 writes after the first element of a list.
const FOLDED: &str = "/*, ... */";
/// Ends a text that was cut within a quote or a comment.
const CUT: &str = "…";

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

/// A part of the normalized text.
#[derive(Clone, Debug)]
struct StatementPart {
    text: String,
    /// What enters the fingerprint.
    canonical: String,
    /// A blank or a comment precedes it.
    is_spaced: bool,
    kind: StatementPartKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatementPartKind {
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
    let mut parts = fold_rows(&fold_lists(&parts(sql)));
    while parts.last().is_some_and(|part| part.text == ";") {
        parts.pop();
    }
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

/// The statement's parts, with a sign before a constant as part of it.
fn parts(sql: &str) -> Vec<StatementPart> {
    let mut parts: Vec<StatementPart> = Vec::new();
    let mut is_spaced = false;
    for (lexeme, lexed) in lexemes(sql) {
        let text = lexed;
        let (text, canonical, kind) = match lexeme {
            SqlLexeme::Blank => {
                is_spaced = true;
                continue;
            }
            SqlLexeme::Constant | SqlLexeme::Parameter => {
                is_spaced |= absorb_sign(&mut parts);
                let text = if lexeme == SqlLexeme::Parameter {
                    text
                } else {
                    ""
                };
                (text.to_owned(), "$".to_owned(), StatementPartKind::Value)
            }
            SqlLexeme::Word => (
                text.to_owned(),
                text.to_lowercase(),
                StatementPartKind::Word,
            ),
            SqlLexeme::Cut => (CUT.to_owned(), String::new(), StatementPartKind::Other),
            SqlLexeme::Other => (text.to_owned(), text.to_owned(), StatementPartKind::Other),
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

/// Whether a plain string ends with a backslash. With `standard_conforming_strings` off, which the text does not
/// show, the quote after it does not end the string, and what follows may be a secret.
fn ends_in_backslash(constant: &str) -> bool {
    constant.starts_with('\'') && constant.ends_with("\\'")
}

/// Removes a sign that belongs to the following constant: one that follows no operand. Returns whether
/// the sign was preceded by a blank.
fn absorb_sign(parts: &mut Vec<StatementPart>) -> bool {
    const BEFORE_OPERAND: [&str; 16] = [
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
    ];
    let [.., before, sign] = &parts[..] else {
        return false;
    };
    let follows_operand = match before.kind {
        StatementPartKind::Value => true,
        StatementPartKind::Word => !BEFORE_OPERAND.contains(&before.canonical.as_str()),
        StatementPartKind::Other => {
            matches!(before.text.as_str(), ")" | "]") || before.text.starts_with('"')
        }
    };
    if sign.text != "-" || follows_operand {
        return false;
    }
    parts.pop().is_some_and(|sign| sign.is_spaced)
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
/// anything else, or does not end.
fn list_of_values(parts: &[StatementPart], closing: &str) -> Option<(usize, usize)> {
    let end = parts.iter().position(|part| part.text == closing)?;
    let mut elements = parts[..end].split(|part| part.text == ",");
    let first = elements.clone().next()?.len();
    elements.all(is_value).then_some((first, end))
}

/// Whether these parts are a value, perhaps with a cast.
fn is_value(parts: &[StatementPart]) -> bool {
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
        folded.extend_from_slice(&parts[at..at + first]);
        if end > at + first {
            folded.push(note(true));
        }
        at = end;
    }
    folded
}

/// The length of the row in parentheses with which the parts begin.
fn row(parts: &[StatementPart]) -> Option<usize> {
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
mod tests {
    use super::normalize;
    use proptest::prelude::*;

    fn text(sql: &str) -> String {
        normalize(sql).text
    }

    #[test]
    fn constants_of_every_form_become_parameters() {
        for (sql, normalized) in [
            (
                "select 1, 1.5, .5, 1e-3, 0x1F, 1_000",
                "select $1, $2, $3, $4, $5, $6",
            ),
            (
                r"select 'a''b', E'a\'b', B'01', X'1f', N'n'",
                "select $1, $2, $3, $4, $5",
            ),
            (
                r"select U&'d\0061t', $$a;b$$, $q$ $$ $q$",
                "select $1, $2, $3",
            ),
            (
                "select -1, a - 1, a -1, (b) - 1",
                "select $1, a - $2, a -$3, (b) - $4",
            ),
            ("select 'a'\n  'b'", "select $1"),
            ("set work_mem = '64MB'", "set work_mem = $1"),
            ("alter role x password 'secret'", "alter role x password $1"),
            (
                "select interval '1 day', t1.c2, \"A'1\"",
                "select interval $1, t1.c2, \"A'1\"",
            ),
            (
                r#"select U&"d\0061t" from t"#,
                r#"select U&"d\0061t" from t"#,
            ),
        ] {
            assert_eq!(text(sql), normalized, "{sql}");
        }
    }

    #[test]
    fn constants_are_numbered_after_the_statements_own_parameters() {
        assert_eq!(text("select $2, 5, $1, 'x'"), "select $2, $3, $1, $4");
    }

    #[test]
    fn comments_blanks_and_the_last_semicolon_are_dropped() {
        let sql = "select /* request 17 */ a -- b\n\t from  t where x=1 ; ";
        assert_eq!(text(sql), "select a from t where x=$1");
        assert_eq!(text("begin; select 1;"), "begin; select $1");
        assert_eq!(text(" -- nothing"), "");
    }

    #[test]
    fn lists_of_values_are_folded_and_other_lists_are_not() {
        for (sql, normalized) in [
            ("a in (1,2,3) and b", "a in ($1 /*, ... */) and b"),
            ("a in ($1, $2)", "a in ($1 /*, ... */)"),
            ("a in ('x'::text, 'y'::text)", "a in ($1::text /*, ... */)"),
            ("a = any (array[1, 2])", "a = any (array[$1 /*, ... */])"),
            ("a in (1)", "a in ($1)"),
            ("a in (1, b)", "a in ($1, b)"),
            ("a in (select 1)", "a in (select $1)"),
            ("a in (-1, -2)", "a in ($1 /*, ... */)"),
            ("f(1, 2)", "f($1, $2)"),
            (
                "insert into t values (1, 'a'), (2, 'b'), (3, 'c')",
                "insert into t values ($1, $2) /*, ... */",
            ),
            ("values (1), (f(2))", "values ($1), (f($2))"),
            ("a in (1, 2", "a in ($1, $2"),
        ] {
            assert_eq!(text(sql), normalized, "{sql}");
        }
    }

    #[test]
    fn a_constant_a_parameter_and_a_list_have_one_fingerprint() {
        let fingerprint = |sql: &str| normalize(sql).fingerprint;
        let one = fingerprint("select * from T where id = 5 and x in (1,2)");
        assert_eq!(one.len(), 16);
        for same in [
            "SELECT *  FROM t WHERE id=$1 AND x IN ($2);",
            "select * from t where id = '7' and x in (1, 2, 3) -- trace",
            "select * from t where id = -5 and x in (1)",
        ] {
            assert_eq!(fingerprint(same), one, "{same}");
        }
        for other in [
            "select * from t where id = 5 and y in (1,2)",
            "select * from \"T\" where id = 5 and x in (1,2)",
            "select * from t where id = 5",
        ] {
            assert_ne!(fingerprint(other), one, "{other}");
        }
    }

    #[test]
    fn a_text_that_is_cut_within_a_constant_does_not_show_it() {
        for sql in [
            "select 'secret",
            "select $x$secret",
            "select E'sec\\'ret",
            "select 1 /* secret",
        ] {
            let text = text(sql);
            assert!(text.ends_with('…') && !text.contains("sec"), "{text}");
        }
        assert_eq!(text("select \"secr"), "select …");
        // Without standard_conforming_strings, the string goes on after its second quote.
        assert_eq!(text(r"select 'it\'s secret', 1"), "select $1 …");
        assert_eq!(text(r"select 'C:\dir', 1"), "select $1, $2");
    }

    #[test]
    fn a_dollar_sign_after_a_constant_does_not_change_the_fingerprint() {
        let once = normalize("''$[");
        assert_eq!(once.text, "$1 $[");
        assert_eq!(normalize(&once.text), once);
    }

    proptest! {
        #[test]
        fn a_normalized_text_stays_as_it_is(sql in r#"([a-z0-9 '"$(),;:=\-/*.éE\\\[\]]|in|array|values){0,40}"#) {
            let once = normalize(&sql);
            let twice = normalize(&once.text.replace(super::CUT, ""));
            if !once.text.contains(super::CUT) && !once.text.contains(super::FOLDED) {
                prop_assert_eq!(&twice.fingerprint, &once.fingerprint, "{}", once.text);
            }
        }

        #[test]
        fn no_constant_survives(secret in "[a-z]{12}", before in r#"([a-z0-9 (),;:=*.]|"[a-z ]{0,3}"){0,20}"#) {
            let text = normalize(&format!("{before} '{secret}' x")).text;
            prop_assert!(!text.contains(&secret), "{}", text);
        }
    }
}
