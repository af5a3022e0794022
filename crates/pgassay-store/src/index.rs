//! The index over many runs: an `SQLite` file with stable views.
//!
//! The views `runs`, `points` and `comparisons` are for users and have stable columns; the tables under
//! them may change with [`VERSION`]. Before each query the index is updated from the directories, so
//! that it may be missing, outdated or from another version. What happens to an index that is damaged,
//! locked or not writable: `repair.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgassay_account::comparison::{Comparison, PointSummary, Ratio};
use pgassay_record::run::Run;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use serde::Serialize;

use crate::directories::{directories, unfinished_directories};
use crate::error::StoreError;
use crate::headline::{headline, word};
use crate::index_header::{self, APPLICATION_ID};
use crate::pinned_directory::PinnedDirectory;
use crate::{files, lookup, ownership, unfinished};

pub(crate) const FILE: &str = "index.sqlite";
/// What the files are called in which `SQLite` keeps unfinished transactions of an index; they must go
/// along with it, or they would be applied to the new one.
pub(crate) const COMPANIONS: [&str; 3] = ["-journal", "-wal", "-shm"];
/// The version of tables and words. If the file has another one, its tables are dropped and rebuilt.
const VERSION: i32 = 4;
/// How long to wait for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const SCHEMA: &str = include_str!("index.sql");

/// A run as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunLine {
    /// The run's name.
    pub id: String,
    /// The study's name.
    pub study: String,
    /// The study's question.
    pub question: String,
    /// When it started, microseconds since 1970.
    pub started_us: i64,
    /// When it ended, microseconds since 1970.
    pub ended_us: i64,
    /// Whether every planned trial was run.
    pub complete: bool,
    /// Whether it has no result: it is still being measured, or its process ended before.
    pub unfinished: bool,
    /// Whether `pgassay resume` can continue it.
    pub resumable: bool,
    /// The answer in one line.
    pub headline: String,
}

/// Which runs to list; the default matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only runs of this study.
    pub study: Option<String>,
    /// At most this many, the newest.
    pub limit: Option<u32>,
}

/// Adds a run to the index, if there can be one.
pub(crate) fn add(root: &Path, run: &Run) -> Result<(), StoreError> {
    let may_have_one = |it: PinnedDirectory| may_have_index(&it) && !has_another_file(&it);
    if !PinnedDirectory::open(root).is_ok_and(may_have_one) {
        return Ok(());
    }
    let mut connection = open(root)?;
    // A run that ended early and was then continued is in the index already.
    forget(&mut connection, &run.id).map_err(|source| failed(root, source))?;
    insert(&mut connection, run).map_err(|source| failed(root, source))
}

pub(crate) fn path(root: &Path) -> PathBuf {
    root.join(FILE)
}

pub(crate) fn failed(root: &Path, source: rusqlite::Error) -> StoreError {
    StoreError::Index {
        path: path(root),
        source,
    }
}

/// Opens an index in memory.
pub(crate) fn in_memory(root: &Path) -> Result<Connection, StoreError> {
    let mut connection = Connection::open_in_memory().map_err(|source| failed(root, source))?;
    prepare(&mut connection).map_err(|source| failed(root, source))?;
    Ok(connection)
}

/// Opens the index, and creates it if there is none.
pub(crate) fn open(root: &Path) -> Result<Connection, StoreError> {
    open_file(root).map_err(|source| failed(root, source))
}

