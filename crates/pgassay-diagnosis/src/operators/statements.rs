//! What single statements do that costs more than it must.

use pgassay_record::activity::{ActivityStatement, DatabaseActivity, StatementCounters};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::index_not_used::finds_one_row;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::missing_index;
use super::names;
use super::session_settings::RoleInDatabase;
use super::signature::OperatorSignature;
use super::sql_text;
use pgassay_script::statement_tokens::StatementToken;

/// Executions of one statement in one transaction …
const REPEATS_MIN: f64 = 10.0;
/// … of which so many must be seen. Readings see few of those in a transaction of milliseconds.
const REPEATS_SEEN_MIN: u64 = 4;
/// If none are seen but counters show them: the share of the statement's time in transactions for which sessions are
/// idle after it.
const PAUSES_MIN: f64 = 0.1;
/// With fewer executions per transaction, also of those that were rolled back, most execute it once.
const REPEATED_MIN: f64 = 2.0;
/// Time in transactions that repeating statements must take.
const REPEATS_SHARE_MIN: f64 = 0.1;
/// Planning time over execution time.
const PLANNING_MIN: f64 = 3.0;
/// Planning time per execution that matters if it is longer than execution: a lookup is planned in a tenth of it.
const PLANNING_LONG_US: f64 = 1000.0;
/// Planning time of the statement as a share of the load: statements that are sent as text cost some.
const PLANNING_SHARE_MIN: f64 = 0.25;
/// Fewer executions are planned few times, whatever it costs.
const CALLS_MIN: u64 = 100;
/// Executions per second from which on finding nothing is polling.
const POLLS_MIN: f64 = 10.0;
/// Asking takes no longer, if an index serves it.
const POLL_US_MAX: f64 = 1000.0;
/// The size of a block of a temporary file (`BLCKSZ`).
const BLOCK_BYTES: f64 = 8192.0;
/// `work_mem` that holds what was written, with the overhead in memory, and room to grow.
const MEMORY_PER_BYTE: f64 = 4.0;
/// `work_mem` and `maintenance_work_mem` if they are not known: the server's defaults.
const WORK_MEM: f64 = 4_194_304.0;
const MAINTENANCE_WORK_MEM: f64 = 67_108_864.0;
/// More memory for each sort of each session is not advisable, nor for those of a role together …
const MEMORY_MAX: f64 = 1_073_741_824.0;
/// … nor this much for each of them.
const ROLE_MEMORY_MAX: f64 = 134_217_728.0;
/// Bytes written to and read from temporary files per second of execution: a disk of 200 MB/s takes a twentieth of the
/// time for it. Those who wait for a slower one are seen.
const TEMP_BYTES_PER_S_MIN: f64 = 10_000_000.0;
/// Times that what was written is read, from which on each row of another table reads it.
const REREADS_MIN: f64 = 10.0;
/// Temporary files of a database: bytes per second …
const TEMP_RATE_MIN: f64 = 1_000_000.0;
/// … and files per transaction.
const TEMP_FILES_MIN: f64 = 0.01;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "n-plus-one",
        title: "A transaction executes one statement again and again",
        manual: "Performance Tips: Populating a Database",
        detect: n_plus_one,
    },
    OperatorSignature {
        id: "temp-spill",
        title: "Sorts, hash tables or stored results of a statement spill to temporary files",
        manual: "Resource Consumption: work_mem",
        detect: temp_spill,
    },
    OperatorSignature {
        id: "planning-time",
        title: "Planning a statement takes longer than executing it",
        manual: "SQL Commands: PREPARE",
        detect: planning_time,
    },
    OperatorSignature {
        id: "empty-polling",
        title: "A statement is executed often and finds nothing",
        manual: "SQL Commands: LISTEN",
        detect: empty_polling,
    },
];

