//! What `pg_stat_statements` counted between two readings.

use std::collections::BTreeMap;
use std::time::Instant;

use pgassay_record::activity::StatementCounters;

use super::counted_texts::CountedTexts;
use super::micros;
use super::reader::{CatalogReader, OWN_COMMIT};
use super::statements::StatementReading;

/// The differences between two readings.
#[derive(Debug, Default)]
pub struct CountedStatements {
    /// By query ID.
    pub counters: BTreeMap<i64, StatementCounters>,
    /// The same with their texts, if they were asked for.
    pub texts: Option<CountedTexts>,
    /// Time between the readings, in microseconds.
    pub window_us: f64,
    /// Those of the readings.
    pub own_commits: OwnCommits,
}

/// The commits that end the readings: `pg_stat_statements` counts them with those of clients.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnCommits {
    /// Between the readings.
    pub count: u64,
    /// The server's version, such as 180004.
    pub version: u32,
}

impl OwnCommits {
    /// The calls of a statement without those of the readings; `None` if these are all.
    pub fn without(self, text: &str, counted: StatementCounters) -> Option<StatementCounters> {
        if self.count == 0 || !self.are_in(text) {
            return Some(counted);
        }
        let calls = counted.calls.saturating_sub(self.count);
        (calls > 0).then_some(StatementCounters { calls, ..counted })
    }

    /// Whether they have the query ID of this statement or, before 14, are joined with it.
    fn are_in(self, text: &str) -> bool {
        let text = text.trim_end_matches([';', ' ', '\n', '\t']).trim_start();
        if (140_000..160_000).contains(&self.version) {
            // The ID is a hash of the text.
            return text == OWN_COMMIT;
        }
        let text = text.to_ascii_lowercase();
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        match words.as_slice() {
            [OWN_COMMIT] => true,
            ["end"] | ["commit" | "end", "work" | "transaction"] => self.version >= 160_000,
            _ => false,
        }
    }
}

/// The first reading and the last one.
pub(super) struct StatementWatch {
    first: EntriesReading,
    last: Option<EntriesReading>,
}

/// `None` if nothing can be read.
struct EntriesReading {
    at: Instant,
    entries: Option<StatementReading>,
    /// Readings that had begun, each of which ends with a commit.
    begun: u64,
}

impl EntriesReading {
    fn read(reader: &mut CatalogReader) -> Self {
        let entries = StatementReading::read(reader);
        Self {
            at: Instant::now(),
            entries,
            begun: reader.transactions,
        }
    }

    fn since(
        &self,
        then: &Self,
        reader: &mut CatalogReader,
        reads_texts: bool,
    ) -> Option<CountedStatements> {
        let (now, before) = (self.entries.as_ref()?, then.entries.as_ref()?);
        let (counters, incomplete) = now.since(before);
        if let Some(check) = incomplete {
            let limitation = check.limitation.unwrap_or_default();
            reader.note("pg_stat_statements", &check.value, limitation, check.fix);
        }
        let texts = if reads_texts {
            now.texts_since(before, reader)
        } else {
            None
        };
        Some(CountedStatements {
            counters,
            texts,
            window_us: micros(then.at) - micros(self.at),
            own_commits: OwnCommits {
                count: self.begun.saturating_sub(then.begun),
                version: reader.version,
            },
        })
    }
}

impl StatementWatch {
    /// Takes the first reading, within one of `reader`.
    pub fn open(reader: &mut CatalogReader) -> Self {
        Self {
            first: EntriesReading::read(reader),
            last: None,
        }
    }

    /// What was counted since the last call, or since the first reading. Within a reading of `reader`.
    pub fn since_last(
        &mut self,
        reader: &mut CatalogReader,
        reads_texts: bool,
    ) -> Option<CountedStatements> {
        let now = EntriesReading::read(reader);
        let then = self.last.as_ref().unwrap_or(&self.first);
        let counted = now.since(then, reader, reads_texts);
        if now.entries.is_some() {
            self.last = Some(now);
        }
        counted
    }

    /// What was counted since the first reading. Within a reading of `reader`.
    pub fn since_first(
        &self,
        reader: &mut CatalogReader,
        reads_texts: bool,
    ) -> Option<CountedStatements> {
        EntriesReading::read(reader).since(&self.first, reader, reads_texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with a synchronous standby that was stopped, END had 2.5 calls per second: those of pgassay.
    #[test]
    fn commits_of_the_readings_are_not_those_of_clients() {
        let counted = StatementCounters {
            calls: 7,
            ..StatementCounters::default()
        };
        let calls = |version, text| {
            let own = OwnCommits { count: 5, version };
            own.without(text, counted).map_or(0, |it| it.calls)
        };
        // From 16 on, all spellings have one query ID.
        for text in ["END", "commit;", "Commit Work", "end transaction"] {
            assert_eq!(calls(180_004, text), 2, "{text}");
        }
        // 14 and 15: the ID is a hash of the text.
        assert_eq!(calls(150_018, "commit"), 2);
        assert_eq!((calls(150_018, "COMMIT"), calls(140_024, "END")), (7, 7));
        // Before, texts are joined whatever their case.
        assert_eq!((calls(120_022, "COMMIT"), calls(120_022, "END")), (2, 7));
        for text in [
            "select 1",
            "commit and chain",
            "commit prepared 'x'",
            "rollback",
            "",
        ] {
            assert_eq!(calls(180_004, text), 7, "{text}");
        }
        // With pg_stat_statements.track_utility off, there are none.
        let own = OwnCommits {
            count: 9,
            version: 180_004,
        };
        assert_eq!(own.without("commit", counted), None);
    }
}
