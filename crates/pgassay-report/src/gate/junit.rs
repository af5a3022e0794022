//! The XML of `JUnit`, as Jenkins and most other systems read it.

use std::io;

use pgassay_account::comparison::GateAnswer;
use pgassay_record::run::Run;
use quick_xml::Writer;

use super::{GateResult, figures};
use crate::{number, printable};

/// One suite for the study, one test case for each comparison. A regression is a failure. A comparison about
/// which the gate cannot tell is skipped, or an error if `strict`.
///
/// # Errors
/// None in practice: the text is written to memory.
pub fn junit(
    run: &Run,
    results: &[GateResult],
    limit_percent: f64,
    strict: bool,
) -> io::Result<String> {
    let count = |wanted: GateAnswer| {
        let those = results.iter().filter(|it| it.compared.answer == wanted);
        those.count()
    };
    let undecided = count(GateAnswer::CannotTell);
    let counts = [
        ("tests", results.len().to_string()),
        ("failures", count(GateAnswer::Regression).to_string()),
        ("errors", if strict { undecided } else { 0 }.to_string()),
        ("skipped", if strict { 0 } else { undecided }.to_string()),
    ];
    let seconds = (run.ended_us - run.started_us) as f64 / 1e6;
    let counts = counts
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let time = format!("{seconds:.3}");
    let name = printable(&run.study_name);
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer
        .create_element("testsuites")
        .with_attributes([("name", "pgassay"), ("time", &time)])
        .with_attributes(counts)
        .write_inner_content(|writer| {
            writer
                .create_element("testsuite")
                .with_attributes([("name", &*name), ("time", &time)])
                .with_attribute(("timestamp", timestamp(run).as_str()))
                .with_attributes(counts)
                .write_inner_content(|writer| {
                    properties(writer, run, limit_percent)?;
                    for result in results {
                        test_case(writer, &name, result, (limit_percent, strict))?;
                    }
                    Ok(())
                })?;
            Ok(())
        })?;
    let xml = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}\n"
    ))
}

/// ISO 8601, without the space and the zone of the reports.
fn timestamp(run: &Run) -> String {
    let text = number::moment(run.started_us);
    text.trim_end_matches(" UTC").replace(' ', "T")
}

fn properties(writer: &mut Writer<Vec<u8>>, run: &Run, limit_percent: f64) -> io::Result<()> {
    let versions: Vec<&str> = run.servers.iter().map(|it| it.version.as_str()).collect();
    let all = [
        ("run", run.id.clone()),
        ("pgassay", run.pgassay_version.clone()),
        ("postgresql", versions.join(", ")),
        ("seed", run.plan.schedule.seed.to_string()),
        ("limit", format!("slower > {limit_percent}%")),
    ];
    writer
        .create_element("properties")
        .write_inner_content(|writer| {
            for (name, value) in &all {
                writer
                    .create_element("property")
                    .with_attributes([("name", *name), ("value", &*printable(value))])
                    .write_empty()?;
            }
            Ok(())
        })?;
    Ok(())
}

fn test_case(
    writer: &mut Writer<Vec<u8>>,
    study: &str,
    result: &GateResult,
    (limit_percent, strict): (f64, bool),
) -> io::Result<()> {
    let class = format!("pgassay.{study}");
    let name = format!("{}, {}", result.variant, result.condition);
    let message = format!(
        "throughput {}, limit: slower by {limit_percent}%",
        figures(&result.compared)
    );
    let case = writer
        .create_element("testcase")
        .with_attributes([("classname", &*class), ("name", &*printable(&name))]);
    let part = match result.compared.answer {
        GateAnswer::Pass => {
            case.write_empty()?;
            return Ok(());
        }
        GateAnswer::Regression => ("failure", "regression"),
        GateAnswer::CannotTell if strict => ("error", "cannot-tell"),
        GateAnswer::CannotTell => ("skipped", ""),
    };
    case.write_inner_content(|writer| {
        let mut element = writer.create_element(part.0);
        if !part.1.is_empty() {
            element = element.with_attribute(("type", part.1));
        }
        element
            .with_attribute(("message", &*printable(&message)))
            .write_empty()?;
        Ok(())
    })?;
    Ok(())
}
