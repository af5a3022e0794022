//! The XML of `JUnit`, as Jenkins and most other systems read it.

use std::io;

use quick_xml::Writer;

use super::result::{GateResult, GateVerdict};
use crate::{number, printable};

/// What is said of a whole gate.
#[derive(Debug, Clone, PartialEq)]
pub struct JunitSuite {
    /// The study's name.
    pub name: String,
    /// The machine's name in its network.
    pub hostname: String,
    /// Start, microseconds since 1970.
    pub started_us: i64,
    /// End, microseconds since 1970.
    pub ended_us: i64,
    /// Names and values.
    pub properties: Vec<(&'static str, String)>,
    /// Why the run failed, if it did: then there is one more test case, with an error.
    pub failure: Option<String>,
}

/// One suite for the study, one test case for each comparison. A regression is a failure. A comparison without a
/// verdict is skipped, or an error if `strict`.
///
/// # Errors
/// None in practice: the text is written to memory.
pub fn junit(suite: &JunitSuite, results: &[GateResult], strict: bool) -> io::Result<String> {
    let count = |is_wanted: fn(GateVerdict) -> bool| {
        let those = results.iter().filter(|it| is_wanted(it.verdict));
        those.count()
    };
    let undecided = count(is_undecided);
    let failures = count(|verdict| verdict == GateVerdict::Regression);
    let errors = if strict { undecided } else { 0 };
    let failed = usize::from(suite.failure.is_some());
    let counts = [
        ("tests", (results.len() + failed).to_string()),
        ("failures", failures.to_string()),
        ("errors", (errors + failed).to_string()),
        ("skipped", if strict { 0 } else { undecided }.to_string()),
    ];
    let seconds = suite.ended_us.saturating_sub(suite.started_us).max(0) as f64 / 1e6;
    let counts = counts
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let time = format!("{seconds:.3}");
    let name = printable(&suite.name);
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer
        .create_element("testsuites")
        .with_attributes([("name", "pgassay"), ("time", &time)])
        // Jenkins's schema has the number of skipped tests in suites only.
        .with_attributes(counts.into_iter().filter(|(name, _)| *name != "skipped"))
        .write_inner_content(|writer| {
            writer
                .create_element("testsuite")
                .with_attributes([("name", &*name), ("time", &time)])
                .with_attribute(("timestamp", timestamp(suite).as_str()))
                .with_attribute(("hostname", &*printable(&suite.hostname)))
                .with_attributes(counts)
                .write_inner_content(|writer| {
                    properties(writer, suite)?;
                    for result in results {
                        test_case(writer, &name, result, strict)?;
                    }
                    failed_run(writer, &name, suite.failure.as_deref())
                })?;
            Ok(())
        })?;
    let xml = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}\n"
    ))
}

fn is_undecided(verdict: GateVerdict) -> bool {
    matches!(
        verdict,
        GateVerdict::Inconclusive | GateVerdict::NotComparable
    )
}

/// ISO 8601, without the space and the zone of the reports.
fn timestamp(suite: &JunitSuite) -> String {
    let text = number::moment(suite.started_us);
    text.trim_end_matches(" UTC").replace(' ', "T")
}

fn properties(writer: &mut Writer<Vec<u8>>, suite: &JunitSuite) -> io::Result<()> {
    writer
        .create_element("properties")
        .write_inner_content(|writer| {
            for (name, value) in &suite.properties {
                writer
                    .create_element("property")
                    .with_attributes([("name", *name), ("value", &*printable(value))])
                    .write_empty()?;
            }
            Ok(())
        })?;
    Ok(())
}

/// The test case of a run that failed.
fn failed_run(writer: &mut Writer<Vec<u8>>, study: &str, reason: Option<&str>) -> io::Result<()> {
    let Some(reason) = reason else {
        return Ok(());
    };
    let class = format!("pgassay.{study}");
    writer
        .create_element("testcase")
        .with_attributes([("classname", &*class), ("name", "the run")])
        .write_inner_content(|writer| {
            writer
                .create_element("error")
                .with_attributes([("type", "failed-run"), ("message", &*printable(reason))])
                .write_empty()?;
            Ok(())
        })?;
    Ok(())
}

fn test_case(
    writer: &mut Writer<Vec<u8>>,
    study: &str,
    result: &GateResult,
    strict: bool,
) -> io::Result<()> {
    let class = format!("pgassay.{study}");
    let name = format!("{}, {}", result.names.variant, result.names.condition);
    let case = writer
        .create_element("testcase")
        .with_attributes([("classname", &*class), ("name", &*printable(&name))]);
    let (element, kind) = match result.verdict {
        GateVerdict::Pass => {
            case.write_empty()?;
            return Ok(());
        }
        GateVerdict::Regression => ("failure", "regression"),
        GateVerdict::Inconclusive if strict => ("error", "inconclusive"),
        GateVerdict::NotComparable if strict => ("error", "not-comparable"),
        GateVerdict::Inconclusive | GateVerdict::NotComparable => ("skipped", ""),
    };
    case.write_inner_content(|writer| {
        let mut element = writer.create_element(element);
        if !kind.is_empty() {
            element = element.with_attribute(("type", kind));
        }
        element
            .with_attribute(("message", &*printable(&result.figures)))
            .write_empty()?;
        Ok(())
    })?;
    Ok(())
}
