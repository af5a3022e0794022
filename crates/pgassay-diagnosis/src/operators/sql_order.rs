//! The order in which a statement returns the rows of a table.

use super::names;
use super::sql_text;
use pgassay_script::statement_tokens::StatementToken;

/// What ends an ORDER BY clause.
const AFTER_ORDER: [&str; 5] = ["limit", "offset", "fetch", "for", ";"];
/// What may follow a column.
const DIRECTIONS: [&str; 5] = ["asc", "desc", "nulls", "first", "last"];

/// One column of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrderColumn {
    pub column: String,
    /// As the statement has it, such as `desc nulls last`; empty for the default.
    direction: String,
}

impl OrderColumn {
    /// In the default order.
    pub fn new(column: String) -> Self {
        Self {
            column,
            direction: String::new(),
        }
    }

    /// As CREATE INDEX takes it.
    pub fn sql(&self) -> String {
        let column = names::identifier(&self.column);
        format!("{column} {}", self.direction).trim_end().to_owned()
    }
}

/// Whether it sorts all rows of one table and returns the first few.
pub(super) fn sorts_for_first_rows(tokens: &[StatementToken]) -> bool {
    let count = |word: &str| tokens.iter().filter(|it| it.is(word)).count();
    let is_single = sql_text::command(tokens) == "select" && count("select") == 1;
    let is_plain = count("join") + count("where") + count("with") + count("over") == 0;
    is_single && is_plain && count("order") == 1 && sql_text::takes_first_rows(tokens)
}

/// The column of `select max(column) from table` without a condition, likewise of `min`.
pub(super) fn extreme_column(tokens: &[StatementToken]) -> Option<String> {
    let [select, function, open, rest @ ..] = tokens else {
        return None;
    };
    let is_it = select.is("select") && function.is_any(&["max", "min"]) && open.is("(");
    let from = rest.iter().position(|it| it.is("from"))?;
    let tables = sql_text::table_names(&rest[from..]);
    let (column, after) = sql_text::column(&rest[..from], &tables)?;
    let (close, name) = after.split_first()?;
    let is_alone = close.is(")") && name.iter().all(StatementToken::is_name);
    let is_end = |it: &StatementToken| it.is_name() || it.is_any(&[".", ";"]);
    let is_whole = rest[from..].iter().all(is_end)
        && !rest
            .iter()
            .any(|it| it.is_any(&["where", "join", "group", "having", "union"]));
    (is_it && is_alone && is_whole && names::is_decoded(&column)).then_some(column)
}

/// The columns of ORDER BY; `None` if it orders by anything else.
pub(super) fn order_columns(tokens: &[StatementToken]) -> Option<Vec<OrderColumn>> {
    let order = tokens.iter().position(|it| it.is("order"))?;
    let tables = sql_text::table_names(&tokens[..order]);
    let by = tokens.get(order + 1..)?;
    let (by, clause) = by.split_first()?;
    let end = clause.iter().position(|it| it.is_any(&AFTER_ORDER));
    let clause = &clause[..end.unwrap_or(clause.len())];
    let part = |part: &[StatementToken]| {
        let (column, rest) = sql_text::column(part, &tables)?;
        let is_direction = rest.iter().all(|it| it.is_any(&DIRECTIONS));
        let words: Vec<&str> = rest.iter().map(|it| it.text.as_str()).collect();
        let direction = words.join(" ");
        (is_direction && names::is_decoded(&column)).then_some(OrderColumn { column, direction })
    };
    if !by.is("by") {
        return None;
    }
    clause.split(|it| it.is(",")).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::statement_tokens::tokens;

    #[test]
    fn columns_of_an_order_keep_their_directions() {
        let of = |text: &str| {
            let found = order_columns(&tokens(text))?;
            let found: Vec<String> = found.iter().map(OrderColumn::sql).collect();
            Some(found.join(", "))
        };
        let listed = of("select * from t x order by x.a desc nulls last, \"B\" limit $1");
        assert_eq!(listed.as_deref(), Some("a desc nulls last, \"B\""));
        assert_eq!(of("select * from t order by a").as_deref(), Some("a"));
        for text in [
            "select * from t order by lower(a) limit $1",
            "select * from t order by a->>$1 limit $2",
            "select * from t order by $1",
            "select * from t order",
            "select * from t",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn an_extreme_is_of_one_column_of_a_whole_table() {
        let of = |text: &str| extreme_column(&tokens(text));
        for text in [
            "select max(a) from t",
            "select min(x.a) as first from s.t as x;",
        ] {
            assert_eq!(of(text).as_deref(), Some("a"), "{text}");
        }
        for text in [
            "select max(a) from t where b = $1",
            "select max(a), min(a) from t",
            "select b, max(a) from t group by b",
            "select max(a + $1) from t",
            "select max(a) from t, u",
            "select max(a) from (select a from t) t",
            "select max(a)",
            "select count(*) from t",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn the_first_rows_of_one_table_without_a_condition() {
        let is_it = |text: &str| sorts_for_first_rows(&tokens(text));
        assert!(is_it("select * from t order by a limit $1"));
        assert!(is_it("select * from t order by a fetch first $1 rows only"));
        for text in [
            "select * from t order by a",
            "select * from t limit $1",
            "select * from t where b order by a limit $1",
            "select * from t join u on t.i = u.i order by a limit $1",
            "select b, count(*) from t group by b order by a limit $1",
            "select * from (select * from t) t order by a limit $1",
        ] {
            assert!(!is_it(text), "{text}");
        }
    }
}
