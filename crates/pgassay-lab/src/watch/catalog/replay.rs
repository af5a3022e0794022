//! The replay of WAL on a standby.

use pgassay_record::activity::ReplayState;

use super::reader::CatalogReader;

/// What a standby says of its replay; `None` on a primary.
pub(super) fn replay(reader: &mut CatalogReader) -> Option<ReplayState> {
    // 10: xlog became wal, and location lsn.
    let (wal, lsn) = if reader.version >= 100_000 {
        ("wal", "lsn")
    } else {
        ("xlog", "location")
    };
    // With WAL from an archive, replay may be ahead of what was streamed before.
    let sql = format!(
        "select pg_is_{wal}_replay_paused(), \
           case when s.received >= s.replayed then pg_{wal}_{lsn}_diff(s.received, s.replayed) end, \
           extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp()) * 1e6 \
         from (select pg_last_{wal}_receive_{lsn}() as received, pg_last_{wal}_replay_{lsn}() as replayed) s \
         where pg_is_in_recovery()"
    );
    let rows = reader.rows("replay", &sql)?;
    let row = rows.first()?;
    Some(ReplayState {
        is_paused: row.is_true(0),
        waiting_bytes: row.get(1).map(|_| row.count(1)),
        behind_us: row.duration(2),
    })
}
