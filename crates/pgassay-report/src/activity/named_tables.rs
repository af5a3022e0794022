//! The load of the statements that name a table.

use pgassay_record::activity::{Activity, LoadBy, RelationName};

/// Words before the name of a table.
const BEFORE: [&str; 8] = [
    "from", "join", "into", "update", "table", "only", "using", "copy",
];
/// Words that end a list of tables.
const CLAUSES: [&str; 7] = [
    "select",
    "where",
    "group",
    "order",
    "set",
    "values",
    "returning",
];

/// The load of active sessions whose statements name tables: each table that a statement names has the statement's
/// whole load.
pub(crate) struct NamedTables(Vec<(f64, Vec<NamedTable>)>);

/// Schema, if the statement names it, and name.
type NamedTable = (Option<String>, String);

impl NamedTables {
    pub fn of(activity: &Activity) -> Self {
        let rows = activity.load_by(LoadBy::Statement).into_iter();
        let named = rows.filter_map(|row| {
            let statement = activity.statements.get(row.index? as usize)?;
            Some((row.load, tables(statement.text.as_ref()?)))
        });
        Self(named.collect())
    }

    /// The load of the statements that name this table.
    pub fn load(&self, table: &RelationName) -> f64 {
        let is_it = |(schema, name): &NamedTable| {
            *name == table.name && schema.as_ref().is_none_or(|it| *it == table.schema)
        };
        let loads = self.0.iter().filter(|(_, tables)| tables.iter().any(is_it));
        loads.map(|(load, _)| load).sum()
    }
}

/// The tables that a statement names.
fn tables(text: &str) -> Vec<NamedTable> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut is_list = false;
    let mut is_next = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let word = token.as_str();
        if BEFORE.contains(&word) {
            is_next = true;
            is_list = matches!(word, "from" | "using") || (is_list && word != "into");
        } else if CLAUSES.contains(&word) {
            (is_next, is_list) = (false, false);
        } else if word == "," {
            is_next = is_list;
        } else if is_next && is_name(word) {
            is_next = false;
            let qualified = tokens.get(at).is_some_and(|it| it == ".");
            let second = tokens.get(at + 1).filter(|_| qualified);
            if let Some(name) = second {
                found.push((Some(plain(word)), plain(name)));
                at += 2;
            } else {
                found.push((None, plain(word)));
            }
        } else {
            is_next = false;
        }
    }
    found
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '"')
}

fn plain(word: &str) -> String {
    let inner = word.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.unwrap_or(word).to_owned()
}

/// Words in lower case, quoted names as they are, and other characters.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
        let length = if first.is_whitespace() {
            end(&|c| !c.is_whitespace())
        } else if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |at| at + 2)
        } else if first.is_alphanumeric() || first == '_' || first == '$' {
            end(&|c| !(c.is_alphanumeric() || c == '_' || c == '$'))
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if first == '"' {
            tokens.push(token.to_owned());
        } else if !first.is_whitespace() {
            tokens.push(token.to_lowercase());
        }
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_aliases_are_no_tables() {
        for (text, expected) in [
            (
                "SELECT a, items FROM orders o, sales.items WHERE id = $1",
                "orders sales.items",
            ),
            (
                "select * from a join \"B c\" b on a.x = b.x where exists (select from d)",
                "a B c d",
            ),
            (
                "UPDATE ONLY accounts SET balance = $1, total = $2",
                "accounts",
            ),
            (
                "insert into log (a, b) select x, y from (select z from e) s, f",
                "log e f",
            ),
            ("delete from t using u where t.i = u.i", "t u"),
            ("select $1, total", ""),
            ("VACUUM", ""),
        ] {
            let named = tables(text)
                .into_iter()
                .map(|(schema, name)| schema.map_or_else(String::new, |it| it + ".") + &name);
            assert_eq!(named.collect::<Vec<_>>().join(" "), expected, "{text}");
        }
    }
}
