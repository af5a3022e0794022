//! Flags of `pgassay curve`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use pgassay_model::study::{HumanDuration, Protocol, limits};

use crate::args::{ExternalArgs, ResultsArgs, ServerArgs, within};
use crate::command::choice::protocol;

/// Values between a power of two and the next, for ranges.
const PER_DOUBLING: u32 = 4;
/// The largest number of clients and the largest rate: more than any server has.
const LEVEL_MAX: u32 = 1 << 21;
/// How often a rate is doubled at most if the range has no end.
const RATE_DOUBLINGS: u32 = 14;

/// Shown after the list of options.
const EXAMPLES: &str = "\
Examples:
  lookups             pgassay curve -S -M prepared
  a statement         pgassay curve --setup s.sql -c 1..32 \\
                        'select * from t where a = 42'
  writes, HTML page   pgassay curve -b tpcb-like -s 64 -o curve.html
  your own server     pgassay curve -S --allow-writes --dsn 'host=a'
  latency by rate     pgassay curve -S --rate 500 -c 16

The curve is stored as a run: pgassay show prints its figures and ledgers.";

/// Flags of `pgassay curve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct CurveArgs {
    /// SQL statements; each is one transaction. If there are several, each transaction runs one of them,
    /// chosen at random.
    #[arg(value_name = "SQL")]
    pub sql: Vec<String>,

    /// Run a script file in pgbench's script language; if repeated, each transaction runs one of them, chosen at random.
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,

    /// Run a built-in pgbench script: tpcb-like, simple-update, select-only; can be repeated for a
    /// mix.
    #[arg(short, long, value_name = "NAME")]
    pub builtin: Vec<String>,

    /// Run pgbench's select-only script.
    #[arg(short = 'S', long)]
    pub select_only: bool,

    /// Run pgbench's simple-update script.
    #[arg(short = 'N', long)]
    pub skip_some_updates: bool,

    /// Numbers of concurrent clients: a list, of which each is measured equally often, or a range from which
    /// pgassay picks the numbers that best locate the knee, the point beyond which latency grows faster than
    /// throughput. With --rate, a single number [default: 1..64; with --rate, 16].
    #[arg(short, long, value_name = "MIN..MAX|N,…")]
    pub clients: Option<Levels>,

    /// Measure latency at different target rates (transactions per second) instead of throughput at
    /// different numbers of clients. MIN: increase the rate from MIN until the server no longer sustains
    /// it; MIN..MAX: stop at MAX; a list: measure each rate. Transactions start on a schedule, and latency
    /// counts from the time at which each was due.
    #[arg(long, value_name = "MIN|MIN..MAX|N,…")]
    pub rate: Option<Levels>,

    /// Measure all numbers of a range of clients (four per doubling) equally often, instead of those that determine
    /// the knee.
    #[arg(long, conflicts_with = "rate")]
    pub exhaustive: bool,

    /// Server setting, as in postgresql.conf; can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Create the tables with this SQL, or with this file if there is one of this name [default: pgbench's tables]. If
    /// repeated, all are executed in order.
    #[arg(long, value_name = "SQL|FILE")]
    pub setup: Vec<String>,

    /// Scale of pgbench's tables [default: 1].
    #[arg(short, long, value_name = "N", conflicts_with = "setup",
          value_parser = within::<u32>(1..=10_000))]
    pub scale: Option<u32>,

    /// Protocol for submitting queries: simple, extended, prepared.
    #[arg(short = 'M', long, value_name = "MODE", default_value = "simple", value_parser = protocol)]
    pub protocol: Protocol,

    /// PostgreSQL version, such as 18, 9.6 or 10.23.
    #[arg(long = "server", value_name = "VERSION", default_value = "18")]
    pub version: String,

    /// Installed PostgreSQL instead of a download: the directory that contains bin/postgres, such as
    /// /usr/lib/postgresql/18.
    #[arg(long, value_name = "DIR", conflicts_with = "version")]
    pub binaries: Option<String>,

    /// Use a running server instead of starting one. Your own statements run in the database that CONNINFO names, if
    /// they only read. With --setup, --scale, or pgbench's scripts, pgassay creates a database and drops it after the
    /// run, which requires --allow-writes.
    #[arg(long, value_name = "CONNINFO", conflicts_with_all = ["version", "binaries", "set"])]
    pub dsn: Option<String>,

    /// Threads of the load generator.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 1, value_parser = within(limits::THREADS))]
    pub jobs: u32,

    /// Maximum measuring time of all trials together, such as 10s or 2min, without warm-up and setup.
    /// The search ends earlier if the knee is known to ±3%.
    #[arg(long, value_name = "TIME", value_parser = HumanDuration::parse_positive, default_value = "60s")]
    pub length: HumanDuration,

    /// Seed for the order of trials and the scripts' random numbers; printed with the result [default: a new
    /// one for each run].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Do not profile: fewer trials are needed, but waits are not broken down by cause.
    #[arg(long)]
    pub no_profile: bool,

    /// Write an HTML page with the chart.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print the curve as JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub server: ServerArgs,

    #[command(flatten)]
    pub external: ExternalArgs,

    #[command(flatten)]
    pub results: ResultsArgs,
}

