//! Flags of `pgassay gate`.

// Names in a help text have no backticks.
#![allow(clippy::doc_markdown)]

use clap::Args;
use pgassay_report::gate::GateLimit;

use crate::args::GateAnswerArgs;
use crate::command::compare::CompareArgs;

/// The name under which its questions are listed.
pub(super) const NAME: &str = "gate";

/// Shown after the list of options.
const EXAMPLES: &str = "\
Examples:
  a patched build     pgassay gate -S -c 8 \\
                        --binaries /opt/pg-base,/opt/pg-patched
  a new release       pgassay gate --setup s.sql -f q.sql --servers 17,18 \\
                        --fail-if 'slower > 3%'
  a schema change     pgassay gate --setup s.sql --vs-setup change.sql \\
                        -f q.sql --markdown gate.md
  a commit            git bisect run sh -c 'make install || exit 125; \\
                        pgassay gate --bisect -S --binaries BASE,NEW'
  a busy machine      pgassay gate -S --binaries BASE,NEW \\
                        --fail-if 'instructions > 1%'
  a baseline file     pgassay gate -S --binaries NEW \\
                        --fail-if 'instructions > 1%' \\
                        --against baseline.json --update
  an earlier run      pgassay gate -S --binaries BASE,NEW --against last

Baseline and variants run interleaved, because times measured elsewhere or earlier are not \
comparable. An interim analysis follows each server start from the fourth on, and the gate ends as \
soon as every variant has a verdict. A variant that is significantly slower, but by less than the limit, passes. With 'slower', \
over all comparisons together, the probability of a false failure is at most 2.5%, and so is that of a \
false pass. Before the run, pgassay prints what the gate can decide.

'slower' compares the mean time per transaction. 'instructions' compares the user-space \
instructions per transaction with one client, under valgrind, as pgassay count does: load on the \
machine does not affect them.

--against compares with earlier measurements. A name that ends with .json is a file, any other a run. \
Instruction counts carry over to any machine with the same processor features and valgrind, and to \
builds of the same major version with the same compiler, flags and configure options. Times do not \
carry over: with 'slower', both runs need the same machine, configuration and baseline, and the gate \
compares the variant's earlier and current ratios to that baseline.

Exit status: 0 pass; 1 usage, connection or input error; 2 the run failed midway; 3 regression: a \
variant is beyond the limit; 4 inconclusive; 5 not comparable: the baseline of --against does not \
exist or cannot be compared with, a variant cannot run here, or more transactions of one side failed, \
by more than 1 percentage point. With --bisect: 0 good, 3 bad, 125 \
inconclusive or not comparable, 128 an error.";

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
    "reset",
    "scale",
    "protocol",
    "servers",
    "binaries",
    "dsn",
    "vs_dsn",
    "clients",
    "jobs",
];

/// Flags of `pgassay gate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct GateArgs {
    /// Fail if a variant's mean transaction time (`slower > N%`), or its instructions per transaction
    /// (`instructions > N%`), exceeds the baseline's by more than N%. N may have decimals, or be negative
    /// (`slower > -3%`: fail unless faster by 3%).
    #[arg(long, value_name = "CONDITION", default_value = "slower > 5%", value_parser = limit)]
    pub fail_if: GateLimit,

    /// Compare with this earlier run (its ID, a prefix of it, `last`, or its directory), with a baseline file, or
    /// with counts saved by `pgassay count`.
    #[arg(long, value_name = "RUN|FILE")]
    pub against: Option<String>,

    /// If every variant passes, write the result to the baseline file that --against names. The file is created if necessary.
    #[arg(long, requires = "against")]
    pub update: bool,

    /// Use the variants of this study file or built-in study; the first is the baseline.
    #[arg(long, value_name = "STUDY", conflicts_with_all = QUESTION)]
    pub study: Option<String>,

    #[command(flatten)]
    pub answer: GateAnswerArgs,

    #[command(flatten)]
    pub question: CompareArgs,
}

/// The argument of `--fail-if`.
fn limit(text: &str) -> Result<GateLimit, String> {
    let expected =
        || "expected 'slower > N%' or 'instructions > N%', for example 'slower > 5%'".to_owned();
    let (metric, number) = text.split_once('>').ok_or_else(expected)?;
    let number = number.trim().strip_suffix('%').ok_or_else(expected)?;
    let percent: f64 = number.trim().parse().map_err(|_| expected())?;
    if !percent.is_finite() || percent <= -100.0 {
        return Err("the limit must be a number above -100%".to_owned());
    }
    // Zero has no sign.
    let percent = percent + 0.0;
    match metric.trim() {
        "slower" => Ok(GateLimit::Slower(percent)),
        "instructions" => Ok(GateLimit::Instructions(percent)),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_metric_and_a_percentage() {
        assert_eq!(limit("slower > 5%"), Ok(GateLimit::Slower(5.0)));
        assert_eq!(limit("slower>0.5%"), Ok(GateLimit::Slower(0.5)));
        assert_eq!(limit(" slower > -3 % "), Ok(GateLimit::Slower(-3.0)));
        // Regression: "by more than -0%".
        let zero = limit("slower > -0%").map(|it| it.to_string());
        assert_eq!(zero.as_deref(), Ok("slower > 0%"));
        let counted = limit("instructions > 2%");
        assert_eq!(counted, Ok(GateLimit::Instructions(2.0)));
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
