//! Counters for statements without a query ID, by their texts.
//!
//! Before version 14 no session shows the ID of its statement, later those do not whose user turned
//! `compute_query_id` off. Wherever a text could be that of two statements, it has no counters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use pgassay_model::check::Check;
use pgassay_record::activity::StatementCounters;
use pgassay_script::{ComparedForm, ComparedText, ConstantMark};

use super::catalog::CountedTexts;
use super::statements::sum;

/// A statement of sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenText<'a> {
    /// Normalized.
    pub text: &'a str,
    pub is_cut: bool,
    pub query_ids: &'a BTreeSet<i64>,
}

/// The counters of statements without a query ID.
#[derive(Debug, Default)]
pub(super) struct TextJoin {
    /// By the statement's position.
    pub counters: BTreeMap<u32, StatementCounters>,
    /// Statements whose text is cut and could be the beginning of none or of several.
    unclear_beginnings: usize,
    /// Statements with the text of another one.
    ambiguous: usize,
}

/// The entries of `pg_stat_statements` with one text.
#[derive(Debug, Default)]
struct CountedGroup {
    counters: Option<StatementCounters>,
    query_ids: BTreeSet<i64>,
    /// Their text may be that of several statements.
    is_unclear: bool,
    is_wrapper: bool,
}

impl CountedGroup {
    /// Whether all of its entries are executions of one statement. `EXPLAIN` and the statement in it have one text, and
    /// both are counted if `track` is `all`; statements that differ only in constants have one as well.
    fn is_clear(&self) -> bool {
        let may_be_counted_twice = self.is_wrapper && self.query_ids.len() > 1;
        !(self.is_unclear || may_be_counted_twice)
    }
}

impl TextJoin {
    /// Whether any of these statements needs the texts.
    pub fn is_required<'a>(seen: impl Iterator<Item = SeenText<'a>>) -> bool {
        seen.filter(|it| it.query_ids.is_empty()).any(|it| {
            let compared = ComparedText::new(it.text, it.is_cut, ConstantMark::Numbered);
            compared.form != ComparedForm::Incomparable
        })
    }

    /// Joins statements with counters.
    pub fn new<'a>(seen: impl Iterator<Item = SeenText<'a>>, counted: &CountedTexts) -> Self {
        let mut known_ids = BTreeSet::new();
        let mut statements = Vec::new();
        for it in seen {
            known_ids.extend(it.query_ids.iter().copied());
            let compared = ComparedText::new(it.text, it.is_cut, counted.mark);
            statements.push((compared, it.query_ids.is_empty()));
        }
        let groups = groups(counted, &known_ids);
        let mut wholes: HashMap<&str, usize> = HashMap::new();
        for (compared, _) in &statements {
            if compared.form == ComparedForm::Whole {
                *wholes.entry(compared.canonical.as_str()).or_default() += 1;
            }
        }
        let seen = SeenTexts::new(&statements);
        let mut join = Self::default();
        let unidentified = statements.iter().enumerate().filter(|(_, it)| it.1);
        for (at, (compared, _)) in unidentified {
            let group = match compared.form {
                ComparedForm::Incomparable => continue,
                ComparedForm::Whole => {
                    let group = groups.get(&compared.canonical);
                    let is_only = wholes[compared.canonical.as_str()] == 1;
                    let is_clear = is_only && group.is_none_or(CountedGroup::is_clear);
                    join.ambiguous += usize::from(!is_clear);
                    group.filter(|_| is_clear)
                }
                ComparedForm::Beginning => {
                    let group = only(&groups, &compared.canonical)
                        .filter(|_| counted.are_all && seen.is_only(&compared.canonical));
                    join.unclear_beginnings += usize::from(group.is_none());
                    group
                }
            };
            if let Some(counters) = group.and_then(|it| it.counters) {
                join.counters.insert(at as u32, counters);
            }
        }
        join
    }

    /// What is missing, in words.
    pub fn limitations(&self) -> Vec<Check> {
        let check = |what: String, fix: Option<&str>| Check {
            name: "counters by text".to_owned(),
            value: "incomplete".to_owned(),
            limitation: Some(format!("pg_stat_statements: {what}")),
            fix: fix.map(str::to_owned),
        };
        let mut checks = Vec::new();
        if self.unclear_beginnings > 0 {
            let what = format!(
                "texts that are cut at track_activity_query_size ({}) have no counters: it is not clear which \
                 statement begins like that",
                self.unclear_beginnings
            );
            let fix = "increase track_activity_query_size (requires a restart)";
            checks.push(check(what, Some(fix)));
        }
        if self.ambiguous > 0 {
            let what = format!(
                "texts that belong to more than one statement ({}) have no counters, because sessions show no query ID",
                self.ambiguous
            );
            checks.push(check(what, None));
        }
        checks
    }
}

