//! What a plan does on an external server, by the text of its statements.

use std::collections::BTreeSet;

use anyhow::Result;
use pgassay_model::plan::{Plan, PlannedSql, Point};
use pgassay_model::study::{DriverKind, Protocol, StudySource};
use pgassay_script::{
    Capture, CommandKind, ServerChange, SettingChange, SqlCommand, SqlLexeme, SqlReach,
    frees_session, lexemes,
};

use pgassay_load::WeightedScript;

use super::backup::{may_be_secret, names_secret};
use crate::load::scripts;
use crate::study_errors::at_line;

/// Longer statements are shortened, in characters.
const STATEMENT_MAX: usize = 100;

/// What a plan does on an external server.
#[derive(Debug, Default)]
pub struct ExternalUse {
    /// The databases to create. If there are none, the load reads in the existing one.
    databases: usize,
    /// The statements that change something outside of these databases.
    changes: Vec<PlannedChange>,
    /// What has been added.
    known: BTreeSet<(String, String)>,
    /// Whether some statement changes something, or setup or reset exist.
    needs_database: bool,
    /// Whether a setup fills its databases.
    is_filled: bool,
}

/// A statement that changes something outside of the run's databases, or may do so.
#[derive(Debug)]
struct PlannedChange {
    /// Where it is: `study.toml:7`.
    place: String,
    /// Its text, in one line.
    statement: String,
    change: ServerChange,
}

impl ExternalUse {
    /// What the plan does on the server with this index.
    ///
    /// # Errors
    /// SQL that cannot be split into statements, with its line.
    pub fn of(plan: &Plan, server: usize, source: &StudySource) -> Result<Self> {
        let mut found = Self::default();
        let wanted = &plan.servers[server];
        for database in &wanted.databases {
            found.add_sql(&database.setup, "setup", source)?;
        }
        found.is_filled = found.needs_database;
        let points = plan.points.iter();
        for point in points.filter(|it| it.server == server && it.driver == DriverKind::Postgres) {
            found.add_sql(&point.resets, "reset", source)?;
            found.add_scripts(point, source)?;
            // Its sessions could not be kept from writing.
            found.needs_database |= point.session.keys().any(|it| frees_session(it));
        }
        if found.needs_database {
            found.databases = wanted.databases.len();
        }
        Ok(found)
    }

    /// Whether the load only reads, in the database that `dsn` names.
    pub fn is_in_place(&self) -> bool {
        self.databases == 0
    }

    /// The settings that it changes outside of its sessions.
    pub fn settings(&self) -> impl Iterator<Item = &SettingChange> {
        self.changes.iter().filter_map(|it| match &it.change {
            ServerChange::Setting(setting) => Some(setting),
            _ => None,
        })
    }

    /// The kinds of objects outside of its databases that it may create, by the text of its statements.
    pub fn creates(&self) -> BTreeSet<String> {
        let kinds = self.changes.iter().filter_map(|it| match &it.change {
            ServerChange::Database => Some("database"),
            ServerChange::Role => Some("role"),
            ServerChange::Tablespace => Some("tablespace"),
            ServerChange::Replication => Some("replication slot"),
            _ => None,
        });
        kinds.map(str::to_owned).collect()
    }

