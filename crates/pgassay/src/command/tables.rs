//! The tables of a question that is asked without a study: those of `--setup`, pgbench's, or existing ones;
//! and how its study says so.

use std::path::Path;

use anyhow::{Context, Result};
use pgassay_model::plan::escaped;
use toml::{Table, Value};

use crate::input_file::read_text;

/// What the load reads.
#[derive(Debug, PartialEq)]
pub enum TableChoice {
    /// Those that this SQL creates.
    OfSetup(String),
    /// pgbench's, at this scale.
    Pgbench(u32),
    /// Those of the database that `--dsn` names.
    Existing,
}

impl TableChoice {
    /// What `--setup` and `--scale` choose. Without either, statements on a running server are about its data.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn chosen(setup: &[String], scale: Option<u32>, exist: bool) -> Result<Self> {
        Ok(match (setup_sql(setup)?, scale) {
            (Some(sql), _) => Self::OfSetup(sql),
            (None, None) if exist => Self::Existing,
            (None, scale) => Self::Pgbench(scale.unwrap_or(1)),
        })
    }

    /// Adds the keys of a study that create them, and those that restore them before each trial.
    pub fn add_to(self, study: &mut Table, reset: Option<String>) {
        let setup = match self {
            Self::OfSetup(sql) => sql,
            Self::Pgbench(scale) => {
                study.insert("parameters".to_owned(), table([("scale", scale.into())]));
                pgbench_tables(scale)
            }
            Self::Existing => return,
        };
        let reset = reset.map(|it| ("reset", it.into()));
        let data = std::iter::once(("setup", setup.into())).chain(reset);
        study.insert("data".to_owned(), table(data));
    }
}

/// A TOML table of these entries.
pub fn table<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let entries = entries.into_iter();
    let entries = entries.map(|(name, value)| (name.to_owned(), value));
    Value::Table(entries.collect())
}

/// pgbench's tables, as `pgbench -i -I dtGvp` creates them (initPopulateTable, pgbench.c).
pub fn pgbench_tables(scale: u32) -> String {
    let (tellers, accounts) = (u64::from(scale) * 10, u64::from(scale) * 100_000);
    format!(
        "create table pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
create table pgbench_tellers (tid int not null, bid int, tbalance int, filler char(84)) with (fillfactor = 100);
create table pgbench_accounts (aid int not null, bid int, abalance int, filler char(84)) with (fillfactor = 100);
create table pgbench_branches (bid int not null, bbalance int, filler char(88)) with (fillfactor = 100);
insert into pgbench_branches (bid, bbalance) select bid, 0 from generate_series(1, {scale}) bid;
insert into pgbench_tellers (tid, bid, tbalance) select tid, (tid - 1) / 10 + 1, 0 from generate_series(1, {tellers}) tid;
insert into pgbench_accounts (aid, bid, abalance, filler) select aid, (aid - 1) / 100000 + 1, 0, '' from generate_series(1, {accounts}) aid;
alter table pgbench_branches add primary key (bid);
alter table pgbench_tellers add primary key (tid);
alter table pgbench_accounts add primary key (aid);
vacuum analyze pgbench_branches;
vacuum analyze pgbench_tellers;
vacuum analyze pgbench_accounts;
vacuum analyze pgbench_history;
"
    )
}

/// The file that a flag for SQL names; `None` if its value is SQL.
pub fn file_of(value: &str) -> Option<&Path> {
    let path = Path::new(value);
    // A statement contains a space; the name of a missing file should not be run as SQL.
    let is_name = path.extension().is_some_and(|it| it == "sql") && !value.contains(' ');
    // A pipe, as in `--setup <(…)`, is one, too.
    let is_file = (path.exists() && !path.is_dir()) || is_name;
    is_file.then_some(path)
}

/// The SQL that a flag specifies, for a study: the text of a file if there is one with this name.
pub fn sql_or_file(flag: &str, value: &str) -> Result<String> {
    if let Some(path) = file_of(value) {
        let text = read_text(path).with_context(|| format!("{flag}: cannot read {value}"))?;
        return Ok(escaped(&text));
    }
    Ok(escaped(value))
}

/// The SQL that `--setup` specifies, in the order of the command line; `None` if it is not given.
pub fn setup_sql(given: &[String]) -> Result<Option<String>> {
    let texts: Result<Vec<String>> = given.iter().map(|it| sql_or_file("--setup", it)).collect();
    let texts = texts?;
    // A text may end in a comment, or without a semicolon.
    Ok((!texts.is_empty()).then(|| texts.join("\n;\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `--setup <(…)` executed the name of the pipe.
    #[test]
    fn a_setup_in_a_pipe_is_read() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"create table ${t} ()").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        let text = sql_or_file("--setup", &path).unwrap();
        assert_eq!(text, "create table ${$}{t} ()");
        assert_eq!(sql_or_file("--setup", "/").unwrap(), "/");
    }

    /// Regression: `compare --dsn dbname=shop 'select … from orders'` wanted to create a database with pgbench's
    /// tables, in which there are no orders.
    #[test]
    fn statements_on_a_running_server_are_about_its_data_unless_tables_are_chosen() {
        let of = |setup: &[&str], scale, exist| {
            let setup: Vec<String> = setup.iter().map(|&it| it.to_owned()).collect();
            TableChoice::chosen(&setup, scale, exist).expect("no file")
        };
        assert_eq!(of(&[], None, true), TableChoice::Existing);
        assert_eq!(of(&[], None, false), TableChoice::Pgbench(1));
        assert_eq!(of(&[], Some(3), true), TableChoice::Pgbench(3));
        let none = TableChoice::OfSetup(String::new());
        assert_eq!(of(&[""], None, true), none);
    }
}
