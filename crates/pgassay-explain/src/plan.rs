//! A query plan as EXPLAIN describes it.
//!
//! Keys and units: `ExplainNode` in `src/backend/commands/explain.c`. Figures are floating-point numbers,
//! since 18 prints rows with two decimals. What a version does not have is `None`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The plan of one statement, and what executing it took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryPlan {
    /// Depth first, as EXPLAIN prints them: the root is the first, and a node's subtree follows it.
    pub nodes: Vec<PlanNode>,
    /// Settings that affect planning and differ from their defaults; `None` before 12, which has no such option.
    pub settings: Option<BTreeMap<String, String>>,
    /// Planning time in ms.
    pub planning_ms: Option<f64>,
    /// Buffers used by planning, since 13.
    pub planning_buffers: Option<BufferUsage>,
    /// Memory used by planning in kB, since 17.
    pub planning_memory_kb: Option<f64>,
    /// Execution time in ms, with start and end of the executor.
    pub execution_ms: Option<f64>,
    /// Converting the result for the client, since 17.
    pub serialization: Option<Serialization>,
    /// Triggers that the statement fired.
    pub triggers: Vec<TriggerUse>,
    /// Functions compiled by JIT, since 11.
    pub jit_functions: Option<f64>,
    /// All other keys.
    pub rest: BTreeMap<String, Value>,
}

/// A node of a plan. Texts are as EXPLAIN prints them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanNode {
    /// The position of the parent in [`QueryPlan::nodes`].
    pub parent: Option<usize>,
    /// Positions of the children, with subplans.
    pub children: Vec<usize>,
    /// One past the position of the last node of the subtree.
    pub end: usize,
    /// `Node Type`.
    pub node_type: String,
    /// `Parent Relationship`: Outer, Inner, Member, Subquery, `InitPlan` or `SubPlan`.
    pub relationship: Option<String>,
    /// `Subplan Name`: `CTE c`, `InitPlan 1 (returns $0)`, `SubPlan 2`.
    pub subplan_name: Option<String>,
    /// `Parallel Aware`.
    pub is_parallel_aware: bool,
    /// `Async Capable`, since 14.
    pub is_async: bool,
    /// `Join Type`.
    pub join_type: Option<String>,
    /// `Strategy` of an aggregate or a set operation.
    pub strategy: Option<String>,
    /// `Partial Mode` of an aggregate.
    pub partial_mode: Option<String>,
    /// `Operation` of a node that writes.
    pub operation: Option<String>,
    /// `Command` of a set operation.
    pub command: Option<String>,
    /// `Scan Direction`.
    pub scan_direction: Option<String>,
    /// `Schema`.
    pub schema: Option<String>,
    /// What is scanned: `Relation Name`, `Function Name`, `CTE Name` or `Tuplestore Name`.
    pub object: Option<String>,
    /// `CTE Name`, also in `object`.
    pub cte: Option<String>,
    /// `Alias`.
    pub alias: Option<String>,
    /// `Index Name`.
    pub index: Option<String>,
    /// `Filter`, `Index Cond`, `Hash Cond` and so on.
    pub conditions: BTreeMap<String, String>,
    /// `Sort Key`, `Group Key` and so on.
    pub keys: BTreeMap<String, Vec<String>>,
    /// `Output`.
    pub output: Vec<String>,
    /// `Startup Cost`.
    pub startup_cost: Option<f64>,
    /// `Total Cost`.
    pub total_cost: Option<f64>,
    /// `Plan Rows`: the estimate per loop.
    pub plan_rows: Option<f64>,
    /// `Plan Width` in bytes.
    pub plan_width: Option<f64>,
    /// With ANALYZE.
    pub actual: Option<NodeActuals>,
    /// With BUFFERS; includes the children.
    pub buffers: Option<BufferUsage>,
    /// With WAL, since 13; includes the children.
    pub wal: Option<WalUsage>,
    /// Memory and disk used for sorting, hashing and storing rows.
    pub memory: MemoryUse,
    /// `Workers Planned`.
    pub workers_planned: Option<f64>,
    /// `Workers Launched`.
    pub workers_launched: Option<f64>,
    /// The figures of each parallel worker.
    pub workers: Vec<WorkerActuals>,
    /// All other keys.
    pub rest: BTreeMap<String, Value>,
}

/// What a node did. Rows and times are means per loop, and all processes of a parallel plan count as loops.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeActuals {
    /// Rows per loop: whole numbers before 18, two decimals since.
    pub rows: f64,
    /// Executions of the node, by the leader and all workers; 0 if it never ran.
    pub loops: f64,
    /// ms per loop to the last row, unless TIMING is off.
    pub total_ms: Option<f64>,
    /// ms per loop to the first row, unless TIMING is off.
    pub startup_ms: Option<f64>,
}

/// Blocks accessed. Sums over all loops and processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BufferUsage {
    /// Found in shared buffers.
    pub shared_hit: f64,
    /// Read into shared buffers.
    pub shared_read: f64,
    /// Changed for the first time since they were written.
    pub shared_dirtied: f64,
    /// Written, to make room.
    pub shared_written: f64,
    /// Found in the buffers of temporary tables.
    pub local_hit: f64,
    /// Read into the buffers of temporary tables.
    pub local_read: f64,
    /// Changed in temporary tables.
    pub local_dirtied: f64,
    /// Written from temporary tables.
    pub local_written: f64,
    /// Read from temporary files.
    pub temp_read: f64,
    /// Written to temporary files.
    pub temp_written: f64,
}

