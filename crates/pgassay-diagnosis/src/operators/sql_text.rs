//! What a normalized statement says about tables, as far as a reader without a grammar can tell: which
//! relations it names, and which columns of a single table it filters by.
//!
//! It reads lexically and gives up early: a join, an OR, a subquery or a function around the column
//! yields no columns rather than wrong ones.

use super::sql_expressions::is_value;
use pgassay_script::named_relations::{is_lock_clause, named_relations};
use pgassay_script::statement_tokens::{StatementToken, TokenKind};

/// Columns of a filter that an index could serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableFilter {
    /// Compared for equality.
    pub equal: Vec<String>,
    /// Compared with `<`, `>`, `<=`, `>=` or `between`.
    pub range: Vec<String>,
    /// There is no other condition.
    pub is_whole: bool,
}

impl TableFilter {
    /// The columns of an index that serves it: those compared for equality, then one range.
    pub fn index_columns(&self) -> Vec<String> {
        let range = self.range.iter().find(|it| !self.equal.contains(it));
        self.equal.iter().chain(range).cloned().collect()
    }
}

/// Words with which the number of rows returned says nothing about the number of rows kept.
const SUMMARIES: [&str; 25] = [
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "group",
    "distinct",
    "limit",
    "offset",
    "fetch",
    "exists",
    "having",
    "array_agg",
    "string_agg",
    "json_agg",
    "jsonb_agg",
    "bool_and",
    "bool_or",
    "every",
    "stddev",
    "variance",
    "union",
    "intersect",
    "except",
    "percentile_cont",
];

/// The command, in lower case; empty for an empty text.
pub(super) fn command(tokens: &[StatementToken]) -> &str {
    tokens.first().map_or("", |first| first.text.as_str())
}

/// Whether the number of rows that it returns says nothing about the number of rows that its filter
/// keeps.
pub(super) fn summarizes(tokens: &[StatementToken]) -> bool {
    tokens.iter().any(|it| it.is_any(&SUMMARIES))
}

/// Whether it is a LIMIT alone that hides how many rows its filter keeps: it returns or changes the first few of them.
pub(super) fn takes_first_rows(tokens: &[StatementToken]) -> bool {
    let is_limit = |it: &StatementToken| it.is_any(&["limit", "fetch"]);
    let is_summary = |it: &StatementToken| it.is_any(&SUMMARIES) && !is_limit(it);
    tokens.iter().any(is_limit) && !tokens.iter().any(is_summary)
}

/// Whether it has a condition `not in (select …)`.
pub(super) fn excludes_rows_of_query(tokens: &[StatementToken]) -> bool {
    let words = ["not", "in", "(", "select"];
    let mut places = tokens.windows(words.len());
    places.any(|place| place.iter().zip(words).all(|(it, word)| it.is(word)))
}

/// Whether it returns the rows of a page, and OFFSET skips those before it.
pub(super) fn skips_rows(tokens: &[StatementToken]) -> bool {
    let is_page = |it: &StatementToken| it.is_any(&["limit", "fetch", "offset"]);
    let has = |word: &str| tokens.iter().any(|it| it.is(word));
    let is_summary = |it: &StatementToken| it.is_any(&SUMMARIES) && !is_page(it);
    let is_single = tokens.iter().filter(|it| it.is("select")).count() == 1;
    let is_limited = has("limit") || has("fetch");
    is_single && has("offset") && has("order") && is_limited && !tokens.iter().any(is_summary)
}

/// Whether it has a condition that rows can fail.
pub(super) fn has_condition(tokens: &[StatementToken]) -> bool {
    tokens.iter().any(|it| it.is_any(&["where", "join"]))
}

/// Whether it is an UPDATE that sets one of these columns, to whatever value.
pub(super) fn sets_any(tokens: &[StatementToken], columns: &[String]) -> bool {
    let start = tokens.iter().position(|it| it.is("set"));
    let Some(start) = start.filter(|_| command(tokens) == "update") else {
        return false;
    };
    let is_end = |it: &StatementToken| it.is_any(&["where", "from", "returning"]);
    // Columns stand at the beginning of the list and after its commas, alone or in parentheses.
    let (mut depth, mut is_target) = (0_i32, true);
    for token in &tokens[start + 1..] {
        if token.is("(") {
            depth += 1;
        } else if token.is(")") {
            depth -= 1;
        } else if token.is("=") {
            is_target = false;
        } else if token.is(",") {
            is_target |= depth == 0;
        } else if depth == 0 && is_end(token) {
            return false;
        } else if is_target && token.is_name() && columns.contains(&token.text) {
            return true;
        }
    }
    false
}

