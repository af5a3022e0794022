//! Flags of `pgassay compare`.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use pgassay_model::study::{HumanDuration, Percentage, Protocol, limits};

use crate::args::{IdleCpuArgs, RunFlags, pairs, within};
use crate::command::choice::protocol;

/// Shown after the list of options.
const EXAMPLES: &str = "\
Examples:
  an index            pgassay compare --setup s.sql \\
                        --vs-setup 'create index on t (a)' \\
                        'select * from t where a = 42'
  a setting           pgassay compare --setup s.sql -f q.sql --vs work_mem=64MB
  two statements      pgassay compare --setup s.sql 'select …' 'select …'
  random keys         pgassay compare --vs jit=off '\\set id random(1, 100000)
                        select * from pgbench_accounts where aid = :id'
  protocols           pgassay compare -S -M simple,extended,prepared
  durability          pgassay compare -N -c 16 --vs synchronous_commit=off
  releases            pgassay compare -S --servers 15,16,17,18 --stepwise
  your builds         pgassay compare -S --binaries /opt/pg-base,/opt/pg-patched
  your own data       pgassay compare --dsn dbname=shop --vs work_mem=64MB \\
                        'select …'
  two servers         pgassay compare --dsn 'host=a dbname=shop' \\
                        --vs-dsn 'host=b dbname=shop' 'select …'

The first statement, script, protocol, version, directory or server is the baseline. Each further one is a \
variant that differs from the baseline only in that, and is compared with the baseline (with --stepwise: \
with the variant before it). With --vs, --vs-setup or --vs-dsn, the baseline is the run without it.";

/// Flags of `pgassay compare`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct CompareArgs {
    /// SQL statements. Each argument is a pgbench script, and each execution counts as one transaction (no BEGIN is
    /// added). The first is the baseline.
    #[arg(value_name = "SQL")]
    pub sql: Vec<String>,

    /// Run a script file in pgbench's script language; can be repeated: each further script is a variant (for a mix of
    /// scripts, use a study).
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,

    /// Run a built-in pgbench script: tpcb-like, simple-update, select-only; can be repeated: each further script
    /// is a variant.
    #[arg(short, long, value_name = "NAME")]
    pub builtin: Vec<String>,

    /// Run pgbench's select-only script.
    #[arg(short = 'S', long)]
    pub select_only: bool,

    /// Run pgbench's simple-update script.
    #[arg(short = 'N', long)]
    pub skip_some_updates: bool,

    /// Where each of these is on the command line: statements, files, scripts of -b, -S, -N.
    #[arg(skip)]
    pub positions: Vec<usize>,

    /// Variant: server settings (`NAME=VALUE, NAME=VALUE` is one variant), a PostgreSQL version, or a protocol. If
    /// repeated, each is a variant.
    #[arg(long, value_name = "CHOICE")]
    pub vs: Vec<String>,

    /// Compare each variant with the one before it instead of with the baseline.
    #[arg(long)]
    pub stepwise: bool,

    /// Server setting of all variants, as in postgresql.conf, also in quotes; can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Create the tables with this SQL, or with this file if there is one of this name [default: pgbench's tables]. If
    /// repeated, all are executed in order.
    #[arg(long, value_name = "SQL|FILE")]
    pub setup: Vec<String>,

    /// Variant: after the setup, also execute this SQL, or the file of this name, which names the variant. If
    /// repeated, each is a variant.
    #[arg(long, value_name = "SQL|FILE")]
    pub vs_setup: Vec<String>,

    /// Execute this SQL, or this file if there is one of this name, before each trial, to restore what the statements
    /// change, such as `truncate t`.
    #[arg(long, visible_alias = "prepare", value_name = "SQL|FILE")]
    pub reset: Option<String>,

    /// Scale of pgbench's tables, without --setup [default: 1].
    #[arg(short, long, value_name = "N", conflicts_with = "setup",
          value_parser = within::<u32>(1..=10_000))]
    pub scale: Option<u32>,

    /// Protocol for submitting queries: simple, extended, prepared [default: simple]. If there are
    /// several, each is a variant.
    #[arg(short = 'M', long, value_name = "MODE,…", value_delimiter = ',', value_parser = protocol)]
    pub protocol: Vec<Protocol>,

    /// PostgreSQL version, such as 18, 9.6 or 10.23 [default: 18]. If there are several, each is a
    /// variant.
    #[arg(
        long,
        alias = "server",
        value_name = "VERSION,…",
        value_delimiter = ','
    )]
    pub servers: Vec<String>,

    /// Installed PostgreSQL instead of a download (--servers): the directory that contains bin/postgres, such as
    /// /usr/lib/postgresql/18. If there are several, each is a variant.
    #[arg(
        long,
        value_name = "DIR,…",
        value_delimiter = ',',
        conflicts_with = "servers"
    )]
    pub binaries: Vec<String>,

    /// Use a running server instead of starting one. Your own statements run in the database that CONNINFO names, if
    /// they only read. With --setup, --vs-setup, --scale, or pgbench's scripts, pgassay creates databases and drops
    /// them after the run, which requires --allow-writes. Settings apply to pgassay's sessions only.
    #[arg(long, value_name = "CONNINFO", conflicts_with_all = ["servers", "binaries"])]
    pub dsn: Option<String>,

    /// Variant: another running server; can be repeated.
    #[arg(long, value_name = "CONNINFO", requires = "dsn")]
    pub vs_dsn: Vec<String>,

    /// Numbers of concurrent clients. If there are several, variants are compared at each.
    #[arg(
        short,
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1",
        value_parser = within(limits::CLIENTS)
    )]
    pub clients: Vec<u32>,

    /// Threads of the load generator.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 1, value_parser = within(limits::THREADS))]
    pub jobs: u32,

    /// Maximum measuring time of all trials together, such as 10s or 2min, without warm-up and setup [default: 30s].
    /// A trial takes at least 50 ms, so many variants and conditions may take longer.
    #[arg(long, value_name = "TIME", value_parser = HumanDuration::parse_positive)]
    pub length: Option<HumanDuration>,

    /// Run exactly N blocks of trials, at least 2. Each block measures all variants and gives one pair, variant and
    /// baseline, per comparison. Without it, each comparison ends as soon as it is decided.
    #[arg(long, value_name = "N", value_parser = pairs)]
    pub pairs: Option<u32>,

    /// Measure until the half-width of each ratio's 95% confidence interval is at most N% (such as 1%), whatever the
    /// verdict: for results that you publish. The first --length of measuring determines how many more server starts
    /// are needed.
    #[arg(long, value_name = "N%", conflicts_with = "pairs")]
    pub half_width: Option<Percentage>,

    /// End about this long after the first trial begins (such as 2min), between two blocks of trials, and report the
    /// verdicts reached so far. Their intervals remain valid. The run also ends if the server does not answer a
    /// statement within this time (at least a minute). Without --length, `compare` shortens trials so that 6
    /// server starts (with --dsn, 6 pairs) fit; `gate` does not [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = HumanDuration::parse_positive, conflicts_with = "pairs")]
    pub max_time: Option<HumanDuration>,

    /// Seed for the order of trials and the scripts' random numbers; printed with the result [default: a new
    /// one for each run; of a gate on instructions, 1].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Skip the profiled trials, a fifth to a third of all: a verdict comes sooner, but the result has no breakdown of
    /// CPU time by phase and function.
    #[arg(long)]
    pub no_profile: bool,

    /// Do not run EXPLAIN on the scripts' statements after the trials; the report then does not compare
    /// query plans.
    #[arg(long)]
    pub no_plans: bool,

    #[command(flatten)]
    pub idle_cpus: IdleCpuArgs,

    /// Write the comparison as a study file, for `pgassay run`, and do not run it; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    #[command(flatten)]
    pub run: RunFlags,
}

