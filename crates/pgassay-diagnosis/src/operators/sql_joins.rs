//! Which columns of one table a join compares with values.

use super::sql_text::{self, TableFilter};
use pgassay_script::named_relations::RelationMention;
use pgassay_script::statement_tokens::StatementToken;

/// Words that may follow a table in a list of tables, and are no alias.
const NOT_ALIASES: [&str; 14] = [
    "where", "set", "on", "join", "inner", "left", "right", "full", "cross", "natural", "using",
    "group", "order", "limit",
];

/// The columns of this table that the WHERE clause of a single SELECT, UPDATE or DELETE compares with values, by
/// conditions that begin with the name of the table or its alias and are joined by AND; `None` if there are none, or if
/// the table is named more than once.
pub(super) fn own_filter(
    tokens: &[StatementToken],
    table: &RelationMention,
) -> Option<TableFilter> {
    let parts = sql_text::conjuncts_of_where(tokens)?;
    let name = qualifier(tokens, table)?;
    let mut filter = TableFilter::default();
    for part in parts {
        let is_its = part
            .windows(2)
            .any(|pair| pair[0].text == name && pair[1].is("."));
        if is_its {
            sql_text::add(&mut filter, part, &[&name]);
        }
    }
    (!filter.equal.is_empty() || !filter.range.is_empty()).then_some(filter)
}

/// What stands before the columns of a table: its alias, or its name without one.
fn qualifier(tokens: &[StatementToken], table: &RelationMention) -> Option<String> {
    let is_named = |at: &usize| {
        let follows_dot = at.checked_sub(1).is_some_and(|at| tokens[at].is("."));
        let is_before = |steps: usize, words: &[&str]| {
            let before = at.checked_sub(steps).and_then(|at| tokens.get(at));
            before.is_some_and(|it| it.is_any(words))
        };
        let steps = if follows_dot { 3 } else { 1 };
        tokens[*at].text == table.name
            && is_before(steps, &["from", "join", ",", "update", "only", "using"])
    };
    let is_column = |at: &usize| tokens.get(at + 1).is_some_and(|it| it.is("."));
    let mut places = (0..tokens.len()).filter(|at| is_named(at) && !is_column(at));
    let at = places.next()?;
    if places.next().is_some() {
        return None;
    }
    let next = tokens.get(at + 1);
    let alias = match next {
        Some(word) if word.is("as") => tokens.get(at + 2),
        other => other,
    };
    let alias = alias.filter(|it| it.is_name() && !it.is_any(&NOT_ALIASES));
    Some(alias.map_or_else(|| table.name.clone(), |it| it.text.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::statement_tokens::tokens;

    #[test]
    fn columns_of_a_join_are_those_that_begin_with_the_name_of_the_table() {
        for (text, expected) in [
            (
                "select * from orders o join item i on i.o = o.id where i.p = $1 and o.s in ($2, $3) and o.at > $4",
                Some("s at"),
            ),
            (
                "select * from orders, item where orders.s = $1 and item.o = orders.id",
                Some("s"),
            ),
            (
                "select * from item i left join orders as o on o.id = i.o where $1 = o.s",
                Some("s"),
            ),
            (
                "select * from item i join shop.orders o on o.id = i.o where o.s = $1 limit $2",
                Some("s"),
            ),
            (
                "update item i set p = $1 from orders o where o.id = i.o and o.s = $2",
                Some("s"),
            ),
            // Of another table, of either, with OR, or of one of two.
            (
                "select * from orders o join item i on i.o = o.id where i.p = $1",
                None,
            ),
            (
                "select * from orders o join item i on i.o = o.id where s = $1",
                None,
            ),
            (
                "select * from orders o join item i on i.o = o.id where o.s = $1 or i.p = $2",
                None,
            ),
            (
                "select * from orders o join orders p on p.id = o.of where p.s = $1",
                None,
            ),
            (
                "select * from orders o join item i on i.o = o.id where o.s = i.s",
                None,
            ),
            (
                "select * from orders o where o.id in (select i.o from item i where i.p = $1)",
                None,
            ),
        ] {
            let orders = RelationMention {
                schema: None,
                name: "orders".to_owned(),
            };
            let found = own_filter(&tokens(text), &orders);
            let columns = found.map(|it| it.index_columns().join(" "));
            assert_eq!(columns.as_deref(), expected, "{text}");
        }
    }
}
