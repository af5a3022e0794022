//! What holds back the removal of dead rows. PostgreSQL's `src/backend/storage/ipc/procarray.c`,
//! `ComputeXidHorizons`.

use pgassay_record::activity::{HorizonHolder, HorizonKind};

use super::locks::OTHER_WAIT;
use super::reader::CatalogReader;
use super::row::CatalogRow;
use super::session_texts::SessionText;

/// The oldest of each kind; of sessions and prepared transactions, so many of this database, which keep its
/// dead rows, and so many of all others.
const HOLDERS_MAX: usize = 20;

/// Whether a row of `pg_stat_activity a` is no parallel worker. A worker has the snapshot of its leader, and
/// ends with it. Before version 11, no type tells it: it is a process without a client, and some client of
/// the same user and database has its snapshot.
fn is_no_worker(version: u32) -> &'static str {
    if version >= 110_000 {
        "a.backend_type is distinct from 'parallel worker'"
    } else {
        "not (a.client_port is null and a.backend_xid is null \
           and coalesce(a.query, '') not like 'autovacuum: %' \
           and exists (select 1 from pg_stat_activity l where l.client_port is not null \
             and (l.datid, l.usesysid) = (a.datid, a.usesysid) and l.backend_xmin = a.backend_xmin))"
    }
}

/// Sessions: name, age, time since the start, database, user or what other process it is, state,
/// statement, wait, whether the age is that of its transaction ID. Vacuums, logical decoding and parallel workers do not count; WAL senders are listed
/// with the standbys. Of several with one age, such as a writer and those whose snapshots see it running,
/// the one that began first comes first.
fn sessions_sql(version: u32) -> String {
    // 10: the type. Before, an autovacuum worker has the user that created the cluster.
    let process = if version >= 100_000 {
        "case when a.backend_type = 'client backend' then a.usename \
           else coalesce(a.backend_type, a.usename) end"
    } else {
        "case when a.client_port is null and a.query like 'autovacuum: %' then 'autovacuum worker' \
           else a.usename end"
    };
    let [wait_kind, wait_name] = OTHER_WAIT;
    let is_no_worker = is_no_worker(version);
    format!(
        "select pid, age, lasting, datname, process, state, query, wait_kind, wait_name, by_id from (select a.*, \
           row_number() over (partition by datname is distinct from current_database() \
             order by age desc, xact_start) as place \
         from (select a.pid, greatest(age(a.backend_xid), age(a.backend_xmin)) as age, \
             coalesce(age(a.backend_xid) >= coalesce(age(a.backend_xmin), 0), false) as by_id, \
             extract(epoch from clock_timestamp() - a.xact_start) * 1e6 as lasting, a.datname, \
             {process} as process, a.state, a.query, a.xact_start, \
             {wait_kind} as wait_kind, {wait_name} as wait_name \
           from pg_stat_activity a where a.pid <> pg_backend_pid() \
             and (a.backend_xid is not null or a.backend_xmin is not null) and {is_no_worker} \
             and a.pid not in (select v.pid from pg_stat_progress_vacuum v where v.pid is not null) \
             and a.pid not in (select r.pid from pg_stat_replication r where r.pid is not null) \
             and a.pid not in (select s.active_pid from pg_replication_slots s \
               where s.active_pid is not null and s.slot_type = 'logical')) a) a \
         where place <= {HOLDERS_MAX} order by age desc, xact_start"
    )
}

fn prepared_sql() -> String {
    format!(
        "select gid, age, lasting, database, owner from (select p.*, \
           row_number() over (partition by database is distinct from current_database() \
             order by age desc) as place \
         from (select gid, age(transaction) as age, \
             extract(epoch from clock_timestamp() - prepared) * 1e6 as lasting, database, owner \
           from pg_prepared_xacts) p) p \
         where place <= {HOLDERS_MAX} order by age desc"
    )
}

/// Slots with this horizon. Those that are invalid (from 13 on) keep it in the view, but it does not count
/// anymore.
fn slots_sql(version: u32, horizon: &str) -> String {
    let is_valid = if version >= 130_000 {
        "wal_status is distinct from 'lost'"
    } else {
        "true"
    };
    format!(
        "select slot_name, age({horizon}) from pg_replication_slots \
         where {horizon} is not null and {is_valid} order by 2 desc limit 20"
    )
}

/// With a slot, the feedback moves to the slot, and this one is empty.
const STANDBYS: &str = "select application_name, age(backend_xmin) from pg_stat_replication \
     where backend_xmin is not null order by 2 desc limit 20";

/// All five kinds, oldest first.
pub(super) fn horizon(reader: &mut CatalogReader, keeps_text: bool) -> Vec<HorizonHolder> {
    let mut holders = Vec::new();
    for (kind, sql) in [
        (HorizonKind::Session, &*sessions_sql(reader.version)),
        (HorizonKind::PreparedTransaction, &prepared_sql()),
        (HorizonKind::Slot, &slots_sql(reader.version, "xmin")),
        (
            HorizonKind::SlotCatalog,
            &slots_sql(reader.version, "catalog_xmin"),
        ),
        (HorizonKind::Standby, STANDBYS),
    ] {
        let rows = reader.rows("xmin horizon", sql).unwrap_or_default();
        let holder = |row: &CatalogRow| HorizonHolder {
            kind,
            name: row.text(0),
            age: row.count(1),
            has_oldest_id: match kind {
                HorizonKind::Session => row.is_true(9),
                HorizonKind::PreparedTransaction => true,
                HorizonKind::Slot | HorizonKind::SlotCatalog | HorizonKind::Standby => false,
            },
            lasting_us: row.duration(2),
            database: row.get(3).map(str::to_owned),
            detail: match kind {
                HorizonKind::Session => session_detail(row, keeps_text),
                _ => row.text(4),
            },
            state: match kind {
                HorizonKind::Session => row.text(5),
                _ => String::new(),
            },
            wait: row.wait(7),
        };
        holders.extend(rows.iter().map(holder));
    }
    holders.sort_by_key(|it| std::cmp::Reverse(it.age));
    holders
}

/// User or process, state and last statement.
fn session_detail(row: &CatalogRow, keeps_text: bool) -> String {
    let text = SessionText::new(row.get(6).unwrap_or_default(), keeps_text);
    let words = [row.text(4), row.text(5)];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let known: Vec<&str> = words.into_iter().filter(|it| !it.is_empty()).collect();
    match text.statement {
        Some(statement) => format!("{}: {statement}", known.join(", ")),
        None => known.join(", "),
    }
}
