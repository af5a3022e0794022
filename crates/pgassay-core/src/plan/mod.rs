//! The plan: every server, condition and point that a study needs, and the order of its trials.
//!
//! A *block* is one randomised round over all points. Within a block, the trials of one condition
//! stand together: each variant's connections are opened afresh (so that memory layout and
//! placement are sampled anew), warmed up, and then the variants run in a random order and its
//! mirror image (ABBA for two), which cancels any linear drift. The two trials of a variant and
//! the two of the baseline make one *pair*, the unit of all statistics; profiled trials follow, in the
//! first blocks also trials for the processor's own counters, and never count for a verdict. Sources: Bulej et al., "Duet benchmarking" (ICPE 2020); Kalibera and
//! Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013).

mod beside_dsn;
mod combination;
mod expand;
mod interpolate;
mod names;
mod schedule;
mod servers;
mod yields;

use std::collections::BTreeMap;

use std::ops::Range;

use pgassay_stats::block_order;
use pgassay_stats::random::stream_seed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::study::{DriverKind, Maintenance, Network, Protocol, Span};

pub use expand::plan;

/// What the command line says over the study file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Measure for this long instead of the study's length.
    pub length: Option<Span>,
    /// Use the study's quick length.
    pub quick: bool,
    /// Pairs per comparison.
    pub pairs: Option<u32>,
    /// Concurrent connections, instead of the study's list.
    pub clients: Option<Vec<u32>>,
    /// Only these variants; the baseline stays first.
    pub variants: Option<Vec<String>>,
    /// Only these scripts, where the study has scripts as a condition.
    pub scripts: Option<Vec<String>>,
    /// Values for `${name}`.
    pub parameters: BTreeMap<String, String>,
    /// Instead of `server.version`, or of the conditions' versions.
    pub versions: Vec<String>,
    /// Instead of `server.binaries`.
    pub binaries: Option<String>,
    /// Instead of `server`, and of the conditions' versions.
    pub dsn: Option<String>,
    /// Seed of everything random; chosen by the caller when the user names none.
    pub seed: u64,
    /// Run no profiled trials.
    pub without_profile: bool,
}

/// Everything that will be done, before any of it is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Names of the variants; the first is the baseline.
    pub variants: Vec<String>,
    /// The servers, each used by one point or more.
    pub servers: Vec<ServerPlan>,
    /// The conditions, in the study's order.
    pub conditions: Vec<Condition>,
    /// The points: conditions × variants, a condition's together in the order of the variants.
    pub points: Vec<Point>,
    /// How many trials of what length.
    pub schedule: Schedule,
}

/// A server to start, or one of the user's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerPlan {
    /// The version asked for; none where `dsn` names a server that has one already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A directory with binaries, instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// Where a server of the user's own is reached, which is neither started nor set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Lines of `postgresql.conf`. Those of a server of the user's own are only compared with these.
    pub settings: BTreeMap<String, String>,
    /// Variables of its processes' environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What is in it; every one is used by one point or more.
    #[serde(default)]
    pub databases: Vec<DatabasePlan>,
    /// Whether it must listen on TCP.
    #[serde(default)]
    pub tcp: bool,
    /// Whether it must speak TLS.
    #[serde(default)]
    pub tls: bool,
    /// Whether its pages have checksums; the version's own default where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
    /// Connections that do nothing, for as long as it runs.
    #[serde(default)]
    pub idle_connections: u32,
    /// Connections that may be open at once, idle ones included.
    pub connections: u32,
}

/// A database to make and fill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatabasePlan {
    /// Its name; the first of a server is `postgres`, which is there already. On a server of the
    /// user's own it is the end of a name that is chosen at the run.
    pub name: String,
    /// SQL to run once, in this order.
    pub setup: Vec<PlannedSql>,
}

/// SQL with its parameters filled in, and where it stands in the study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedSql {
    /// Index of the study's variant that holds it; `None` where it stands under `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_variant: Option<usize>,
    /// The SQL.
    pub text: String,
}

impl PlannedSql {
    /// Where it stands, for [`crate::study::StudySource::error_at`]; `key` is `setup` or `reset`.
    pub fn path(&self, key: &str) -> Vec<String> {
        match self.of_variant {
            Some(index) => vec!["variant".to_owned(), index.to_string(), key.to_owned()],
            None => vec!["data".to_owned(), key.to_owned()],
        }
    }
}

