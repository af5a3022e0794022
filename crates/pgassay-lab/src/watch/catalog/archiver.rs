//! The archiver of WAL.

use pgassay_record::activity::ArchiverState;

use super::reader::CatalogReader;

/// What the server says of its archiver; `None` if WAL is not archived, as on a standby without
/// `archive_mode = always`, which may have the counts of the time before. A file's name is its timeline
/// and its number, in two parts of 8 hexadecimal digits (`XLogFileName`, `access/xlog_internal.h`). If it has archived
/// none yet, it may have begun at the server's start, which turns `archive_mode` on.
pub(super) fn archiver(reader: &mut CatalogReader) -> Option<ArchiverState> {
    // 10: xlog became wal, and location lsn.
    let (name, current) = if reader.version >= 100_000 {
        ("pg_walfile_name", "pg_current_wal_lsn")
    } else {
        ("pg_xlogfile_name", "pg_current_xlog_location")
    };
    let digits = |from: u32| format!("('x' || substr(f.name, {from}, 8))::bit(32)::bigint");
    let position = format!(
        "sum(f.sign * ({} * 4294967296 + {} * s.size))",
        digits(9),
        digits(17)
    );
    let sql = format!(
        "select case when last_failed_time > coalesce(last_archived_time, '-infinity') \
             then last_failed_wal end, \
           failed_count, \
           extract(epoch from clock_timestamp() - coalesce(last_archived_time, \
             greatest(stats_reset, pg_postmaster_start_time()))) * 1e6, \
           (select case when count(f.name) = 2 then greatest({position}, 0) end \
             from (select pg_size_bytes(current_setting('wal_segment_size')) as size) s, \
               (values (-1, last_archived_wal), \
                 (1, case when not pg_is_in_recovery() then {name}({current}()) end)) f (sign, name) \
             where f.name ~ '^[0-9A-F]{{24}}') \
         from pg_stat_archiver where current_setting('archive_mode') = 'always' \
           or current_setting('archive_mode') <> 'off' and not pg_is_in_recovery()"
    );
    let rows = reader.rows("archiver", &sql)?;
    let row = rows.first()?;
    Some(ArchiverState {
        failed_wal: row.get(0).map(str::to_owned),
        failures: row.count(1),
        archived_ago_us: row.duration(2),
        backlog_bytes: row.get(3).map(|_| row.count(3)),
    })
}