/// Whether it is a command that writes through a ring buffer, or past the buffer cache, whatever the
/// size of shared buffers.
pub(super) fn is_bulk(tokens: &[StatementToken]) -> bool {
    match command(tokens) {
        "copy" | "vacuum" | "analyze" | "create" | "cluster" | "refresh" | "reindex" | "alter" => {
            true
        }
        // SELECT INTO creates a table.
        "select" => tokens.iter().any(|it| it.is("into")),
        _ => false,
    }
}

/// The columns by which a statement on a single table filters it; `None` if there are several tables,
/// or if the filter is more than comparisons of columns with constants, joined by AND.
pub(super) fn filter(tokens: &[StatementToken]) -> Option<TableFilter> {
    let (conditions, names) = conditions(tokens)?;
    let mut filter = TableFilter::default();
    let read = conditions
        .iter()
        .filter(|it| add(&mut filter, it, &names))
        .count();
    filter.is_whole = read == conditions.len();
    (!filter.equal.is_empty() || !filter.range.is_empty()).then_some(filter)
}

/// Conditions, and what may stand before a column in them.
type Conditions<'a> = (Vec<&'a [StatementToken]>, Vec<&'a str>);

/// The conditions of a statement on a single table, joined by AND.
pub(super) fn conditions(tokens: &[StatementToken]) -> Option<Conditions<'_>> {
    let is_plain = !tokens
        .iter()
        .any(|it| it.is_any(&["join", "with", "using"]));
    if !is_plain || named_relations(tokens).len() != 1 {
        return None;
    }
    let from = tokens.iter().position(|it| it.is("where"))?;
    Some((conjuncts_of_where(tokens)?, table_names(&tokens[..from])))
}

/// The conditions of the WHERE clause of a statement without subqueries, joined by AND.
pub(super) fn conjuncts_of_where(tokens: &[StatementToken]) -> Option<Vec<&[StatementToken]>> {
    let is_head = |at: &usize| {
        let is_command = tokens[*at].is_any(&["select", "update", "delete"]);
        is_command && !is_lock_clause(tokens, *at)
    };
    if (0..tokens.len()).filter(is_head).count() != 1 {
        return None;
    }
    let from = tokens.iter().position(|it| it.is("where"))? + 1;
    conjuncts(&tokens[from..end_of_where(tokens, from)])
}

/// What may stand before a column: the table's name and its alias.
pub(super) fn table_names(head: &[StatementToken]) -> Vec<&str> {
    let start = head.iter().position(|it| it.is_any(&["from", "update"]));
    let head = &head[start.unwrap_or(0)..];
    let end = head
        .iter()
        .position(|it| it.is("set"))
        .unwrap_or(head.len());
    let names = head[..end].iter().filter(|it| it.is_name());
    names.map(|it| it.text.as_str()).collect()
}

fn end_of_where(tokens: &[StatementToken], from: usize) -> usize {
    let mut depth = 0_i32;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        if token.is("(") {
            depth += 1;
        } else if token.is(")") {
            depth -= 1;
        }
        if depth < 0 || depth == 0 && token.ends_where() {
            return at;
        }
    }
    tokens.len()
}

/// The parts between ANDs; `None` if there is an OR.
fn conjuncts(clause: &[StatementToken]) -> Option<Vec<&[StatementToken]>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    let mut between = false;
    for (at, token) in clause.iter().enumerate() {
        if token.is("(") {
            depth += 1;
        } else if token.is(")") {
            depth -= 1;
        } else if token.is("or") && depth == 0 {
            return None;
        } else if token.is("between") && depth == 0 {
            between = true;
        } else if token.is("and") && depth == 0 {
            if between {
                between = false;
            } else {
                parts.push(&clause[start..at]);
                start = at + 1;
            }
        }
    }
    parts.push(&clause[start..]);
    Some(parts)
}

/// Adds the column of a comparison with constants; anything else adds nothing, and is false.
pub(super) fn add(filter: &mut TableFilter, conjunct: &[StatementToken], names: &[&str]) -> bool {
    let inner = match conjunct {
        [open, inner @ .., close]
            if open.is("(") && close.is(")") && !inner.iter().any(|it| it.is_any(&["(", ")"])) =>
        {
            inner
        }
        all => all,
    };
    if inner.iter().any(|it| it.is("or")) {
        return false;
    }
    let (column, rest) = match column(inner, names) {
        Some(found) => found,
        // A constant comes first: `$1 = id`.
        None => match inner {
            [constant, operator, rest @ ..] if constant.kind == TokenKind::Constant => {
                let Some((column, [])) = column(rest, names) else {
                    return false;
                };
                (column, std::slice::from_ref(operator))
            }
            _ => return false,
        },
    };
    let Some(operator) = rest.first() else {
        return false;
    };
    if rest.len() > 1 && !is_value(&rest[1..]) {
        return false;
    }
    let list = match operator.text.as_str() {
        "=" | "in" => &mut filter.equal,
        "<" | ">" | "<=" | ">=" | "between" => &mut filter.range,
        _ => return false,
    };
    if !list.contains(&column) {
        list.push(column);
    }
    true
}

