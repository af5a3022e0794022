//! Indexes that cost and do not serve, and foreign keys without one.

use std::collections::BTreeSet;

use pgassay_record::activity::{
    HorizonKind, IndexActivity, RelationName, TableActivity, UncoveredForeignKey,
};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::index_builds::update_first;
use super::live_view::{LiveView, StatementLoad};
use super::names;
use super::signature::OperatorSignature;
use super::sql_text;

/// Writes per second from which on maintaining an index costs anything.
const WRITES_MIN: f64 = 1.0;
/// Jobs that run once a week need their indexes too.
const STATISTICS_AGE_US: f64 = 7.0 * 86_400e6;
/// An index below eight pages costs nothing that could be measured.
const SIZE_MIN: u64 = 65_536;
/// Rows that a check of a foreign key must read to be worth an index.
const ROWS_PER_CHECK_MIN: f64 = 1000.0;
/// The default of `gin_pending_list_limit`; a longer list makes every search slower.
const PENDING_LIST_LIMIT: u64 = 4 * 1_048_576;
/// Of the backends' CPU time.
const CLEANUP_MIN: f64 = 0.05;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "foreign-key-index",
        title: "Deleting referenced rows reads the whole referencing table",
        manual: "Data Definition: Foreign Keys",
        detect: foreign_key,
    },
    OperatorSignature {
        id: "unused-index",
        title: "An index is maintained and never used",
        manual: "Indexes: Examining Index Usage",
        detect: unused,
    },
    OperatorSignature {
        id: "redundant-index",
        title: "An index is redundant with another",
        manual: "Indexes: Multicolumn Indexes",
        detect: redundant,
    },
    OperatorSignature {
        id: "invalid-index",
        title: "An index is invalid: no query can use it",
        manual: "SQL Commands: CREATE INDEX, Building Indexes Concurrently",
        detect: invalid,
    },
    OperatorSignature {
        id: "gin-pending-list",
        title: "A GIN index may have a long pending list",
        manual: "Indexes: GIN Fast Update Technique",
        detect: gin_pending_list,
    },
];

fn table_of<'a>(view: &LiveView<'a>, index: &IndexActivity) -> Option<&'a TableActivity> {
    view.table(&index.table)
}

/// Rows per second whose writing changes each index: HOT updates change none.
fn index_writes(view: &LiveView<'_>, table: Option<&TableActivity>) -> f64 {
    let writes = table.map_or(0, |it| {
        let changed = it.updated.saturating_sub(it.hot_updated);
        changed.saturating_add(it.inserted)
    });
    writes as f64 / view.window_s
}

/// Bytes of a B-tree for each row, at least: a row's address, where equal keys share an entry.
const ENTRY_BYTES: u64 = 6;

/// The size of an index that was created with its table, until the first VACUUM or ANALYZE.
const EMPTY_BYTES: u64 = 8192;

/// The least size that an index has. `relpages` of one that was created with its table is 0 or 1 until the first
/// VACUUM or ANALYZE, however many rows the table has.
fn least_size(view: &LiveView<'_>, index: &IndexActivity) -> u64 {
    let is_partial = index.columns.iter().any(|it| it == "where expression");
    let is_unknown = index.size_bytes <= EMPTY_BYTES;
    let has_all_rows = is_unknown && index.method == "btree" && !is_partial && index.is_valid;
    let rows = table_of(view, index).filter(|_| has_all_rows);
    index
        .size_bytes
        .max(rows.map_or(0, |it| it.live_rows * ENTRY_BYTES))
}

/// A detection of an index with its size and its table's writes.
fn of_index(view: &LiveView<'_>, index: &IndexActivity) -> Detection {
    of_index_and(view, index, "")
}

/// With what else must be known of it first: a terminal shows the first few facts.
fn of_index_and(view: &LiveView<'_>, index: &IndexActivity, more: &str) -> Detection {
    let writes = index_writes(view, table_of(view, index));
    let writes = Some(writes).filter(|_| !index.is_unmaintained);
    let size = least_size(view, index);
    let of_what = if size > index.size_bytes {
        "its size by the table's rows, at least"
    } else {
        "its size at the last VACUUM or ANALYZE"
    };
    Detection::of(ObjectKind::Index, names::relation(&index.relation))
        .extent(size as f64)
        .state(format!(
            "{} on {} ({}){more}",
            index.method,
            names::relation(&index.table),
            index.columns.join(", ")
        ))
        .figure(of_what, size as f64, FactUnit::Bytes)
        .with(writes, |it, writes| match writes {
            none if none <= 0.0 => it.state("no writes maintained it in this window"),
            some => it.counter("writes that maintain it", some, FactUnit::PerSecond),
        })
}