fn open_file(root: &Path) -> rusqlite::Result<Connection> {
    let opened = PinnedDirectory::open(root).map_err(|error| refused(&error.to_string()))?;
    if !may_have_index(&opened) {
        return Err(refused("another user can replace it"));
    }
    // SQLite would let others read it. This fails if anything is there, a pipe and a link included; for any
    // other cause, SQLite says why.
    _ = files::create(&opened.path().join(FILE));
    check_files(&opened)?;
    if has_another_file(&opened) {
        return Err(refused("it is not an index of pgassay"));
    }
    // SQLite takes no path with links, such as that of an open directory.
    let real = fs::canonicalize(opened.path()).map_err(|error| refused(&error.to_string()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(real.join(FILE), flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    prepare(&mut connection)?;
    Ok(connection)
}

/// Whether no other user, but the members of its group, can put files into the results directory: neither another
/// database in place of the index, nor a transaction that `SQLite` would apply to it.
fn may_have_index(root: &PinnedDirectory) -> bool {
    root.metadata()
        .is_ok_and(|it| ownership::is_closed_to_others(&it))
}

/// Whether a file that is no index, or cannot be read, is in its place. It is neither changed nor removed.
pub(crate) fn has_another_file(root: &PinnedDirectory) -> bool {
    index_header::is_another_file(&root.path().join(FILE)).unwrap_or(true)
}

/// Returns an error if another user may have written the index or a transaction that `SQLite` would apply to it: its
/// views and triggers are code, a pipe in place of a file would never open, and what a link names is not ours.
fn check_files(root: &PinnedDirectory) -> rusqlite::Result<()> {
    let is_index = |it: &Metadata| it.is_file() && it.nlink() == 1 && ownership::is_ours(it);
    for companion in COMPANIONS.into_iter().chain([""]) {
        let path = root.path().join(format!("{FILE}{companion}"));
        if path.symlink_metadata().is_ok_and(|it| !is_index(&it)) {
            return Err(refused("another user may have written it"));
        }
    }
    Ok(())
}

pub(crate) fn refused(why: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_PERM);
    rusqlite::Error::SqliteFailure(code, Some(why.to_owned()))
}

/// Creates the tables and views, unless they exist in this version.
fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    let version = |connection: &Connection| {
        connection.query_row("pragma user_version", [], |row| row.get::<_, i32>(0))
    };
    if version(connection)? == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it while this one waited.
    if version(&transaction)? != VERSION {
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()
}

/// Updates the index from the directories. A run that cannot be read is skipped with a warning: one
/// damaged file must not hide the others.
pub(crate) fn update(connection: &mut Connection, root: &Path) -> Result<(), StoreError> {
    let on_disk: BTreeSet<String> = directories(root)?.into_iter().collect();
    let known = known(connection).map_err(|source| failed(root, source))?;
    // A run that was incomplete may have been resumed, and the index locked when that ended.
    let is_current = |id: &String| on_disk.contains(id) && known[id];
    for outdated in known.keys().filter(|id| !is_current(id)) {
        forget(connection, outdated).map_err(|source| failed(root, source))?;
    }
    for new in on_disk.iter().filter(|id| known.get(*id) != Some(&true)) {
        match lookup::read(&root.join(new)) {
            // A copied directory is listed under its own name.
            Ok(run) => insert(
                connection,
                &Run {
                    id: new.clone(),
                    ..run
                },
            )
            .map_err(|source| failed(root, source))?,
            Err(error) => tracing::warn!(%error, "run not listed"),
        }
    }
    Ok(())
}

/// The runs in the index, and whether each is complete.
fn known(connection: &Connection) -> rusqlite::Result<BTreeMap<String, bool>> {
    let mut statement = connection.prepare("select id, complete from run_row")?;
    let runs = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    runs.collect()
}

fn forget(connection: &mut Connection, id: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for table in ["comparison_row", "point_row"] {
        transaction.execute(&format!("delete from {table} where run_id = ?1"), [id])?;
    }
    transaction.execute("delete from run_row where id = ?1", [id])?;
    transaction.commit()
}

pub(crate) fn lines(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<RunLine>> {
    let mut statement = connection.prepare(
        "select id, study, question, started_us, ended_us, complete, headline from runs
         where ?1 is null or study = ?1 order by started_us desc, id desc limit ?2",
    )?;
    // A negative limit means no limit.
    let limit = filter.limit.map_or(-1, i64::from);
    let lines = statement.query_map(params![filter.study, limit], |row| {
        Ok(RunLine {
            id: row.get(0)?,
            study: row.get(1)?,
            question: row.get(2)?,
            started_us: row.get(3)?,
            ended_us: row.get(4)?,
            complete: row.get(5)?,
            unfinished: false,
            resumable: false,
            headline: row.get(6)?,
        })
    })?;
    lines.collect()
}

/// The unfinished runs that match a filter's study. The index does not contain them.
pub(crate) fn unfinished(root: &Path, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
    let mut lines = Vec::new();
    for id in unfinished_directories(root)? {
        let is_ours = ownership::open_run(root, &id).is_ok();
        let (start, trials, is_running) = match unfinished::summary(&root.join(&id)) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "unfinished run not listed");
                continue;
            }
        };
        let has_origin = start.origin.is_some();
        if filter
            .study
            .as_ref()
            .is_some_and(|study| *study != start.study_name)
        {
            continue;
        }
        let trials = format!("{trials} trial{} saved", if trials == 1 { "" } else { "s" });
        let headline = if is_running {
            format!("(running) {trials}")
        } else {
            format!("(unfinished) {trials}, no result")
        };
        lines.push(RunLine {
            id,
            study: start.study_name,
            question: start.question,
            started_us: start.started_us,
            ended_us: start.started_us,
            complete: false,
            unfinished: true,
            resumable: !is_running && has_origin && is_ours,
            headline,
        });
    }
    Ok(lines)
}

