//! `pgassay gate`: fails if a variant costs more than the baseline by more than a limit.

mod args;
mod baseline;
mod comparable;
mod counted;
mod decision;
mod files;
mod timed;

use std::io::Write;

use anyhow::{Result, bail};
use pgassay_report::gate::GateLimit;

pub use args::GateArgs;
pub use decision::GateDecision;

use crate::args::ColorWhen;
use crate::exit::{self, Gate, text_of};

/// Compares, prints the deciding sentence first, and fails unless all variants pass.
pub fn gate(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let ended = compare(args, color, out);
    match ended {
        Err(error) if args.bisect => Err(for_bisect(&error)),
        other => other,
    }
}

fn compare(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let asked = &args.question;
    if asked.pairs.is_some() || asked.half_width.is_some() || asked.save.is_some() {
        bail!(
            "gate decides when to stop and saves no study: leave out --pairs, --half-width and --save"
        );
    }
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
