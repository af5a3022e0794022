//! Flags of `pgassay count`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use pgassay_model::study::Protocol;

use crate::args::{ExportTo, ServerArgs, within};
use crate::command::choice::protocol;

/// Flags of `pgassay count`.
#[derive(Debug, Args)]
// Each bool is a command-line switch.
#[allow(clippy::struct_excessive_bools)]
pub struct CountArgs {
    /// SQL statements, or a study (a file or a built-in name) whose variants are counted.
    /// Without either, specify a script with -S, -N, -b or -f.
    #[arg(value_name = "SQL|STUDY", conflicts_with = "script_choice")]
    pub study: Option<String>,

    #[command(flatten)]
    pub script: ScriptArgs,

    /// Create the tables with this SQL, or with this file if there is one of this name [default: pgbench's tables]. If
    /// repeated, all are executed in order.
    #[arg(long, value_name = "SQL|FILE")]
    pub setup: Vec<String>,

    /// Scale of pgbench's tables [default: 1].
    #[arg(short, long, value_name = "N", conflicts_with = "setup", value_parser = within::<u32>(1..=10_000))]
    pub scale: Option<u32>,

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

    /// Installed PostgreSQL instead of a download: the directory that contains bin/postgres, such as
    /// /usr/lib/postgresql/18.
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

    /// Number of repetitions (rounds), each on a newly started server. Their range is the ± of each figure.
    /// Fewer than 3 rounds give no verdict.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within::<u32>(1..=10_000))]
    pub repeats: u32,

    /// Transactions per measurement: each round measures N, 2N and 4N transactions, so that startup cost
    /// cancels [default: 1 to 500, depending on their cost; up to 2000 if it is not in proportion to their number].
    #[arg(short, long, value_name = "N", value_parser = within::<u64>(1..=500_000_000))]
    pub transactions: Option<u64>,

    /// Seed for the scripts' random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Number of functions to show in each table.
    #[arg(long, value_name = "N", default_value_t = pgassay_count::text::ROWS)]
    pub functions: usize,

    /// Also show the callers and callees of this function. Saved counts do not contain them.
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

    /// Print Markdown tables to stdout; takes no file.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print JSON, with the instruction count of every function.
    #[arg(long)]
    pub json: bool,
}

impl CountArgs {
    /// The statements to count.
    pub fn sql(&self) -> Option<&str> {
        self.study.as_deref().filter(|it| is_sql(it))
    }

    /// The study to count: a file or a name.
    pub fn named_study(&self) -> Option<&str> {
        self.study.as_deref().filter(|it| !is_sql(it))
    }

    /// # Errors
    /// If a flag is only for statements, and this is a study, or the other way round.
    pub fn check(&self) -> Result<()> {
        let given = [
            ("--setup", !self.setup.is_empty()),
            ("--scale", self.scale.is_some()),
            ("--protocol", self.protocol.is_some()),
            ("--set", !self.set.is_empty()),
            ("--vs", !self.vs.is_empty()),
        ];
        let given = given.into_iter().find(|(_, is_given)| *is_given);
        if let (Some((flag, _)), Some(study)) = (given, self.named_study()) {
            bail!("{flag} cannot be used with the study {study}, which says what to compare");
        }
        let of_study = [
            ("--variant", self.variant.is_some()),
            ("--script", self.scripts.is_some()),
            ("--param", !self.parameters.is_empty()),
        ];
        let of_study = of_study.into_iter().find(|(_, is_given)| *is_given);
        if let (Some((flag, _)), Some(_)) = (of_study, self.sql()) {
            bail!("{flag} can be used only with a study");
        }
        Ok(())
    }

    /// # Errors
    /// If the result would not contain the calls that `--around` is about.
    pub fn check_around(&self) -> Result<()> {
        let Some(function) = &self.around else {
            return Ok(());
        };
        if self.show.is_some() {
            bail!("--around {function}: saved counts contain no calls; count again without --show");
        }
        if self.json || self.markdown {
            bail!(
                "--around {function} is for the text; with --json or --markdown, use --export perf=FILE"
            );
        }
        Ok(())
    }
}

/// No name of a study contains a space, and few files do.
fn is_sql(text: &str) -> bool {
    let path = Path::new(text);
    let names_a_study = path.extension().is_some_and(|it| it == "toml") || path.exists();
    text.contains(|it: char| it.is_whitespace() || it == ';') && !names_a_study
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

fn share(text: &str) -> std::result::Result<f64, String> {
    // Without a unit, 0.1 could be a tenth or a tenth of a percent.
    let number = text.strip_suffix('%');
    match number.map(|it| it.trim().parse::<f64>()) {
        Some(Ok(number)) if number >= 0.0 && number.is_finite() => Ok(number * 0.01),
        _ => Err("write a number and %, such as 0.1%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CountArgs,
    }

    /// Regression: `count 'select …' --vs jit=off`, as one asks `compare`, was refused.
    #[test]
    fn sql_is_counted_as_it_is_compared() {
        let parsed = |arguments: &[&str]| {
            let line = Line::try_parse_from([&["count"], arguments].concat());
            line.map(|it| it.args)
        };
        let sql = parsed(&[
            "select  1",
            "--vs",
            "jit=off",
            "--setup",
            "create table t ()",
        ])
        .unwrap();
        assert_eq!((sql.sql(), sql.named_study()), (Some("select  1"), None));
        assert!(sql.check().is_ok());
        for study in ["jit", "my.toml", "my study.toml"] {
            let args = parsed(&[study, "--vs", "jit=off"]).unwrap();
            assert_eq!((args.sql(), args.named_study()), (None, Some(study)));
            let error = args.check().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("--vs cannot be used with the study {study}, which says what to compare")
            );
        }
        let error = parsed(&["select 1", "--variant", "a"]).unwrap().check();
        assert_eq!(
            error.unwrap_err().to_string(),
            "--variant can be used only with a study"
        );
        assert!(parsed(&["select 1", "-S"]).is_err());
    }

    /// Regression: `--around` with saved counts printed the function's row alone, as if nothing called it; with
    /// `--json` and `--markdown` it was ignored.
    #[test]
    fn calls_that_the_result_lacks_are_refused() {
        let checked = |arguments: &[&str]| {
            let parsed = Line::try_parse_from([&["count", "--around", "f"], arguments].concat());
            parsed.unwrap().args.check_around()
        };
        assert!(checked(&["-S"]).is_ok());
        for refused in [
            &["--show", "x.json"][..],
            &["-S", "--json"],
            &["-S", "--markdown"],
        ] {
            let error = checked(refused).unwrap_err().to_string();
            assert!(error.starts_with("--around f"), "{error}");
        }
    }

    #[test]
    fn a_tolerance_of_5_without_its_unit_does_not_accept_500_percent() {
        assert_eq!(share("50%"), Ok(0.5));
        for wrong in ["5", "0.1", "-1%", "much", "%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
