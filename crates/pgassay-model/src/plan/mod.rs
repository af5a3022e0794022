//! The plan: all servers, conditions and points of a study, and the order of its trials.
//!
//! A *block* is one pass over all points (one variant under one condition each). Within a
//! block, the trials of a condition run together: pgassay opens new connections for each variant (so
//! that memory layout and placement vary between blocks), warms them up, and runs the variants in
//! random order and then in reverse (ABBA for two), which cancels linear drift. The two trials of a
//! variant and the two of the baseline form one *pair*, the unit of all statistics. Profiled trials
//! follow, and in the first blocks trials for hardware counters; neither affects verdicts.
//! Sources: Bulej et al., "Duet benchmarking" (ICPE 2020); Kalibera and Jones, "Rigorous benchmarking in
//! reasonable time" (ISMM 2013).

mod combination;
mod estimate;
mod expand;
mod expansion;
mod external_server;
mod interpolate;
mod names;
mod repeated;
mod schedule;
mod server_set;
mod servers;
mod yields;

use std::collections::BTreeMap;

use std::ops::Range;

use pgassay_stats::block_order;
use pgassay_stats::random::stream_seed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::study::{
    DriverKind, HumanDuration, Maintenance, Network, Percentage, Protocol, Requires,
};

pub use expand::plan;
pub use interpolate::escaped;
pub use schedule::CONNECTIONS_SPARE;

/// Command-line options that override the study file.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overrides {
    /// Measurement time, instead of the study's.
    pub length: Option<HumanDuration>,
    /// Whether to use the study's quick settings.
    pub quick: bool,
    /// Pairs per comparison, instead of sequential verdicts.
    pub pairs: Option<u32>,
    /// Two stages, for intervals of this half-width, instead of sequential verdicts.
    pub half_width: Option<Percentage>,
    /// When a run without a fixed number of pairs ends at the latest, after the beginning of its first trial.
    pub max_time: Option<HumanDuration>,
    /// Asks whether a variant is slower than the baseline by more than this, in percent.
    pub gate_limit_percent: Option<f64>,
    /// Asks whether a variant became slower since an earlier run, whose ratios these are.
    pub gate_against: Vec<EarlierRatio>,
    /// Concurrent connections, instead of the study's list.
    pub clients: Option<Vec<u32>>,
    /// Threads of the load generator, instead of the study's.
    pub threads: Option<u32>,
    /// Only these variants; the first is the baseline.
    pub variants: Option<Vec<String>>,
    /// Only these scripts, if scripts are a condition of the study.
    pub scripts: Option<Vec<String>>,
    /// Values for `${name}`.
    pub parameters: BTreeMap<String, String>,
    /// Replaces `server.version` or the conditions' versions.
    pub versions: Vec<String>,
    /// Replaces `server.binaries` and the conditions' versions.
    pub binaries: Option<String>,
    /// Replaces `server` and the conditions' versions.
    pub dsn: Option<String>,
    /// Random seed; the caller chooses one if the user does not.
    pub seed: u64,
    /// Whether to skip profiled trials.
    pub without_profile: bool,
    /// Whether to leave out the plans of the statements.
    pub without_plans: bool,
    /// Whether to keep idle CPUs awake, whatever the study says.
    pub keep_cpus_awake: Option<bool>,
}

/// Everything that a run will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Names of the variants; the first is the baseline.
    pub variants: Vec<String>,
    /// Whether each variant is compared with the one before it, and not with the baseline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stepwise: bool,
    /// What variants need to run, for those that need something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// The servers, each used by at least one point.
    pub servers: Vec<ServerPlan>,
    /// The conditions, in the study's order.
    pub conditions: Vec<Condition>,
    /// The points (one variant under one condition each), ordered by condition, then by variant.
    pub points: Vec<Point>,
    /// Number and length of trials.
    pub schedule: Schedule,
    /// The ratios of an earlier run that the gate compares with; empty if it compares with the baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gate_against: Vec<EarlierRatio>,
}

/// The throughput of a variant relative to its baseline, in an earlier run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EarlierRatio {
    /// Name of the variant.
    pub variant: String,
    /// Title of the condition.
    pub condition: String,
    /// Estimate.
    pub ratio: f64,
    /// Lower end of its confidence interval, whose error rate is half of that of the gate.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What a variant needs to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Index into [`Plan::variants`].
    pub variant: usize,
    /// What it needs, including what its load driver needs.
    pub requires: Requires,
}