impl CompareArgs {
    /// Takes note of where the scripts are on the command line: the parser sorts them by kind.
    pub fn note_positions(&mut self, matches: &ArgMatches) {
        let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let ids = ["sql", "file", "builtin", "select_only", "skip_some_updates"];
        let positions = ids
            .into_iter()
            .filter(given)
            .filter_map(|id| matches.indices_of(id));
        self.positions = positions.flatten().collect();
    }

    /// Puts directories together whose names contain commas, which the parser takes for separators.
    pub fn join_directories(&mut self) {
        self.binaries = joined(&self.binaries, &|it| Path::new(it).is_dir());
    }
}

/// Parts of a list, of which those that are no directory become one with what follows them, if that is a directory.
fn joined(parts: &[String], is_directory: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut directories = Vec::new();
    let mut rest = parts;
    while !rest.is_empty() {
        let ends = (1..=rest.len()).filter(|&end| is_directory(&rest[..end].join(",")));
        let end = ends.min().unwrap_or(1);
        directories.push(rest[..end].join(","));
        rest = &rest[end..];
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `--binaries /opt/pg,17` was two directories, of which neither exists.
    #[test]
    fn a_directory_whose_name_has_a_comma_is_one() {
        let of = |text: &str| {
            let parts: Vec<String> = text.split(',').map(str::to_owned).collect();
            joined(&parts, &|it| {
                ["/a", "/b", "/c,d", "/e,f,g", "/a,/b"].contains(&it)
            })
        };
        assert_eq!(of("/c,d"), ["/c,d"]);
        assert_eq!(of("/a,/c,d,/e,f,g,/b"), ["/a", "/c,d", "/e,f,g", "/b"]);
        assert_eq!(of("/a,/b"), ["/a", "/b"]);
        assert_eq!(of("/none,/b,"), ["/none", "/b", ""]);
    }
}
