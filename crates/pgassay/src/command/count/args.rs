//! Flags of `pgassay count`.

use std::path::PathBuf;

use clap::Args;
use pgassay_core::study::Protocol;

use crate::cli::{ExportTo, ServerArgs};

/// Flags of `pgassay count`.
#[derive(Debug, Args)]
// Each is a switch of the command line.
#[allow(clippy::struct_excessive_bools)]
pub struct CountArgs {
    /// A study file, or the name of a study that comes with pgassay; its variants are counted.
    /// Without one: a script, by -S, -N, -b or -f.
    #[arg(conflicts_with_all = ["script_choice", "setup", "protocol", "set", "vs"])]
    pub study: Option<String>,

    #[command(flatten)]
    pub script: ScriptArgs,

    /// SQL that fills the database, instead of pgbench's tables at scale 1.
    #[arg(long, value_name = "FILE")]
    pub setup: Option<PathBuf>,

    /// How statements travel: simple, extended, prepared.
    #[arg(short = 'M', long, value_name = "MODE", value_parser = protocol)]
    pub protocol: Option<Protocol>,

    /// A setting of the baseline's server; may be given again.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// What to compare with the baseline, a variant each: settings (NAME=VALUE, more after a
    /// comma and a blank), a version, or a protocol mode.
    #[arg(long, value_name = "CHOICE")]
    pub vs: Vec<String>,

    /// PostgreSQL version of the baseline: 18, 9.6, 10.23; of a study, or several with commas between.
    #[arg(long = "server", value_name = "VERSION")]
    pub version: Option<String>,

    /// A directory with bin/postgres, instead of a version that is fetched.
    #[arg(long, value_name = "DIR", conflicts_with = "version")]
    pub binaries: Option<String>,

    /// Only these variants of the study, with commas between, or the flag given again; the first
    /// is the baseline.
    #[arg(long, value_name = "NAME,…", requires = "study")]
    pub variant: Option<Vec<String>>,

    /// Only these scripts of the study.
    #[arg(long = "script", value_name = "NAME,…", requires = "study")]
    pub scripts: Option<Vec<String>>,

    /// A value for `${name}` in the study; may be given again.
    #[arg(long = "param", value_name = "NAME=VALUE", requires = "study")]
    pub parameters: Vec<String>,

    /// Rounds, each with the server started afresh. Their spread is the ± of every figure; fewer than 3
    /// give no verdict.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,

    /// Transactions of the shortest segment; the others have two and four times as many
    /// [default: by their cost, 20 to 500].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..))]
    pub transactions: Option<u64>,

    /// Seed of the scripts' random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Functions to show of each table.
    #[arg(long, value_name = "N", default_value_t = pgassay_count::text::ROWS)]
    pub functions: usize,

    /// Also show who calls this function and whom it calls.
    #[arg(long, value_name = "FUNCTION")]
    pub around: Option<String>,

    /// Keep the counts, to compare with later.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Print counts kept earlier, and count nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["study", "script_choice", "save"])]
    pub show: Option<PathBuf>,

    /// Compare with counts kept earlier: exit 0 within the tolerance, 3 over it, 4 where they
    /// cannot be compared.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// How much more it may cost, as 0.1%.
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = share, requires = "against")]
    pub tolerance: f64,

    /// Write a page with waterfalls and flame graphs of instructions. It takes a further round, in
    /// which call paths are kept.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write call paths for another viewer; may be given again. FORMAT is folded, or perf (the
    /// text of `perf report --stdio`, callers and callees of every function); a FILE of `-` is
    /// stdout, instead of the answer. Of the first variant of the first condition, unless --of
    /// names another.
    #[arg(long, value_name = "FORMAT=FILE")]
    pub export: Vec<ExportTo>,

    /// The variant whose call paths are exported.
    #[arg(long, value_name = "VARIANT", requires = "export")]
    pub of: Option<String>,

    #[command(flatten)]
    pub servers: ServerArgs,

    /// Print tables of Markdown, for a page of documentation.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print JSON: every function, in whole instructions.
    #[arg(long)]
    pub json: bool,
}

/// One script of one's own, or of pgbench's.
#[derive(Debug, Args)]
#[group(id = "script_choice", multiple = false)]
pub struct ScriptArgs {
    /// pgbench's select-only script.
    #[arg(short = 'S', long)]
    pub select_only: bool,

    /// pgbench's simple-update script.
    #[arg(short = 'N', long)]
    pub skip_some_updates: bool,

    /// A built-in script of pgbench's: tpcb-like, simple-update, select-only.
    #[arg(short, long, value_name = "NAME")]
    pub builtin: Option<String>,

    /// A script in pgbench's language.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

fn protocol(word: &str) -> Result<Protocol, String> {
    [Protocol::Simple, Protocol::Extended, Protocol::Prepared]
        .into_iter()
        .find(|protocol| protocol.as_str() == word)
        .ok_or_else(|| "it is simple, extended or prepared".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number * unit),
        _ => Err("write it as 0.1%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_tolerance_is_a_share() {
        assert_eq!(share("50%"), Ok(0.5));
        assert_eq!(share("0.25"), Ok(0.25));
        assert!(share("-1%").is_err() && share("much").is_err());
    }
}
