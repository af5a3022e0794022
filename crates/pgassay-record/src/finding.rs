//! A finding as stored and reported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::remedy::RemedyVariant;

/// A known cause of lost time, where it was seen, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The signature's stable name, such as `round-trips`.
    pub id: String,
    /// What happens, in a few words.
    pub title: String,
    /// Index into the plan's conditions; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<usize>,
    /// Index into the plan's variants: the one where it was seen, or in a comparison the one that is
    /// compared with the baseline; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<usize>,
    /// In a comparison: the weight under the variant minus that under the baseline, in µs per
    /// transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_us: Option<f64>,
    /// 95% CI of `difference_us`, from the blocks that both sides have; `None` with fewer than two
    /// blocks, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_interval_us: Option<[f64; 2]>,
    /// How sure the cause is; see [`Confidence`].
    pub confidence: Confidence,
    /// Time lost, in µs per transaction; in a comparison, on the side where it is more. 0 if it is not
    /// known, as for a problem that lies ahead, or without transactions.
    pub weight_us: f64,
    /// The weight (in a comparison the difference) over the ledger's mean response time, 0 to 1; on
    /// a live server, over the time in which sessions were active.
    pub share: f64,
    /// Most of the weight is waiting for others' work to end, as for a lock or a CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queueing: bool,
    /// The finding that explains this queueing: in a comparison a signature whose service time changed,
    /// on a live server a session that blocks others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained_by: Option<String>,
    /// The result of running its suggested fix, if it was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix_result: Option<TriedFix>,
    /// The evidence.
    pub evidence: Vec<Fact>,
    /// The evidence against it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence_against: Vec<String>,
    /// The suggested fix.
    pub suggested_fix: String,
    /// The section of PostgreSQL's manual to read.
    pub manual: String,
    /// Suggested fixes that can be run as variants of the same study. Only that proves a cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fix_variants: Vec<RemedyVariant>,
    /// On a live server: what it is about; `None` for causes in the server as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<FindingObject>,
    /// On a live server: fingerprint of the statement concerned, as in
    /// [`ActivityStatement`](crate::activity::ActivityStatement).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// On a live server: average active sessions that the fix would give back at most; `None` if this
    /// is not known, as for a problem that lies ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_sessions: Option<f64>,
    /// The suggested fix as SQL, verbatim. pgassay never runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix_sql: Option<String>,
    /// The risk of the fix, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<String>,
}

/// What a finding on a live server is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct FindingObject {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name: a relation with its schema, quoted where SQL requires it; the PID of a session; the
    /// beginning of a statement's normalized text, or its fingerprint if the text is unknown.
    pub name: String,
}

impl std::fmt::Display for FindingObject {
    /// Such as `table public.orders`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return f.write_str(self.kind.word());
        }
        write!(f, "{} {}", self.kind.word(), self.name)
    }
}

/// Kinds of [`FindingObject`]s.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A table.
    Table,
    /// An index.
    Index,
    /// A session, by PID.
    Session,
    /// A statement.
    Statement,
    /// A prepared transaction, by its identifier.
    PreparedTransaction,
    /// A replication slot.
    Slot,
    /// A standby, by its application name.
    Standby,
    /// A client: application and address.
    Client,
    /// A database.
    Database,
    /// A wait event, as in `LWLock:LockManager`.
    WaitEvent,
    /// A setting.
    Setting,
    /// The server; its name is empty.
    Server,
}

impl ObjectKind {
    /// The word for it in a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Index => "index",
            Self::Session => "session",
            Self::Statement => "statement",
            Self::PreparedTransaction => "prepared transaction",
            Self::Slot => "replication slot",
            Self::Standby => "standby",
            Self::Client => "client",
            Self::Database => "database",
            Self::WaitEvent => "wait event",
            Self::Setting => "setting",
            Self::Server => "server",
        }
    }
}

/// Confidence in a finding; see the module.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// One source, a single block, or evidence against it.
    Hint,
    /// Independent sources agree.
    Likely,
    /// It changed in the direction of the verdict.
    Correlated,
    /// Its suggested fix was run and helped. In results of older versions, with a `difference_us`,
    /// it means `Correlated`.
    Confirmed,
}

/// A suggested fix that was run as a variant, compared with the affected variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TriedFix {
    /// Its name, such as `work_mem=64MB`.
    pub name: String,
    /// Throughput with the fix over throughput without it.
    pub tps_ratio: f64,
    /// Confidence interval of `tps_ratio`.
    pub interval: [f64; 2],
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Where it comes from.
    pub source: Source,
    /// What was seen.
    pub what: String,
    /// How much; `None` if it has no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The unit of `value`.
    pub unit: FactUnit,
    /// Shown for context; not evidence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

/// Where a fact comes from. Facts of one source do not confirm each other.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// CPU stacks.
    Stacks,
    /// What backends waited for.
    Waits,
    /// Server statistics and kernel statistics.
    Counters,
    /// Version, protocol, settings, clients.
    Conditions,
    /// Clocks: response times, the load generator's own times, run queues.
    Clocks,
    /// The server's catalogs, lock table and sessions: states, not measurements. One of them is
    /// enough: an invalid index is invalid.
    Catalog,
}

/// The unit of a fact's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactUnit {
    /// Microseconds per transaction.
    MicrosPerTransaction,
    /// Count per transaction.
    PerTransaction,
    /// Bytes per transaction.
    BytesPerTransaction,
    /// A share of a whole, 0 to 1.
    Share,
    /// Average sessions: time per time.
    Sessions,
    /// A count.
    Count,
    /// A count per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// A duration, in microseconds.
    Micros,
    /// The fact has no value.
    None,
}