    /// What it changes, one line each; none if it only reads.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match self.databases {
            0 => {}
            1 => {
                lines.push("creates a database named pgassay_…, drops it after the run".to_owned());
            }
            count => lines.push(format!(
                "creates {count} databases named pgassay_…, drops them after the run"
            )),
        }
        lines.extend(self.changes.iter().map(|it| {
            let after = match it.change {
                ServerChange::Setting(_) => "; put back after the run",
                // It goes with the database.
                ServerChange::Extension => "",
                _ => "; not undone",
            };
            format!(
                "{}: {} ({}{after})",
                it.place,
                it.statement,
                it.change.describe()
            )
        }));
        lines
    }

    /// Why it must not run, unless the user allows changes.
    pub fn refusal(&self, allows_writes: bool) -> Option<String> {
        let lines = self.lines();
        if allows_writes || lines.is_empty() {
            return None;
        }
        let in_place = if self.databases > 0 && !self.is_filled {
            "\nThe load may write, so it does not run in the database that --dsn names but in a new one, which is \
             empty: create its tables with a setup."
        } else if self.databases > 0 && self.changes.is_empty() {
            "\nStatements that only read need no separate database: without a setup (--setup '' on the command line), \
             they run in the one that --dsn names."
        } else {
            ""
        };
        Some(format!(
            "the run would change this external server, which requires --allow-writes; this run has changed \
             nothing. Planned changes:\n  {}{in_place}",
            lines.join("\n  ")
        ))
    }

    fn add_sql(&mut self, pieces: &[PlannedSql], key: &str, source: &StudySource) -> Result<()> {
        for piece in pieces {
            let path = piece.path(key);
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let statements = pgassay_script::sql::statements(&piece.text).map_err(|error| {
                at_line(source, &path, error.line() as usize, &error.to_string())
            })?;
            for statement in statements {
                self.needs_database = true;
                let place = source.position_in_text(&path, statement.line as usize, key);
                self.add(place, &statement.text);
            }
        }
        Ok(())
    }

    fn add_scripts(&mut self, point: &Point, source: &StudySource) -> Result<()> {
        let parsed = scripts::parse(point, source)?;
        // Then a variable in a statement may be any text.
        let has_texts = point.protocol == Protocol::Simple && stores_rows(&parsed.weighted);
        for (planned, weighted) in point.scripts.iter().zip(&parsed.weighted) {
            let index = planned.index.to_string();
            let path = ["script", index.as_str(), "text"];
            for command in weighted.script.commands() {
                let CommandKind::Sql(sql) = &command.kind else {
                    continue;
                };
                let text = String::from_utf8_lossy(sql.text()).into_owned();
                let line = command.line as usize;
                let place = if let Some(file) = &planned.file {
                    format!("{file}:{line}")
                } else {
                    let name = format!("script \"{}\"", planned.name);
                    source.position_in_text(&path, line, &name)
                };
                // Several statements can be joined by `\;`. What cannot be split is unknown.
                match pgassay_script::sql::statements(&text) {
                    Ok(_) if has_texts && !sql.parameters().is_empty() => {
                        self.add_change(place, &text, ServerChange::Unknown);
                    }
                    Ok(statements) => {
                        for statement in statements {
                            self.add(place.clone(), &statement.text);
                        }
                    }
                    Err(_) => self.add_change(place, &text, ServerChange::Unknown),
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, place: String, statement: &str) {
        match SqlReach::of(statement) {
            SqlReach::Reads => {}
            SqlReach::Database => self.needs_database = true,
            SqlReach::Server(change) => self.add_change(place, statement, change),
        }
    }

    fn add_change(&mut self, place: String, statement: &str, change: ServerChange) {
        self.needs_database = true;
        // The whole text: two statements of one line may begin alike.
        if self.known.insert((place.clone(), statement.to_owned())) {
            self.changes.push(PlannedChange {
                place,
                statement: in_one_line(statement),
                change,
            });
        }
    }
}

/// Whether rows of the server become variables. Those of `\set` are numbers.
fn stores_rows(scripts: &[WeightedScript]) -> bool {
    let commands = scripts.iter().flat_map(|it| it.script.commands());
    let stores = |sql: &SqlCommand| *sql.capture() != Capture::None;
    commands
        .into_iter()
        .any(|it| matches!(&it.kind, CommandKind::Sql(sql) if stores(sql)))
}

/// Without comments, which may be long, and passwords: a refusal may end up in the log of an automated job.
fn without_comments_and_passwords(statement: &str) -> String {
    let mut is_password = false;
    let mut shown = String::new();
    for (lexeme, text) in lexemes(statement) {
        let names = names_secret(text);
        let is_constant = lexeme == SqlLexeme::Constant;
        let is_hidden = is_constant && (is_password || may_be_secret("", text));
        shown.push_str(match lexeme {
            SqlLexeme::Blank => " ",
            _ if is_hidden => "'…'",
            _ => text,
        });
        if !matches!(lexeme, SqlLexeme::Blank) && text != "=" {
            is_password = lexeme != SqlLexeme::Constant && names;
        }
    }
    shown
}

fn in_one_line(statement: &str) -> String {
    let statement = without_comments_and_passwords(statement);
    let line = statement.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches(';');
    if line.chars().count() <= STATEMENT_MAX {
        return line.to_owned();
    }
    let begin: String = line.chars().take(STATEMENT_MAX).collect();
    format!("{begin}…")
}

#[cfg(test)]
mod tests {
    use pgassay_model::plan::{Overrides, plan};

    use super::*;

    fn of(text: &str) -> ExternalUse {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[server]\ndsn = \"host=h\"\n[[variant]]\nname = \"v\"\n{text}"
            ),
        };
        let study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        ExternalUse::of(&plan, 0, &source).unwrap()
    }

    #[test]
    fn a_load_that_only_reads_needs_no_database() {
        let found = of("[[script]]\nname = \"a\"\ntext = \"\\\\set x 1\\nselect :x;\"\n");
        assert!(found.is_in_place() && found.lines().is_empty(), "{found:?}");
    }

    #[test]
    fn every_change_outside_of_the_runs_database_is_named_with_its_line() {
        let found = of(r#"[data]
setup = '''
create table t (i int);
alter system set work_mem = '64MB';
create role bob;
create server s foreign data wrapper postgres_fdw
  options (dbname 'shop');
select dblink_exec('dbname=shop', 'delete from t');
'''
reset = "select pg_reload_conf()"
[[script]]
name = "a"
text = '''
insert into t values (1);
do $$ begin perform 1;
end $$;
'''
"#);
        assert_eq!(
            found.lines(),
            [
                "creates a database named pgassay_…, drops it after the run",
                "s.toml:9: alter system set work_mem = '64MB' (setting of the server; put back \
                 after the run)",
                "s.toml:10: create role bob (role; not undone)",
                "s.toml:11: create server s foreign data wrapper postgres_fdw options (dbname 'shop') (may \
                 change data outside of the run's databases through a foreign server; not undone)",
                "s.toml:13: select dblink_exec('dbname=shop', 'delete from t') (may change data outside of \
                 the run's databases through a foreign server; not undone)",
                "s.toml:15: select pg_reload_conf() (other sessions or processes of the server; not \
                 undone)",
                "s.toml:20: do $$ begin perform 1; end $$ (may change anything; not undone)",
            ]
        );
        assert_eq!(found.settings().count(), 1);
        assert_eq!(found.creates(), BTreeSet::from(["role".to_owned()]));
    }

    /// Regression: of statements in one line with the same first 100 characters, only the first was named and put back.
    #[test]
    fn statements_that_begin_alike_are_all_named() {
        let name = "x".repeat(120);
        let found = of(&format!(
            "[data]\nsetup = \"alter role {name} set jit = off; alter role {name} set work_mem = '9MB';\"\n\
             [[script]]\nname = \"a\"\ntext = \"select 1\"\n"
        ));
        assert_eq!(found.lines().len(), 3, "{found:?}");
        assert_eq!(found.settings().count(), 2);
    }

    #[test]
    fn a_planned_change_is_shown_without_its_passwords() {
        for (statement, shown) in [
            (
                "create user mapping for me server s options (user 'u', password 's3cret')",
                "create user mapping for me server s options (user 'u', password '…')",
            ),
            (
                "alter role bob PASSWORD  $$s3cret$$",
                "alter role bob PASSWORD '…'",
            ),
            (
                "select dblink_connect('dbname=shop password=s3cret')",
                "select dblink_connect('…')",
            ),
            (
                "alter role bob set app.password = 's3cret'",
                "alter role bob set app.password = '…'",
            ),
            (
                "alter role bob set app.token = 's3cret'",
                "alter role bob set app.token = '…'",
            ),
            (
                "alter /* not much */ role bob superuser",
                "alter role bob superuser",
            ),
            (
                "create role bob password null",
                "create role bob password null",
            ),
        ] {
            assert_eq!(in_one_line(statement), shown);
        }
    }

    /// Regression: two statements that only read asked for permission to write, because compare fills pgbench's
    /// tables by default.
    #[test]
    fn who_needs_a_database_only_for_the_setup_learns_how_to_do_without() {
        let load = "[[script]]\nname = \"a\"\ntext = \"select 1\"\n";
        let filled = of(&format!("[data]\nsetup = \"create table t ()\"\n{load}"));
        let refusal = filled.refusal(false).expect("it creates a database");
        assert!(refusal.contains("(--setup '' on"), "{refusal}");
        // Regression: `pgassay curve` spoke of compare.
        assert!(!refusal.contains("compare"), "{refusal}");
        // Regression: "nothing was changed" followed what had just been undone for a killed run.
        assert!(
            refusal.contains("this run has changed nothing. Planned"),
            "{refusal}"
        );
        assert_eq!(of(load).refusal(false), None);
        let altered = of(&format!("[data]\nsetup = \"create role bob\"\n{load}"));
        let refusal = altered.refusal(false).expect("it creates a role");
        assert!(!refusal.contains("--setup"), "{refusal}");
    }

    /// Regression: who had asked for no setup was advised to ask for none.
    #[test]
    fn a_load_that_writes_without_a_setup_is_said_to_need_a_new_database() {
        let found = of("[[script]]\nname = \"a\"\ntext = \"insert into t values (1);\"\n");
        let refusal = found.refusal(false).expect("it creates a database");
        assert!(refusal.contains("The load may write"), "{refusal}");
        assert!(!refusal.contains("--setup"), "{refusal}");
    }

    /// Regression: each of these wrote into the database that it was said to read.
    #[test]
    fn a_load_that_may_write_although_its_text_reads_is_not_in_place() {
        for text in [
            "session = { Default-Transaction-Read_Only = \"off\" }\n\
             [[script]]\nname = \"a\"\ntext = \"select f();\"\n",
            "session = { standard_conforming_strings = \"off\" }\n\
             [[script]]\nname = \"a\"\ntext = \"select '\\\\', 1;\"\n",
            "session = { client_encoding = \"SJIS\" }\n\
             [[script]]\nname = \"a\"\ntext = \"select 1;\"\n",
            "[[script]]\nname = \"a\"\n\
             text = '''select '; commit; delete from t' as q \\gset\nselect 1 :q;\n'''\n",
        ] {
            assert!(!of(text).is_in_place(), "{text}");
        }
        let bound = "[conditions]\nprotocol = [\"prepared\"]\n[[script]]\nname = \"a\"\n\
             text = '''select 1 as q \\gset\nselect :q;\n'''\n";
        assert!(of(bound).is_in_place());
    }

    #[test]
    fn a_load_that_writes_gets_a_database_of_its_own() {
        let found = of("[[script]]\nname = \"a\"\ntext = \"create table t (i int);\"\n");
        assert!(!found.is_in_place());
        assert_eq!(found.lines().len(), 1, "{found:?}");
    }
}
