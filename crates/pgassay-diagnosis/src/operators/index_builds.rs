//! How an index is created without blocking writes, on a table that may be partitioned.

use pgassay_record::activity::TableActivity;

use super::detection::Detection;
use super::live_view::LiveView;
use super::locks::{ACTIONABLE_US, is_idle_in_transaction};
use super::names;

/// The risk of an index that is built concurrently.
const RISK: &str = "The build reads the table twice, waits for open transactions, and needs free disk space; if \
                    it fails, drop the invalid index that it leaves. Writes to the table take longer afterward.";

/// The risk of an index of all partitions: CREATE INDEX on a partitioned table cannot be concurrent.
const RISK_OF_PARENT: &str = "Until the indexes of all partitions are built, all writes to the table and to its \
                              partitions wait; it needs free disk space. Writes to the table take longer afterward.";

/// What an index of a partitioned table requires.
fn words_of_parent(view: &LiveView<'_>) -> &'static str {
    if has_indexes_of_parents(view) {
        " Each partition gets one. To write to the table meanwhile, create the index of each partition with CREATE \
         INDEX CONCURRENTLY first: the index of the whole table then takes them over."
    } else {
        " In version 10 a partitioned table cannot have an index: create one on each partition, with CREATE INDEX \
         CONCURRENTLY."
    }
}

/// From 11 on, a partitioned table can have indexes.
fn has_indexes_of_parents(view: &LiveView<'_>) -> bool {
    view.major != 10
}

/// A sentence for servers that may leave rows out of an index that is built concurrently (release notes of 14.4);
/// else empty.
pub(super) fn update_first(view: &LiveView<'_>) -> &'static str {
    let version = view.setting("server_version_num");
    let version: Option<u32> = version.and_then(|it| it.parse().ok());
    if version.is_some_and(|it| (140_000..140_004).contains(&it)) {
        "Update the server to 14.4 or later first: before, an index that is built CONCURRENTLY may lack rows that are \
         updated meanwhile. "
    } else {
        ""
    }
}

/// The beginning of the statement that creates an index on the table, or on each of its partitions.
pub(super) fn create_on(view: &LiveView<'_>, table: &TableActivity) -> String {
    let name = names::relation(&table.relation);
    match table.partition_of {
        Some(_) if has_indexes_of_parents(view) => format!("create index on {name}"),
        Some(_) => "create index concurrently on <partition>".to_owned(),
        None => format!("create index concurrently on {name}"),
    }
}

/// What the build of an index on the table blocks, and what it waits for.
pub(super) fn risk_of_build(view: &LiveView<'_>, table: &TableActivity) -> String {
    if table.partition_of.is_some() && has_indexes_of_parents(view) {
        return RISK_OF_PARENT.to_owned();
    }
    let waits_now = idle_transaction(view).map_or_else(String::new, |pid| {
        format!(" Now the build would wait for session {pid}, which is idle in a transaction.")
    });
    format!("{RISK}{waits_now}")
}

/// A session of this database that was idle in a transaction for a while, and blocks others or holds locks: a
/// concurrent build of an index waits for its end.
fn idle_transaction(view: &LiveView<'_>) -> Option<u32> {
    let blockers = view.activity.blocking.iter().filter(|it| it.is_lasting);
    let holders = view.activity.idle_lock_holders.iter();
    let roots = blockers
        .map(|it| &it.root)
        .chain(holders.map(|it| &it.holder));
    let mut idle = roots.filter(|it| {
        is_idle_in_transaction(&it.state)
            && it.state_age_us >= ACTIONABLE_US
            && it.database == view.catalog.database
    });
    idle.find_map(|it| it.pid)
}

/// Suggests an index on the table with `words`, which end with a sentence. `definition` follows the table in the
/// statement; `None` if it is not known in full.
pub(super) fn with_build(
    view: &LiveView<'_>,
    detection: Detection,
    table: &TableActivity,
    words: &str,
    definition: Option<String>,
) -> Detection {
    let is_parent = table.partition_of.is_some();
    let more = if is_parent { words_of_parent(view) } else { "" };
    let sql = definition
        .filter(|_| !is_parent || has_indexes_of_parents(view))
        .map(|it| format!("{} {it}", create_on(view, table)));
    detection
        .fix(format!("{}{words}{more}", update_first(view)))
        .with(sql, Detection::sql)
        .risk(risk_of_build(view, table))
}
