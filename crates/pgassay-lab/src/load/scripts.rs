//! Parses a point's scripts. Errors name the line in the study.

use std::sync::Arc;

use anyhow::Result;
use pgassay_load::WeightedScript;
use pgassay_model::plan::Point;
use pgassay_model::study::{DriverKind, Protocol, StudySource};
use pgassay_script::{ParseOptions, ParsedScript, VariableNames, undefined_variable};

use crate::study_errors::at_line;

/// Parsed scripts and the table of their variable names.
pub struct Scripts {
    /// In the plan's order.
    pub weighted: Vec<WeightedScript>,
    /// The names of all their variables.
    pub names: Arc<VariableNames>,
    /// Notes for the user, for example that `\setrandom` is obsolete.
    pub notes: Vec<String>,
}

/// Parses the scripts of a point.
pub fn parse(point: &Point, source: &StudySource) -> Result<Scripts> {
    let mut names = VariableNames::new();
    let mut weighted = Vec::new();
    let mut notes = Vec::new();
    let options = ParseOptions {
        protocol: protocol(point.protocol),
        ..ParseOptions::default()
    };
    if point.driver != DriverKind::Postgres {
        // Its lines are commands for the other server.
        check_redis(point, source)?;
        return Ok(Scripts {
            weighted,
            names: Arc::new(names),
            notes,
        });
    }
    for planned in &point.scripts {
        let path = ["script", &planned.index.to_string(), "text"];
        // Line numbers refer to the script file if there is one.
        let origin = planned.file.as_ref().unwrap_or(&planned.name);
        let script = ParsedScript::parse(origin, &planned.text, &options, &mut names)
            .map_err(|error| at_line(source, &path, error.line as usize, &error.to_string()))?;
        notes.extend(
            script
                .notes()
                .iter()
                .map(|note| format!("script \"{}\", line {}: {}", origin, note.line, note.text)),
        );
        weighted.push(WeightedScript {
            script: Arc::new(script),
            weight: planned.weight.into(),
        });
    }
    check_variables(point, &weighted, &names, source)?;
    Ok(Scripts {
        weighted,
        names: Arc::new(names),
        notes,
    })
}

/// An undefined variable is an error at best, and NULL at worst, so it is never measured.
fn check_variables(
    point: &Point,
    weighted: &[WeightedScript],
    names: &VariableNames,
    source: &StudySource,
) -> Result<()> {
    let scripts: Vec<&ParsedScript> = weighted.iter().map(|it| it.script.as_ref()).collect();
    let Some(undefined) = undefined_variable(&scripts, names) else {
        return Ok(());
    };
    let (planned, name) = (&point.scripts[undefined.script], undefined.name);
    let path = ["script", &planned.index.to_string(), "text"];
    let line = undefined.line as usize;
    // A command line has no parameters.
    let or_parameter = if source.file.is_empty() {
        String::new()
    } else {
        format!(", or write ${{{name}}} for a parameter of the study")
    };
    let message = format!(
        "script \"{}\", line {line}: nothing defines the variable :{name}; define it in the script, as in `\\set {name} \
         random(1, 100)`{or_parameter}",
        planned.file.as_ref().unwrap_or(&planned.name)
    );
    Err(at_line(source, &path, line, &message))
}

/// Whether a line is of pgbench's script language. `select 1` is also a command of Redis.
fn is_sql(line: &str) -> bool {
    const SQL_ONLY: [&str; 14] = [
        "with", "insert", "update", "delete", "merge", "values", "begin", "commit", "rollback",
        "create", "alter", "drop", "call", "explain",
    ];
    let mut words = line.split_whitespace();
    let is_word = |word: &str, of: &str| word.eq_ignore_ascii_case(of);
    let first = words.next().unwrap_or_default();
    line.trim_end().ends_with(';')
        || line.trim_start().starts_with(['\\'])
        || line.trim_start().starts_with("--")
        || SQL_ONLY.iter().any(|word| is_word(first, word))
        || is_word(first, "select") && words.any(|word| word.parse::<u32>().is_err())
}

/// Rejects scripts that a variant with the Redis driver cannot run.
fn check_redis(point: &Point, source: &StudySource) -> Result<()> {
    if let [first, second, ..] = &point.scripts[..] {
        let path = ["script", &second.index.to_string(), "text"];
        let message = format!(
            "a variant with driver = \"redis\" runs one script, and this one would run a mix of \"{}\" and \"{}\"; \
             set its `script` to one of them, or compare them one by one with `script` in [conditions]",
            first.name, second.name
        );
        return Err(at_line(source, &path, 1, &message));
    }
    for planned in &point.scripts {
        let path = ["script", &planned.index.to_string(), "text"];
        let mut lines = planned.text.lines().enumerate();
        let Some((index, line)) = lines.find(|(_, line)| is_sql(line)) else {
            continue;
        };
        let message = format!(
            "script \"{}\", line {}: \"{}\" is not a Redis command, but a variant with driver = \"redis\" runs this \
             script; set its `script` to one with a Redis command per line",
            planned.name,
            index + 1,
            line.trim()
        );
        return Err(at_line(source, &path, index + 1, &message));
    }
    Ok(())
}

/// Converts the study's protocol to the script language's.
pub fn protocol(protocol: Protocol) -> pgassay_script::QueryProtocol {
    match protocol {
        Protocol::Simple => pgassay_script::QueryProtocol::Simple,
        Protocol::Extended => pgassay_script::QueryProtocol::Extended,
        Protocol::Prepared => pgassay_script::QueryProtocol::Prepared,
    }
}
