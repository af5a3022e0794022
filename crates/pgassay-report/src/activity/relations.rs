//! Tables, indexes and the server's state in words.

use std::cmp::Reverse;

use pgassay_record::activity::{
    ArchiverState, CatalogActivity, ConnectionUse, DatabaseAge, HorizonHolder, HorizonKind,
    IndexActivity, ReplayState, TableActivity,
};

use super::figures::{share, size};
use super::sentences::relation_name;
use crate::number;

/// Rows written in the window.
pub fn table_writes(table: &TableActivity) -> u64 {
    let changed = table.updated.saturating_add(table.deleted);
    changed.saturating_add(table.inserted)
}

/// Row versions written in the window of an index's table that got an entry in it: all but HOT updates. Those of a
/// partial index are fewer.
pub(crate) fn index_writes(catalog: &CatalogActivity, index: &IndexActivity) -> u64 {
    let table = catalog.tables.iter().find(|it| it.relation == index.table);
    table.filter(|_| !index.is_unmaintained).map_or(0, |it| {
        let moved = it.updated.saturating_sub(it.hot_updated);
        it.inserted.saturating_add(moved)
    })
}

/// What is wrong with an index; `None` if nothing is.
pub fn index_remarks(index: &IndexActivity) -> Option<String> {
    if index.is_being_built {
        return None;
    }
    let mut remarks = Vec::new();
    if !index.is_valid {
        let cost = if index.is_unmaintained {
            "not maintained, and"
        } else {
            "it is maintained, but"
        };
        remarks.push(format!("invalid: {cost} never used"));
    }
    if let Some(other) = &index.redundant_with {
        let other = relation_name(&other.schema, &other.name);
        remarks.push(format!("redundant with {other}"));
    }
    if index.scans_ever == 0 && index.is_valid && !index.is_required {
        remarks.push("never scanned".to_owned());
    }
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

/// Tables that were scanned or written, or have dead rows; busiest first.
pub fn busy_tables(catalog: &CatalogActivity) -> Vec<&TableActivity> {
    let busy = |it: &&TableActivity| {
        let figures = [it.sequential_scans, table_writes(it), it.dead_rows];
        figures.iter().any(|figure| *figure > 0)
    };
    let mut rows: Vec<&TableActivity> = catalog.tables.iter().filter(busy).collect();
    // A write costs more than a row read by a scan.
    let work = |it: &TableActivity| {
        let of_writes = table_writes(it).saturating_mul(10);
        it.sequential_rows.saturating_add(of_writes)
    };
    rows.sort_by_key(|it| Reverse((work(it), it.dead_rows)));
    rows
}

/// Below this part of the catalog's estimate, the statistics do not know the live rows.
const LIVE_MIN: f64 = 0.5;

/// Dead rows as a share of all; empty if there are none, or if the live rows are not known. After a crash, an
/// immediate shutdown or a failover, the statistics have no rows but those written since, until VACUUM or ANALYZE.
pub fn dead_share(table: &TableActivity) -> String {
    let (dead, live) = (table.dead_rows as f64, table.live_rows as f64);
    let is_counted = table.vacuumed_ago_us.is_some() || table.analyzed_ago_us.is_some();
    let estimated = table.estimated_rows.unwrap_or(0.0);
    if table.dead_rows == 0 || (!is_counted && live < LIVE_MIN * estimated) {
        return String::new();
    }
    share(dead, dead + live)
}

/// Beyond those of clients, privileged roles use the reserved ones.
fn connections(it: &ConnectionUse) -> String {
    let of_clients = it.used.min(it.available);
    let reserved = match it.used - of_clients {
        0 => String::new(),
        more => format!(" and {more} reserved"),
    };
    let idle = it
        .idle
        .map_or_else(String::new, |it| format!(", {it} idle"));
    format!("{of_clients} of {}{reserved} in use{idle}", it.available)
}

/// Connections, what holds the horizon, slots, wraparound and checkpoints: a title and a text each.
pub fn server_lines(catalog: &CatalogActivity) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> = Vec::new();
    if let Some(it) = &catalog.connections {
        lines.push(("connections", connections(it)));
    }
    let holders = horizon_holders(catalog);
    lines.extend(holders.map(|it| ("horizon", oldest_snapshot(catalog, it))));
    for slot in &catalog.slots {
        if let Some(bytes) = slot.retained_bytes {
            let state = if slot.is_active { "active" } else { "inactive" };
            let text = format!("slot {} ({state}) keeps {} of WAL", slot.name, size(bytes));
            lines.push(("replication", text));
        }
    }
    if let Some(it) = &catalog.archiver {
        lines.push(("archiving", archiving(it)));
    }
    if let Some(it) = &catalog.replay {
        lines.push(("replay", replay(it)));
    }
    if let Some(closest) = catalog.ages.first() {
        lines.push(("wraparound", wraparound(closest)));
    }
    if let Some(it) = &catalog.checkpoints {
        let text = format!("{} timed, {} requested", it.timed, it.requested);
        let title = if catalog.is_standby {
            "restartpoints"
        } else {
            "checkpoints"
        };
        lines.push((title, text));
    }
    lines
}

