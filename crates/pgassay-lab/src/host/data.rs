//! Runs a study's SQL: the setup of its databases, and the reset before each trial.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_model::plan::{PlannedSql, ServerPlan};
use pgassay_model::study::StudySource;
use pgassay_server::ConnectionError;
use pgassay_wire::ServerMessage;

use super::checkpoint_counter::CheckpointCounter;
use super::{DataLocation, Host, SqlConnection};
use crate::cancel::{CancelWatch, Cancelable};
use crate::interrupt::Interrupted;
use crate::run_context::RunContext;
use crate::study_errors::at_line;

/// How long the backend that filled or reset the data may take to exit; under valgrind it writes a file first.
const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// How the SQL begins that creates pgbench's tables for a question without --setup.
const PGBENCH_TABLES: &str = "create table pgbench_history (";

/// Ends what `pg_dump` does at the beginning of a dump: names without a schema find nothing but the catalog.
const WITH_SEARCH_PATH: &str = "do $$ begin \
    if pg_catalog.current_setting('search_path') operator(pg_catalog.=) '' then reset search_path; end if; end $$";

/// What follows the message about a role, a tablespace or a slot that the setup of an earlier database has created.
const IF_EXISTS: &str = "; the setup runs in each database of a server, and roles, tablespaces and replication slots \
    are common to them: create them only if they do not exist, as in do $$ begin create role …; exception when \
    duplicate_object then null; end $$";

/// Characters of a statement that a message cites.
const STATEMENT_MAX: usize = 100;

/// Creates and fills the databases and returns their names. Runs statements one at a time, so that an
/// error names its line.
pub fn set_up(
    host: &mut dyn Host,
    wanted: &ServerPlan,
    context: &RunContext<'_>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for database in &wanted.databases {
        context.check()?;
        let name = host.make_database(&database.name)?;
        let mut connection = host.connect(&name)?;
        let watch = cancel_on_stop(host, &name, connection.as_ref(), context)?;
        let hint = if names.is_empty() { "" } else { IF_EXISTS };
        run_all(
            connection.as_mut(),
            &database.setup,
            ("setup", hint),
            context,
        )?;
        drop(watch);
        close(connection, host)?;
        names.push(name);
    }
    Ok(names)
}

/// Cancels the statements of a connection if the user requests a stop.
fn cancel_on_stop(
    host: &dyn Host,
    database: &str,
    connection: &dyn SqlConnection,
    context: &RunContext<'_>,
) -> Result<Option<CancelWatch>> {
    let (Some((key, closer)), Some(canceler)) =
        (connection.cancel_handle(), host.canceler(database))
    else {
        return Ok(None);
    };
    let what = Cancelable {
        canceler: Arc::new(canceler),
        keys: vec![key],
        closer: Some(closer),
        grace: Duration::ZERO,
        report: None,
    };
    CancelWatch::start(context.interrupt, what).map(Some)
}

/// Runs pieces of SQL at `key` in the study. `hint` follows the message if they create what exists.
fn run_all(
    connection: &mut dyn SqlConnection,
    pieces: &[PlannedSql],
    (key, hint): (&str, &str),
    context: &RunContext<'_>,
) -> Result<()> {
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 {
            connection.execute(WITH_SEARCH_PATH)?;
        }
        let path = piece.path(key);
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        run_sql(connection, &piece.text, (&path, hint), context)
            .map_err(|error| in_question(error, piece, key, context))?;
    }
    // Its changes would be lost with the connection.
    if connection.is_in_transaction() {
        bail!("the {key} ends inside a transaction: add COMMIT");
    }
    Ok(())
}

/// A question in one line has no file with lines: names the option instead.
fn in_question(
    error: anyhow::Error,
    piece: &PlannedSql,
    key: &str,
    context: &RunContext<'_>,
) -> anyhow::Error {
    if !context.source().file.is_empty() || error.is::<Interrupted>() {
        return error;
    }
    match piece.of_variant {
        Some(index) => {
            let name = &context.study.study.variant[index].name;
            error.context(format!("--vs-{key} of the variant \"{name}\""))
        }
        None if piece.text.starts_with(PGBENCH_TABLES) => error.context("filling pgbench's tables"),
        None => error.context(format!("--{key}")),
    }
}

/// Runs SQL at `path` in the study.
fn run_sql(
    connection: &mut dyn SqlConnection,
    sql: &str,
    (path, hint): (&[&str], &str),
    context: &RunContext<'_>,
) -> Result<()> {
    let source = context.source();
    let statements = pgassay_script::sql::statements(sql)
        .map_err(|error| at_line(source, path, error.line() as usize, &error.to_string()))?;
    for statement in statements {
        context.check()?;
        if let Err(error) = connection.execute(&statement.text) {
            // It may have been canceled.
            context.check()?;
            return Err(failed(&error, &statement, (path, hint), source));
        }
    }
    Ok(())
}

