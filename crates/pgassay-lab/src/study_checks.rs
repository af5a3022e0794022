//! Checks of a plan that need only its study, so that errors surface before anything is started.

use std::collections::BTreeSet;

use anyhow::Result;
use pgassay_model::plan::Plan;
use pgassay_server::VersionRequest;

use crate::host::check_settings;
use crate::load::scripts;
use crate::shared_setup;
use crate::study::LoadedStudy;
use crate::study_errors::at_version;

/// Checks versions, server settings, setups and scripts. Returns notes for the user on the scripts, without
/// duplicates.
///
/// # Errors
/// The first error, with its line in the study.
pub fn check(plan: &Plan, found: &LoadedStudy) -> Result<BTreeSet<String>> {
    for version in plan.servers.iter().filter_map(|it| it.version.as_ref()) {
        check_version(version).map_err(|error| at_version(found, version, &error.to_string()))?;
    }
    check_settings(plan, found)?;
    shared_setup::check(plan, &found.source)?;
    let mut notes = BTreeSet::new();
    for point in &plan.points {
        notes.extend(scripts::parse(point, &found.source)?.notes);
    }
    if plan.servers.is_empty() {
        let words = "all variants are Redis; at least one must be PostgreSQL";
        return Err(found
            .source
            .error_at(&["variant", "0", "driver"], words)
            .into());
    }
    Ok(notes)
}

fn check_version(version: &str) -> Result<()> {
    Ok(VersionRequest::parse(version)?.check_supported()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;

    use super::*;

    /// The error of a study with these keys of its variant, of which the first is on line 9.
    fn refused(script: &str, keys: &str) -> String {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\ntext = '''\n{script}'''\n[[variant]]\nname = \"v\"\n{keys}"
            ),
        };
        let study = source.parse().unwrap();
        let found = LoadedStudy::new("s", source, study).unwrap();
        let planned = plan(&found.study, &found.source, &Overrides::default()).unwrap();
        check(&planned, &found).unwrap_err().to_string()
    }

    #[test]
    fn a_version_that_pgassay_cannot_run_is_an_error_with_its_line() {
        let words = refused("select 1;\n", "version = \"8.4\"\n");
        assert!(words.starts_with("s.toml:9:11: "), "{words}");
        assert!(words.contains("9.6 or later"), "{words}");
    }

    /// Regression: it was a panic.
    #[test]
    fn a_study_of_redis_only_is_an_error_with_its_line() {
        let words = refused("INCR k\n", "driver = \"redis\"\nscript = \"a\"\n");
        assert!(words.starts_with("s.toml:9:"), "{words}");
        assert!(words.contains("at least one must be PostgreSQL"), "{words}");
    }

    #[test]
    fn a_setting_that_pgassay_sets_itself_is_an_error_with_its_line() {
        for name in ["port", "data_directory", "include"] {
            let words = refused("select 1;\n", &format!("settings = {{ {name} = 1 }}\n"));
            assert!(words.starts_with("s.toml:9:"), "{words}");
            assert!(
                words.contains(name) && words.contains("remove it"),
                "{words}"
            );
        }
        let words = refused("select 1;\n", "[conditions.settings]\nport = [1]\n");
        assert!(words.starts_with("s.toml:10:"), "{words}");
    }

    #[test]
    fn an_undefined_variable_is_an_error_with_its_line() {
        let words = refused("select 1;\nselect :d;\n", "");
        assert!(words.starts_with("s.toml:6:1: "), "{words}");
        assert!(
            words.contains("`\\set d ") && words.contains("${d}"),
            "{words}"
        );
    }

    #[test]
    fn a_redis_variant_with_an_sql_script_is_an_error_with_its_line() {
        for line in [
            "select 1;",
            "SELECT now()",
            "\\set a 1",
            "insert into t values (1)",
        ] {
            let words = refused(&format!("INCR a\n{line}\n"), "driver = \"redis\"\n");
            assert!(words.starts_with("s.toml:6:1: "), "{words}");
            assert!(words.contains("Redis command"), "{words}");
        }
    }

    /// Regression: it ran only the first script, and the result did not say so.
    #[test]
    fn a_redis_variant_that_names_none_of_several_scripts_is_an_error() {
        let keys = "driver = \"redis\"\n[[script]]\nname = \"b\"\ntext = \"GET a\"\n";
        let words = refused("INCR a\n", keys);
        assert!(words.starts_with("s.toml:12:"), "{words}");
        assert!(words.contains("a mix of \"a\" and \"b\""), "{words}");
    }
}
