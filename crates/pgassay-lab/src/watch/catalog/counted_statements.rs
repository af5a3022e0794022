//! What `pg_stat_statements` counted between two readings.

use std::collections::BTreeMap;
use std::time::Instant;

use pgassay_record::activity::StatementCounters;

use super::counted_texts::CountedTexts;
use super::micros;
use super::reader::CatalogReader;
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
}

impl EntriesReading {
    fn read(reader: &mut CatalogReader) -> Self {
        let entries = StatementReading::read(reader);
        Self {
            at: Instant::now(),
            entries,
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