/// A detection of a statement with its text and load.
fn of_statement(statement: &ActivityStatement, load: &StatementLoad) -> Detection {
    Detection::of(ObjectKind::Statement, statement_name(statement))
        .statement(Some(statement))
        .extent(load.active)
        .load("average sessions that execute it", load.active)
}

fn n_plus_one(view: &LiveView<'_>) -> Vec<Detection> {
    let in_transactions = view.active + view.activity.idle_in_transaction();
    let mut found = Vec::new();
    for (statement, load) in view.activity.statements.iter().zip(&view.statements) {
        let repeats = statement.executions_seen_in_transaction_max;
        let command = sql_text::command(&load.tokens);
        let is_data = matches!(command, "select" | "insert" | "update" | "delete");
        let taken = load.active + load.idle_after;
        let enough = taken >= REPEATS_SHARE_MIN * in_transactions && taken >= view.noticeable();
        let per_transaction = per_transaction(view, statement, load);
        // Between executions that arrive together, as in a pipeline, no session is idle.
        let is_counted = per_transaction.is_some_and(|it| it >= REPEATS_MIN)
            && load.idle_after >= PAUSES_MIN * taken;
        if !(repeats >= REPEATS_SEEN_MIN || is_counted) || !is_data || !enough {
            continue;
        }
        let known = per_transaction.unwrap_or(0.0).max(repeats as f64);
        let detection = of_statement(statement, load);
        let detection = if repeats >= REPEATS_SEEN_MIN {
            detection.sampled(
                "executions seen in one transaction, at least",
                repeats as f64,
                FactUnit::Count,
            )
        } else {
            detection
        };
        let detection = detection
            .load(
                "average sessions idle in a transaction after it",
                load.idle_after,
            )
            .with(per_transaction, |it, calls| {
                // Transactions that do not execute it count, too.
                if calls >= repeats as f64 {
                    let what = "executions per transaction";
                    it.counter(what, calls, FactUnit::Count)
                } else {
                    let calls = statement.counters.map_or(0, |it| it.calls) as f64;
                    let per_s = calls / view.activity.counters_s();
                    it.counter("executions", per_s, FactUnit::PerSecond)
                }
            })
            .against(
                known < REPEATS_MIN,
                "readings saw only a few executions in one transaction; there may be many more",
            )
            .fix(fewer_executions(command))
            .risk("No change on the server, only in the application.");
        // A session that waits for a row would wait for it also in a single statement.
        let saved = load.active - load.waiting(|kind, _| kind == "Lock");
        found.push(if saved >= view.noticeable() {
            detection.saved(saved)
        } else {
            // Most of the time is between the statements: the sessions are idle.
            detection.urgent(5)
        });
    }
    found
}

fn fewer_executions(command: &str) -> &'static str {
    if command == "insert" {
        "Insert many rows with one statement (VALUES with several rows, unnest of arrays) or with COPY."
    } else {
        "Fetch or change all rows with one statement: a join, or id = any ($1) with an array of all keys. If the \
         statements must stay, send them in pipeline mode."
    }
}

/// Executions of the statement per committed transaction in the databases in which it is executed; `None` if either was
/// not counted. Per transaction that ended, if none was committed, or if that makes less than two: then it is mostly
/// executed in transactions that are rolled back.
fn per_transaction(
    view: &LiveView<'_>,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Option<f64> {
    let calls = statement.counters?.calls as f64 / view.activity.counters_s() * view.window_s;
    let databases = view.catalog.databases.iter();
    let its = databases.filter(|it| load.databases.contains_key(&it.name));
    let (committed, ended) = its.fold((0_u64, 0_u64), |(committed, ended), it| {
        let all = it.committed.saturating_add(it.rolled_back);
        (
            committed.saturating_add(it.committed),
            ended.saturating_add(all),
        )
    });
    let (all, rolled_back) = view.transactions();
    let is_known = view
        .activity
        .is_transaction_count((all + rolled_back) as f64);
    if ended == 0 || !is_known {
        return None;
    }
    let of_ended = calls / ended as f64;
    let is_repeated = committed > 0 && of_ended >= REPEATED_MIN;
    Some(if is_repeated {
        calls / committed as f64
    } else {
        of_ended
    })
}

