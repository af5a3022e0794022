//! Sessions that may wait for others although none of their wait events is that of a lock.

use std::collections::{BTreeMap, BTreeSet};

use super::locks::BLOCKING_SUBJECT;
use super::reader::{CatalogReader, array};

/// Sessions that may wait for others, besides those with a wait event of type `Lock`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherWaiters {
    /// Serializable, read-only and deferrable transactions that wait for a safe snapshot.
    pub for_snapshots: Vec<u32>,
    /// They have `track_activities` off, and before version 14 then no wait events either.
    pub untracked: Vec<u32>,
}

impl OtherWaiters {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.for_snapshots.is_empty() && self.untracked.is_empty()
    }

    /// Those of the untracked ones that wait for a lock. `None` if it could not be read.
    pub(super) fn untracked_at_locks(&self, reader: &mut CatalogReader) -> Option<Vec<u32>> {
        if self.untracked.is_empty() {
            return Some(Vec::new());
        }
        let sql = format!(
            "select distinct pid from pg_locks where not granted and pid = any ('{}'::int[])",
            array(self.untracked.iter().copied())
        );
        let rows = reader.rows(BLOCKING_SUBJECT, &sql)?;
        Some(rows.iter().map(|row| row.number(0) as u32).collect())
    }

    /// The transactions that those wait for which wait for a safe snapshot. `None` if it could not be read.
    pub(super) fn snapshot_blockers(
        &self,
        reader: &mut CatalogReader,
    ) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
        if self.for_snapshots.is_empty() || reader.version < 100_000 {
            return Some(BTreeMap::new());
        }
        let sql = format!(
            "select w.pid, to_json(pg_safe_snapshot_blocking_pids(w.pid)) from unnest('{}'::int[]) w (pid)",
            array(self.for_snapshots.iter().copied())
        );
        let rows = reader.rows(BLOCKING_SUBJECT, &sql)?;
        let found = rows.iter().map(|row| {
            let by: BTreeSet<u32> =
                serde_json::from_str(row.get(1).unwrap_or("[]")).unwrap_or_default();
            (row.number(0) as u32, by)
        });
        Some(found.filter(|(_, by)| !by.is_empty()).collect())
    }
}
