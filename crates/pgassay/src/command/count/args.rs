//! Flags of `pgassay count`.

use std::path::PathBuf;

use clap::Args;
use pgassay_model::study::Protocol;

use crate::args::{ExportTo, ServerArgs, within};
use crate::command::choice::protocol;

/// Flags of `pgassay count`.
#[derive(Debug, Args)]
// Each bool is a command-line switch.
#[allow(clippy::struct_excessive_bools)]
pub struct CountArgs {
    /// Study whose variants to count: a file, or the name of a built-in study. Without a study,
    /// specify a script with -S, -N, -b or -f.
    #[arg(conflicts_with_all = ["script_choice", "setup", "scale", "protocol", "set", "vs"])]
    pub study: Option<String>,

    #[command(flatten)]
    pub script: ScriptArgs,

    /// Fill the database with this SQL, or with this file, instead of pgbench's tables.
    #[arg(long, value_name = "SQL|FILE")]
    pub setup: Option<String>,

    /// Scale of pgbench's tables.
    #[arg(short, long, value_name = "N", default_value_t = 1, conflicts_with = "setup",
          value_parser = within::<u32>(1..=10_000))]
    pub scale: u32,

    /// Protocol for submitting queries: simple, extended, prepared [default: simple].
    #[arg(short = 'M', long, value_name = "MODE", value_parser = protocol)]
    pub protocol: Option<Protocol>,

    /// Server setting of the baseline; can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Variant to compare with the baseline; can be repeated. CHOICE is one or more settings
    /// (`NAME=VALUE, NAME=VALUE`), a version, or a protocol.
    #[arg(long, value_name = "CHOICE")]
    pub vs: Vec<String>,

    /// PostgreSQL version of the baseline, such as 18, 9.6 or 10.23 [default: 18]. With a study, a
    /// comma-separated list of versions [default: the study's].
    #[arg(long = "server", value_name = "VERSION")]
    pub version: Option<String>,

    /// Directory that contains bin/postgres, instead of downloading a version.
    #[arg(long, value_name = "DIR", conflicts_with = "version")]
    pub binaries: Option<String>,

    /// Count only these variants of the study; can be repeated. The first is the baseline.
    #[arg(long, value_name = "NAME,…", requires = "study")]
    pub variant: Option<Vec<String>>,

    /// Count only these scripts of the study.
    #[arg(long = "script", value_name = "NAME,…", requires = "study")]
    pub scripts: Option<Vec<String>>,

    /// Value for `${name}` in the study; can be repeated.
    #[arg(long = "param", value_name = "NAME=VALUE", requires = "study")]
    pub parameters: Vec<String>,

    /// Number of rounds, each on a newly started server. Their range is the ± of each figure.
    /// Fewer than 3 rounds give no verdict.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within::<u32>(1..=10_000))]
    pub repeats: u32,

    /// Number of transactions N: each round counts three segments, of N, 2N and 4N transactions
    /// [default: 20 to 500, depending on their cost; 1 from 200 million instructions on].
    #[arg(short, long, value_name = "N", value_parser = within::<u64>(1..=500_000_000))]
    pub transactions: Option<u64>,

    /// Seed for the scripts' random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Number of functions to show in each table.
    #[arg(long, value_name = "N", default_value_t = pgassay_count::text::ROWS)]
    pub functions: usize,

    /// Also show the callers and callees of this function.
    #[arg(long, value_name = "FUNCTION")]
    pub around: Option<String>,

    /// Save the counts in a new file, for later use with --against or --show; `-` is stdout, instead of the result.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Print saved counts instead of counting.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["study", "script_choice", "save"])]
    pub show: Option<PathBuf>,

    /// Compare with saved counts. The exit status is 0 within the tolerance, 3 above it, 4 if inconclusive, and
    /// 5 if the counts are not comparable. See also `pgassay gate --fail-if 'instructions > 1%'`.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// Largest accepted increase for --against.
    #[arg(long, value_name = "N%", default_value = "0.1%", value_parser = share, requires = "against")]
    pub tolerance: f64,

    /// Write an HTML page with waterfall charts and flame graphs of instructions. Takes one more
    /// round, which records call paths.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Export the call paths of one variant (see --of); can be repeated. FORMAT is folded, or perf
    /// (the text of `perf report --stdio`, with callers and callees of every function). If FILE is
    /// `-`, write to stdout instead of the result.
    #[arg(long, value_name = "FORMAT=FILE")]
    pub export: Vec<ExportTo>,

    /// Variant whose call paths to export [default: the first].
    #[arg(long, value_name = "VARIANT", requires = "export")]
    pub of: Option<String>,

    #[command(flatten)]
    pub servers: ServerArgs,

    /// Print Markdown tables.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print JSON, with the instruction count of every function.
    #[arg(long)]
    pub json: bool,
}

/// A script file or one of pgbench's built-in scripts.
#[derive(Debug, Args)]
#[group(id = "script_choice", multiple = false)]
pub struct ScriptArgs {
    /// Run pgbench's select-only script.
    #[arg(short = 'S', long)]
    pub select_only: bool,

    /// Run pgbench's simple-update script.
    #[arg(short = 'N', long)]
    pub skip_some_updates: bool,

    /// Run a built-in pgbench script: tpcb-like, simple-update, select-only.
    #[arg(short, long, value_name = "NAME")]
    pub builtin: Option<String>,

    /// Run a script file in pgbench's script language.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    // Without a unit, 0.1 could be a tenth or a tenth of a percent.
    let number = text.strip_suffix('%');
    match number.map(|it| it.trim().parse::<f64>()) {
        Some(Ok(number)) if number >= 0.0 && number.is_finite() => Ok(number * 0.01),
        _ => Err("write a number and %, such as 0.1%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_tolerance_of_5_without_its_unit_does_not_accept_500_percent() {
        assert_eq!(share("50%"), Ok(0.5));
        for wrong in ["5", "0.1", "-1%", "much", "%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