/// One combination of what the question is asked under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Concurrent connections.
    pub clients: u32,
    /// What else distinguishes it from the study's other conditions, as `name=value`; empty when
    /// only the number of clients does.
    pub label: String,
    /// What it is in full: `clients`, and every list's value by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}

impl Condition {
    /// The name that tables and charts print.
    pub fn title(&self) -> String {
        let clients = format!(
            "{} client{}",
            self.clients,
            if self.clients == 1 { "" } else { "s" }
        );
        if self.label.is_empty() {
            clients
        } else {
            format!("{}, {clients}", self.label)
        }
    }
}

/// One variant under one condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Index into [`Plan::variants`].
    pub variant: usize,
    /// Index into [`Plan::conditions`].
    pub condition: usize,
    /// Index into [`Plan::servers`]. That of the baseline, where the driver is not PostgreSQL's.
    pub server: usize,
    /// Index into the server's databases.
    #[serde(default)]
    pub database: usize,
    /// What drives it.
    #[serde(default)]
    pub driver: DriverKind,
    /// Where its server runs already, where the study names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The way between clients and server.
    #[serde(default, skip_serializing_if = "Network::is_unix")]
    pub network: Network,
    /// Whether each transaction has a connection of its own.
    #[serde(default, skip_serializing_if = "crate::study::is_false")]
    pub reconnects: bool,
    /// How statements travel.
    pub protocol: Protocol,
    /// Settings of its sessions.
    pub session: BTreeMap<String, String>,
    /// The scripts that run, with their parameters filled in.
    pub scripts: Vec<PlannedScript>,
    /// SQL to run before each trial, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resets: Vec<PlannedSql>,
    /// What one transaction gives, where rates are told in that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives: Option<Yield>,
    /// `:scale` in scripts, as pgbench has it.
    #[serde(default = "one")]
    pub scale: i64,
}

/// What one transaction gives: 10 000 `values`, 50 `inserts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Yield {
    /// The unit, in the plural.
    pub unit: String,
    /// How many of them.
    pub per_transaction: u64,
}

impl Point {
    /// What a transaction's rate is multiplied by to be told in the study's unit.
    pub fn per_transaction(&self) -> u64 {
        self.gives.as_ref().map_or(1, |gives| gives.per_transaction)
    }
}

fn one() -> i64 {
    1
}

/// A script with its parameters filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedScript {
    /// Index into the study's scripts.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The file it came from, where it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How often it is chosen, relative to the others.
    pub weight: u32,
    /// Its text.
    pub text: String,
}

/// How many trials of what length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Blocks, each of which gives one pair per comparison.
    pub blocks: u32,
    /// The window of one trial.
    pub trial_us: u64,
    /// Profiled trials per variant, condition and block.
    pub profiled: u32,
    /// Load before the window opens: caches that the previous trial cooled warm up again.
    pub settle_us: u64,
    /// Warm-up after connecting is watched in windows of this length, …
    pub warm_up_window_us: u64,
    /// … until three agree, or for this long.
    pub warm_up_cap_us: u64,
    /// Threads of the load generator per point.
    pub threads: u32,
    /// Seed of the order and of the scripts' random numbers.
    pub seed: u64,
    /// Blocks between two starts of the servers; 0: one start serves the whole run.
    #[serde(default)]
    pub blocks_per_boot: u32,
    /// When the servers that pgassay starts run checkpoints and vacuum.
    #[serde(default)]
    pub maintenance: Maintenance,
}

/// What stopping and starting a server takes, most of it the checkpoint at its end.
const RESTART_US: u64 = 1_000_000;

/// Blocks that have trials for the processor's own counters: two figures have a spread.
pub(crate) const COUNTED_BLOCKS: u32 = 2;

/// The trials of one condition in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Index into [`Plan::conditions`].
    pub condition: usize,
    /// Variants in the order in which they connect and warm up. It has nothing to do with the order of
    /// the trials: whoever warms up a shared cache must not be known by its place.
    pub warm_up: Vec<usize>,
    /// Variants in the order of their timed trials: a permutation, then its mirror image.
    pub timed: Vec<usize>,
    /// Variants in the order of their profiled trials.
    pub profiled: Vec<usize>,
    /// Variants in the order of their trials for the processor's own counters, where it has any.
    pub counted: Vec<usize>,
}

