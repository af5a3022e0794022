//! Flags of `pgassay gate`.

// Names in a help text have no backticks.
#![allow(clippy::doc_markdown)]

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::command::compare::CompareArgs;

/// Shown after the list of options.
const EXAMPLES: &str = "\
Examples:
  a patched build     pgassay gate -S -c 8 --binaries /opt/pg-base,/opt/pg-patched
  a new release       pgassay gate --setup s.sql -f q.sql --servers 17,18 --fail-if 'slower > 3%'
  a commit            git bisect run sh -c 'make install || exit 125; pgassay gate --bisect -S --binaries BASE,NEW'

Both sides run side by side, because times measured elsewhere or earlier are not comparable. An interim analysis
follows each server start, and the gate ends as soon as every variant has an answer. A variant that is surely
slower, but by less than the limit, passes. Each wrong answer has a probability of at most 2.5%.

Exit status: 0 every variant passes; 1 usage, connection or input error; 2 the run failed midway; 3 a variant is
slower than the limit; 4 cannot tell. With --bisect: 0 good, 3 bad, 125 cannot tell, 128 an error.";

/// The choices that make up a question. A study has its own.
const QUESTION: [&str; 19] = [
    "sql",
    "file",
    "builtin",
    "select_only",
    "skip_some_updates",
    "vs",
    "stepwise",
    "set",
    "setup",
    "vs_setup",
    "scale",
    "protocol",
    "servers",
    "binaries",
    "dsn",
    "vs_dsn",
    "clients",
    "jobs",
    "length",
];

/// Flags of `pgassay gate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GateArgs {
    /// Fail if a variant's mean transaction time exceeds the baseline's by more than N%.
    #[arg(long, value_name = "CONDITION", default_value = "slower > 5%")]
    pub fail_if: FailIf,

    /// Use the variants of this study file or built-in study; the first is the baseline.
    #[arg(long, value_name = "STUDY", conflicts_with_all = QUESTION)]
    pub study: Option<String>,

    /// Use the exit codes of `git bisect run`.
    #[arg(long)]
    pub bisect: bool,

    /// Report a variant about which the gate cannot tell as an error instead of a skipped test.
    #[arg(long)]
    pub strict: bool,

    /// Write a JUnit file, with one test case for each comparison.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Write the result as Markdown, for example for a comment on a pull request.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    #[command(flatten)]
    pub question: CompareArgs,
}

/// The argument of `--fail-if`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailIf {
    /// The limit, in percent.
    pub slower_percent: f64,
}

impl FromStr for FailIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected =
            || format!("expected 'slower > N%', for example 'slower > 5%', not '{text}'");
        let rest = text.trim().strip_prefix("slower").ok_or_else(expected)?;
        let rest = rest.trim().strip_prefix('>').ok_or_else(expected)?;
        let number = rest.trim().strip_suffix('%').ok_or_else(expected)?;
        let percent: f64 = number.trim().parse().map_err(|_| expected())?;
        if !percent.is_finite() || percent <= -100.0 {
            return Err("the limit must be above -100%".to_owned());
        }
        Ok(Self {
            slower_percent: percent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_slower_by_more_than_a_percentage() {
        let limit = |text: &str| text.parse::<FailIf>().map(|it| it.slower_percent);
        assert_eq!(limit("slower > 5%"), Ok(5.0));
        assert_eq!(limit("slower>0.5%"), Ok(0.5));
        assert_eq!(limit(" slower > -3 % "), Ok(-3.0));
        for wrong in [
            "",
            "5%",
            "slower 5%",
            "slower > 5",
            "faster > 5%",
            "slower > x%",
            "slower > -100%",
        ] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