/// How many IDs are left of the kind that is closer to its end. Both kinds have as many.
fn wraparound(closest: &DatabaseAge) -> String {
    let (kind, left) = if closest.multixact_age > closest.age {
        let all = closest.left.saturating_add(closest.age);
        ("multixact", all.saturating_sub(closest.multixact_age))
    } else {
        ("transaction", closest.left)
    };
    let left = number::whole(left as f64);
    format!("{left} {kind} IDs left in database {}", closest.database)
}

/// The oldest holder of the xmin horizon; if it keeps only rows of system catalogs or of another database, also the
/// oldest of those that keep the rows of this database's tables. One whose age is 0 keeps nothing: no transaction has
/// begun since.
fn horizon_holders(catalog: &CatalogActivity) -> impl Iterator<Item = &HorizonHolder> {
    let keeps_rows_here = |it: &HorizonHolder| {
        let database = it.database.as_ref();
        it.kind != HorizonKind::SlotCatalog && database.is_none_or(|it| *it == catalog.database)
    };
    let aged = |it: &&HorizonHolder| it.age > 0;
    let oldest = catalog.horizon.first().filter(aged);
    let is_enough = oldest.is_none_or(keeps_rows_here);
    let mut others = catalog.horizon.iter().filter(aged);
    let here = others.find(|it| keeps_rows_here(it));
    oldest.into_iter().chain(here.filter(|_| !is_enough))
}

fn oldest_snapshot(catalog: &CatalogActivity, oldest: &HorizonHolder) -> String {
    let kind = match oldest.kind {
        HorizonKind::Session => "session",
        HorizonKind::PreparedTransaction => "prepared transaction",
        HorizonKind::Slot | HorizonKind::SlotCatalog => "replication slot",
        HorizonKind::Standby => "standby",
    };
    let what = match oldest.kind {
        HorizonKind::PreparedTransaction => "is",
        _ => "runs",
    };
    let elsewhere = oldest.database.as_ref();
    let elsewhere = elsewhere.filter(|it| **it != catalog.database);
    let rows = match elsewhere {
        _ if oldest.kind == HorizonKind::SlotCatalog => "rows of system catalogs".to_owned(),
        Some(database) => format!("rows of database {database}"),
        None => "rows".to_owned(),
    };
    // A standby removes dead rows when the primary does, whatever its sessions see.
    let effect = if catalog.is_standby {
        String::new()
    } else {
        format!(": VACUUM keeps {rows} that were deleted or updated since")
    };
    let name = &oldest.name;
    let age = number::whole(oldest.age as f64);
    let plural = if oldest.age == 1 { "" } else { "s" };
    if oldest.has_oldest_id {
        format!(
            "{kind} {name} {what} the oldest transaction, {age} transaction ID{plural} behind{effect}"
        )
    } else {
        format!("{kind} {name} has the oldest snapshot, {age} transaction{plural} old{effect}")
    }
}

fn archiving(archiver: &ArchiverState) -> String {
    let waiting = archiver.backlog_bytes.map_or_else(String::new, |bytes| {
        format!("{} of WAL after the last archived file", size(bytes))
    });
    match &archiver.failed_wal {
        Some(file) if waiting.is_empty() => format!("{file} failed"),
        Some(file) => format!("{file} failed; {waiting}"),
        None if waiting.is_empty() => "no failure".to_owned(),
        None => waiting,
    }
}

