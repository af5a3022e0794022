//! Waits until a checkpoint is counted.
//!
//! Since 15, the checkpointer adds to its counters after CHECKPOINT has returned (`CheckpointerMain`, checkpointer.c):
//! a reading right after the statement lacks it, and that at the end of a trial would have it.

use std::thread;
use std::time::{Duration, Instant};

use pgassay_model::plan::PlannedSql;
use pgassay_script::{SqlLexeme, lexemes};

use super::SqlConnection;

/// How long it may take until a checkpoint is counted.
const PATIENCE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(1);
/// Before this version, readings wait for the statistics collector anyway.
const FIRST_VERSION: u32 = 150_000;

/// The number of requested checkpoints before SQL that executes one.
pub(super) struct CheckpointCounter {
    query: &'static str,
    before: u64,
}

impl CheckpointCounter {
    /// Reads the number if this SQL has a CHECKPOINT; `None` if it is not known.
    pub(super) fn before(
        pieces: &[PlannedSql],
        connection: &mut dyn SqlConnection,
    ) -> Option<Self> {
        if !pieces.iter().any(|it| has_checkpoint(&it.text)) {
            return None;
        }
        let version = number(connection, "show server_version_num")?;
        if version < u64::from(FIRST_VERSION) {
            return None;
        }
        let query = if version < 170_000 {
            "select checkpoints_req from pg_catalog.pg_stat_bgwriter"
        } else {
            "select num_requested from pg_catalog.pg_stat_checkpointer"
        };
        let before = number(connection, query)?;
        Some(Self { query, before })
    }

    /// Waits until there are more. A standby has none.
    pub(super) fn wait_for_more(&self, connection: &mut dyn SqlConnection) {
        let until = Instant::now() + PATIENCE;
        while number(connection, self.query) == Some(self.before) && Instant::now() < until {
            thread::sleep(POLL);
        }
    }
}

/// Whether a statement of an SQL text is CHECKPOINT.
fn has_checkpoint(sql: &str) -> bool {
    let mut is_start = true;
    for (lexeme, text) in lexemes(sql).filter(|(lexeme, _)| *lexeme != SqlLexeme::Blank) {
        if is_start && lexeme == SqlLexeme::Word && text.eq_ignore_ascii_case("checkpoint") {
            return true;
        }
        is_start = text == ";";
    }
    false
}

fn number(connection: &mut dyn SqlConnection, sql: &str) -> Option<u64> {
    let rows = connection.query(sql).ok()?;
    rows.first()?.first()?.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use pgassay_test_support::{servers, wait_until};

    use super::*;

    fn piece(text: &str) -> PlannedSql {
        PlannedSql {
            text: text.to_owned(),
            of_variant: None,
        }
    }

    /// Regression: "a checkpoint ran in only 1 of 72 trials", because that of the `reset` before the trial was counted
    /// in it.
    #[test]
    fn a_checkpoint_of_a_reset_is_counted_before_the_trial() {
        for version in ["15", "18"] {
            let Some(server) = servers::start(version) else {
                return;
            };
            let mut connection = server.connect().unwrap();
            let pieces = [piece("select 1;\nCheckpoint;")];
            for _ in 0..20 {
                let counter = CheckpointCounter::before(&pieces, &mut connection).unwrap();
                connection
                    .execute("create table if not exists t ()")
                    .unwrap();
                connection.execute("checkpoint").unwrap();
                let asked = Instant::now();
                counter.wait_for_more(&mut connection);
                let mut is_counted =
                    || number(&mut connection, counter.query) == Some(counter.before + 1);
                // On a busy machine it takes longer than the patience of a run.
                assert!(is_counted() || asked.elapsed() >= PATIENCE, "{version}");
                wait_until("it is counted", is_counted);
            }
            let without = [piece("truncate t; -- no checkpoint\ntruncate checkpoint")];
            assert!(CheckpointCounter::before(&without, &mut connection).is_none());
        }
    }
}
