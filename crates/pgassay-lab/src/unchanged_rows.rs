//! Variants whose statements write, but had nothing to change while they were measured: a DELETE of the same rows, for
//! example, removes them in its first execution, which is part of the warm-up.

use std::collections::BTreeSet;

use pgassay_model::counters::Counters;
use pgassay_model::plan::{Plan, PlannedScript, Point};
use pgassay_model::study::{DriverKind, Protocol};
use pgassay_model::trial::Trial;
use pgassay_record::run::Run;
use pgassay_script::{CommandKind, ParseOptions, ParsedScript, ScriptCommand, VariableNames};

use crate::load::scripts;
use crate::write_commands::write_commands;

/// Statements that change fewer rows than this per execution find nothing.
const ROWS_NOTICEABLE: f64 = 0.01;
/// Fewer transactions than this share of those that clients ended were not counted completely.
const COUNTED_MIN: f64 = 0.5;
/// Variants that are named.
const SHOWN_MAX: usize = 3;

/// The statements of a point's scripts that write.
#[derive(Debug, PartialEq)]
struct ScriptWrites {
    commands: BTreeSet<&'static str>,
    /// Executions per transaction, on average over the scripts.
    per_transaction: f64,
}

/// The trials of a point that count rows, and those of them that changed none.
#[derive(Debug, Default, PartialEq)]
struct CountedTrials {
    all: usize,
    unchanged: usize,
    /// Rows changed per execution in the latter.
    rows: f64,
}

/// The variants whose writes changed no rows in most trials, as a sentence.
pub(crate) fn sentence(run: &Run) -> Option<String> {
    let mut named = BTreeSet::new();
    let mut found = Vec::new();
    for point in &run.plan.points {
        if point.driver != DriverKind::Postgres || has_foreign_tables(&run.plan, point) {
            continue;
        }
        let Some(writes) = written_by(&point.scripts, point.protocol) else {
            continue;
        };
        let trials = run.trials.iter();
        let of_point =
            trials.filter(|it| (it.condition, it.variant) == (point.condition, point.variant));
        let trials = counted(of_point, writes.per_transaction);
        if trials.is_of_nothing() && named.insert(point.variant) {
            found.push(described(
                &run.plan.variants[point.variant],
                &writes,
                &trials,
            ));
        }
    }
    if found.is_empty() {
        return None;
    }
    found.truncate(SHOWN_MAX);
    Some(format!(
        "{}. The figures are those of a statement that finds nothing to change: its first executions changed all rows, \
         there never were any, or it is to change none (DO NOTHING). Let each execution find \
         rows: put BEGIN before and ROLLBACK after it, or draw one of many keys with \\set and restore the rows with \
         reset (a key of study files)",
        found.join("; ")
    ))
}

/// `"a" executes DELETE, but changed no rows in 4 of 4 trials`.
fn described(variant: &str, writes: &ScriptWrites, trials: &CountedTrials) -> String {
    let commands: Vec<&str> = writes.commands.iter().copied().collect();
    let rows = if trials.rows > 0.0 {
        format!("almost no rows ({:.4} per execution)", trials.rows)
    } else {
        "no rows".to_owned()
    };
    format!(
        "\"{variant}\" executes {}, but changed {rows} in {} of {} trials",
        commands.join(" and "),
        trials.unchanged,
        trials.all
    )
}

/// Whether a point's setup creates foreign tables: their rows are counted where they are.
fn has_foreign_tables(plan: &Plan, point: &Point) -> bool {
    let databases = &plan.servers[point.server].databases;
    let mut pieces = databases
        .get(point.database)
        .map_or(&[][..], |it| &it.setup)
        .iter();
    let creates = |text: &str| text.contains("foreign table") || text.contains("foreign schema");
    pieces.any(|it| creates(&it.text.to_ascii_lowercase()))
}

impl CountedTrials {
    fn is_of_nothing(&self) -> bool {
        self.all > 0 && 2 * self.unchanged >= self.all
    }
}

/// What scripts write in each transaction; `None` if nothing. A statement in a branch may never be executed, so it does
/// not count.
fn written_by(planned: &[PlannedScript], protocol: Protocol) -> Option<ScriptWrites> {
    let options = ParseOptions {
        protocol: scripts::protocol(protocol),
        ..ParseOptions::default()
    };
    let mut names = VariableNames::new();
    let (mut commands, mut weights, mut executions) = (BTreeSet::new(), 0.0, 0.0);
    for script in planned {
        let parsed = ParsedScript::parse(&script.name, &script.text, &options, &mut names);
        let of_script = outside_branches(parsed.ok()?.commands());
        let weight = f64::from(script.weight);
        weights += weight;
        executions += weight * of_script.len() as f64;
        commands.extend(of_script);
    }
    (!commands.is_empty() && executions > 0.0).then(|| ScriptWrites {
        commands,
        per_transaction: executions / weights,
    })
}

/// The commands that change rows in every transaction.
fn outside_branches(commands: &[ScriptCommand]) -> Vec<&'static str> {
    let mut depth = 0_u32;
    let mut found = Vec::new();
    for command in commands {
        match &command.kind {
            CommandKind::If { .. } => depth += 1,
            CommandKind::Endif => depth = depth.saturating_sub(1),
            CommandKind::Sql(sql) if depth == 0 => {
                found.extend(write_commands(&String::from_utf8_lossy(sql.text())));
            }
            _ => {}
        }
    }
    found
}

