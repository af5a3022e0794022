//! What a condition compares: a value that is the same for all rows, or an expression of one column.

use super::sql_text;
use pgassay_script::statement_tokens::{StatementToken, TokenKind};

/// Functions whose result is the same for all rows if their arguments are. Volatile ones are not: no index serves a
/// comparison with them.
const VALUE_FUNCTIONS: [&str; 33] = [
    "abs",
    "age",
    "btrim",
    "ceil",
    "coalesce",
    "concat",
    "date_trunc",
    "floor",
    "greatest",
    "least",
    "left",
    "length",
    "lower",
    "lpad",
    "ltrim",
    "make_date",
    "md5",
    "nullif",
    "phraseto_tsquery",
    "plainto_tsquery",
    "replace",
    "right",
    "round",
    "rtrim",
    "substr",
    "substring",
    "to_char",
    "to_date",
    "to_number",
    "to_timestamp",
    "to_tsquery",
    "trim",
    "websearch_to_tsquery",
];
/// Operators within an expression.
const ARITHMETIC: [&str; 11] = ["+", "-", "*", "/", "%", "||", "::", "(", ")", ",", "."];
/// Words within a call that are neither functions nor columns.
const CALL_WORDS: [&str; 5] = ["from", "for", "both", "leading", "trailing"];
/// With one of these, what an expression depends on is not read here.
const NOT_READ: [&str; 12] = [
    "select",
    "case",
    "exists",
    "or",
    "not",
    "null",
    "row",
    "array",
    "user",
    "current_user",
    "session_user",
    "is",
];

/// Whether these are a value that does not depend on the row.
pub(super) fn is_value(tokens: &[StatementToken]) -> bool {
    let is_call = |at: usize| {
        let is_open = tokens.get(at + 1).is_some_and(|it| it.is("("));
        is_open && tokens[at].is_any(&VALUE_FUNCTIONS)
    };
    let mut all = tokens.iter().enumerate();
    !tokens.is_empty() && all.all(|(at, token)| token.is_of_value() || is_call(at))
}

/// The two sides of a condition and the first of these operators between them, outside of parentheses.
pub(super) fn sides<'a>(
    condition: &'a [StatementToken],
    operators: &[&str],
) -> Option<(
    &'a [StatementToken],
    &'a StatementToken,
    &'a [StatementToken],
)> {
    let mut depth = 0_i32;
    let at = condition.iter().position(|it| {
        depth += i32::from(it.is("(")) - i32::from(it.is(")"));
        depth == 0 && it.is_any(operators)
    })?;
    Some((&condition[..at], &condition[at], &condition[at + 1..]))
}

/// The only column that an expression depends on; `None` if it is that column itself, if there are several or none, or
/// if the expression cannot be read.
pub(super) fn computed_from(expression: &[StatementToken], tables: &[&str]) -> Option<String> {
    let (mut found, mut is_computed) = (None, false);
    let mut rest = expression;
    while let Some((token, after)) = rest.split_first() {
        if let Some(left) = without_key_words(rest) {
            (rest, is_computed) = (left, true);
            continue;
        }
        let is_symbol = token.kind == TokenKind::Symbol;
        if token.is_any(&NOT_READ) || is_symbol && !token.is_any(&ARITHMETIC) {
            return None;
        }
        let is_function = token.is_name() && after.first().is_some_and(|it| it.is("("));
        if is_symbol || is_function || token.is_of_value() {
            is_computed |= !token.is_any(&["(", ")", "."]);
            rest = after;
            continue;
        }
        let (column, left) = sql_text::column(rest, tables)?;
        if found.as_ref().is_some_and(|it| *it != column) {
            return None;
        }
        (found, rest) = (Some(column), left);
    }
    found.filter(|_| is_computed)
}

/// Without a cast's type, `at time zone`, the field of `extract`, and other words at the start; `None` if there are
/// none.
fn without_key_words(tokens: &[StatementToken]) -> Option<&[StatementToken]> {
    match tokens {
        [cast, kind, rest @ ..] if cast.is_any(&["::", "as"]) && kind.is_name() => Some(rest),
        [at, time, zone, rest @ ..] if at.is("at") && time.is("time") && zone.is("zone") => {
            Some(rest)
        }
        [extract, open, _, from, rest @ ..]
            if extract.is("extract") && open.is("(") && from.is("from") =>
        {
            Some(rest)
        }
        [word, rest @ ..] if word.is_any(&CALL_WORDS) => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::statement_tokens::tokens;

    #[test]
    fn values_are_constants_and_functions_of_them_that_are_not_volatile() {
        for text in [
            "$1",
            "lower($1)",
            "now() - $1 * interval $2",
            "any($1)",
            "($1, abs($2))",
        ] {
            assert!(is_value(&tokens(text)), "{text}");
        }
        for text in [
            "($1, other)",
            "random() * $1",
            "lower(name)",
            "f($1)",
            "lower",
            "",
        ] {
            assert!(!is_value(&tokens(text)), "{text}");
        }
    }

    #[test]
    fn an_expression_depends_on_one_column_or_is_not_read() {
        let column = |text: &str| computed_from(&tokens(text), &["t"]);
        for text in [
            "date_trunc($1, a)",
            "lower(trim(t.a))",
            "extract(year from a)",
            "substring(a from $1 for $2)",
            "a + interval $1",
            "(a at time zone $1)::date",
            "coalesce(a, $1)",
            "a || $1",
            "cast(a as date) - $1",
            "-a",
            "a + a",
        ] {
            assert_eq!(column(text).as_deref(), Some("a"), "{text}");
        }
        for text in [
            "a",
            "(a)",
            "t.a",
            "a + b",
            "u.a + $1",
            "$1",
            "a -> $1",
            "case when a then $1 end",
            "f(",
            "",
        ] {
            assert_eq!(column(text), None, "{text}");
        }
    }
}