fn insert(connection: &mut Connection, run: &Run) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let added = transaction.execute(
        "insert or ignore into run_row values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            run.id,
            run.study_name,
            run.study.question,
            run.started_us,
            run.ended_us,
            run.complete,
            run.pgassay_version,
            headline(run)
        ],
    )?;
    // Another process may have added it meanwhile.
    if added == 1 {
        for point in &run.points {
            insert_point(&transaction, run, point)?;
        }
        for comparison in &run.comparisons {
            insert_comparison(&transaction, run, comparison)?;
        }
    }
    transaction.commit()
}

fn labels(run: &Run, condition: usize, variant: usize) -> (u32, &str, &str) {
    let condition = run.plan.conditions.get(condition);
    (
        condition.map_or(0, |it| it.clients),
        condition.map_or("", |it| it.label.as_str()),
        run.plan.variants.get(variant).map_or("", String::as_str),
    )
}

/// SQLite's integers are signed; a larger count becomes null rather than wrong.
fn integer(count: impl TryInto<i64>) -> Option<i64> {
    count.try_into().ok()
}

fn insert_point(connection: &Connection, run: &Run, it: &PointSummary) -> rusqlite::Result<()> {
    let (clients, label, variant) = labels(run, it.condition, it.variant);
    connection.execute(
        "insert into point_row values
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        params![
            run.id,
            integer(it.condition),
            label,
            clients,
            variant,
            it.trials,
            integer(it.transactions),
            it.tps,
            it.latency_mean_us,
            it.latency_p50_us,
            it.latency_p95_us,
            it.latency_p99_us,
            it.latency_max_us,
            it.server_cpu_us,
            it.server_run_queue_us,
            it.client_cpu_us,
        ],
    )?;
    Ok(())
}

fn insert_comparison(connection: &Connection, run: &Run, it: &Comparison) -> rusqlite::Result<()> {
    let (clients, label, variant) = labels(run, it.condition, it.variant);
    let baseline = run.plan.variants.get(run.plan.baseline_of(it.variant));
    let baseline = baseline.map_or("", String::as_str);
    let cpu = |part: fn(&Ratio) -> f64| it.server_cpu.as_ref().map(part);
    // Without an interval, the ends are those of none.
    let end = |end: f64| it.has_interval().then_some(end);
    connection.execute(
        "insert into comparison_row values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
         ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)",
        params![
            run.id,
            integer(it.condition),
            label,
            clients,
            variant,
            baseline,
            word(it.verdict),
            it.tps.ratio,
            end(it.tps.low),
            end(it.tps.high),
            it.tps.confidence_level,
            integer(it.tps.by_pair.len()),
            it.tps.pair_sd,
            it.tps.minimum_detectable_effect,
            it.latency_mean.ratio,
            end(it.latency_mean.low),
            end(it.latency_mean.high),
            it.latency_p99.ratio,
            end(it.latency_p99.low),
            end(it.latency_p99.high),
            cpu(|ratio| ratio.ratio),
            cpu(|ratio| ratio.low).and_then(end),
            cpu(|ratio| ratio.high).and_then(end),
        ],
    )?;
    Ok(())
}