/// A column at the start, and what follows it.
pub(super) fn column<'a>(
    part: &'a [StatementToken],
    names: &[&str],
) -> Option<(String, &'a [StatementToken])> {
    match part {
        [table, dot, column, rest @ ..] if table.is_name() && dot.is(".") && column.is_name() => {
            let is_its = names.contains(&table.text.as_str());
            is_its.then(|| (column.text.clone(), rest))
        }
        [column, rest @ ..] if column.is_name() && !column.is("not") => {
            let is_function = rest.first().is_some_and(|it| it.is("("));
            (!is_function).then(|| (column.text.clone(), rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::statement_tokens::tokens;

    fn columns(text: &str) -> Option<Vec<String>> {
        filter(&tokens(text)).map(|it| it.index_columns())
    }

    #[test]
    fn comparisons_with_constants_give_columns_equality_first() {
        let cases = [
            ("select * from t where a = $1", Some("a")),
            (
                "select * from t where at > $1 and a = $2 and b in ($3, $4)",
                Some("a b at"),
            ),
            (
                "select * from t x where x.a = $1 and t.b = $2::int",
                Some("a b"),
            ),
            (
                "select * from s.t where t.\"A b\" = any ($1::int[]) limit $2",
                Some("A b"),
            ),
            ("update t set n = $1 where $2 = k and n < $3", Some("k n")),
            (
                "delete from t where at between $1 and $2 and a = $3 returning *",
                Some("a at"),
            ),
            (
                "select * from t where (a = $1) and at >= now() - interval $2 order by c",
                Some("a at"),
            ),
            (
                "select * from t where a = $1 and a < $2 and a = $3",
                Some("a"),
            ),
            ("select * from t where a = $1 for update", Some("a")),
            (
                "select * from t where a = $1 and lower(b) = $2 and c is null",
                Some("a"),
            ),
        ];
        for (text, expected) in cases {
            let expected = expected.map(str::to_owned);
            assert_eq!(columns(text).map(|it| it.join(" ")), expected, "{text}");
        }
    }

    #[test]
    fn anything_beyond_that_gives_no_columns() {
        for text in [
            "select * from t",
            "select * from t where a = $1 or b = $2",
            "select * from t where (a = $1 or b = $2)",
            "select * from t where lower(a) = $1",
            "select * from t where a = b",
            "select * from t where a = f($1)",
            "select * from t where a like $1",
            "select * from t where a <> $1",
            "select * from t where not a = $1",
            "select * from t where a + $1 = $2",
            "select * from t where u.a = $1",
            "select * from t, u where t.a = $1",
            "select * from t join u on t.i = u.i where t.a = $1",
            "select * from t where a = (select max(a) from u)",
            "select * from t where exists (select from t where a = $1)",
            "with x as (select 1) select * from t where a = $1",
            "insert into t values ($1)",
            "truncate t",
            "where",
        ] {
            assert_eq!(columns(text), None, "{text}");
        }
    }

    #[test]
    fn the_columns_that_an_update_sets_are_known() {
        let columns = ["id".to_owned(), "Key".to_owned()];
        for (text, expected) in [
            ("update t set id = $1", true),
            ("update t set a = $1, id = $2 where id = $3", true),
            ("update t set (a, id) = ($1, $2)", true),
            ("update t set a = f(b, c), \"Key\" = $1", true),
            ("UPDATE ONLY t AS x SET ID = $1", true),
            ("update t set a = id where id = $1", false),
            ("update t set a = f($1, id), b = $2", false),
            ("update t set (a, b) = (id, $1)", false),
            ("update t set key = $1", false),
            ("delete from t where id = $1", false),
            (
                "insert into t values ($1) on conflict (id) do update set id = $2",
                false,
            ),
            ("update t set", false),
        ] {
            assert_eq!(sets_any(&tokens(text), &columns), expected, "{text}");
        }
    }

    #[test]
    fn broken_and_cut_texts_end() {
        for text in [
            "select 'abc",
            "select \"abc",
            "select $a$ x",
            "select /* /* x */",
            "$",
            "$1",
            "'",
            "\"",
            "select * from",
            "select * from t where",
            "select * from t where a =",
            "select * from t.",
            "--",
            "/*",
            "é$é",
            "a$b = $1",
            "((((",
            "))))",
        ] {
            let tokens = tokens(text);
            let _ = (
                named_relations(&tokens),
                filter(&tokens),
                summarizes(&tokens),
            );
        }
        assert!(summarizes(&tokens("select COUNT(*) from t")));
        assert!(!summarizes(&tokens("select counter from t")));
    }
}
