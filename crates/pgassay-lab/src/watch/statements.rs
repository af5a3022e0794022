//! The statements that were seen, by normalized text.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use pgassay_record::activity::{ActivityStatement, StatementCounters};
use pgassay_script::normalize;

use super::attribution::SeenExecutions;
use super::catalog::OwnCommits;
use super::text_join::SeenText;

/// Distinct statements that are kept, and the bytes of their texts; the time of any others has no statement.
const STATEMENTS_MAX: usize = 10_000;
const STATEMENTS_BYTES_MAX: usize = 16 << 20;
/// Query IDs that are kept, over all statements: on temporary tables, a statement has another in each session.
/// The server itself evicts so many, and says so.
const QUERY_IDS_MAX: usize = 50_000;
/// Texts whose statements are remembered, so that they are not normalized again: their number and bytes.
const TEXTS_MAX: usize = 20_000;
const TEXTS_BYTES_MAX: usize = 16 << 20;
/// Of a text, this much is kept; what is read from memory is not longer.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// All statements so far. An index is valid as long as the book exists.
#[derive(Debug, Default)]
pub(super) struct StatementBook {
    statements: Vec<KnownStatement>,
    statement_bytes: usize,
    query_ids: usize,
    by_fingerprint: HashMap<String, u32>,
    by_text: HashMap<Vec<u8>, Option<u32>>,
    text_bytes: usize,
    by_query_id: HashMap<i64, u32>,
    /// Statements beyond the limit were seen.
    pub is_full: bool,
}

#[derive(Debug)]
struct KnownStatement {
    fingerprint: Box<str>,
    text: Box<str>,
    is_cut: bool,
    /// All that the server computed for texts with this fingerprint: before 18 lists of different
    /// lengths have different ones, and so do equal texts in different databases.
    query_ids: BTreeSet<i64>,
}

impl StatementBook {
    /// The statement with this text; `None` if there is no text, or too many statements.
    pub fn index(&mut self, text: &[u8], is_cut: bool, query_id: i64) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        let is_cut = is_cut || text.len() > TEXT_BYTES_MAX;
        let text = &text[..text.len().min(TEXT_BYTES_MAX)];
        // In a message with several statements, the ID is that of one of them, and the text that of all.
        let query_id = if has_several(text, is_cut) {
            0
        } else {
            query_id
        };
        if let Some(&known) = self.by_query_id.get(&query_id) {
            return Some(known);
        }
        let index = match self.by_text.get(text) {
            Some(&known) => known,
            None => self.add(text, is_cut, query_id),
        };
        if let Some(index) = index.filter(|_| query_id != 0) {
            let ids = &mut self.statements[index as usize].query_ids;
            if self.query_ids < QUERY_IDS_MAX && ids.insert(query_id) {
                self.query_ids += 1;
            }
            if self.by_query_id.len() > TEXTS_MAX {
                self.by_query_id.clear();
            }
            self.by_query_id.insert(query_id, index);
        }
        index
    }

    fn add(&mut self, text: &[u8], is_cut: bool, query_id: i64) -> Option<u32> {
        let mut normalized = normalize(&String::from_utf8_lossy(text));
        // The body of a code block is one constant: of DO, only the ID tells which one it is.
        if query_id != 0 && normalized.text.starts_with("do ") {
            _ = write!(normalized.fingerprint, "-{query_id:x}");
        }
        let known = self.by_fingerprint.get(&normalized.fingerprint).copied();
        if let Some(known) = known {
            // A text that is cut after a word looks like a shorter statement, which then has no text of its own.
            self.statements[known as usize].is_cut |= is_cut;
        }
        let bytes = self.statement_bytes + normalized.text.len();
        let has_room = self.statements.len() < STATEMENTS_MAX && bytes <= STATEMENTS_BYTES_MAX;
        self.is_full |= known.is_none() && !has_room;
        let index = known.or_else(|| {
            has_room.then(|| {
                let index = self.statements.len() as u32;
                self.by_fingerprint
                    .insert(normalized.fingerprint.clone(), index);
                self.statement_bytes = bytes;
                self.statements.push(KnownStatement {
                    fingerprint: normalized.fingerprint.into(),
                    text: normalized.text.into(),
                    is_cut,
                    query_ids: BTreeSet::new(),
                });
                index
            })
        });
        if self.by_text.len() >= TEXTS_MAX || self.text_bytes > TEXTS_BYTES_MAX {
            self.by_text.clear();
            self.text_bytes = 0;
        }
        self.text_bytes += text.len();
        self.by_text.insert(text.to_owned(), index);
        index
    }

    /// All statements, in the order of their indices.
    pub fn seen(&self) -> impl Iterator<Item = SeenText<'_>> {
        self.statements.iter().map(|it| SeenText {
            text: &it.text,
            is_cut: it.is_cut,
            query_ids: &it.query_ids,
        })
    }

    /// One statement as data, without executions.
    pub fn describe(
        &self,
        index: u32,
        keeps_text: bool,
        counters: &JoinedCounters,
    ) -> ActivityStatement {
        let known = &self.statements[index as usize];
        let of_id = known.query_ids.iter();
        let of_id = of_id.filter_map(|id| counters.by_query_id.get(id));
        // Only statements without an ID.
        let of_text = counters.by_statement.get(&index);
        ActivityStatement {
            fingerprint: known.fingerprint.to_string(),
            query_id: known.query_ids.first().copied(),
            text: keeps_text.then(|| known.text.to_string()),
            is_cut: known.is_cut,
            counters: of_id
                .chain(of_text)
                .copied()
                .reduce(sum)
                .and_then(|it| counters.own_commits.without(&known.text, it)),
            ..ActivityStatement::default()
        }
    }
}