/// The last transaction of an idle primary may be old although nothing waits.
fn replay(replay: &ReplayState) -> String {
    let paused = if replay.is_paused { "paused; " } else { "" };
    match replay.waiting_bytes {
        Some(0) => format!("{paused}all WAL that was received is replayed"),
        Some(bytes) => format!("{paused}{} of WAL received and not replayed", size(bytes)),
        None => format!("{paused}no WAL was received by streaming"),
    }
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::CheckpointActivity;

    use super::*;

    /// Regression: "100%" after a crash or a failover, when the statistics have no live rows yet.
    #[test]
    fn dead_rows_are_no_share_of_live_rows_that_are_not_known() {
        let table = |live_rows, analyzed_ago_us| TableActivity {
            dead_rows: 1000,
            live_rows,
            estimated_rows: Some(19_000.0),
            analyzed_ago_us,
            ..TableActivity::default()
        };
        assert_eq!(dead_share(&table(0, None)), "");
        assert_eq!(dead_share(&table(19_000, None)), "5.0%");
        assert_eq!(dead_share(&table(0, Some(1e6))), "100%");
    }

    /// Regression: "2,144,483,547 transaction IDs left in database logs", which was the closest by its multixacts;
    /// another database had fewer.
    #[test]
    fn the_ids_that_are_closest_to_wraparound_are_named() {
        let left = |age, multixact_age| {
            let ages = vec![DatabaseAge {
                database: "logs".to_owned(),
                age,
                multixact_age,
                left: 2_144_483_647 - age,
                ..DatabaseAge::default()
            }];
            let catalog = CatalogActivity {
                ages,
                ..CatalogActivity::default()
            };
            server_lines(&catalog).pop().map(|it| it.1)
        };
        let text = |left: &str| Some(format!("{left} IDs left in database logs"));
        assert_eq!(left(100, 1_144_483_647), text("1,000,000,000 multixact"));
        assert_eq!(left(1_144_483_647, 100), text("1,000,000,000 transaction"));
    }

    /// Regressions: "at an age of 1 transactions"; "session 5909 holds back the removal of dead rows, at an age of 0
    /// transactions", on quiet servers.
    #[test]
    fn a_snapshot_is_as_old_as_the_transactions_that_began_since() {
        let horizon = |age| {
            let oldest = HorizonHolder {
                kind: HorizonKind::Slot,
                name: "cdc".to_owned(),
                age,
                has_oldest_id: false,
                lasting_us: None,
                database: None,
                detail: String::new(),
                state: String::new(),
                wait: None,
            };
            let catalog = CatalogActivity {
                horizon: vec![oldest],
                ..CatalogActivity::default()
            };
            let mut lines = server_lines(&catalog);
            lines.pop().map(|it| it.1).unwrap_or_default()
        };
        assert_eq!(horizon(0), "");
        let has = "replication slot cdc has the oldest snapshot";
        let keeps = "VACUUM keeps rows that were deleted or updated since";
        assert_eq!(horizon(1), format!("{has}, 1 transaction old: {keeps}"));
        assert_eq!(horizon(2), format!("{has}, 2 transactions old: {keeps}"));
    }

    /// Regression: "replication slot cdc has the oldest snapshot: VACUUM keeps rows of system catalogs" was all, while
    /// the slot of a standby with a long query kept the rows of all tables.
    #[test]
    fn what_keeps_rows_of_tables_is_named_after_a_slot_that_keeps_those_of_catalogs() {
        let holder = |kind, name: &str, age, database: Option<&str>| HorizonHolder {
            kind,
            name: name.to_owned(),
            age,
            has_oldest_id: false,
            lasting_us: None,
            database: database.map(str::to_owned),
            detail: String::new(),
            state: String::new(),
            wait: None,
        };
        let named = |horizon: Vec<HorizonHolder>| {
            let catalog = CatalogActivity {
                database: "shop".to_owned(),
                horizon,
                ..CatalogActivity::default()
            };
            let lines = server_lines(&catalog).into_iter();
            let names = lines.map(|(_, text)| text.split(" has ").next().unwrap_or("").to_owned());
            names.collect::<Vec<_>>()
        };
        let session = |age| holder(HorizonKind::Session, "4711", age, Some("shop"));
        let elsewhere = holder(HorizonKind::Session, "99", 30, Some("reports"));
        let cdc = holder(HorizonKind::SlotCatalog, "cdc", 30, None);
        let standby = holder(HorizonKind::Slot, "standby", 20, None);
        let [slot_line, standby_line] = ["replication slot cdc", "replication slot standby"];
        let all = vec![cdc.clone(), standby.clone(), session(10)];
        assert_eq!(named(all), [slot_line, standby_line]);
        assert_eq!(named(vec![cdc, session(0)]), [slot_line]);
        assert_eq!(named(vec![standby, session(10)]), [standby_line]);
        assert_eq!(
            named(vec![elsewhere, session(10)]),
            ["session 99", "session 4711"]
        );
    }

    /// Regression: "session 14325 has the oldest snapshot", of one that had written and had none (READ COMMITTED, idle
    /// in a transaction).
    #[test]
    fn a_session_without_a_snapshot_runs_the_oldest_transaction() {
        let text = |kind, name: &str| {
            let oldest = HorizonHolder {
                kind,
                name: name.to_owned(),
                age: 1653,
                has_oldest_id: true,
                lasting_us: None,
                database: None,
                detail: String::new(),
                state: String::new(),
                wait: None,
            };
            oldest_snapshot(&CatalogActivity::default(), &oldest).replace('\u{a0}', " ")
        };
        let keeps = "VACUUM keeps rows that were deleted or updated since";
        assert_eq!(
            text(HorizonKind::Session, "14325"),
            format!(
                "session 14325 runs the oldest transaction, 1,653 transaction IDs behind: {keeps}"
            )
        );
        assert_eq!(
            text(HorizonKind::PreparedTransaction, "tx-1"),
            format!(
                "prepared transaction tx-1 is the oldest transaction, 1,653 transaction IDs behind: {keeps}"
            )
        );
    }

    /// A session keeps dead rows in the tables of its database only.
    #[test]
    fn the_oldest_snapshot_of_another_database_keeps_rows_there() {
        let oldest = HorizonHolder {
            kind: HorizonKind::Session,
            name: "4711".to_owned(),
            age: 25,
            has_oldest_id: false,
            lasting_us: None,
            database: Some("reports".to_owned()),
            detail: String::new(),
            state: String::new(),
            wait: None,
        };
        let catalog = CatalogActivity {
            database: "shop".to_owned(),
            ..CatalogActivity::default()
        };
        let text = oldest_snapshot(&catalog, &oldest);
        assert!(
            text.ends_with(
                "VACUUM keeps rows of database reports that were deleted or updated since"
            ),
            "{text}"
        );
    }

    /// Regression: sessions of a standby were said to hold back the removal of dead rows, and its restartpoints were
    /// called checkpoints.
    #[test]
    fn a_standby_has_restartpoints_and_removes_no_rows_by_itself() {
        let catalog = CatalogActivity {
            is_standby: true,
            horizon: vec![HorizonHolder {
                kind: HorizonKind::Session,
                name: "4711".to_owned(),
                age: 25,
                has_oldest_id: false,
                lasting_us: None,
                database: None,
                detail: String::new(),
                state: String::new(),
                wait: None,
            }],
            checkpoints: Some(CheckpointActivity {
                requested: 3,
                ..CheckpointActivity::default()
            }),
            ..CatalogActivity::default()
        };
        let expected = [
            (
                "horizon",
                "session 4711 has the oldest snapshot, 25 transactions old".to_owned(),
            ),
            ("restartpoints", "0 timed, 3 requested".to_owned()),
        ];
        assert_eq!(server_lines(&catalog), expected);
    }

    /// Regression: "117 of 97 in use".
    #[test]
    fn reserved_connections_are_not_among_those_for_clients() {
        let with = |used| ConnectionUse {
            used,
            idle: Some(30),
            available: 97,
            ..ConnectionUse::default()
        };
        assert_eq!(connections(&with(42)), "42 of 97 in use, 30 idle");
        // Regression: "0 idle", of sessions whose states are hidden.
        let hidden = ConnectionUse {
            idle: None,
            ..with(42)
        };
        assert_eq!(connections(&hidden), "42 of 97 in use");
        assert_eq!(
            connections(&with(99)),
            "97 of 97 and 2 reserved in use, 30 idle"
        );
    }
}