/// Write-ahead log. Sums over all loops and processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WalUsage {
    /// `WAL Records`.
    pub records: f64,
    /// `WAL FPI`: full-page images.
    pub full_page_images: f64,
    /// `WAL Bytes`.
    pub bytes: f64,
}

/// Memory and disk of one node, in one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryUse {
    /// `Sort Method`.
    pub sort_method: Option<String>,
    /// `Sort Space Used` in kB.
    pub sort_space_kb: Option<f64>,
    /// `Sort Space Type`: Memory or Disk.
    pub sort_space_type: Option<String>,
    /// `Full-sort Groups` and `Pre-sorted Groups` of an incremental sort, since 13.
    pub sort_groups: Vec<SortGroups>,
    /// `Hash Batches` of a hash join.
    pub hash_batches: Option<f64>,
    /// `HashAgg Batches`, since 13.
    pub aggregate_batches: Option<f64>,
    /// `Disk Usage` of an aggregate in kB, since 13.
    pub disk_kb: Option<f64>,
    /// `Peak Memory Usage` in kB.
    pub peak_kb: Option<f64>,
    /// `Storage` of rows that are read again, Memory or Disk, since 18.
    pub storage: Option<String>,
    /// `Maximum Storage` in kB, since 18.
    pub storage_kb: Option<f64>,
    /// `Exact Heap Blocks` of a bitmap.
    pub exact_blocks: Option<f64>,
    /// `Lossy Heap Blocks` of a bitmap that did not fit into memory.
    pub lossy_blocks: Option<f64>,
}

/// One kind of groups of an incremental sort.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SortGroups {
    /// `Group Count`.
    pub count: f64,
    /// `Sort Methods Used`.
    pub methods: Vec<String>,
    /// Peak of `Sort Space Memory` in kB.
    pub memory_kb: Option<f64>,
    /// Peak of `Sort Space Disk` in kB.
    pub disk_kb: Option<f64>,
}

/// A worker's part of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerActuals {
    /// `Worker Number`, from 0.
    pub number: usize,
    /// With ANALYZE and VERBOSE.
    pub actual: Option<NodeActuals>,
    /// With BUFFERS.
    pub buffers: Option<BufferUsage>,
    /// Its own memory and disk.
    pub memory: MemoryUse,
}

/// Converting the result for the client: EXPLAIN (SERIALIZE), since 17.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Serialization {
    /// Unless TIMING is off.
    pub time_ms: Option<f64>,
    /// `Output Volume` in kB.
    pub output_kb: f64,
    /// Blocks accessed, for instance for values stored out of line.
    pub buffers: Option<BufferUsage>,
}

/// A trigger that a statement fired.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TriggerUse {
    /// `Constraint Name`, or `Trigger Name` if it is of no constraint: the triggers of a foreign key have an OID in
    /// their names.
    pub name: String,
    /// `Relation`.
    pub relation: Option<String>,
    /// Unless TIMING is off.
    pub time_ms: Option<f64>,
    /// `Calls`.
    pub calls: f64,
}

impl PlanNode {
    /// Whether it is an `InitPlan`, a `SubPlan` or a CTE of its parent, which the parent's rows do not come from.
    pub fn is_subplan(&self) -> bool {
        matches!(self.relationship.as_deref(), Some("InitPlan" | "SubPlan"))
    }

    /// All expressions in a node: conditions, keys, output and what else is text.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &str> {
        let conditions = self.conditions.values();
        let keys = self.keys.values().flatten();
        let rest = self.rest.values().filter_map(Value::as_str);
        let known = conditions.chain(keys).chain(&self.output);
        known.map(String::as_str).chain(rest)
    }
}

impl BufferUsage {
    /// Blocks of tables and indexes accessed, wherever they were found.
    pub fn accessed(&self) -> f64 {
        self.shared_hit + self.shared_read + self.local_hit + self.local_read
    }

    /// Blocks read from and written to temporary files.
    pub fn temp(&self) -> f64 {
        self.temp_read + self.temp_written
    }

    pub(crate) fn figures(&self) -> [f64; 10] {
        [
            self.shared_hit,
            self.shared_read,
            self.shared_dirtied,
            self.shared_written,
            self.local_hit,
            self.local_read,
            self.local_dirtied,
            self.local_written,
            self.temp_read,
            self.temp_written,
        ]
    }

    pub(crate) fn of_figures(figures: [f64; 10]) -> Self {
        let [
            shared_hit,
            shared_read,
            shared_dirtied,
            shared_written,
            local_hit,
            local_read,
            local_dirtied,
            local_written,
            temp_read,
            temp_written,
        ] = figures;
        Self {
            shared_hit,
            shared_read,
            shared_dirtied,
            shared_written,
            local_hit,
            local_read,
            local_dirtied,
            local_written,
            temp_read,
            temp_written,
        }
    }
}
