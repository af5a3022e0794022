//! Setups that would change the databases of other variants and conditions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use pgassay_model::plan::{Plan, PlannedSql, ServerPlan};
use pgassay_model::study::StudySource;
use pgassay_script::sql::Statement;
use pgassay_script::{ServerChange, SettingScope, SqlReach};

use crate::study_errors::at_line;

/// Fails if a setup changes settings of the whole server, or of a role, and not all databases of that server have the
/// same statement: they would have the settings, too. Fails as well if it changes the settings of a database by name,
/// and fills others.
///
/// # Errors
/// The statement, with its line, or SQL that cannot be split into statements.
pub fn check(plan: &Plan, source: &StudySource) -> Result<()> {
    let mut shared = plan.servers.iter().filter(|it| it.databases.len() > 1);
    shared.try_for_each(|it| check_server(it, source))
}

/// Whose settings a statement changes.
#[derive(Debug, PartialEq)]
enum SettingOwner {
    /// Those of all databases, at least for one role or tablespace.
    All,
    /// Those of the database with this name.
    Database(String),
}

/// A statement of setups that changes settings.
struct SetupChange<'a> {
    statement: Statement,
    of: SettingOwner,
    piece: &'a PlannedSql,
    /// The databases whose setups contain it.
    executed_in: &'a BTreeSet<&'a str>,
}

fn check_server(server: &ServerPlan, source: &StudySource) -> Result<()> {
    // Each text is split once.
    let mut pieces = BTreeMap::new();
    for database in &server.databases {
        for piece in &database.setup {
            let found = pieces.entry((piece.of_variant, &piece.text));
            let (_, names) = found.or_insert_with(|| (piece, BTreeSet::new()));
            names.insert(database.name.as_str());
        }
    }
    let mut changes = Vec::new();
    for (piece, executed_in) in pieces.values() {
        for statement in statements(piece, source)? {
            changes.extend(changed(&statement.text).map(|of| SetupChange {
                statement,
                of,
                piece,
                executed_in,
            }));
        }
    }
    for change in &changes {
        let same = |it: &&SetupChange<'_>| it.statement.text == change.statement.text;
        let names = changes.iter().filter(same).flat_map(|it| it.executed_in);
        let names: BTreeSet<&str> = names.copied().collect();
        let is_right = match &change.of {
            SettingOwner::All => names.len() == server.databases.len(),
            // On an external server, the databases have other names than in the plan.
            SettingOwner::Database(name) => {
                server.dsn.is_none() && names.iter().all(|it| it == name)
            }
        };
        if !is_right {
            let line = change.statement.line as usize;
            return Err(at(source, change.piece, line, &refusal(change)));
        }
    }
    Ok(())
}

fn statements(piece: &PlannedSql, source: &StudySource) -> Result<Vec<Statement>> {
    pgassay_script::sql::statements(&piece.text)
        .map_err(|error| at(source, piece, error.line() as usize, &error.to_string()))
}

fn at(source: &StudySource, piece: &PlannedSql, line: usize, message: &str) -> anyhow::Error {
    let path = piece.path("setup");
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    at_line(source, &path, line, message)
}

/// Whose settings a statement changes, if any.
fn changed(statement: &str) -> Option<SettingOwner> {
    match SqlReach::of(statement) {
        SqlReach::Server(ServerChange::Setting(change)) => Some(match change.scope {
            SettingScope::Database(name)
            | SettingScope::Role {
                database: Some(name),
                ..
            } => SettingOwner::Database(name),
            SettingScope::Role { database: None, .. } | SettingScope::System => SettingOwner::All,
        }),
        // A new one is only used by those who name it.
        SqlReach::Server(ServerChange::Tablespace) => {
            let mut words = statement.split(|it: char| !it.is_ascii_alphabetic());
            let sets = words.any(|it| {
                ["set", "reset"]
                    .iter()
                    .any(|set| it.eq_ignore_ascii_case(set))
            });
            sets.then_some(SettingOwner::All)
        }
        _ => None,
    }
}