/// Counts the trials in which writes changed fewer rows than noticeable.
fn counted<'t>(trials: impl Iterator<Item = &'t Trial>, per_transaction: f64) -> CountedTrials {
    let (mut found, mut rows, mut executions) = (CountedTrials::default(), 0.0, 0.0);
    for trial in trials.filter(|it| it.transactions_total > 0) {
        let Some(changed) = rows_changed(&trial.counters, trial.transactions_total) else {
            continue;
        };
        let of_trial = per_transaction * trial.transactions_total as f64;
        found.all += 1;
        if changed < ROWS_NOTICEABLE * of_trial {
            found.unchanged += 1;
            rows += changed;
            executions += of_trial;
        }
    }
    if executions > 0.0 {
        found.rows = rows / executions;
    }
    found
}

/// The rows that a trial changed; `None` if the server did not count them: other sessions use the database, its
/// statistics are late, or `track_counts` is off.
fn rows_changed(counters: &Counters, transactions: u64) -> Option<f64> {
    let of = |name: &str| counters.get(&format!("pg_stat_database.{name}"));
    let sum = |names: &[&str]| names.iter().filter_map(|it| of(it)).sum::<f64>();
    let is_counted = sum(&["xact_commit", "xact_rollback"]) >= COUNTED_MIN * transactions as f64
        && sum(&["blks_hit", "blks_read", "tup_returned", "tup_fetched"]) > 0.0;
    let rows = ["tup_inserted", "tup_updated", "tup_deleted"].map(of);
    let rows: Option<Vec<f64>> = rows.into_iter().collect();
    rows.filter(|_| is_counted).map(|it| it.into_iter().sum())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeMap;

    use pgassay_model::trial::TrialKind;

    use super::*;

    fn of_scripts(scripts: &[(u32, &str)]) -> Option<ScriptWrites> {
        let scripts = scripts.iter().enumerate();
        let scripts = scripts.map(|(index, (weight, text))| PlannedScript {
            index,
            name: index.to_string(),
            file: None,
            weight: *weight,
            text: (*text).to_owned(),
        });
        let scripts: Vec<PlannedScript> = scripts.collect();
        written_by(&scripts, Protocol::Simple)
    }

    /// A trial of 1000 transactions that changed these rows.
    fn trial(rows: f64) -> Trial {
        let counters = [
            ("pg_stat_database.xact_commit", 1000.0),
            ("pg_stat_database.blks_hit", 3000.0),
            ("pg_stat_database.tup_inserted", 0.0),
            ("pg_stat_database.tup_updated", 0.0),
            ("pg_stat_database.tup_deleted", rows),
        ];
        Trial {
            transactions_total: 1000,
            counters: Counters::from(counters),
            ..Trial::empty(TrialKind::Timed)
        }
    }

    fn is_of_nothing(trials: &[Trial]) -> bool {
        counted(trials.iter(), 1.0).is_of_nothing()
    }

    /// Regression: a DELETE of the same rows, all of which its warm-up removed, was 126 times as slow as a SELECT,
    /// without a word.
    #[test]
    fn a_delete_that_finds_nothing_while_it_is_timed_is_noticed() {
        assert!(is_of_nothing(&[trial(0.0), trial(0.0)]));
        assert!(
            is_of_nothing(&[trial(50.0), trial(0.0)]),
            "the first found some"
        );
        assert!(is_of_nothing(&[trial(9.0)]));
        let trials = counted([trial(0.0), trial(4.0)].iter(), 1.0);
        let writes = of_scripts(&[(1, "delete from t where a = 1;")]).unwrap();
        assert_eq!(
            described("a", &writes, &trials),
            "\"a\" executes DELETE, but changed almost no rows (0.0020 per execution) in 2 of 2 trials"
        );
    }

    #[test]
    fn writes_that_find_rows_now_and_then_are_not_noticed() {
        assert!(!is_of_nothing(&[trial(10.0), trial(11.0)]));
        assert!(!is_of_nothing(&[trial(1000.0), trial(1000.0), trial(0.0)]));
        // One transaction in a hundred writes.
        let rare = of_scripts(&[(99, "select 1;"), (1, "update t set a = 1;")]);
        let per_transaction = rare.unwrap().per_transaction;
        assert!(!counted([trial(9.0)].iter(), per_transaction).is_of_nothing());
        assert!(counted([trial(0.0)].iter(), per_transaction).is_of_nothing());
    }

    #[test]
    fn what_was_not_counted_is_not_nothing() {
        let of = |change: &dyn Fn(&mut Trial)| {
            let mut changed = trial(0.0);
            change(&mut changed);
            is_of_nothing(&[changed])
        };
        let without = |name: &'static str| {
            move |it: &mut Trial| {
                let others = it.counters.iter().filter(|(key, _)| *key != name);
                let others = others.map(|(key, value)| (key.to_owned(), value));
                it.counters = others.collect::<BTreeMap<String, f64>>().into();
            }
        };
        assert!(of(&|_| ()));
        assert!(!of(&|it| it.counters = Counters::default()));
        assert!(!of(&without("pg_stat_database.tup_deleted")));
        assert!(!of(&without("pg_stat_database.xact_commit")), "late");
        assert!(!of(&without("pg_stat_database.blks_hit")), "track_counts");
        assert!(!of(&|it| it.transactions_total = 0));
        assert!(!is_of_nothing(&[]));
    }

    #[test]
    fn statements_in_branches_and_queries_are_not_expected_to_write() {
        let script = "\\if :client_id = 0\ndelete from t;\n\\endif\nselect 1 for update;";
        assert_eq!(of_scripts(&[(1, script)]), None);
        let script = "begin;\nupdate t set a = 1;\ninsert into t values (1);\nend;";
        let found = of_scripts(&[(1, script), (3, "select 1;")]).unwrap();
        assert!((found.per_transaction - 0.5).abs() < 1e-9);
        assert_eq!(found.commands, BTreeSet::from(["INSERT", "UPDATE"]));
    }
}
