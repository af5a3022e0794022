//! Flags of `pgassay top`.

use clap::Args;

use pgassay_model::study::HumanDuration;

use crate::args::within;
use crate::psql_options::PsqlOptions;

/// Flags of `pgassay top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Database to connect to: a name, a URI or `keyword=value …`, as for psql. Statements of all
    /// databases are shown; tables and indexes are those of this one. PGHOST etc. supply missing
    /// parameters.
    #[arg(value_name = "DBNAME")]
    pub database: Option<String>,

    #[command(flatten)]
    pub psql: PsqlOptions,

    /// Time between screen updates; `+` and `-` change it while running.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub interval: HumanDuration,

    /// How many times per second to sample all sessions; with many sessions fewer, and at most 10 through
    /// `pg_stat_activity`. (CPU stacks are not sampled.)
    #[arg(long, value_name = "HZ", default_value_t = 40, value_parser = within::<u32>(1..=100_000))]
    pub frequency: u32,

    /// Show fingerprints instead of the texts of statements.
    #[arg(long)]
    pub no_text: bool,
}