/// Whether it has one value for each column of a unique index, and no other condition.
fn asks_for_key(view: &LiveView<'_>, load: &StatementLoad) -> bool {
    let Some(filter) = sql_text::filter(&load.tokens).filter(|it| it.is_whole) else {
        return false;
    };
    let tables = view.catalog.tables.iter().map(|it| &it.relation);
    let its: Vec<_> = tables
        .filter(|it| {
            load.relations
                .iter()
                .any(|mention| view.is_mention_of(mention, it))
        })
        .collect();
    let indexes = view.catalog.indexes.iter();
    let mut indexes = indexes.filter(|index| its.iter().any(|it| it.oid == index.table.oid));
    indexes.any(|it| {
        let is_of_filter = it
            .columns
            .iter()
            .all(|column| filter.equal.contains(column));
        is_of_filter && finds_one_row(it, &filter, &load.tokens)
    })
}

fn is_temporary_file(kind: &str, name: &str) -> bool {
    // `BufFileWrite` up to 16, `BuffileWrite` from 17 on.
    kind == "IO" && name.to_ascii_lowercase().starts_with("buffile")
}

fn temp_spill(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    let mut is_known = false;
    for (statement, load) in view.heavy_statements() {
        let waiting = load.waiting(is_temporary_file);
        let counters = statement.counters.filter(|it| it.temp_written > 0);
        if counters.is_none() && waiting < view.noticeable() {
            continue;
        }
        is_known = true;
        if waiting < view.noticeable() && counters.is_some_and(|it| writes_little(&it)) {
            continue;
        }
        let per_call = counters.map(|it| it.temp_written as f64 * BLOCK_BYTES / calls(&it));
        let detection = of_statement(statement, load)
            .load("of them read or write temporary files", waiting)
            .with(per_call, |it, bytes| {
                it.counter("temporary files per execution", bytes, FactUnit::Bytes)
            });
        let detection = if waiting >= view.noticeable() {
            detection.saved(waiting)
        } else {
            detection.urgent(5)
        };
        let role = load.role_in_database();
        if is_maintenance(&load.tokens) {
            found.extend(with_maintenance_memory(view, detection, per_call, role));
        } else {
            let detection = with_less_than_memory(view, detection, per_call, role);
            let bytes = per_call.or_else(|| largest_file(view));
            found.push(if sql_text::excludes_rows_of_query(&load.tokens) {
                let is_reread = counters
                    .is_some_and(|it| it.temp_read as f64 >= REREADS_MIN * it.temp_written as f64);
                // Reading stored rows is CPU time as long as the file is in the page cache.
                with_not_exists(if is_reread {
                    detection.saved(load.active)
                } else {
                    detection
                })
            } else {
                with_work_mem(view, detection, bytes, role)
            });
        }
    }
    // Files of a known statement are no reason to look at whole databases.
    if !is_known {
        found.extend(spilling_databases(view));
    }
    found
}

/// Whether temporary files are a small part of what it does, such as the stored rows of a function in FROM.
fn writes_little(counters: &StatementCounters) -> bool {
    let bytes = (counters.temp_written + counters.temp_read) as f64 * BLOCK_BYTES;
    bytes < TEMP_BYTES_PER_S_MIN * counters.execution_us / 1e6
}

/// Whether it is a command that sorts with `maintenance_work_mem`, whatever `work_mem` is: it builds or
/// rebuilds indexes, or checks a foreign key of existing rows. PostgreSQL's `src/backend/access/nbtree/nbtsort.c`,
/// `src/backend/commands/cluster.c` and `RI_Initial_Check`.
fn is_maintenance(tokens: &[StatementToken]) -> bool {
    let second = tokens.get(1);
    match sql_text::command(tokens) {
        "create" => second.is_some_and(|it| it.is_any(&["index", "unique"])),
        "alter" => second.is_some_and(|it| it.is_any(&["table", "materialized", "index"])),
        "reindex" | "cluster" | "vacuum" => true,
        _ => false,
    }
}

