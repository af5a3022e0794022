//! Parses a point's scripts. Errors name the line in the study.

use std::sync::Arc;

use anyhow::Result;
use pgassay_load::WeightedScript;
use pgassay_model::plan::Point;
use pgassay_model::study::{DriverKind, Protocol, StudySource};
use pgassay_script::{ParseOptions, ParsedScript, VariableNames};

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
    Ok(Scripts {
        weighted,
        names: Arc::new(names),
        notes,
    })
}

/// Converts the study's protocol to the script language's.
pub fn protocol(protocol: Protocol) -> pgassay_script::QueryProtocol {
    match protocol {
        Protocol::Simple => pgassay_script::QueryProtocol::Simple,
        Protocol::Extended => pgassay_script::QueryProtocol::Extended,
        Protocol::Prepared => pgassay_script::QueryProtocol::Prepared,
    }
}
