//! What `compare` and `count` understand as a choice: settings, a version, a protocol; and their data.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use pgassay_model::study::{Protocol, Scalar, Variant};
use pgassay_server::VersionRequest;

/// pgbench's tables, as `pgbench -i -I dtGvp` creates them (initPopulateTable, pgbench.c).
pub fn pgbench_tables(scale: u32) -> String {
    let (tellers, accounts) = (u64::from(scale) * 10, u64::from(scale) * 100_000);
    format!(
        "create table pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
create table pgbench_tellers (tid int not null, bid int, tbalance int, filler char(84)) with (fillfactor = 100);
create table pgbench_accounts (aid int not null, bid int, abalance int, filler char(84)) with (fillfactor = 100);
create table pgbench_branches (bid int not null, bbalance int, filler char(88)) with (fillfactor = 100);
insert into pgbench_branches (bid, bbalance) select bid, 0 from generate_series(1, {scale}) bid;
insert into pgbench_tellers (tid, bid, tbalance) select tid, (tid - 1) / 10 + 1, 0 from generate_series(1, {tellers}) tid;
insert into pgbench_accounts (aid, bid, abalance, filler) select aid, (aid - 1) / 100000 + 1, 0, '' from generate_series(1, {accounts}) aid;
alter table pgbench_branches add primary key (bid);
alter table pgbench_tellers add primary key (tid);
alter table pgbench_accounts add primary key (aid);
vacuum analyze pgbench_branches;
vacuum analyze pgbench_tellers;
vacuum analyze pgbench_accounts;
vacuum analyze pgbench_history;
"
    )
}

/// A variant that differs from the baseline at most in its protocol.
pub fn variant(name: &str, protocol: Protocol) -> Variant {
    Variant {
        name: name.to_owned(),
        protocol: Some(protocol),
        ..Variant::default()
    }
}

/// The variant that `--vs` describes.
pub fn other(choice: &str, protocol: Protocol) -> Result<Variant> {
    let mut variant = variant(choice, protocol);
    if choice.contains('=') {
        let pairs: Vec<String> = choice.split(", ").map(str::to_owned).collect();
        variant.settings = settings("--vs", &pairs)?;
    } else if let Some(mode) = mode(choice) {
        variant.protocol = Some(mode);
    } else if VersionRequest::parse(choice).is_ok() {
        variant.version = Some(choice.to_owned());
    } else {
        bail!(
            "--vs {choice}: expected a setting (NAME=VALUE), a version (17) or a protocol (simple)"
        );
    }
    Ok(variant)
}

/// The protocol with this name.
pub fn mode(word: &str) -> Option<Protocol> {
    [Protocol::Simple, Protocol::Extended, Protocol::Prepared]
        .into_iter()
        .find(|protocol| protocol.as_str() == word)
}

/// The same, for clap.
pub fn protocol(word: &str) -> Result<Protocol, String> {
    mode(word).ok_or_else(|| "expected simple, extended or prepared".to_owned())
}

/// Settings that `flag` specifies as `NAME=VALUE`.
pub fn settings(flag: &str, pairs: &[String]) -> Result<BTreeMap<String, Scalar>> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), Scalar(value.trim().to_owned())))
            }
            _ => bail!("{flag} {pair}: expected NAME=VALUE, for example {flag} work_mem=4MB"),
        })
        .collect()
}