/// Suggests memory for one such command; `None` if more would not help. Parallel workers write what they
/// sorted to files also if it fits, and a sort beyond a gigabyte belongs on disk.
fn with_maintenance_memory(
    view: &LiveView<'_>,
    detection: Detection,
    bytes: Option<f64>,
    role: RoleInDatabase<'_>,
) -> Option<Detection> {
    let now = role.value(view, "maintenance_work_mem");
    let now = now.and_then(names::bytes).unwrap_or(MAINTENANCE_WORK_MEM);
    let wanted = bytes.map_or(2.0 * now, |it| it * MEMORY_PER_BYTE);
    if wanted <= now || wanted > MEMORY_MAX {
        return None;
    }
    let value = names::memory(wanted);
    let detection = detection
        .context_figure("maintenance_work_mem", now, FactUnit::Bytes)
        .against(
            bytes.is_none() && view.major >= 11,
            "how much it writes is unknown, and parallel workers write what they sorted also if it fits",
        )
        .fix(
            "Increase maintenance_work_mem in the session before the command: it sorts with that, and \
             work_mem has no effect on it.",
        )
        .sql(format!(
            "set maintenance_work_mem = '{value}' -- in the session that runs the command"
        ))
        .risk(
            "It applies only to the session that runs it. Each of its commands that builds an index or \
             vacuums may take this much memory; if memory runs out, the kernel's OOM killer may end a \
             backend, and all sessions are disconnected.",
        );
    Some(detection)
}

fn calls(counters: &StatementCounters) -> f64 {
    counters.calls.max(1) as f64
}

/// The mean size of the temporary files of all databases.
fn largest_file(view: &LiveView<'_>) -> Option<f64> {
    let databases = view.catalog.databases.iter().filter(|it| it.temp_files > 0);
    let sizes = databases.map(|it| it.temp_bytes as f64 / it.temp_files as f64);
    sizes.max_by(f64::total_cmp)
}

/// Databases with temporary files for which no statement is known. A command that builds an index writes them too, and
/// until it ends only its waits show it, if at all.
fn spilling_databases(view: &LiveView<'_>) -> Vec<Detection> {
    let builds_in = |database: &str| {
        let mut all = view.statements.iter();
        all.any(|it| it.databases.contains_key(database) && is_maintenance(&it.tokens))
    };
    let spills = |it: &&DatabaseActivity| {
        let transactions = (it.committed + it.rolled_back) as f64;
        !builds_in(&it.name)
            && it.temp_bytes as f64 / view.window_s >= TEMP_RATE_MIN
            && it.temp_files as f64 >= TEMP_FILES_MIN * transactions
    };
    let databases = view.catalog.databases.iter().filter(spills);
    databases
        .map(|database| {
            let name = names::identifier(&database.name);
            let bytes = database.temp_bytes as f64 / database.temp_files.max(1) as f64;
            let detection = Detection::of(ObjectKind::Database, &name)
                .urgent(4)
                .extent(database.temp_bytes as f64)
                .counter(
                    "temporary files",
                    database.temp_files as f64 / view.window_s,
                    FactUnit::PerSecond,
                )
                .counter("bytes per temporary file", bytes, FactUnit::Bytes)
                .against(
                    true,
                    "which statement writes them is unknown; pg_stat_statements and log_temp_files \
                     show it",
                );
            let database = Some(&*database.name);
            let user = None;
            with_work_mem(
                view,
                detection,
                Some(bytes),
                RoleInDatabase { user, database },
            )
        })
        .collect()
}