/// Texts of sessions, to find those that could be the same statement as a beginning.
struct SeenTexts<'a> {
    /// All, sorted.
    all: Vec<&'a str>,
    beginnings: BTreeSet<&'a str>,
}

impl<'a> SeenTexts<'a> {
    fn new(statements: &'a [(ComparedText, bool)]) -> Self {
        let texts = statements.iter().map(|(it, _)| it.canonical.as_str());
        let mut all: Vec<&str> = texts.collect();
        all.sort_unstable();
        let beginnings = statements.iter().map(|(it, _)| it);
        let beginnings = beginnings.filter(|it| it.form == ComparedForm::Beginning);
        Self {
            all,
            beginnings: beginnings.map(|it| it.canonical.as_str()).collect(),
        }
    }

    /// Whether no other text begins like this one, nor is cut where this one goes on.
    fn is_only(&self, beginning: &str) -> bool {
        let from = self.all.partition_point(|it| *it < beginning);
        let longer = self.all[from..].iter().take(2);
        let ends = beginning.bytes().enumerate().filter(|(_, byte)| *byte == 0);
        let shorter = ends.map(|(at, _)| &beginning[..=at]);
        longer.filter(|it| it.starts_with(beginning)).count() == 1
            && shorter.filter(|it| self.beginnings.contains(it)).count() == 1
    }
}

/// The only group that begins like this, if it is one statement's.
fn only<'a>(
    groups: &'a BTreeMap<String, CountedGroup>,
    beginning: &str,
) -> Option<&'a CountedGroup> {
    let from = (Bound::Included(beginning), Bound::Unbounded);
    let mut begin = groups
        .range::<str, _>(from)
        .take_while(|(canonical, _)| canonical.starts_with(beginning));
    let (_, group) = begin.next()?;
    (begin.next().is_none() && group.is_clear()).then_some(group)
}