/// A server to start, or an external server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerPlan {
    /// The requested version; `None` for an external server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A directory of binaries, instead of a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// Connection string of an external server, which pgassay neither starts nor changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Settings for `postgresql.conf`. An external server's settings are only compared with these.
    pub settings: BTreeMap<String, String>,
    /// Environment variables of the server's processes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// The databases, each used by at least one point.
    #[serde(default)]
    pub databases: Vec<DatabasePlan>,
    /// Whether it must listen on TCP.
    #[serde(default)]
    pub tcp: bool,
    /// Whether it must speak TLS.
    #[serde(default)]
    pub tls: bool,
    /// Whether to enable data checksums; `None` means the version's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
    /// Idle connections to keep open while the server runs.
    #[serde(default)]
    pub idle_connections: u32,
    /// Maximum number of simultaneous connections, idle ones included.
    pub connections: u32,
}

/// A database to create and set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatabasePlan {
    /// The name. The first database of a server is `postgres`, which already exists. On an external
    /// server this is a suffix of the name, which is chosen when the run starts.
    pub name: String,
    /// SQL to run once, in order.
    pub setup: Vec<PlannedSql>,
}

/// SQL with its parameters replaced, and where it comes from in the study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedSql {
    /// Index of the variant in the study that defines it; `None` for `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_variant: Option<usize>,
    /// The SQL text.
    pub text: String,
}

impl PlannedSql {
    /// Its path in the study, for [`crate::study::StudySource::error_at`]; `key` is `setup` or `reset`.
    pub fn path(&self, key: &str) -> Vec<String> {
        match self.of_variant {
            Some(index) => vec!["variant".to_owned(), index.to_string(), key.to_owned()],
            None => vec!["data".to_owned(), key.to_owned()],
        }
    }
}

/// One combination of the values in the study's `[conditions]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Concurrent connections.
    pub clients: u32,
    /// What else distinguishes it from the study's other conditions, as `name=value`; empty if only
    /// the number of clients does.
    pub label: String,
    /// All values by name, including `clients`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}

impl Condition {
    /// The name in tables and charts.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Index into [`Plan::variants`].
    pub variant: usize,
    /// Index into [`Plan::conditions`].
    pub condition: usize,
    /// Index into [`Plan::servers`]; the baseline's server if the driver is not PostgreSQL's.
    pub server: usize,
    /// Index into the server's databases.
    #[serde(default)]
    pub database: usize,
    /// The load driver.
    #[serde(default)]
    pub driver: DriverKind,
    /// Address of a running Redis server, if the study gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Network between clients and server.
    #[serde(default, skip_serializing_if = "Network::is_unix")]
    pub network: Network,
    /// Whether each transaction opens a new connection.
    #[serde(default, skip_serializing_if = "crate::study::is_false")]
    pub reconnects: bool,
    /// Transactions per second over all clients, due at the events of a Poisson process; latency counts
    /// from then. `None` if each client sends its next transaction at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Query protocol mode.
    pub protocol: Protocol,
    /// Session settings.
    pub session: BTreeMap<String, String>,
    /// The scripts to run, with their parameters replaced.
    pub scripts: Vec<PlannedScript>,
    /// SQL to run before each trial, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resets: Vec<PlannedSql>,
    /// The yield of one transaction, if rates are reported in another unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives: Option<Yield>,
    /// pgbench's `:scale` variable in scripts.
    #[serde(default = "one")]
    pub scale: i64,
}

/// Identifies a point: one variant under one condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId {
    /// Index into [`Plan::conditions`].
    pub condition: usize,
    /// Index into [`Plan::variants`].
    pub variant: usize,
}

impl PointId {
    /// The point of a variant under a condition.
    pub fn new(condition: usize, variant: usize) -> Self {
        Self { condition, variant }
    }
}

/// The yield of one transaction: 10,000 `values`, 50 `inserts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Yield {
    /// The unit, a plural noun.
    pub unit: String,
    /// Number of units per transaction.
    pub per_transaction: u64,
}

impl Point {
    /// Its identity.
    pub fn id(&self) -> PointId {
        PointId::new(self.condition, self.variant)
    }

    /// Factor that converts transactions to the study's unit.
    pub fn per_transaction(&self) -> u64 {
        self.gives.as_ref().map_or(1, |gives| gives.per_transaction)
    }
}

fn one() -> i64 {
    1
}

/// A script with its parameters replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedScript {
    /// Index into the study's scripts.
    pub index: usize,
    /// The name of the script.
    pub name: String,
    /// The file that contains it, if it is not in the study file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How often it is chosen relative to the other scripts.
    pub weight: u32,
    /// The text of the script.
    pub text: String,
}