fn with_work_mem(
    view: &LiveView<'_>,
    detection: Detection,
    bytes: Option<f64>,
    role: RoleInDatabase<'_>,
) -> Detection {
    let now = role.value(view, "work_mem").and_then(names::bytes);
    let wanted = bytes.map(|it| it * MEMORY_PER_BYTE);
    let wanted = wanted.unwrap_or(0.0).max(2.0 * now.unwrap_or(WORK_MEM));
    let detection = detection.with(now, |it, bytes| {
        it.context_figure("work_mem", bytes, FactUnit::Bytes)
    });
    if wanted > MEMORY_MAX {
        return detection.fix(
            "Sort or hash less: an index that gives the order, fewer columns, an earlier filter or \
             LIMIT. It would take more memory than is advisable for one statement.",
        );
    }
    let value = names::literal(&names::memory(wanted));
    if role.user.is_none() && role.database.is_some() {
        return detection
            .fix(format!(
                "Find the statements that write them (log_temp_files = 0), and increase work_mem for these alone, with \
                 set local work_mem = {value} in their transactions: {DOES_NOT_FIT}"
            ))
            .risk(format!("Do not set it for the whole database. {RISK_OF_WORK_MEM}"));
    }
    if !is_modest(view, wanted, role) {
        return detection
            .fix(format!(
                "Increase work_mem for this statement alone, with set local work_mem = {value} in its transaction: \
                 {DOES_NOT_FIT}"
            ))
            .risk(format!("It is much for all sessions of a role. {RISK_OF_WORK_MEM}"));
    }
    let sql = role.command(view, "work_mem", &value);
    let risk = format!("{} {RISK_OF_WORK_MEM}", names::reach_of(&sql));
    detection
        .fix(format!(
            "Increase work_mem for those who run it: {DOES_NOT_FIT}"
        ))
        .sql(sql)
        .risk(risk)
}

const DOES_NOT_FIT: &str = "a sort, a hash table or a stored result, such as that of a CTE or of a function in FROM, \
                            does not fit. An index that gives the order needs no sort.";

const RISK_OF_WORK_MEM: &str = "Each sort and hash of each session and parallel worker may take this much memory; if \
                                memory runs out, the kernel's OOM killer may end a backend, and all sessions are \
                                disconnected.";

/// Whether all sessions of the role that were at work may have this `work_mem` at once.
fn is_modest(view: &LiveView<'_>, bytes: f64, role: RoleInDatabase<'_>) -> bool {
    let Some(user) = role.user else {
        return true;
    };
    let sessions = view.activity.sessions.iter();
    let sessions = sessions.filter(|it| it.user == user).count().max(1) as f64;
    bytes <= ROLE_MEMORY_MAX && bytes * sessions <= MEMORY_MAX
}

/// What spills writes as much as fits into memory, and more.
fn with_less_than_memory(
    view: &LiveView<'_>,
    detection: Detection,
    per_call: Option<f64>,
    role: RoleInDatabase<'_>,
) -> Detection {
    let now = role.value(view, "work_mem").and_then(names::bytes);
    let is_less = now.zip(per_call).is_some_and(|(now, bytes)| bytes < now);
    detection.against(
        is_less,
        "an execution writes less than work_mem on average: few of them write files, or the sessions set a smaller \
         work_mem",
    )
}

/// A subquery whose rows do not fit into memory is stored, and read to its end for each row (subselect.c,
/// `subplan_is_hashable`).
fn with_not_exists(detection: Detection) -> Detection {
    detection
        .fix(
            "Write NOT IN (SELECT …) as NOT EXISTS (SELECT … WHERE the columns are equal), which can be a hash join. \
             The rows of the subquery of NOT IN are hashed only if they fit into work_mem; otherwise all of them are \
             searched for each row.",
        )
        .risk(
            "It requires a change of the statement. If the subquery returns a null, NOT IN keeps no row, and NOT \
             EXISTS does.",
        )
}

