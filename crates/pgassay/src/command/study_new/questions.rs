//! The questions, and the words of the `pgassay compare` that the answers are.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_model::study::{Protocol, limits};
use pgassay_script::Builtin;
use pgassay_server::VersionRequest;

use super::interview::Interview;
use crate::command::choice::{assignments, mode, settings};
use crate::input_file::read_text;

/// Statements to compare if the user has none: with an index, and without the use of it.
const STATEMENTS: [&str; 2] = [
    "select count(*) from pgbench_accounts where aid between 1 and 1000",
    "select count(*) from pgbench_accounts where aid + 0 between 1 and 1000",
];
const SCALE_MAX: u32 = 10_000;

/// What a study compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparedChoice {
    Settings,
    Versions,
    Protocols,
    Statements,
}

impl ComparedChoice {
    fn understood(answer: &str) -> Result<Self> {
        Ok(match answer.to_ascii_lowercase().as_str() {
            "1" | "settings" | "setting" => Self::Settings,
            "2" | "versions" | "version" => Self::Versions,
            "3" | "protocols" | "protocol" => Self::Protocols,
            "4" | "sql" | "statements" => Self::Statements,
            _ => bail!("expected settings, versions, protocols or sql, not \"{answer}\""),
        })
    }
}

/// Asks everything. Returns the arguments of `pgassay compare`.
pub fn compare_words(interview: &Interview) -> Result<Vec<String>> {
    let compared = interview.ask(
        "What do you compare (settings, versions, protocols, sql)?",
        "settings",
        ComparedChoice::understood,
    )?;
    let mut words = Words::default();
    // Statements come last, after `--`, whatever they begin with.
    let mut statements = Vec::new();
    match compared {
        ComparedChoice::Settings => ask_settings(interview, &mut words)?,
        ComparedChoice::Versions => {
            let question = "Versions, separated by commas; the first is the baseline";
            words.option("--servers", interview.ask(question, "17,18", versions)?);
        }
        ComparedChoice::Protocols => {
            let question = "Protocols, separated by commas; the first is the baseline";
            words.option("-M", interview.ask(question, "simple,prepared", protocols)?);
        }
        ComparedChoice::Statements => ask_statements(interview, &mut statements)?,
    }
    if compared != ComparedChoice::Statements {
        ask_load(interview, &mut words, &mut statements)?;
    }
    ask_data(interview, &mut words)?;
    let clients = interview.ask("Concurrent clients, separated by commas", "1,8", clients)?;
    words.option("-c", clients);
    if compared != ComparedChoice::Versions {
        let question = "PostgreSQL version of all variants";
        words.option("--servers", interview.ask(question, "18", version)?);
    }
    if !statements.is_empty() {
        words.0.push("--".to_owned());
        words.0.append(&mut statements);
    }
    Ok(words.0)
}

/// Arguments of a command line.
#[derive(Debug, Default)]
struct Words(Vec<String>);

impl Words {
    fn option(&mut self, name: &str, value: String) {
        self.0.extend([name.to_owned(), value]);
    }
}

fn ask_settings(interview: &Interview, words: &mut Words) -> Result<()> {
    interview.say("The baseline has PostgreSQL's defaults; each variant has other settings.");
    let first = "Settings of the first variant (NAME=VALUE, NAME=VALUE)";
    let variant = interview.ask(first, "work_mem=64MB", |it| named_settings(it).map(Some))?;
    let mut next = variant;
    while let Some(variant) = next {
        words.option("--vs", variant);
        let more = "Settings of another variant (Enter: there is none)";
        next = interview.ask(more, "", |it| match it {
            "" => Ok(None),
            _ => named_settings(it).map(Some),
        })?;
    }
    Ok(())
}

fn ask_statements(interview: &Interview, statements: &mut Vec<String>) -> Result<()> {
    let names = ["SQL of the baseline", "SQL of the variant"];
    for (question, default) in names.into_iter().zip(STATEMENTS) {
        statements.push(interview.ask(question, default, |it| Ok(it.to_owned()))?);
    }
    if statements[0] == statements[1] {
        bail!("both statements are the same, so there is nothing to compare");
    }
    Ok(())
}

fn ask_load(interview: &Interview, words: &mut Words, statements: &mut Vec<String>) -> Result<()> {
    let question =
        "Load (select-only, simple-update, tpcb-like, a script file, or an SQL statement)";
    match interview.ask(question, "select-only", LoadAnswer::understood)? {
        LoadAnswer::Builtin(name) => words.option("-b", name.to_owned()),
        LoadAnswer::File(path) => words.option("-f", path),
        LoadAnswer::Statement(sql) => statements.push(sql),
    }
    Ok(())
}