/// When the blocks of a run end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppingRule {
    /// After the planned number.
    #[default]
    AllBlocks,
    /// A condition ends as soon as its comparisons have verdicts, judged after each server start, or after
    /// every two pairs if the servers are not restarted.
    Sequential,
    /// Two stages: the planned blocks give the standard deviation, and with it the number of further blocks
    /// for intervals of the wanted half-width (Stein, 1945). Nothing stops at a verdict.
    Precision,
}

fn once() -> u32 {
    1
}

/// Number and length of trials.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Number of blocks, with [`StoppingRule::Sequential`] at most, with [`StoppingRule::Precision`] those of
    /// the first stage; each gives one pair per comparison.
    pub blocks: u32,
    /// When the blocks end.
    #[serde(default)]
    pub stopping: StoppingRule,
    /// How often a block runs the trials of a condition in mirrored order; a pair is the mean of all.
    #[serde(default = "once")]
    pub repeats: u32,
    /// The wanted half-width of the intervals of throughput, in percent of the ratio, with
    /// [`StoppingRule::Precision`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_width_percent: Option<f64>,
    /// When a run without a fixed number of pairs ends at the latest, after the beginning of its first trial,
    /// µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_us: Option<u64>,
    /// A sequential run asks whether a variant is slower than the baseline by more than this, in percent,
    /// instead of whether it is faster or slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_limit_percent: Option<f64>,
    /// Length of a trial's measurement window, µs.
    pub trial_us: u64,
    /// Profiled trials per variant, condition and block.
    pub profiled: u32,
    /// Load before the window starts, to warm up the caches that the previous trial replaced, µs.
    pub settle_us: u64,
    /// Length of the windows of the warm-up after connecting, µs. It ends once three windows agree.
    pub warm_up_window_us: u64,
    /// Maximum warm-up time, µs.
    pub warm_up_cap_us: u64,
    /// Load generator threads per point.
    pub threads: u32,
    /// Seed of the trial order and of the scripts' random numbers.
    pub seed: u64,
    /// Blocks per server start; 0 means one server start for the whole run.
    #[serde(default)]
    pub blocks_per_server_start: u32,
    /// When the servers that pgassay starts run checkpoints and vacuum.
    #[serde(default)]
    pub maintenance: Maintenance,
    /// Whether the plans of the statements are taken after the last trial; no in runs of older versions.
    #[serde(default)]
    pub plans: bool,
    /// Whether idle CPUs poll for work during the run instead of going to sleep, if that is permitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_cpus_awake: bool,
}

/// Above the numbers of conditions, which have their own streams of random numbers.
const REPEAT_SHIFT: u32 = 56;

/// Number of blocks with trials for hardware counters: two figures are enough for a standard deviation.
pub(crate) const HARDWARE_COUNTER_BLOCKS: u32 = 2;

/// The trials of one condition in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Index into [`Plan::conditions`].
    pub condition: usize,
    /// Variants in the order in which they connect and warm up. It is independent of the order of the
    /// trials, so that warming a shared cache does not favor a variant systematically.
    pub warm_up: Vec<usize>,
    /// Variants in the order of their timed trials: a permutation, then its reverse; for each repeat.
    pub timed: Vec<usize>,
    /// Variants in the order of their profiled trials.
    pub profiled: Vec<usize>,
    /// Variants in the order of their trials for hardware counters; empty in blocks without such trials.
    pub hardware_counters: Vec<usize>,
}

impl Schedule {
    /// Number of trials per point, over all blocks.
    pub(crate) fn trials_per_point(&self) -> u64 {
        let of_block = u64::from(self.trials_per_point_and_block());
        u64::from(self.blocks) * of_block + u64::from(self.hardware_counter_blocks())
    }

    /// Number of timed trials per point and block.
    pub fn timed(&self) -> u32 {
        self.repeats.saturating_mul(2)
    }

    /// Number of trials per point and block, without those for hardware counters.
    fn trials_per_point_and_block(&self) -> u32 {
        self.timed().saturating_add(self.profiled)
    }

    /// The blocks of each server start, in order.
    pub fn server_starts(&self) -> Vec<Range<u32>> {
        let each = match self.blocks_per_server_start {
            0 => self.blocks.max(1),
            blocks => blocks,
        };
        let firsts = (0..self.blocks).step_by(each as usize);
        firsts
            .map(|first| first..(first + each).min(self.blocks))
            .collect()
    }