impl StatementBook {
    /// The least number of transactions that the statement's counted executions ended.
    pub fn transactions_min(
        &self,
        index: u32,
        seen: SeenExecutions,
        described: &ActivityStatement,
    ) -> u64 {
        let calls = described.counters.map_or(0, |it| it.calls);
        let known = &self.statements[index as usize];
        let text = known.text.trim_end_matches([';', ' ', '\n', '\t']);
        let mut words = text.split_ascii_whitespace();
        let first = words.clone().next().unwrap_or_default();
        let is_one_of = |word: &str, of: &[&str]| of.iter().any(|it| it.eq_ignore_ascii_case(word));
        let is_end = !text.is_empty() && words.all(|it| is_one_of(it, &TRANSACTION_ENDS));
        let is_whole = seen.first_in_transaction == seen.count
            && seen.count >= WHOLE_TRANSACTIONS_MIN
            && !is_one_of(first, &["begin", "start"])
            && !has_several(known.text.as_bytes(), known.is_cut);
        if is_end || is_whole { calls } else { 0 }
    }
}

/// The words of a statement that ends a transaction, not to a savepoint.
const TRANSACTION_ENDS: [&str; 6] = ["commit", "end", "rollback", "abort", "work", "transaction"];
/// A statement of which so many executions were whole transactions, and no other was seen, has few others.
const WHOLE_TRANSACTIONS_MIN: u64 = 3;

/// Counters by what they are joined with.
#[derive(Debug, Default)]
pub(super) struct JoinedCounters {
    pub by_query_id: BTreeMap<i64, StatementCounters>,
    /// Of statements without an ID, by index.
    pub by_statement: BTreeMap<u32, StatementCounters>,
    /// What they were counted over, in microseconds; `None` if nothing was read.
    pub window_us: Option<f64>,
    /// Those that the counters contain.
    pub own_commits: OwnCommits,
}

/// Whether there may be a statement after a semicolon. One within a string costs only time.
fn has_several(text: &[u8], is_cut: bool) -> bool {
    if !is_code_block(text) {
        return has_semicolon_within(text);
    }
    // Its body has semicolons. It ends with the last quote, unless the text is cut within it.
    let end = text.iter().rposition(|byte| b"$'".contains(byte));
    !is_cut && has_semicolon_within(&text[end.unwrap_or(0)..])
}

