//! Flags of `pgassay top`.

use std::time::Duration;

use clap::Args;

use pgassay_model::study::HumanDuration;

use crate::args::within;
use crate::command::profile::overhead::OverheadLimit;
use crate::psql_options::PsqlOptions;

/// Below it, an interval has too few readings, and `top` would do little but draw.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Parses a time between screen updates.
fn interval(text: &str) -> Result<HumanDuration, String> {
    let interval: HumanDuration = text.parse()?;
    if interval.duration() < INTERVAL_MIN {
        return Err("must be at least 100ms".to_owned());
    }
    Ok(interval)
}

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
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: HumanDuration,

    /// How many times per second to sample all sessions; with many sessions fewer, and at most 10 through
    /// `pg_stat_activity`. (CPU stacks are not sampled.)
    #[arg(long, value_name = "HZ", default_value_t = 40, value_parser = within::<u32>(1..=100_000))]
    pub frequency: u32,

    /// Stop reading if pgassay and its backends use more than this share of the CPU time of this machine (of all its
    /// CPUs) within 5 s, such as 1%. The line above the keys says so.
    #[arg(long, value_name = "PERCENT")]
    pub max_overhead: Option<OverheadLimit>,

    /// Show fingerprints instead of the texts of statements.
    #[arg(long)]
    pub no_text: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `--interval 0` and `1ms` were accepted, and used a whole CPU.
    #[test]
    fn an_interval_without_readings_is_refused() {
        for (text, expected) in [
            ("0", Err("must be at least 100ms".to_owned())),
            ("99ms", Err("must be at least 100ms".to_owned())),
            ("100ms", Ok(INTERVAL_MIN)),
            ("2", Ok(Duration::from_secs(2))),
        ] {
            assert_eq!(interval(text).map(HumanDuration::duration), expected);
        }
    }
}
