//! Replication slots with the WAL that they keep, and connected standbys.

use pgassay_record::activity::SlotState;

use super::reader::CatalogReader;
use super::row::CatalogRow;

/// Slots that are listed, those that keep the most WAL.
const SLOTS_MAX: usize = 200;

/// The SQL for the bytes of WAL that the server has written, or on a standby replayed, since a position.
pub(super) fn wal_since(version: u32, position: &str) -> String {
    // 10: xlog became wal, and location lsn.
    let (replayed, current, difference) = if version >= 100_000 {
        (
            "pg_last_wal_replay_lsn",
            "pg_current_wal_lsn",
            "pg_wal_lsn_diff",
        )
    } else {
        (
            "pg_last_xlog_replay_location",
            "pg_current_xlog_location",
            "pg_xlog_location_diff",
        )
    };
    format!(
        "{difference}(case when pg_is_in_recovery() then {replayed}() else {current}() end, {position})"
    )
}

/// All slots, those that keep the most WAL first.
pub(super) fn slots(reader: &mut CatalogReader) -> Vec<SlotState> {
    let since = |version, column| {
        if reader.version >= version {
            column
        } else {
            "null"
        }
    };
    let retained = wal_since(reader.version, "restart_lsn");
    let sql = format!(
        "select slot_name, slot_type, active, case when restart_lsn is not null then greatest(0, {retained}) end, \
           {}, {}, {} \
         from pg_replication_slots order by 4 desc nulls last limit {SLOTS_MAX}",
        // 13: whether the WAL is still there.
        since(130_000, "wal_status"),
        // 17: since when no receiver is connected.
        since(
            170_000,
            "extract(epoch from clock_timestamp() - inactive_since) * 1e6"
        ),
        // 17: copies of the primary's slots. A former standby keeps the mark.
        since(170_000, "synced and pg_is_in_recovery()"),
    );
    let rows = reader.rows("replication slots", &sql).unwrap_or_default();
    let slot = |row: &CatalogRow| SlotState {
        name: row.text(0),
        kind: row.text(1),
        is_active: row.is_true(2),
        retained_bytes: row.get(3).map(|_| row.count(3)),
        wal_status: row.get(4).map(str::to_owned),
        inactive_us: row.duration(5),
        is_synced: row.is_true(6),
    };
    rows.iter().map(slot).collect()
}

/// Connected standbys, whether or not they use a slot or send feedback. Subscribers and programs that
/// only receive WAL execute no queries: such programs report what they have written, under any name,
/// but nothing that they have replayed.
pub(super) fn standbys(reader: &mut CatalogReader) -> Vec<String> {
    let (write, replay) = if reader.version >= 100_000 {
        ("write_lsn", "replay_lsn")
    } else {
        ("write_location", "replay_location")
    };
    let sql = format!(
        "select distinct coalesce(nullif(r.application_name, ''), 'PID ' || r.pid) \
         from pg_stat_replication r where r.pid is not null \
           and coalesce(r.application_name, '') not in \
             ('pg_basebackup', 'pg_receivewal', 'pg_receivexlog') \
           and coalesce(r.state, '') <> 'backup' \
           and not (r.{write} is not null and r.{replay} is null) \
           and r.pid not in (select s.active_pid from pg_replication_slots s \
             where s.active_pid is not null and s.slot_type = 'logical') \
         order by 1 limit {SLOTS_MAX}"
    );
    let rows = reader.rows("replication", &sql).unwrap_or_default();
    rows.iter().map(|row| row.text(0)).collect()
}
