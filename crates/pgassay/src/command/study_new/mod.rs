//! `pgassay study new`: asks what to compare, and writes a study file.
//!
//! The answers become the arguments of `pgassay compare`, whose study is the one that is written.

mod comments;
mod interview;
mod questions;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use pgassay_model::plan::Overrides;
use pgassay_model::study::StudySource;
use pgassay_model::wording::counted;

use crate::args::NewArgs;
use crate::catalog;
use crate::command::compare::{CompareArgs, question};
use crate::command::study::{PlannedStudy, listed};
use crate::output::FileOutput;
use crate::output_file::{write_new, write_to};
use crate::shell_word;
use interview::Interview;

/// The file that is suggested.
const FILE: &str = "study.toml";

/// The arguments of `pgassay compare`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct CompareLine {
    #[command(flatten)]
    question: CompareArgs,
}

/// Asks, checks the study, and writes it.
pub fn study_new(args: &NewArgs, out: &mut impl FileOutput) -> Result<()> {
    let interview = Interview::on_stdin(args.yes);
    interview.say(
        "Questions with defaults in brackets; Enter takes the default, Ctrl-C writes nothing.",
    );
    let target = TargetFile::of(args, &interview)?;
    let words = questions::compare_words(&interview)?;
    let line = CompareLine::try_parse_from(&words)?;
    let plain = question::study_text(&line.question, &question::which_is_faster)?;
    let text = comments::commented(&plain, &target.name());
    let planned = checked(&target, text).context("no study was written")?;
    target.write(&planned.found.source.text, out)?;
    if target.is_stdout() {
        return Ok(());
    }
    let (name, plan) = (target.name(), &planned.plan);
    writeln!(
        out,
        "{name} written: variants {}; {} (variant × condition)",
        listed(&plan.variants),
        counted(plan.points.len(), "point"),
    )?;
    let file = shell_word::quoted(&name);
    writeln!(out, "what a run does:      pgassay study plan {file}")?;
    writeln!(out, "run it:               pgassay run {file}")?;
    let line = words.iter().map(|it| shell_word::quoted(it));
    let line = line.collect::<Vec<_>>().join(" ");
    writeln!(out, "the same in one line: pgassay compare {line}")?;
    Ok(())
}

/// The study with this text, planned: a study that cannot be run is not written.
fn checked(target: &TargetFile, text: String) -> Result<PlannedStudy> {
    let source = StudySource {
        file: target.name(),
        text,
    };
    let found = catalog::load("study", source)?;
    PlannedStudy::of(found, Overrides::default())
}

/// The file to write.
struct TargetFile {
    path: PathBuf,
    /// Whether a person agreed that it is replaced.
    replaces: bool,
}

impl TargetFile {
    /// The file of the command line, or of an answer. Nothing is replaced unless a person says so.
    fn of(args: &NewArgs, interview: &Interview) -> Result<Self> {
        let mut given = args.file.clone();
        loop {
            let path = match given.take() {
                Some(path) => path,
                None => interview.ask("File to write", FILE, |it| Ok(PathBuf::from(it)))?,
            };
            let is_free = path == Path::new("-") || path.symlink_metadata().is_err();
            if is_free {
                return Ok(Self {
                    path,
                    replaces: false,
                });
            }
            if !interview.has_person() {
                bail!("{} exists; remove it, or give another FILE", path.display());
            }
            let question = format!("{} exists. Replace it (yes, no)?", path.display());
            if interview.ask(&question, "no", questions::yes_or_no)? {
                return Ok(Self {
                    path,
                    replaces: true,
                });
            }
        }
    }

    fn name(&self) -> String {
        if self.is_stdout() {
            FILE.to_owned()
        } else {
            self.path.display().to_string()
        }
    }

    fn is_stdout(&self) -> bool {
        self.path == Path::new("-")
    }

    fn write(&self, text: &str, out: &mut impl FileOutput) -> Result<()> {
        // A file that has appeared since the question is not replaced.
        let write = if self.replaces { write_to } else { write_new };
        write(&self.path, text.as_bytes(), out).map(drop)
    }
}