fn groups(counted: &CountedTexts, known_ids: &BTreeSet<i64>) -> BTreeMap<String, CountedGroup> {
    let mut groups: BTreeMap<String, CountedGroup> = BTreeMap::new();
    for it in &counted.texts {
        let compared = ComparedText::new(&it.text, it.is_cut, counted.mark);
        let group = groups.entry(compared.canonical).or_default();
        group.is_wrapper = compared.is_wrapper;
        // What is joined by ID is not counted twice.
        group.is_unclear |=
            compared.form != ComparedForm::Whole || known_ids.contains(&it.query_id);
        group.query_ids.insert(it.query_id);
        let both = group.counters.into_iter().chain(it.counters);
        group.counters = both.reduce(sum);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::catalog::CountedText;

    fn counted(mark: ConstantMark, entries: &[(i64, &str, u64)]) -> CountedTexts {
        let entry = |(query_id, text, calls): &(i64, &str, u64)| CountedText {
            query_id: *query_id,
            text: (*text).to_owned(),
            is_cut: false,
            counters: (*calls > 0).then(|| StatementCounters {
                calls: *calls,
                ..StatementCounters::default()
            }),
        };
        CountedTexts {
            texts: entries.iter().map(entry).collect(),
            are_all: true,
            mark,
        }
    }

    fn join(seen: &[(&str, bool)], counted: &CountedTexts) -> TextJoin {
        let none = BTreeSet::new();
        let seen = seen.iter().map(|&(text, is_cut)| SeenText {
            text,
            is_cut,
            query_ids: &none,
        });
        TextJoin::new(seen, counted)
    }

    fn calls(join: &TextJoin) -> Vec<(u32, u64)> {
        let counters = join.counters.iter();
        counters.map(|(at, it)| (*at, it.calls)).collect()
    }

    const ENTRIES: [(i64, &str, u64); 4] = [
        (1, "SELECT * FROM t WHERE i IN ($1, $2)", 3),
        // Another length of the list, and another table of this name.
        (2, "SELECT * FROM t WHERE i IN ($1)", 4),
        (3, "update t set v = $1", 5),
        (4, "select i from u where j = $1 and k = $2 order by i", 0),
    ];

    #[test]
    fn a_statement_without_an_id_has_the_counters_of_all_entries_with_its_text() {
        let counted = counted(ConstantMark::Numbered, &ENTRIES);
        let seen = [
            ("select * from t where i in ($1)", false),
            ("update t set v = null", false),
            ("select 1", false),
            ("select i from u where j = $1 and k = $2 order by i", false),
        ];
        let join = join(&seen, &counted);
        assert_eq!(calls(&join), [(0, 7), (1, 5)]);
        assert_eq!(join.limitations(), []);
    }

    /// Before 10, an entry has the text of the whole message, of which it is a part.
    #[test]
    fn counters_of_a_message_with_several_statements_are_not_those_of_one() {
        let entries = [
            (1, "select ?; select 2", 3),
            (2, "select 1; select ?", 3),
            (3, "select ?", 1),
        ];
        let counted = counted(ConstantMark::QuestionMark, &entries);
        let join = join(
            &[("select $1; select $2", false), ("select $1", false)],
            &counted,
        );
        assert_eq!(calls(&join), [(1, 1)]);
    }

    #[test]
    fn two_statements_that_9_6_shows_with_one_text_have_no_counters() {
        let entries = [(1, "select j ? ? from t", 3), (2, "update t set j = ?", 4)];
        let counted = counted(ConstantMark::QuestionMark, &entries);
        let seen = [
            ("select j ? $1 from t", false),
            ("select j $1 $2 from t", false),
            ("update t set j = $1", false),
        ];
        let join = join(&seen, &counted);
        assert_eq!(calls(&join), [(2, 4)]);
        let limitation = join.limitations().remove(0).limitation;
        assert!(limitation.is_some_and(|it| it.contains("(2)")));
    }

    #[test]
    fn an_explained_statement_is_not_counted_twice() {
        let text = "explain analyze select * from t";
        let both = counted(ConstantMark::Numbered, &[(1, text, 3), (2, text, 3)]);
        assert_eq!(calls(&join(&[(text, false)], &both)), []);
        let one = counted(ConstantMark::Numbered, &[(1, text, 3)]);
        assert_eq!(calls(&join(&[(text, false)], &one)), [(0, 3)]);
    }

    #[test]
    fn a_text_that_is_cut_has_counters_only_if_one_entry_begins_like_it() {
        let entries = [
            (1, "select a, b, c from t where d = $1", 3),
            (2, "select a, b, c from t where e = $1", 4),
            (3, "insert into t values ($1, $2), ($3, $4) returning a", 5),
        ];
        let mut all = counted(ConstantMark::Numbered, &entries);
        let insert = ("insert into t values ($1, $2) /*, ... */, ($3,", true);
        let seen = [("select a, b, c from t where", true), insert];
        let cut = join(&seen, &all);
        assert_eq!(calls(&cut), [(1, 5)]);
        let check = cut.limitations().remove(0);
        assert!(check.limitation.is_some_and(|it| it.contains("(1)")));
        assert!(
            check
                .fix
                .is_some_and(|it| it.contains("track_activity_query_size"))
        );
        // One more word decides.
        let decided = join(&[("select a, b, c from t where e = ", true)], &all);
        assert_eq!(calls(&decided), [(0, 4)]);
        // The counters may be the other one's.
        for other in [
            ("insert into t values ($1, $2) returning b", false),
            ("insert into t values ($1, $2) on conflict do", true),
        ] {
            assert_eq!(calls(&join(&[insert, other], &all)), [], "{other:?}");
        }
        // A shorter statement is another one.
        let shorter = ("insert into t values ($1, $2)", false);
        let longer = ("insert into t values ($1, $2) returning a", true);
        assert_eq!(calls(&join(&[longer, shorter], &all)), [(0, 5)]);
        // An entry that begins like it may be missing.
        all.are_all = false;
        assert_eq!(calls(&join(&[insert], &all)), []);
    }

    #[test]
    fn what_is_joined_by_id_is_not_joined_by_text_again() {
        let counted = counted(ConstantMark::Numbered, &ENTRIES);
        let (none, three) = (BTreeSet::new(), BTreeSet::from([3]));
        let seen = |text, query_ids| SeenText {
            text,
            is_cut: false,
            query_ids,
        };
        let statements = [
            seen("update public.t set v = $1", &three),
            seen("update t set v = $1", &none),
        ];
        let join = TextJoin::new(statements.into_iter(), &counted);
        assert_eq!(calls(&join), []);
        assert!(!TextJoin::is_required(statements[..1].iter().copied()));
        assert!(TextJoin::is_required(statements.into_iter()));
    }
}