fn failed(
    error: &ConnectionError,
    statement: &pgassay_script::sql::Statement,
    (path, hint): (&[&str], &str),
    source: &StudySource,
) -> anyhow::Error {
    let Some(sql) = error.sql() else {
        return anyhow!("{error}");
    };
    let message = with_hint(sql, hint);
    let line = statement.line as usize + lines_before(&statement.text, sql.position);
    if source.file.is_empty() {
        let text = statement.text.split_whitespace();
        let text: String = text.collect::<Vec<_>>().join(" ");
        let text: String = text.chars().take(STATEMENT_MAX).collect();
        return anyhow!("line {line}: {message} (in: {text})");
    }
    at_line(source, path, line, &message).context("the study's SQL failed")
}

/// The server's message, with a hint if what a statement creates exists already.
fn with_hint(sql: &ServerMessage, hint: &str) -> String {
    // duplicate_object and duplicate_database.
    let exists = ["42710", "42P04"].contains(&&*sql.sqlstate);
    format!("{sql}{}", if exists { hint } else { "" })
}

/// The line breaks before a position that the server named, in characters from 1.
fn lines_before(text: &str, position: Option<u32>) -> usize {
    let before = position.map_or(0, |at| at.saturating_sub(1) as usize);
    text.chars().take(before).filter(|it| *it == '\n').count()
}

/// Restores the state before a trial: runs the load's reset SQL and truncates a large log.
pub fn reset(
    place: &DataLocation<'_>,
    resets: &[PlannedSql],
    context: &RunContext<'_>,
) -> Result<()> {
    let host = place.host;
    host.trim_log()?;
    if resets.is_empty() {
        return Ok(());
    }
    let mut connection = host
        .connect(place.database)
        .context("cannot connect to reset the data")?;
    let watch = cancel_on_stop(host, place.database, connection.as_ref(), context)?;
    let checkpoints = CheckpointCounter::before(resets, connection.as_mut());
    run_all(connection.as_mut(), resets, ("reset", ""), context)?;
    if let Some(counter) = checkpoints {
        counter.wait_for_more(connection.as_mut());
    }
    // No thread of it may wake up during the trial.
    drop(watch);
    close(connection, host)
}

/// Disconnects. The backend reports its statistics when it exits, which must not happen during a trial.
fn close(connection: Box<dyn SqlConnection>, host: &dyn Host) -> Result<()> {
    let is_here = host.live()?.is_some();
    let pid = connection.backend_pid().filter(|_| is_here);
    drop(connection);
    if let Some(pid) = pid {
        pgassay_server::wait_until_gone(pid, EXIT_PATIENCE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pgassay_test_support::servers;
    use pgassay_wire::ServerMessage;

    use super::{IF_EXISTS, WITH_SEARCH_PATH, lines_before, with_hint};

    /// Regression: the setup of the second database failed as if the study were wrong.
    #[test]
    fn a_role_that_the_first_database_has_created_is_explained() {
        let error = |sqlstate: &str| ServerMessage {
            sqlstate: sqlstate.to_owned(),
            message: "role \"app\" already exists".to_owned(),
            ..ServerMessage::default()
        };
        let explained = with_hint(&error("42710"), IF_EXISTS);
        assert!(explained.contains("already exists"), "{explained}");
        assert!(
            explained.contains("when duplicate_object then null"),
            "{explained}"
        );
        assert!(!with_hint(&error("42P07"), IF_EXISTS).contains("setup"));
    }

    /// Regression: after the schema of a dump as `--setup`, `--vs-setup` found no table without its schema.
    #[test]
    fn the_search_path_of_a_dump_ends_with_it_and_any_other_does_not() {
        for version in ["12", "18"] {
            let Some(server) = servers::start(version) else {
                return;
            };
            let mut connection = server.connect().unwrap();
            let mut after = |sql: &str| {
                connection.execute(sql).unwrap();
                connection.execute(WITH_SEARCH_PATH).unwrap();
                connection.value("show search_path").unwrap().unwrap()
            };
            let of_dump = "select pg_catalog.set_config('search_path', '', false)";
            assert_eq!(after(of_dump), "\"$user\", public");
            assert_eq!(after("set search_path = app"), "app");
        }
    }

    /// Regression: an error at position 0, which PostgreSQL does not send, ended the run with a panic.
    #[test]
    fn an_error_at_any_position_has_a_line() {
        let lines = |at| lines_before("a\nb\nc", at);
        assert_eq!([None, Some(0), Some(1), Some(3)].map(lines), [0, 0, 0, 1]);
        assert_eq!(lines(Some(u32::MAX)), 2);
    }
}
