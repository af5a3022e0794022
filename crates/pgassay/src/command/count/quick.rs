//! Builds a study from flags: one script, a baseline, and variants to compare with it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use pgassay_lab::LoadedStudy;
use pgassay_model::plan::escaped;
use pgassay_model::study::{
    Conditions, Data, Length, Maintenance, Scalar, Script, ServerChoice, Study, StudySource,
};
use pgassay_script::{Builtin, ParseOptions, VariableNames};
use pgassay_server::VersionRequest;

use super::CountArgs;
use crate::command::choice::{mode, other, settings, variant};
use crate::command::compare::question::{NamedScript, named_scripts};
use crate::command::tables::{pgbench_tables, setup_sql};
use crate::input_file::read_text;

/// The study that the flags describe.
pub fn study(args: &CountArgs) -> Result<LoadedStudy> {
    let (name, file, text) = script(args)?;
    let protocol = args.protocol.unwrap_or_default();
    let settings = settings("--set", &args.set)?;
    let mut variants = vec![variant(&baseline_name(args), protocol)];
    for choice in &args.vs {
        variants.push(other(choice, protocol)?);
    }
    let study = Study {
        question: format!("Cost of `{name}` ({} protocol)", protocol.as_str()),
        source: None,
        server: ServerChoice {
            version: args.version.clone(),
            binaries: args.binaries.clone(),
            dsn: None,
            settings,
            environment: BTreeMap::new(),
            data_checksums: None,
        },
        parameters: scale(args),
        data: Data {
            setup: Some(setup(args)?),
            reset: None,
        },
        script: vec![Script {
            name: name.clone(),
            weight: 1,
            text: Some(text),
            file: None,
            builtin: None,
            reconnects: false,
            gives: BTreeMap::new(),
        }],
        variant: variants,
        stepwise: false,
        conditions: Conditions::default(),
        length: Length::default(),
        maintenance: Maintenance::default(),
        plans: false,
        keep_cpus_awake: false,
        quick: None,
        floor: None,
        explain: None,
        watch_functions: Vec::new(),
        expect: Vec::new(),
        reference: None,
    };
    let source = StudySource {
        file,
        text: String::new(),
    };
    LoadedStudy::new(&name, source, study)
}

/// What `:scale` is in the script; none with data of the user's.
fn scale(args: &CountArgs) -> BTreeMap<String, Scalar> {
    let scale = args
        .setup
        .is_empty()
        .then_some(Scalar(args.scale.unwrap_or(1).to_string()));
    scale
        .map(|it| ("scale".to_owned(), it))
        .into_iter()
        .collect()
}

/// The SQL that fills the database.
fn setup(args: &CountArgs) -> Result<String> {
    let given = setup_sql(&args.setup)?;
    Ok(given.unwrap_or_else(|| pgbench_tables(args.scale.unwrap_or(1))))
}

/// Name, file and text of the script. Parse errors name the line.
fn script(args: &CountArgs) -> Result<(String, String, String)> {
    let flags = &args.script;
    let builtin = match (&flags.builtin, flags.select_only, flags.skip_some_updates) {
        (Some(name), _, _) => Some(Builtin::find(name)?),
        (None, true, _) => Some(Builtin::find("select-only")?),
        (None, _, true) => Some(Builtin::find("simple-update")?),
        _ => None,
    };
    if let Some(builtin) = builtin {
        let name = builtin.name.to_owned();
        return Ok((name.clone(), name, builtin.text.to_owned()));
    }
    let (name, file, text) = statements(args)?;
    let options = ParseOptions {
        protocol: pgassay_lab::scripts::protocol(args.protocol.unwrap_or_default()),
        ..ParseOptions::default()
    };
    if let Err(error) =
        pgassay_script::ParsedScript::parse(&name, &text, &options, &mut VariableNames::new())
    {
        bail!("{file}:{}: {error}", error.line);
    }
    Ok((name, file, text))
}

/// Name, file and text of the script that the command line or a file contains.
fn statements(args: &CountArgs) -> Result<(String, String, String)> {
    if let Some(sql) = args.sql() {
        let script = named_scripts(&[sql.to_owned()], &[], &[])?.pop();
        let NamedScript { name, text, .. } = script.context("no statement")?;
        return Ok((name.clone(), name, text));
    }
    let Some(path) = &args.script.file else {
        bail!("specify SQL, a study, or a script with -S, -N, -b NAME or -f FILE");
    };
    let file = path.display().to_string();
    let text = read_text(path).with_context(|| format!("cannot read {file}"))?;
    let name = path
        .file_stem()
        .map_or_else(|| file.clone(), |stem| stem.to_string_lossy().into_owned());
    Ok((name, file, escaped(&text)))
}

fn baseline_name(args: &CountArgs) -> String {
    if !args.set.is_empty() {
        return args.set.join(", ");
    }
    let versions = args
        .vs
        .iter()
        .any(|choice| VersionRequest::parse(choice).is_ok());
    match &args.version {
        Some(version) if versions => version.clone(),
        None if versions => "18".to_owned(),
        _ if args.vs.iter().any(|choice| mode(choice).is_some()) => {
            args.protocol.unwrap_or_default().as_str().to_owned()
        }
        _ => "default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CountArgs,
    }

    /// Regression: `count` had no `-s`, which `bench` and `compare` have.
    #[test]
    fn a_scale_is_that_of_the_tables_and_of_the_script() {
        let Line { args } = Line::parse_from(["count", "-S", "-s", "3"]);
        let study = study(&args).unwrap().study;
        assert_eq!(study.parameters["scale"], Scalar("3".to_owned()));
        assert!(
            study
                .data
                .setup
                .unwrap()
                .contains("generate_series(1, 300000)")
        );
        assert!(Line::try_parse_from(["count", "-S", "-s", "3", "--setup", "s.sql"]).is_err());
    }

    /// Regression: `count --setup` took files only, and `--setup ''` not at all, unlike `compare`.
    #[test]
    fn a_setup_is_sql_or_a_file() {
        for sql in ["create table t (a int)", ""] {
            let Line { args } = Line::parse_from(["count", "-S", "--setup", sql]);
            assert_eq!(setup(&args).unwrap(), sql);
        }
        let twice = [
            "count",
            "-S",
            "--setup",
            "select 1 -- a",
            "--setup",
            "select 2;",
        ];
        let Line { args } = Line::parse_from(twice);
        assert_eq!(setup(&args).unwrap(), "select 1 -- a\n;\nselect 2;");
        let Line { args } = Line::parse_from(["count", "-S", "--setup", "missing.sql"]);
        let error = setup(&args).unwrap_err().to_string();
        assert_eq!(error, "--setup: cannot read missing.sql");
    }
}