impl Schedule {
    /// Trials of a point, all blocks together.
    pub(crate) fn trials_of_point(&self) -> u64 {
        let of_block = u64::from(2 + self.profiled);
        u64::from(self.blocks) * of_block + u64::from(self.counted_blocks())
    }

    /// The blocks that each start of the servers serves, in order.
    pub fn boots(&self) -> Vec<Range<u32>> {
        let each = match self.blocks_per_boot {
            0 => self.blocks.max(1),
            blocks => blocks,
        };
        let firsts = (0..self.blocks).step_by(each as usize);
        firsts
            .map(|first| first..(first + each).min(self.blocks))
            .collect()
    }

    /// What profiles a run counts it as well.
    fn counted_blocks(&self) -> u32 {
        if self.profiled == 0 {
            return 0;
        }
        COUNTED_BLOCKS.min(self.blocks)
    }
}

impl Plan {
    /// The rounds of one block, in order. The same plan gives the same order always.
    pub fn block(&self, block: u32) -> Vec<Round> {
        let schedule = &self.schedule;
        let variants = self.variants.len();
        let conditions = self.conditions.len();
        // The condition of number c draws from stream c + 1; stream 0 orders the conditions, and
        // those of the upper half order the warm-up.
        let stream = |number: usize| (number as u64) << 32 | u64::from(block);
        let of_warm_up = |condition: usize| stream(condition + 1) | 1 << 63;
        block_order(conditions, schedule.seed, stream(0))[..conditions]
            .iter()
            .map(|&condition| {
                let timed = block_order(variants, schedule.seed, stream(condition + 1));
                let each = || timed.iter().take(variants).rev().copied();
                let profiled = variants * schedule.profiled as usize;
                let is_counted = block < schedule.counted_blocks();
                let mut warm_up = block_order(variants, schedule.seed, of_warm_up(condition));
                warm_up.truncate(variants);
                Round {
                    condition,
                    warm_up,
                    profiled: each().cycle().take(profiled).collect(),
                    counted: each().filter(|_| is_counted).collect(),
                    timed,
                }
            })
            .collect()
    }

    /// The point of a variant under a condition.
    pub fn point(&self, condition: usize, variant: usize) -> &Point {
        &self.points[condition * self.variants.len() + variant]
    }

    /// The seed of the load's random numbers for one variant in one round. Streams of different blocks,
    /// conditions and variants are independent, and within one each client draws from its own.
    /// With equal streams, variants that share a server larger than its cache would read in each
    /// other's pages, and whoever came first would pay for all.
    pub fn client_seed(&self, block: u32, condition: usize, variant: usize) -> u64 {
        let name = [u64::from(block), condition as u64, variant as u64];
        stream_seed(self.schedule.seed, &name)
    }

    /// Client connections that are open at once on a server under a condition: all variants that share
    /// the server keep theirs open, since their trials alternate.
    pub fn open_connections(&self, condition: usize, server: usize) -> u32 {
        let sharing = self.points.iter().filter(|point| {
            point.condition == condition
                && point.server == server
                && point.driver == DriverKind::Postgres
        });
        sharing.count() as u32 * self.conditions[condition].clients
    }

    /// Trials per block, but for those of the processor's own counters.
    pub fn trials_per_block(&self) -> u32 {
        self.points.len() as u32 * (2 + self.schedule.profiled)
    }

    /// All trials, those of the processor's own counters included.
    pub fn trials(&self) -> u64 {
        self.points.len() as u64 * self.schedule.trials_of_point()
    }

    /// Time inside trials, all blocks together, in microseconds.
    pub fn measuring_us(&self) -> u64 {
        self.trials() * self.schedule.trial_us
    }

    /// About how long the whole takes once the servers are up, in microseconds: measuring, settling,
    /// what warm-up usually needs (six windows a point and block), and restarts of the servers.
    pub fn estimated_us(&self) -> u64 {
        let blocks = u64::from(self.schedule.blocks);
        let warm_up = blocks * self.points.len() as u64 * 6 * self.schedule.warm_up_window_us;
        let settle = self.trials() * self.schedule.settle_us;
        let own = self.servers.iter().filter(|it| it.dsn.is_none()).count() as u64;
        let restarts = (self.schedule.boots().len() as u64).saturating_sub(1) * own;
        self.measuring_us() + warm_up + settle + restarts * RESTART_US
    }
}