fn is_code_block(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let command = text
        .get(..2)
        .is_some_and(|it| it.eq_ignore_ascii_case(b"do"));
    command && text.get(2).is_some_and(u8::is_ascii_whitespace)
}

fn has_semicolon_within(text: &[u8]) -> bool {
    let first = text.iter().position(|byte| *byte == b';');
    let rest = first.map_or(&[][..], |at| &text[at + 1..]);
    !rest
        .iter()
        .all(|byte| byte.is_ascii_whitespace() || *byte == b';')
}

pub(super) fn sum(a: StatementCounters, b: StatementCounters) -> StatementCounters {
    let both = |x: Option<f64>, y: Option<f64>| x.zip(y).map(|(x, y)| x + y);
    StatementCounters {
        calls: a.calls + b.calls,
        execution_us: a.execution_us + b.execution_us,
        planning_us: both(a.planning_us, b.planning_us),
        rows: a.rows + b.rows,
        shared_hit: a.shared_hit + b.shared_hit,
        shared_read: a.shared_read + b.shared_read,
        shared_dirtied: a.shared_dirtied + b.shared_dirtied,
        temp_read: a.temp_read + b.temp_read,
        temp_written: a.temp_written + b.temp_written,
        wal_bytes: a.wal_bytes.zip(b.wal_bytes).map(|(x, y)| x + y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined<const N: usize>(by_query_id: [(i64, StatementCounters); N]) -> JoinedCounters {
        JoinedCounters {
            by_query_id: by_query_id.into(),
            by_statement: BTreeMap::new(),
            window_us: None,
            own_commits: OwnCommits::default(),
        }
    }

    /// Regression: all code blocks were one statement.
    #[test]
    fn code_blocks_are_distinguished_by_their_query_ids() {
        let mut book = StatementBook::default();
        let one = book.index(b"do $$ begin perform pg_sleep(1); end $$", false, 5);
        let other = book.index(b"do $$ begin perform count(*) from t; end $$", false, 6);
        assert_ne!(one, other);
        assert_eq!(book.index(b"DO $$ begin null; end $$", false, 6), other);
        let fingerprint = |index: Option<u32>| {
            let index = index.expect("there is room");
            book.describe(index, true, &JoinedCounters::default())
                .fingerprint
        };
        assert_ne!(fingerprint(one), fingerprint(other));
        // The ID may be that of the other statement in the message.
        let both = book.index(b"do $$ begin null; end $$; select 1", false, 7);
        assert_ne!(book.index(b"select 1", false, 7), both);
        let cut = book.index(b"do $$ begin perform 1; perform", true, 8);
        assert!(![one, other, both].contains(&cut));
    }

    #[test]
    fn texts_that_differ_in_constants_are_one_statement_with_all_its_query_ids() {
        let mut book = StatementBook::default();
        let first = book.index(b"select * from t where i in (1)", false, 5);
        assert_eq!(first, Some(0));
        assert_eq!(
            book.index(b"SELECT * FROM t WHERE i IN (7, 8)", false, 6),
            first
        );
        assert_eq!(book.index(b"select * from u", false, 0), Some(1));
        assert_eq!(book.index(b"", false, 0), None);
        let calls = |calls| StatementCounters {
            calls,
            ..StatementCounters::default()
        };
        let counters = joined([(5, calls(2)), (6, calls(3)), (7, calls(9))]);
        let described = book.describe(0, false, &counters);
        assert_eq!(described.counters.map(|it| it.calls), Some(5));
        assert_eq!((described.query_id, described.text), (Some(5), None));
        assert_eq!(book.describe(1, true, &counters).counters, None);
        let text = book.describe(1, true, &counters).text;
        assert_eq!(text.as_deref(), Some("select * from u"));
    }

    /// `update …; commit` is seen with the ID of the commit, too.
    #[test]
    fn a_message_of_several_statements_does_not_take_the_id_of_one_of_them() {
        let mut book = StatementBook::default();
        let several = book.index(b"update t set n = 1; commit", false, 7);
        let commit = book.index(b"commit;", false, 7);
        assert_ne!(several, commit);
        assert_eq!(book.index(b"update t set n = 2; commit", false, 7), several);
        let counters = joined([(7, StatementCounters::default())]);
        assert_eq!(
            book.describe(several.unwrap(), true, &counters).counters,
            None
        );
        assert!(
            book.describe(commit.unwrap(), true, &counters)
                .counters
                .is_some()
        );
    }

    #[test]
    fn long_texts_do_not_fill_memory() {
        let mut book = StatementBook::default();
        for number in 0..2000 {
            let text = format!("select {number}, '{}'", "x".repeat(100_000));
            book.index(text.as_bytes(), false, 0);
            assert!(book.text_bytes <= TEXTS_BYTES_MAX + TEXT_BYTES_MAX);
        }
        assert!(book.by_text.keys().all(|it| it.len() <= TEXT_BYTES_MAX));
        assert!(book.describe(0, true, &JoinedCounters::default()).is_cut);
    }

    #[test]
    fn long_statements_and_query_ids_without_end_do_not_fill_memory() {
        let mut book = StatementBook::default();
        for number in 0..1500 {
            let text = format!("select {} from t{number}", "x".repeat(15_000));
            book.index(text.as_bytes(), false, 0);
        }
        let bytes = |it: &KnownStatement| it.text.len();
        let kept: usize = book.statements.iter().map(bytes).sum();
        assert!(kept <= STATEMENTS_BYTES_MAX && book.is_full, "{kept}");
        assert!(book.index(b"select 1", false, 0).is_some(), "it has room");
        for id in (1_i64..).take(QUERY_IDS_MAX + 1000) {
            book.index(b"select * from temporary", false, id);
        }
        let ids = |it: &KnownStatement| it.query_ids.len();
        let kept: usize = book.statements.iter().map(ids).sum();
        assert_eq!(kept, QUERY_IDS_MAX);
        assert!(book.by_query_id.len() <= TEXTS_MAX + 1);
    }

    #[test]
    fn texts_without_end_do_not_fill_memory() {
        let mut book = StatementBook::default();
        for number in 0..STATEMENTS_MAX + 5 {
            let text = format!("select * from t{number}");
            let index = book.index(text.as_bytes(), false, 0);
            assert_eq!(index.is_some(), number < STATEMENTS_MAX);
        }
        assert!(book.is_full && book.by_text.len() <= TEXTS_MAX);
    }

    /// Regression: 130 transactions per second were shown, with statements that were called 210 times per second, each a
    /// whole transaction. Sessions that use no table do not report theirs.
    #[test]
    fn calls_of_whole_transactions_are_the_least_number_of_transactions() {
        let mut book = StatementBook::default();
        let described = ActivityStatement {
            counters: Some(StatementCounters {
                calls: 200,
                ..StatementCounters::default()
            }),
            ..ActivityStatement::default()
        };
        let mut least = |text: &str, (count, first_in_transaction): (u64, u64)| {
            let index = book.index(text.as_bytes(), false, 0).unwrap();
            let seen = SeenExecutions {
                count,
                in_transaction_max: 1,
                first_in_transaction,
            };
            book.transactions_min(index, seen, &described)
        };
        assert_eq!(least("select pg_sleep(1)", (12, 12)), 200);
        assert_eq!(least("select pg_sleep(2) as few", (2, 2)), 0);
        assert_eq!(least("update t set v = 1", (12, 11)), 0);
        assert_eq!(least("select 1; select 2", (12, 12)), 0);
        assert_eq!(least("BEGIN", (12, 12)), 0);
        for text in ["end;", "COMMIT", "rollback work"] {
            assert_eq!(least(text, (1, 0)), 200, "{text}");
        }
        for text in ["rollback to s", "commit prepared 'x'"] {
            assert_eq!(least(text, (1, 0)), 0, "{text}");
        }
    }
}