fn refusal(change: &SetupChange<'_>) -> String {
    let words: Vec<&str> = change.statement.text.split_whitespace().collect();
    let what = match change.of {
        SettingOwner::All => {
            "changes a setting that the other variants on the same server would have as well, or other conditions"
        }
        SettingOwner::Database(_) => {
            "changes a setting of a database by name, but fills another one, or several"
        }
    };
    format!(
        "the setup {what}: {}. Make it a setting of the variant (`settings` or `session`, or --vs NAME=VALUE), or \
         of the database that the setup fills: do $$ begin execute format('alter database %I set NAME = VALUE', \
         current_database()); end $$",
        words.join(" ")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use pgassay_model::plan::{Overrides, plan};

    use super::*;

    #[test]
    fn settings_of_the_server_and_of_roles_are_of_all_variants_and_those_of_a_database_are_not() {
        for sql in [
            "alter system set work_mem = '64kB'",
            "ALTER ROLE current_user SET work_mem TO '64kB'",
            "alter role all reset all",
            // Regression: it had its effect in all variants.
            "alter tablespace pg_default set (random_page_cost = 1.1)",
            "/* faster */ alter tablespace pg_default set (random_page_cost = 1.1)",
        ] {
            assert_eq!(changed(sql), Some(SettingOwner::All), "{sql}");
        }
        for sql in [
            "alter database shop set work_mem = '64kB'",
            "alter role all in database shop set work_mem = '64kB'",
        ] {
            let of = SettingOwner::Database("shop".to_owned());
            assert_eq!(changed(sql), Some(of), "{sql}");
        }
        for sql in [
            "set work_mem = '64kB'",
            "create index on t (a)",
            "alter table t set (fillfactor = 70)",
            "create tablespace fast location '/x'",
            "alter tablespace fast rename to slow",
        ] {
            assert_eq!(changed(sql), None, "{sql}");
        }
    }

    /// The error of a study with this setup, these keys of its second variant, and the list `m` of parameters.
    fn refused(setup: &str, keys: &str) -> Option<String> {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\ndata.setup = '''\n{setup}'''\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                 [[variant]]\nname = \"v\"\n[[variant]]\nname = \"w\"\n{keys}\n\
                 [conditions]\nparameters = {{ m = [1, 2] }}\n"
            ),
        };
        let study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        check(&plan, &source).map_err(|it| it.to_string()).err()
    }

    /// Regression: all variants and conditions had the setting of the database that was filled last.
    #[test]
    fn a_setting_of_the_server_that_depends_on_the_condition_is_refused() {
        let found = refused("select 1;\nalter system set jit_above_cost = ${m};\n", "");
        let found = found.expect("the last database decides");
        assert!(found.starts_with("s.toml:4:1: "), "{found}");
        assert!(found.contains("or other conditions: alter"), "{found}");
        let same = "select ${m}; alter system set jit = off;\n";
        assert_eq!(refused(same, ""), None, "all databases have it");
    }

    /// Regression: the baseline had the setting, and the variant that asked for it did not.
    #[test]
    fn a_setting_of_another_variants_database_is_refused() {
        let keys = "setup = \"alter database postgres set jit = off\"";
        let found = refused("", keys).expect("the variant has another database");
        assert!(found.starts_with("s.toml:11:"), "{found}");
        assert!(found.contains("current_database()"), "{found}");
        assert_eq!(refused("", &keys.replace("postgres", "data_2")), None);
        let of_all = refused("alter database postgres set jit = off;\n", keys);
        assert!(of_all.is_some_and(|it| it.starts_with("s.toml:3:")));
        let current = "setup = \"do $$ begin execute 'alter database x set jit = off'; end $$\"";
        assert_eq!(refused("", current), None);
    }
}