fn planning_time(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    for (statement, load) in view.activity.statements.iter().zip(&view.statements) {
        let Some(counters) = statement.counters.filter(|it| it.calls >= CALLS_MIN) else {
            continue;
        };
        let Some(planning_us) = counters.planning_us else {
            continue;
        };
        // Counted, so it needs no samples.
        let saved = planning_us / 1e6 / view.activity.counters_s();
        let enough = saved >= PLANNING_SHARE_MIN * view.active;
        let is_most = planning_us >= PLANNING_MIN * counters.execution_us;
        let is_long = planning_us > counters.execution_us
            && planning_us / calls(&counters) >= PLANNING_LONG_US;
        if !(is_most || is_long) || !enough {
            continue;
        }
        let detection = of_statement(statement, load)
            .saved(saved)
            .counter("planning time per execution", planning_us / calls(&counters), FactUnit::Micros)
            .counter(
                "execution time per execution",
                counters.execution_us / calls(&counters),
                FactUnit::Micros,
            )
            .counter("executions", counters.calls as f64 / view.activity.counters_s(), FactUnit::PerSecond)
            .fix(format!("{PREPARE}{}", if view.major >= 12 { FORCE_GENERIC } else { "" }))
            .risk(
                "A generic plan does not know the values: with skewed data it may be much slower, and of a \
                 partitioned table it locks all partitions.",
            );
        found.push(detection);
    }
    found
}

const PREPARE: &str = "Prepare the statement, so that its plan is kept: in the driver, or with PREPARE; a pooler in \
                       transaction mode must support it.";

/// Whether a statement is prepared is not known, and the setting concerns all that are.
const FORCE_GENERIC: &str = " If it is prepared already, its custom plans look cheaper than the generic one. Then set \
                             plan_cache_mode = force_generic_plan in its transactions, or in the function that \
                             executes it, but not for the role: it would force generic plans on all prepared \
                             statements.";

fn empty_polling(view: &LiveView<'_>) -> Vec<Detection> {
    let without_index = missing_index::statements_without_index(view);
    let heavy = view.heavy_statements();
    heavy
        .filter_map(|(statement, load)| {
            let counters = statement.counters?;
            let rate = counters.calls as f64 / view.activity.counters_s();
            let command = sql_text::command(&load.tokens);
            let is_data = matches!(command, "select" | "update" | "delete");
            let lacks_index = without_index.contains(&statement.fingerprint);
            if counters.rows > 0 || rate < POLLS_MIN || !is_data {
                return None;
            }
            let each_us = counters.execution_us / calls(&counters);
            let blocks = (counters.shared_hit + counters.shared_read) as f64 / calls(&counters);
            let detection = of_statement(statement, load)
                .counter("executions", rate, FactUnit::PerSecond)
                .counter("rows returned or changed", 0.0, FactUnit::Count)
                .counter("blocks accessed per execution (hit and read)", blocks, FactUnit::Count)
                .counter("time per execution", each_us, FactUnit::Micros)
                .against(lacks_index, "it lacks an index: create that first")
                .against(
                    asks_for_key(view, load),
                    "it searches for one row by a unique key: it may check whether the row exists",
                )
                .against(
                    each_us > POLL_US_MAX && !lacks_index,
                    "each execution takes long: it may lack an index, and not be polling",
                )
                .fix(
                    "Ask less often, or wait for a notification (LISTEN and NOTIFY) instead of polling. \
                     If each execution reads many blocks to find nothing, a partial index on what is \
                     still to do makes it cheap. If it checks whether a row exists before inserting it, \
                     INSERT … ON CONFLICT does both at once.",
                )
                .risk("No change on the server, only in the application.");
            // Only what asks cheaply costs much because it asks often.
            Some(if lacks_index || each_us > POLL_US_MAX {
                detection.urgent(3)
            } else {
                detection.saved(load.active)
            })
        })
        .collect()
}
