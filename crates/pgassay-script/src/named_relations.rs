//! Which relations a statement names, as far as a reader without a grammar can tell.

use crate::statement_tokens::StatementToken;

/// A relation as a statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationMention {
    /// Its schema, if the statement names it.
    pub schema: Option<String>,
    /// Its name.
    pub name: String,
}

/// Words that end a list of relations, besides those that end a WHERE clause.
const CLAUSES: [&str; 7] = ["where", "set", "on", "values", "select", "default", "using"];
/// Words after which a relation is named.
const BEFORE_RELATION: [&str; 6] = ["from", "join", "update", "into", "only", "table"];
/// Commands that name a relation at once.
const BEGIN_WITH_RELATION: [&str; 6] = ["truncate", "vacuum", "analyze", "lock", "copy", "reindex"];
/// Words where a relation is expected that are none.
const NOT_RELATIONS: [&str; 8] = [
    "if", "not", "exists", "stdin", "stdout", "program", "lateral", "verbose",
];
/// The relations that a statement names, in order, without repetition.
pub fn named_relations(tokens: &[StatementToken]) -> Vec<RelationMention> {
    let mut found: Vec<RelationMention> = Vec::new();
    let begins = tokens.first().map_or("", |first| first.text.as_str());
    let mut expected = BEGIN_WITH_RELATION.contains(&begins);
    let mut in_list = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if token.is_any(&BEFORE_RELATION) {
            expected = begins_relation(tokens, at - 1);
            in_list = expected && token.is_any(&["from", "only"]);
        } else if token.is_any(&CLAUSES) || token.ends_where() {
            (expected, in_list) = (false, false);
        } else if token.is(",") {
            expected = in_list;
        } else if expected && token.is_name() && !token.is_any(&NOT_RELATIONS) {
            if at == 1 {
                continue;
            }
            expected = false;
            let (mention, next) = mention(tokens, at - 1);
            at = next;
            let is_function = tokens.get(at).is_some_and(|it| it.is("("));
            let is_insert = begins == "insert" && found.is_empty();
            if (!is_function || is_insert) && !found.contains(&mention) {
                found.push(mention);
            }
        } else if token.is("(") {
            // A subquery follows, or a list of columns.
            expected = false;
        }
    }
    found
}

/// Whether the word at this place really precedes a relation: `for update`, `is distinct from` and
/// `extract(x from y)` do not.
fn begins_relation(tokens: &[StatementToken], at: usize) -> bool {
    let back = |steps: usize| at.checked_sub(steps).and_then(|at| tokens.get(at));
    let follows = |words: &[&str]| back(1).is_some_and(|it| it.is_any(words));
    if tokens[at].is("update") {
        return !is_lock_clause(tokens, at);
    }
    if !tokens[at].is("from") {
        return true;
    }
    // Back to the parenthesis around it, if there is one.
    let mut depth = 0_i32;
    let open = (0..at).rev().find(|&before| {
        depth += i32::from(tokens[before].is(")")) - i32::from(tokens[before].is("("));
        depth < 0
    });
    let of_function = open
        .and_then(|open| open.checked_sub(1))
        .is_some_and(|before| tokens[before].is_any(&["extract", "substring", "trim", "overlay"]));
    !of_function && !follows(&["distinct"])
}

/// Whether the `update` at this place belongs to another command.
pub fn is_lock_clause(tokens: &[StatementToken], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|at| tokens.get(at));
    before.is_some_and(|it| it.is_any(&["for", "do", "on", "key"]))
}

/// The relation named at this place, and the place behind it.
fn mention(tokens: &[StatementToken], at: usize) -> (RelationMention, usize) {
    let name_at = |at: usize| tokens.get(at).filter(|it| it.is_name());
    let is_dot = |at: usize| tokens.get(at).is_some_and(|it| it.is("."));
    let first = tokens[at].text.clone();
    let second = name_at(at + 2).filter(|_| is_dot(at + 1));
    let (schema, name, next) = match second {
        Some(second) => (Some(first), second.text.clone(), at + 3),
        None => (None, first, at + 1),
    };
    (RelationMention { schema, name }, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement_tokens::tokens;

    fn named(text: &str) -> Vec<String> {
        let mentions = named_relations(&tokens(text)).into_iter();
        let name = |it: RelationMention| match it.schema {
            Some(schema) => format!("{schema}.{}", it.name),
            None => it.name,
        };
        mentions.map(name).collect()
    }

    #[test]
    fn relations_are_found_where_sql_names_them() {
        let cases = [
            ("select * from orders where id = $1", "orders"),
            (
                "SELECT a, b FROM Shop.Orders o, only \"Big T\" x JOIN c ON c.i = o.i",
                "shop.orders Big T c",
            ),
            ("update orders set n = $1 where id = $2", "orders"),
            ("delete from only a.b using c where b.i = c.i", "a.b"),
            (
                "insert into t (from_a) select x from (select y from z) q",
                "t z",
            ),
            ("select $1 from f($2) where x in (select id from u)", "u"),
            ("select * from t for update of t", "t"),
            (
                "insert into t values ($1) on conflict (id) do update set n = $2",
                "t",
            ),
            ("select /* from x */ 1 -- from y\n from t", "t"),
            ("select 'from x' from t where a = $tag$from y$tag$", "t"),
            ("copy t from stdin", "t"),
            ("lock table t", "t"),
            ("truncate t", "t"),
            ("alter table if exists s.t add column x int", "s.t"),
            ("insert into t(a, b) values ($1, $2)", "t"),
            (
                "select extract(epoch from x), trim(both from (y)) from t",
                "t",
            ),
            ("select * from t where a is distinct from b", "t"),
            ("select * from t where a in (select b from u)", "t u"),
            ("select * from t for no key update", "t"),
            (
                "select a, items from orders o, sales.items where id = $1",
                "orders sales.items",
            ),
            ("delete from t using u where t.i = u.i", "t"),
            ("begin", ""),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(named(text).join(" "), expected, "{text}");
        }
    }
}
