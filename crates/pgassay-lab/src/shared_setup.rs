//! Setups of variants that would change other variants as well.

use anyhow::Result;
use pgassay_model::plan::Plan;
use pgassay_model::study::StudySource;
use pgassay_script::{ServerChange, SettingScope, SqlReach};

use crate::study_errors::at_line;

/// Fails if the setup of a variant changes settings of the whole server, or of a role, and other variants use that
/// server: they would have the settings, too.
///
/// # Errors
/// The statement, with its line, or SQL that cannot be split into statements.
pub fn check(plan: &Plan, source: &StudySource) -> Result<()> {
    let shared = plan.servers.iter().filter(|it| it.databases.len() > 1);
    let pieces = shared
        .flat_map(|it| &it.databases)
        .flat_map(|it| &it.setup)
        .filter(|it| it.of_variant.is_some());
    for piece in pieces {
        let path = piece.path("setup");
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let statements = pgassay_script::sql::statements(&piece.text)
            .map_err(|error| at_line(source, &path, error.line() as usize, &error.to_string()))?;
        for statement in statements {
            if changes_all(&SqlReach::of(&statement.text)) {
                let line = statement.line as usize;
                return Err(at_line(source, &path, line, &refusal(&statement.text)));
            }
        }
    }
    Ok(())
}

/// A setting of a database is that of its variant only.
fn changes_all(reach: &SqlReach) -> bool {
    match reach {
        SqlReach::Server(ServerChange::Setting(change)) => {
            !matches!(change.scope, SettingScope::Database(_))
        }
        _ => false,
    }
}

fn refusal(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().collect();
    format!(
        "the setup of one variant changes a setting that the other variants on the same server would have as well: \
         {}. Make it a setting of the variant (`settings`, or --vs NAME=VALUE), which gives it a server of its own, \
         or use ALTER DATABASE ... SET",
        words.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_server_and_of_roles_are_of_all_variants_and_those_of_a_database_are_not() {
        for sql in [
            "alter system set work_mem = '64kB'",
            "ALTER ROLE current_user SET work_mem TO '64kB'",
            "alter role all reset all",
        ] {
            assert!(changes_all(&SqlReach::of(sql)), "{sql}");
        }
        for sql in [
            "alter database shop set work_mem = '64kB'",
            "set work_mem = '64kB'",
            "create index on t (a)",
            "alter table t set (fillfactor = 70)",
        ] {
            assert!(!changes_all(&SqlReach::of(sql)), "{sql}");
        }
    }
}