    /// Number of blocks with trials for hardware counters; 0 without profiling.
    fn hardware_counter_blocks(&self) -> u32 {
        if self.profiled == 0 {
            return 0;
        }
        HARDWARE_COUNTER_BLOCKS.min(self.blocks)
    }
}

impl Plan {
    /// The rounds of one block, in order. The same plan always gives the same order.
    pub fn block(&self, block: u32) -> Vec<Round> {
        let schedule = &self.schedule;
        let variants = self.variants.len();
        let conditions = self.conditions.len();
        // Stream 0 orders the conditions, stream c + 1 the trials of condition c; each repeat has its own.
        // Streams with the highest bit set order the warm-up.
        let stream = |number: usize| (number as u64) << 32 | u64::from(block);
        let of_repeat = |condition: usize, repeat: u32| {
            stream(condition + 1) | u64::from(repeat) << REPEAT_SHIFT
        };
        let of_warm_up = |condition: usize| stream(condition + 1) | 1 << 63;
        block_order(conditions, schedule.seed, stream(0))[..conditions]
            .iter()
            .map(|&condition| {
                let orders = (0..schedule.repeats).map(|repeat| {
                    block_order(variants, schedule.seed, of_repeat(condition, repeat))
                });
                let timed: Vec<usize> = orders.flatten().collect();
                let each = || timed.iter().take(variants).rev().copied();
                let profiled = variants * schedule.profiled as usize;
                let is_counted = block < schedule.hardware_counter_blocks();
                let mut warm_up = block_order(variants, schedule.seed, of_warm_up(condition));
                warm_up.truncate(variants);
                Round {
                    condition,
                    warm_up,
                    profiled: each().cycle().take(profiled).collect(),
                    hardware_counters: each().filter(|_| is_counted).collect(),
                    timed,
                }
            })
            .collect()
    }

    /// The point of a variant under a condition.
    pub fn point(&self, id: PointId) -> &Point {
        &self.points[self.index_of(id)]
    }

    /// The index of a point into [`Plan::points`], and into everything that has one entry per point.
    pub fn index_of(&self, id: PointId) -> usize {
        id.condition * self.variants.len() + id.variant
    }

    /// The seed of the load's random numbers for one variant in one round. Different blocks, conditions
    /// and variants have independent streams, and so have the clients within each. With equal streams,
    /// variants on a shared server whose data exceed its cache would access the same pages, and the
    /// first variant would pay for reading them.
    pub fn client_seed(&self, block: u32, id: PointId) -> u64 {
        let name = [u64::from(block), id.condition as u64, id.variant as u64];
        stream_seed(self.schedule.seed, &name)
    }

    /// Number of client connections open at the same time on a server under a condition. All variants on
    /// the server stay connected, because their trials alternate.
    pub fn open_connections(&self, condition: usize, server: usize) -> u32 {
        let sharing = self.points.iter().filter(|point| {
            point.condition == condition
                && point.server == server
                && point.driver == DriverKind::Postgres
        });
        sharing.count() as u32 * self.conditions[condition].clients
    }

    /// The variant that this one is compared with: the first, or the one before it. The first variant's is itself.
    pub fn baseline_of(&self, variant: usize) -> usize {
        if self.stepwise {
            variant.saturating_sub(1)
        } else {
            0
        }
    }

    /// Number of trials per block, without those for hardware counters.
    pub fn trials_per_block(&self) -> u32 {
        self.points.len() as u32 * self.schedule.trials_per_point_and_block()
    }

    /// Number of trials, including those for hardware counters.
    pub fn trials(&self) -> u64 {
        self.points.len() as u64 * self.schedule.trials_per_point()
    }

    /// The same, without those for hardware counters, which this machine may not offer.
    pub fn trials_without_hardware_counters(&self) -> u64 {
        u64::from(self.schedule.blocks) * u64::from(self.trials_per_block())
    }

    /// Whether servers are restarted between blocks. External servers never are.
    pub fn restarts_servers(&self) -> bool {
        self.schedule.blocks_per_server_start > 0 && self.servers.iter().any(|it| it.dsn.is_none())
    }

    /// The server start that a block belongs to, from 0.
    pub fn server_start(&self, block: u32) -> u32 {
        if self.restarts_servers() {
            block / self.schedule.blocks_per_server_start
        } else {
            0
        }
    }

    /// Total time inside trials, over all blocks, µs.
    pub fn measurement_us(&self) -> u64 {
        self.trials() * self.schedule.trial_us
    }
}