/// Numbers of clients, or rates: `8`, `1..64`, or `1,2,4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// In ascending order, without duplicates.
    pub values: Vec<u32>,
    /// How they were given.
    pub form: LevelsForm,
}

/// How numbers of clients, or rates, were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelsForm {
    /// `8`: for rates, the lowest.
    Single,
    /// `1..64`: candidates, of which not all need to be measured.
    Range,
    /// `1,2,4`.
    List,
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| -> Result<u32, String> {
            let number = text.trim().parse().ok();
            let number = number.filter(|it| (1..=LEVEL_MAX).contains(it));
            number.ok_or_else(|| {
                format!(
                    "\"{text}\": expected a whole number from 1 to {LEVEL_MAX}, MIN..MAX, or a list"
                )
            })
        };
        let ends = text.split_once("..");
        let mut values = if let Some((low, high)) = ends {
            let (low, high) = (number(low)?, number(high)?);
            if low >= high {
                return Err(format!("{low} is not less than {high}; expected MIN..MAX"));
            }
            range(low, high)
        } else {
            let values: Result<Vec<u32>, String> = text.split(',').map(number).collect();
            values?
        };
        values.sort_unstable();
        values.dedup();
        let form = match (ends, values.len()) {
            (Some(_), _) => LevelsForm::Range,
            (None, 1) => LevelsForm::Single,
            (None, _) => LevelsForm::List,
        };
        Ok(Self { values, form })
    }
}

impl Levels {
    /// The candidates from a single value up.
    pub fn doubled(&self) -> Vec<u32> {
        let low = self.values.first().copied().unwrap_or(1);
        let high = u64::from(low) << RATE_DOUBLINGS;
        range(
            low,
            u32::try_from(high).map_or(LEVEL_MAX, |it| it.min(LEVEL_MAX)),
        )
    }
}

/// The values of a range, with [`PER_DOUBLING`] steps between each power of two times the lowest and the next,
/// as far as these are whole numbers.
fn range(low: u32, high: u32) -> Vec<u32> {
    let mut values = Vec::new();
    let mut base = u64::from(low);
    while base < u64::from(high) {
        for step in 0..PER_DOUBLING {
            let value = base + base * u64::from(step) / u64::from(PER_DOUBLING);
            values.extend(u32::try_from(value).ok().filter(|it| *it < high));
        }
        base *= 2;
    }
    values.push(high);
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_four_steps_per_doubling() {
        let parsed: Levels = "1..20".parse().unwrap();
        assert_eq!(parsed.values, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]);
        assert_eq!(parsed.form, LevelsForm::Range);
        let parsed: Levels = "3..9".parse().unwrap();
        assert_eq!(parsed.values, [3, 4, 5, 6, 7, 9]);
        let parsed: Levels = "8, 2,8".parse().unwrap();
        assert_eq!((parsed.values, parsed.form), (vec![2, 8], LevelsForm::List));
        let parsed: Levels = "500".parse().unwrap();
        assert_eq!(parsed.form, LevelsForm::Single);
        assert_eq!(parsed.doubled()[..6], [500, 625, 750, 875, 1000, 1250]);
        let parsed: Levels = "2000000".parse().unwrap();
        assert_eq!(parsed.doubled(), [2_000_000, LEVEL_MAX]);
    }

    #[test]
    fn impossible_levels_say_what_is_expected() {
        for text in ["", "0", "x", "8..4", "4..4", "1..", "9999999999", "1,,2"] {
            let error = text.parse::<Levels>().unwrap_err();
            assert!(error.contains("expected"), "{text}: {error}");
        }
    }
}