fn ask_data(interview: &Interview, words: &mut Words) -> Result<()> {
    let question = "Data (pgbench for its tables, or an SQL file)";
    let data = interview.ask(question, "pgbench", |it| match it {
        "pgbench" => Ok(None),
        path => readable(path).map(Some),
    })?;
    match data {
        Some(path) => words.option("--setup", path),
        None => words.option(
            "-s",
            interview.ask("Scale of pgbench's tables", "1", scale)?,
        ),
    }
    Ok(())
}

/// What every client runs.
enum LoadAnswer {
    Builtin(&'static str),
    File(String),
    Statement(String),
}

impl LoadAnswer {
    fn understood(answer: &str) -> Result<Self> {
        if let Ok(builtin) = Builtin::find(answer) {
            return Ok(Self::Builtin(builtin.name));
        }
        if answer.contains(char::is_whitespace) && !Path::new(answer).exists() {
            return Ok(Self::Statement(answer.to_owned()));
        }
        readable(answer).map(Self::File)
    }
}

/// A file that exists.
fn readable(path: &str) -> Result<String> {
    read_text(path).with_context(|| format!("cannot read the file {path}"))?;
    Ok(path.to_owned())
}

fn named_settings(answer: &str) -> Result<String> {
    // As `--vs` reads them.
    let pairs: Vec<String> = assignments(answer)
        .iter()
        .map(|it| it.trim().to_owned())
        .collect();
    settings("settings", &pairs)?;
    Ok(pairs.join(", "))
}

fn version(answer: &str) -> Result<String> {
    VersionRequest::parse(answer)?;
    Ok(answer.to_owned())
}

fn versions(answer: &str) -> Result<String> {
    several(answer, |it| version(it).map(drop))
}

fn protocols(answer: &str) -> Result<String> {
    several(answer, |word| {
        let known: Option<Protocol> = mode(word);
        known
            .map(drop)
            .with_context(|| format!("expected simple, extended or prepared, not \"{word}\""))
    })
}

/// At least two different words, separated by commas.
fn several(answer: &str, check: impl Fn(&str) -> Result<()>) -> Result<String> {
    let words: Vec<&str> = answer.split(',').map(str::trim).collect();
    words.iter().try_for_each(|it| check(it))?;
    if words.len() < 2 || words[1..].contains(&words[0]) {
        bail!("expected at least two different ones, separated by commas");
    }
    Ok(words.join(","))
}

fn clients(answer: &str) -> Result<String> {
    let words: Vec<&str> = answer.split(',').map(str::trim).collect();
    for word in &words {
        let number = word
            .parse::<u32>()
            .ok()
            .filter(|it| limits::CLIENTS.contains(it));
        number.with_context(|| format!("expected numbers such as 1,8, not \"{word}\""))?;
    }
    if (1..words.len()).any(|at| words[..at].contains(&words[at])) {
        bail!("expected different numbers, such as 1,8");
    }
    Ok(words.join(","))
}

fn scale(answer: &str) -> Result<String> {
    let number = answer.parse::<u32>().ok();
    let number = number.filter(|it| (1..=SCALE_MAX).contains(it));
    let number = number
        .with_context(|| format!("expected a number from 1 to {SCALE_MAX}, not \"{answer}\""))?;
    Ok(number.to_string())
}

/// For [`Interview::ask`].
pub fn yes_or_no(answer: &str) -> Result<bool> {
    match answer.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => bail!("expected yes or no, not \"{answer}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked_when_they_are_given() {
        assert_eq!(versions("16, 17 ,18").unwrap(), "16,17,18");
        assert!(versions("17").is_err() && versions("17,17").is_err() && versions("17,x").is_err());
        assert!(protocols("simple,prepared").is_ok() && protocols("simple,binary").is_err());
        assert_eq!(
            named_settings("jit=off,work_mem = 1MB").unwrap(),
            "jit=off, work_mem = 1MB"
        );
        // Regression: "settings public: expected NAME=VALUE".
        assert_eq!(
            named_settings("search_path=a, public").unwrap(),
            "search_path=a, public"
        );
        assert!(clients("1,1").is_err() && clients("300000").is_err());
        assert!(named_settings("jit").is_err() && named_settings("=1").is_err());
        assert!(clients("0").is_err() && clients("1,").is_err() && clients(" 1, 16").is_ok());
        assert!(scale("0").is_err() && scale("10001").is_err() && scale("10").is_ok());
        assert!(matches!(
            LoadAnswer::understood("select-only"),
            Ok(LoadAnswer::Builtin("select-only"))
        ));
        assert!(matches!(
            LoadAnswer::understood("select 1"),
            Ok(LoadAnswer::Statement(_))
        ));
        assert!(LoadAnswer::understood("missing.sql").is_err());
        assert!(yes_or_no("maybe").is_err());
    }
}
