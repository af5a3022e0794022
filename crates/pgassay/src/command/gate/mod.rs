//! `pgassay gate`: fails if a variant costs more than the baseline by more than a limit.

mod args;
mod asked;
mod baseline;
mod comparable;
mod counted;
mod decision;
mod files;
mod timed;

use std::io::Write;

use anyhow::{Result, bail};
use pgassay_record::run::Run;
use pgassay_report::gate::GateLimit;

pub use args::GateArgs;
pub use decision::GateDecision;

use crate::args::{ColorWhen, GateAnswerArgs};
use crate::exit::{self, Gate, text_of};

/// Compares, prints the deciding sentence first, and fails unless all variants pass.
pub fn gate(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    args.answer.exit(compare(args, color, out))
}

impl GateAnswerArgs {
    /// The error with the exit code that was asked for.
    pub fn exit(&self, ended: Result<()>) -> Result<()> {
        match ended {
            Err(error) if self.bisect => Err(for_bisect(&error)),
            other => other,
        }
    }

    /// Whether anything was asked for that only a gate has.
    pub fn is_given(&self) -> bool {
        self.bisect || self.strict || self.junit.is_some() || self.markdown.is_some()
    }

    /// Fails if a file that was asked for cannot be written, before anything is measured.
    pub fn check(&self) -> Result<()> {
        files::check_answer(self)
    }

    /// Writes the files for the decision on a run.
    pub fn write(&self, decision: &GateDecision, run: &Run) -> Result<()> {
        files::write(self, decision, || files::suite_of(run, decision.limit))
    }
}

fn compare(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let asked = &args.question;
    let stopping = [
        ("--pairs", asked.pairs.is_some()),
        ("--half-width", asked.half_width.is_some()),
    ];
    if let Some((name, _)) = stopping.iter().find(|(_, is_given)| *is_given) {
        bail!("gate decides when to stop: leave out {name}");
    }
    if asked.save.is_some() {
        bail!("gate saves no study: leave out --save");
    }
    args.answer.check()?;
    let against = baseline::find(args)?;
    match args.fail_if {
        GateLimit::Slower(_) => timed::gate(args, &against, color, out),
        GateLimit::Instructions(percent) => counted::gate(args, &against, percent, out),
    }
}

/// The exit codes that `git bisect run` understands: 0 is good, 1 to 127 is bad, 125 skips the commit, and from
/// 128 on it stops.
fn for_bisect(error: &anyhow::Error) -> anyhow::Error {
    let code = match error.downcast_ref::<Gate>() {
        Some(gate) if gate.code == exit::REGRESSION => exit::REGRESSION,
        Some(_) => exit::BISECT_SKIP,
        None => exit::BISECT_ABORT,
    };
    Gate {
        code,
        reason: text_of(error),
    }
    .into()
}
