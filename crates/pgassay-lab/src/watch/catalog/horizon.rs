//! What holds back the removal of dead rows. PostgreSQL's `src/backend/storage/ipc/procarray.c`,
//! `ComputeXidHorizons`.

use pgassay_record::activity::{HorizonHolder, HorizonKind};

use super::reader::CatalogReader;
use super::row::CatalogRow;
use super::session_texts::SessionText;

/// The oldest of each kind.
const HOLDERS_MAX: usize = 20;

/// Sessions: name, age, start, database, user, state, statement. Vacuums and logical decoding do not
/// count; WAL senders are listed with the standbys. Of several with one age, such as a writer and those
/// whose snapshots see it running, the one that began first comes first.
const SESSIONS: &str = "select a.pid, greatest(age(a.backend_xid), age(a.backend_xmin)), \
       extract(epoch from clock_timestamp() - a.xact_start) * 1e6, a.datname, a.usename, a.state, \
       a.query \
     from pg_stat_activity a where a.pid <> pg_backend_pid() \
       and (a.backend_xid is not null or a.backend_xmin is not null) \
       and a.pid not in (select v.pid from pg_stat_progress_vacuum v where v.pid is not null) \
       and a.pid not in (select r.pid from pg_stat_replication r where r.pid is not null) \
       and a.pid not in (select s.active_pid from pg_replication_slots s \
         where s.active_pid is not null and s.slot_type = 'logical') \
     order by 2 desc, a.xact_start limit 20";

const PREPARED: &str = "select gid, age(transaction), \
       extract(epoch from clock_timestamp() - prepared) * 1e6, database, owner \
     from pg_prepared_xacts order by 2 desc limit 20";

const SLOTS: &str = "select slot_name, age(xmin) from pg_replication_slots \
     where xmin is not null order by 2 desc limit 20";

const SLOT_CATALOGS: &str = "select slot_name, age(catalog_xmin) from pg_replication_slots \
     where catalog_xmin is not null order by 2 desc limit 20";

/// With a slot, the feedback moves to the slot, and this one is empty.
const STANDBYS: &str = "select application_name, age(backend_xmin) from pg_stat_replication \
     where backend_xmin is not null order by 2 desc limit 20";

/// All five kinds, oldest first.
pub(super) fn horizon(reader: &mut CatalogReader, keeps_text: bool) -> Vec<HorizonHolder> {
    let mut holders = Vec::new();
    for (kind, sql) in [
        (HorizonKind::Session, SESSIONS),
        (HorizonKind::PreparedTransaction, PREPARED),
        (HorizonKind::Slot, SLOTS),
        (HorizonKind::SlotCatalog, SLOT_CATALOGS),
        (HorizonKind::Standby, STANDBYS),
    ] {
        let rows = reader.rows("xmin horizon", sql).unwrap_or_default();
        let holder = |row: &CatalogRow| HorizonHolder {
            kind,
            name: row.text(0),
            age: row.count(1),
            lasting_us: row.duration(2),
            database: row.get(3).map(str::to_owned),
            detail: match kind {
                HorizonKind::Session => session_detail(row, keeps_text),
                _ => row.text(4),
            },
        };
        holders.extend(rows.iter().take(HOLDERS_MAX).map(holder));
    }
    holders.sort_by_key(|it| std::cmp::Reverse(it.age));
    holders
}

/// User, state and last statement.
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