fn drop_index(index: &IndexActivity) -> String {
    format!(
        "drop index concurrently {}",
        names::relation(&index.relation)
    )
}

/// Standbys that this server knows of.
fn standbys(view: &LiveView<'_>) -> String {
    let slots = view.catalog.slots.iter().filter(|it| it.kind == "physical");
    let feedback = view.catalog.horizon.iter();
    let feedback = feedback.filter(|it| it.kind == HorizonKind::Standby);
    let connected = view.catalog.standbys.iter().map(String::as_str);
    let all: BTreeSet<&str> = slots
        .map(|it| it.name.as_str())
        .chain(feedback.map(|it| it.name.as_str()))
        .chain(connected)
        .collect();
    all.into_iter().collect::<Vec<_>>().join(", ")
}

/// The age of an index's definition, estimated.
fn definition_age_us(view: &LiveView<'_>, index: &IndexActivity) -> Option<f64> {
    view.transactions_us(index.definition_age?)
}

/// Whether an index was created within the window: the writes before it, such as those of a bulk load, did not maintain
/// it, and nothing had the time to use it.
fn is_new(view: &LiveView<'_>, index: &IndexActivity) -> bool {
    definition_age_us(view, index).is_some_and(|us| us < view.window_s * 1e6)
}

/// What the age of an index says against its scans, which are counted since it was created.
fn youth(view: &LiveView<'_>, index: &IndexActivity) -> Option<&'static str> {
    match definition_age_us(view, index) {
        Some(us) if us >= STATISTICS_AGE_US => None,
        Some(_) => Some(
            "the index may be younger than 7 days, by the age of its definition in transactions",
        ),
        None => Some("the age of the index is unknown: it may be younger than the statistics"),
    }
}

fn unused(view: &LiveView<'_>) -> Vec<Detection> {
    // Nothing writes on a standby, and the primary's queries are not counted there.
    if view.catalog.is_standby {
        return Vec::new();
    }
    let age_us = view.statistics_age_us();
    let standbys = standbys(view);
    let indexes = view.catalog.indexes.iter().filter(|it| {
        let is_unused = it.scans_ever == 0 && it.scans == 0 && !it.is_required;
        is_unused
            && it.is_valid
            && !it.is_being_built
            && it.redundant_with.is_none()
            && !serves_another(view, it)
            && !is_new(view, it)
            && least_size(view, it) >= SIZE_MIN
            && index_writes(view, table_of(view, it)) >= WRITES_MIN
    });
    indexes
        .map(|index| {
            let detection = of_index(view, index)
                .urgent(2)
                .counter(
                    "scans since the statistics were reset",
                    0.0,
                    FactUnit::Count,
                )
                .counter("age of the statistics", age_us, FactUnit::Micros)
                .against(
                    age_us < STATISTICS_AGE_US,
                    "the statistics are too young to exclude a weekly or monthly job",
                )
                .with(youth(view, index), |it, why| it.against(true, why))
                .against(
                    view.catalog.statistics_age_us.is_none(),
                    "the age of the statistics is unknown: a crash discards them",
                )
                .against(
                    !standbys.is_empty(),
                    format!("queries on a standby are counted there: check {standbys}"),
                );
            without_use(detection, index)
        })
        .collect()
}

/// The fix for an index that nothing scanned.
fn without_use(detection: Detection, index: &IndexActivity) -> Detection {
    let statistics = if index.columns.iter().any(|it| it == "expression") {
        " ANALYZE gathers statistics of the expression for the index, which the planner uses also for plans without \
         it: they would be lost."
    } else {
        ""
    };
    let risk = format!(
        "A rare query may become slow, and building the index again takes time; note its definition \
         (pg_get_indexdef).{statistics}"
    );
    if let Some(key) = &index.foreign_key {
        let key = names::identifier(key);
        return detection
            .against(
                true,
                format!("no other index serves the checks of foreign key {key}, which may be rare"),
            )
            .fix(format!(
                "Keep the index, unless you are sure that no referenced row is ever deleted and no key of one changes: \
                 each such change looks up the referencing rows for foreign key {key}, and would read the whole table \
                 without the index."
            ))
            .risk(risk);
    }
    detection
        .fix(
            "Drop the index, after a look at idx_scan of pg_stat_user_indexes on each standby and over a whole \
             business cycle. After a failover, the count from before is on the former primary.",
        )
        .sql(drop_index(index))
        .risk(risk)
}

/// Whether a redundant index, whose own finding is to drop it, depends on this one.
fn serves_another(view: &LiveView<'_>, index: &IndexActivity) -> bool {
    let mut all = view.catalog.indexes.iter();
    all.any(|it| {
        it.redundant_with
            .as_ref()
            .is_some_and(|by| by.oid == index.relation.oid)
    })
}

fn redundant(view: &LiveView<'_>) -> Vec<Detection> {
    let indexes = view.catalog.indexes.iter().filter(|it| {
        it.is_valid && !it.is_required && !it.is_being_built && least_size(view, it) >= SIZE_MIN
    });
    indexes
        .filter_map(|index| {
            let other = index.redundant_with.as_ref()?;
            let served = format!(
                "; {} serves every scan that it serves",
                names::relation(other)
            );
            let is_written = index_writes(view, table_of(view, index)) > 0.0;
            let detection = of_index_and(view, index, &served)
                .urgent(2)
                .counter(
                    "its scans since the statistics were reset",
                    index.scans_ever as f64,
                    FactUnit::Count,
                )
                .fix(if is_written {
                    "Drop the index: each write maintains both, and the other one can take over its \
                     scans."
                } else {
                    "Drop the index: the other one can take over its scans. No write maintained it in this \
                     window: the gain is disk space."
                })
                .sql(drop_index(index))
                .risk(
                    "If the other index is much larger, scans that read many entries become slightly \
                     slower.",
                );
            Some(detection)
        })
        .collect()
}

fn invalid(view: &LiveView<'_>) -> Vec<Detection> {
    let indexes = view.catalog.indexes.iter();
    // A build on the primary is not visible on a standby.
    let broken =
        indexes.filter(|it| !it.is_valid && !it.is_being_built && !view.catalog.is_standby);
    broken
        .map(|index| {
            let name = &index.relation.name;
            let is_leftover = name.contains("_ccnew") || name.contains("_ccold");
            let detection = of_index(view, index)
                .urgent(3)
                .state("pg_index.indisvalid is false, and no session builds or drops it now");
            if is_leftover || view.major < 12 {
                let words = if is_leftover {
                    "Drop it: a REINDEX CONCURRENTLY that failed left it."
                } else {
                    "Drop it, and create it again with CREATE INDEX CONCURRENTLY: a build failed."
                };
                detection
                    .fix(words)
                    .sql(drop_index(index))
                    .risk("None for queries: no plan can use it.")
            } else {
                detection
                    .fix(format!(
                        "{}Build it again, or drop it if it is not needed: a concurrent build failed, for \
                         example by a duplicate key, a timeout, or a canceled session.",
                        update_first(view)
                    ))
                    .sql(format!(
                        "reindex index concurrently {}",
                        names::relation(&index.relation)
                    ))
                    .risk(
                        "The build reads the table, waits for open transactions, and needs free disk \
                         space; a unique index fails again if there are duplicates.",
                    )
            }
        })
        .collect()
}

fn foreign_key(view: &LiveView<'_>) -> Vec<Detection> {
    let keys = view.catalog.uncovered_foreign_keys.iter();
    keys.filter_map(|key| {
        let child = view.table(&key.table)?;
        let rows = rows_per_check(view, key)?;
        Some(uncovered(view, key, child, rows, checked_rows(view, key)))
    })
    .collect()
}

/// Rows that each check of this key reads; `None` if it is hardly checked, or a check reads few.
fn rows_per_check(view: &LiveView<'_>, key: &UncoveredForeignKey) -> Option<f64> {
    let child = view.table(&key.table)?;
    let scans = child.sequential_scans;
    let rows = child.sequential_rows as f64 / (scans as f64).max(1.0);
    let enough = checked_rows(view, key) > 0 && scans > 0 && rows >= ROWS_PER_CHECK_MIN;
    enough.then_some(rows)
}

/// Whether checks of a foreign key without an index read this table from end to end, or its partitions.
pub(super) fn is_scanned_by_checks(view: &LiveView<'_>, table: &RelationName) -> bool {
    let keys = view.catalog.uncovered_foreign_keys.iter();
    let mut its = keys.filter(|key| {
        let part = view.table(&key.table);
        key.table == *table || part.is_some_and(|it| it.partition_of.as_ref() == Some(table))
    });
    its.any(|key| rows_per_check(view, key).is_some())
}

/// Referenced rows that were deleted, or whose key may have changed. PostgreSQL's
/// `src/backend/utils/adt/ri_triggers.c`, `RI_FKey_pk_upd_check_required`: an update that leaves the key
/// alone is not checked.
fn checked_rows(view: &LiveView<'_>, key: &UncoveredForeignKey) -> u64 {
    let mut writers = view.statements_on(&key.referenced);
    let changes_key = writers.any(|(_, load)| sets_key(view, load, key));
    let moved = if changes_key { key.referenced_moved } else { 0 };
    key.referenced_deleted.saturating_add(moved)
}

/// Whether the statement changes rows of the referenced table, and does not only read them to change
/// those of another.
fn writes_referenced(view: &LiveView<'_>, load: &StatementLoad, key: &UncoveredForeignKey) -> bool {
    let target = load.relations.first();
    target.is_some_and(|it| view.is_mention_of(it, &key.referenced))
}

fn sets_key(view: &LiveView<'_>, load: &StatementLoad, key: &UncoveredForeignKey) -> bool {
    writes_referenced(view, load, key) && sql_text::sets_any(&load.tokens, &key.referenced_columns)
}

fn uncovered(
    view: &LiveView<'_>,
    key: &UncoveredForeignKey,
    child: &TableActivity,
    rows: f64,
    checked: u64,
) -> Detection {
    let deletes = |load: &StatementLoad| {
        sql_text::command(&load.tokens) == "delete" && writes_referenced(view, load, key)
    };
    let writers: Vec<_> = view
        .statements_on(&key.referenced)
        .filter(|(_, load)| deletes(load) || sets_key(view, load, key))
        .collect();
    let load: f64 = writers.iter().map(|(_, load)| load.local).sum();
    let heaviest = writers
        .iter()
        .max_by(|a, b| a.1.local.total_cmp(&b.1.local));
    let detection = Detection::of(ObjectKind::Table, names::relation(&key.table))
        .extent(rows)
        .statement(heaviest.map(|(statement, _)| *statement))
        .state(format!(
            "foreign key {} ({}) references {} and has no index",
            names::identifier(&key.constraint),
            names::columns(&key.columns),
            names::relation(&key.referenced)
        ))
        .counter(
            "referenced rows deleted, or updated in the key at most",
            checked as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .counter("rows read per check", rows, FactUnit::Count)
        .counter(
            "sequential scans of the referencing table",
            child.sequential_scans as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .load("average sessions that delete or update referenced rows", load)
        .against(
            key.referenced_deleted == 0,
            "no row was deleted, and an update that sets the key to the value that it has is not checked",
        )
        .context_figure("size of the table at its last VACUUM or ANALYZE", key.size_bytes as f64, FactUnit::Bytes)
        .fix(format!(
            "{}Create an index on the referencing columns: each row deleted from the referenced table, or \
             whose key changes, is looked up there.",
            update_first(view)
        ))
        .sql(format!(
            "create index concurrently on {} ({})",
            names::relation(&key.table),
            names::columns(&key.columns)
        ))
        .risk(
            "The build reads the table twice, waits for open transactions, and needs free disk space; if \
             it fails, drop the invalid index that it leaves.",
        );
    if load >= view.noticeable() {
        detection.saved(load)
    } else {
        detection.urgent(4)
    }
}

fn gin_pending_list(view: &LiveView<'_>) -> Vec<Detection> {
    let cleanup = view.cpu_in(&["ginInsertCleanup"]).unwrap_or(0.0);
    let indexes = view.catalog.indexes.iter().filter(|it| {
        let limit = it.pending_list_limit_bytes.unwrap_or(0);
        let is_written = index_writes(view, table_of(view, it)) >= WRITES_MIN;
        let is_long = limit > PENDING_LIST_LIMIT && it.scans > 0;
        limit > 0 && is_written && (is_long || cleanup >= CLEANUP_MIN)
    });
    indexes
        .map(|index| {
            let limit = index.pending_list_limit_bytes.unwrap_or(0);
            // A limit that is as low already gives way to none.
            let parameter = if limit > 1024 * 1024 {
                "gin_pending_list_limit = 1024"
            } else {
                "fastupdate = off"
            };
            of_index(view, index)
                .urgent(2)
                .figure("limit of its pending list", limit as f64, FactUnit::Bytes)
                .sampled("of the CPU time is for emptying pending lists", cleanup, FactUnit::Share)
                .against(
                    true,
                    "no view shows how long the list is, only pgstatginindex of the extension \
                     pgstattuple",
                )
                .fix(format!(
                    "Lower the limit, so that searches read a short list and inserts empty it in small \
                     steps; or turn fastupdate off. Neither empties the list that there is: afterward, \
                     VACUUM the table, or call gin_clean_pending_list({}).",
                    names::literal(&names::relation(&index.relation))
                ))
                .sql(format!(
                    "alter index {} set ({parameter})",
                    names::relation(&index.relation)
                ))
                .risk(
                    "ALTER INDEX takes an ACCESS EXCLUSIVE lock on the index, so that queries which use it queue \
                     behind it: set lock_timeout first. Inserts then empty the list more often, and become \
                     slower on average.",
                )
        })
        .collect()
}
