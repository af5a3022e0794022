//! `xtask a-a`: how often pgassay finds a difference where there is none.
//!
//! Runs `benchmarks/a-a.toml` N times through the real program, and counts the comparisons whose
//! interval misses 1. With a sound 95 % interval that is 1 in 20; 20 runs only tell a broken tool
//! from a sound one (18 or more of 20 contain 1 with probability .92), 400 comparisons tell more.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use pgassay_core::run::Run;

/// What a series of runs found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Comparisons made.
    pub comparisons: u32,
    /// Of them: intervals that contain 1.
    pub containing_one: u32,
}

/// Runs the study `runs` times with `program`, tells each comparison through `say`.
pub fn repeat(program: &Path, runs: u32, say: &mut dyn FnMut(&str)) -> Result<Tally> {
    let study = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/a-a.toml");
    let results = tempfile::tempdir()?;
    let mut tally = Tally::default();
    for number in 1..=runs {
        let output = Command::new(program)
            .args(["run", "--json", "--no-profile", "--results"])
            .arg(results.path())
            .arg(&study)
            .stderr(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("run {number} ended with {}", output.status);
        }
        let run: Run = serde_json::from_slice(&output.stdout)
            .context("the result is not what core describes")?;
        for comparison in &run.comparisons {
            let ratio = &comparison.tps;
            let contains = ratio.low <= 1.0 && ratio.high >= 1.0;
            tally.comparisons += 1;
            tally.containing_one += u32::from(contains);
            say(&format!(
                "run {number:3}  {:10}  {:.4} [{:.4}, {:.4}]  pair SD {:.1} %  {}",
                run.plan.conditions[comparison.condition].title(),
                ratio.ratio,
                ratio.low,
                ratio.high,
                ratio.pair_sd * 100.0,
                if contains { "contains 1" } else { "MISSES 1" },
            ));
        }
    }
    Ok(tally)
}
