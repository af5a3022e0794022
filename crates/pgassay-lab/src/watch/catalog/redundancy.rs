//! Whether one index serves every scan of another: pure.

use std::collections::BTreeSet;

use super::row::CatalogRow;

/// What defines an index, as `pg_index` has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct IndexKeys {
    method: String,
    /// Key columns; further columns are only stored.
    pub count: usize,
    /// Column numbers, 0 for an expression; stored ones too.
    columns: Vec<i16>,
    /// Operator class, collation, option and parameters of each key.
    kinds: Vec<(String, String, String, String)>,
    /// The trees of the expressions, in parentheses, without positions.
    expressions: Option<String>,
    /// The tree of the predicate.
    pub predicate: Option<String>,
    /// Storage parameters that may decide what the index finds, and how fast: those of all methods but B-trees and
    /// hash indexes, such as `pages_per_range`.
    options: BTreeSet<String>,
}

impl IndexKeys {
    /// From the columns 6, 8 to 15 and 21 of the query of indexes.
    pub fn parse(row: &CatalogRow, columns: usize) -> Option<Self> {
        let words = |at| -> Vec<String> {
            let text = row.get(at).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        };
        let count = (row.count(9) as usize).min(columns);
        let (classes, collations, options) = (words(10), words(11), words(12));
        let parameters = row.texts(13);
        let kind = |at: usize| {
            let parameter = parameters.get(at).cloned().unwrap_or_default();
            Some((
                classes.get(at)?.clone(),
                collations.get(at)?.clone(),
                options.get(at)?.clone(),
                parameter,
            ))
        };
        let method = row.text(6);
        let has_options = !matches!(&*method, "btree" | "hash");
        Some(Self {
            method,
            count,
            columns: words(8).iter().filter_map(|it| it.parse().ok()).collect(),
            kinds: (0..count).map(kind).collect::<Option<_>>()?,
            expressions: row.get(14).map(str::to_owned),
            predicate: row.get(15).map(str::to_owned),
            options: row.texts(21).into_iter().filter(|_| has_options).collect(),
        })
    }

    fn keys(&self) -> &[i16] {
        &self.columns[..self.count.min(self.columns.len())]
    }
}

/// Whether an index serves every scan of the other: same method, options and predicate, the other's keys are a
/// prefix of its keys, with the same operator classes, collations, options and expressions, and it
/// stores whatever the other stores.
pub(super) fn serves(index: &IndexKeys, other: &IndexKeys) -> bool {
    let has = |column: &i16| index.columns.contains(column);
    index.method == other.method
        && index.predicate == other.predicate
        && index.options == other.options
        && index.keys().starts_with(other.keys())
        && index.kinds.starts_with(&other.kinds)
        && other.columns[other.keys().len()..].iter().all(has)
        && begin_with(index.expressions.as_deref(), other.expressions.as_deref())
}

/// Whether a list of expressions begins with another one: `(a b)` begins with `(a)`.
fn begin_with(expressions: Option<&str>, others: Option<&str>) -> bool {
    let Some(others) = others else {
        return true;
    };
    let others = others.strip_suffix(')').unwrap_or(others);
    let rest = expressions.and_then(|it| it.strip_prefix(others));
    rest.is_some_and(|rest| rest.starts_with([')', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(columns: &[i16], count: usize) -> IndexKeys {
        let kind = |at| ("1978".to_owned(), "0".to_owned(), "0".to_owned(), at);
        IndexKeys {
            method: "btree".to_owned(),
            count,
            columns: columns.to_vec(),
            kinds: vec![kind(String::new()); count],
            expressions: None,
            predicate: None,
            options: BTreeSet::new(),
        }
    }

    #[test]
    fn a_prefix_is_served_and_another_order_is_not() {
        let (a, ab, ba) = (index(&[1], 1), index(&[1, 2], 2), index(&[2, 1], 2));
        assert!(serves(&ab, &a) && serves(&a, &a));
        assert!(!serves(&a, &ab) && !serves(&ba, &a) && !serves(&ba, &ab));
    }

    #[test]
    fn every_difference_of_a_key_counts() {
        let (a, ab) = (index(&[1], 1), index(&[1, 2], 2));
        for change in [
            |it: &mut IndexKeys| it.method = "hash".to_owned(),
            |it: &mut IndexKeys| it.kinds[0].0 = "1979".to_owned(),
            |it: &mut IndexKeys| it.kinds[0].1 = "100".to_owned(),
            |it: &mut IndexKeys| it.kinds[0].2 = "3".to_owned(),
            |it: &mut IndexKeys| it.kinds[0].3 = "siglen=8".to_owned(),
            |it: &mut IndexKeys| it.predicate = Some("{NULLTEST}".to_owned()),
            // Regression: a BRIN index of few pages per range was redundant with one of many.
            |it: &mut IndexKeys| it.options = ["pages_per_range=4".to_owned()].into(),
        ] {
            let mut other = ab.clone();
            change(&mut other);
            assert!(!serves(&other, &a), "{other:?}");
        }
    }

    /// Rows of a B-tree and of a BRIN index with a storage parameter.
    #[test]
    fn the_fill_factor_of_a_btree_does_not_count_and_pages_per_range_do() {
        let keys = |method: &str, option: &str| {
            let mut values = vec![None; 22];
            for (at, value) in [
                (6, method),
                (8, "1"),
                (9, "1"),
                (10, "1978"),
                (11, "0"),
                (12, "0"),
                (13, "[\"\"]"),
                (21, &*format!("[\"{option}\"]")),
            ] {
                values[at] = Some(value.to_owned());
            }
            IndexKeys::parse(&CatalogRow::new(values), 1).expect("keys")
        };
        let same = |method, one, other| serves(&keys(method, one), &keys(method, other));
        assert!(same("btree", "fillfactor=70", "fillfactor=90"));
        assert!(!same("brin", "pages_per_range=4", "pages_per_range=128"));
        assert!(same("brin", "pages_per_range=4", "pages_per_range=4"));
    }

    #[test]
    fn stored_columns_must_be_there_too() {
        let (stored, keys) = (index(&[1, 3], 1), index(&[1, 2], 2));
        assert!(!serves(&keys, &stored));
        assert!(serves(&index(&[1, 2, 3], 2), &stored));
        assert!(serves(&index(&[1, 3], 2), &stored));
        assert!(!serves(&stored, &index(&[1, 3], 2)));
    }

    #[test]
    fn expressions_are_compared_one_by_one() {
        let with = |expressions: &str, count| IndexKeys {
            expressions: Some(expressions.to_owned()),
            ..index(&vec![0; count], count)
        };
        let (f, fg, h) = (with("({f})", 1), with("({f} {g})", 2), with("({fg})", 1));
        assert!(serves(&fg, &f));
        assert!(!serves(&h, &f) && !serves(&f, &fg) && !serves(&with("({g})", 1), &f));
        assert!(!serves(&index(&[0], 1), &f));
    }
}
