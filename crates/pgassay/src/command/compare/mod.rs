//! `pgassay compare`: asks a question in one line, without a study file.

mod args;
mod names;
pub mod question;

use std::path::Path;

use anyhow::Result;
use pgassay_lab::LoadedStudy;
use pgassay_model::plan::Overrides;
use pgassay_model::study::StudySource;

pub use args::CompareArgs;
use question::{AskedOf, which_is_faster};

use crate::args::ColorWhen;
use crate::catalog;
use crate::command::resume_flags::resume_flags;
use crate::command::run::run_planned;
use crate::command::study::{PlannedStudy, seed_of_now};
use crate::output::{FileOutput, print_line_stderr};
use crate::output_file::write_new;
use crate::shell_word;

/// The study that a question is. `command` is the name under which results are listed.
pub fn question_of(args: &CompareArgs, command: &str, asked_of: AskedOf) -> Result<LoadedStudy> {
    let source = StudySource {
        file: String::new(),
        text: question::study_text(args, asked_of)?,
    };
    Ok(catalog::load(command, source)?.with_dsns_of_user())
}

/// The study that a question is, for an answer that a single variant can have.
pub fn question_of_any(
    args: &CompareArgs,
    command: &str,
    asked_of: AskedOf,
) -> Result<LoadedStudy> {
    let source = StudySource {
        file: String::new(),
        text: question::study_text_of_any(args, asked_of)?,
    };
    Ok(catalog::load(command, source)?.with_dsns_of_user())
}

/// What the command line changes in the study that a question is.
pub fn overrides_of(args: &CompareArgs) -> Overrides {
    Overrides {
        seed: args.seed.unwrap_or_else(seed_of_now),
        without_profile: args.no_profile,
        half_width: args.half_width,
        length: args.length,
        max_time: args.max_time,
        without_plans: args.no_plans,
        keep_cpus_awake: args.idle_cpus.are_kept_awake(),
        ..Overrides::default()
    }
}

/// Compares, or saves the comparison as a study.
pub fn compare(args: &CompareArgs, color: ColorWhen, out: &mut impl FileOutput) -> Result<()> {
    let found = question_of(args, "compare", &which_is_faster)?;
    if let Some(note) = question::note_on_chain(args) {
        print_line_stderr(&format!("pgassay: note: {note}"));
    }
    let planned = PlannedStudy::of(found, overrides_of(args))?;
    if let Some(path) = &args.save {
        return save(&planned.found, path, &not_in_study(args), out);
    }
    run_planned(&planned, args.seed, &args.run, color, out)
}

/// Writes a comparison as a study. `flags` are those that `pgassay run` needs besides it.
fn save(found: &LoadedStudy, path: &Path, flags: &str, out: &mut impl FileOutput) -> Result<()> {
    let is_on_stdout = write_new(path, found.source.text.as_bytes(), out)?;
    if found.has_secrets() {
        print_line_stderr(
            "pgassay: note: the password is not saved; a run with --allow-passwords takes it from PGPASSWORD or \
             ~/.pgpass",
        );
    }
    if !is_on_stdout {
        let file = shell_word::quoted_path(path);
        let path = path.display();
        writeln!(out, "{path} saved; run it with: pgassay run {file}{flags}")?;
    }
    Ok(())
}

/// The flags that are no part of a study, as `pgassay run` takes them: without them it would not measure the same.
fn not_in_study(args: &CompareArgs) -> String {
    let of_value = [
        // Without it, a time limit shortens the trials.
        args.length
            .filter(|_| args.max_time.is_some())
            .map(|time| format!(" --length {time}")),
        args.max_time.map(|time| format!(" --max-time {time}")),
        args.seed.map(|seed| format!(" --seed {seed}")),
    ];
    let alone = [
        (args.no_profile, " --no-profile"),
        (args.no_plans, " --no-plans"),
        (args.run.counted, " --counted"),
        (args.run.try_fixes, " --try-fixes"),
    ];
    let alone = alone.into_iter().filter(|(is_given, _)| *is_given);
    let alone = alone.map(|(_, flag)| flag.to_owned());
    let run = &args.run;
    let of_run = resume_flags(&run.results, &run.server, run.external);
    let all = of_value.into_iter().flatten().chain(alone);
    all.chain([of_run]).collect()
}
