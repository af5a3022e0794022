//! EXPLAIN's JSON read into plans.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::{Fields, Json};
use crate::plan::{
    BufferUsage, MemoryUse, NodeActuals, PlanNode, QueryPlan, Serialization, SortGroups,
    TriggerUse, WalUsage, WorkerActuals,
};

/// Conditions, by the keys of EXPLAIN.
const CONDITIONS: [&str; 11] = [
    "Index Cond",
    "Recheck Cond",
    "TID Cond",
    "Filter",
    "Join Filter",
    "Hash Cond",
    "Merge Cond",
    "One-Time Filter",
    "Conflict Filter",
    "Run Condition",
    "Order By",
];

/// Lists of expressions, by the keys of EXPLAIN.
const KEYS: [&str; 7] = [
    "Sort Key",
    "Presorted Key",
    "Group Key",
    "Hash Key",
    "Cache Key",
    "Window",
    "Conflict Arbiter Indexes",
];

/// The result of EXPLAIN cannot be read as a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanParseError {
    /// Not JSON, or cut off.
    #[error("the result of EXPLAIN is not JSON: {0}: request FORMAT JSON and pass the whole text")]
    Json(#[from] serde_json::Error),
    /// JSON, but without a plan.
    #[error("the result of EXPLAIN has no plan: the statement may be a utility statement")]
    NoPlan,
    /// Rules rewrote the statement into several.
    #[error(
        "EXPLAIN returned {0} plans instead of one, because of rules: use QueryPlan::parse_all"
    )]
    ManyPlans(usize),
}

impl QueryPlan {
    /// Reads the result of EXPLAIN (FORMAT JSON) of a statement.
    pub fn parse(json: &str) -> Result<Self, PlanParseError> {
        let mut plans = Self::parse_all(json)?;
        match (plans.pop(), plans.len()) {
            (Some(plan), 0) => Ok(plan),
            (_, others) => Err(PlanParseError::ManyPlans(others + 1)),
        }
    }

    /// Reads all plans in the result of EXPLAIN (FORMAT JSON): several if rules rewrote the
    /// statement, always at least one. Also accepts the object that `auto_explain` logs.
    pub fn parse_all(json: &str) -> Result<Vec<Self>, PlanParseError> {
        let queries = match Json::parse(json)? {
            Json::Array(queries) => queries,
            other => vec![other],
        };
        let plans = queries.into_iter().map(|query| match query {
            Json::Object(fields) => statement(fields).ok_or(PlanParseError::NoPlan),
            _ => Err(PlanParseError::NoPlan),
        });
        let plans: Vec<Self> = plans.collect::<Result<_, _>>()?;
        if plans.is_empty() {
            return Err(PlanParseError::NoPlan);
        }
        Ok(plans)
    }
}

/// The plan of a statement; `None` for a utility statement.
fn statement(mut fields: Fields) -> Option<QueryPlan> {
    let root = fields.object("Plan")?;
    let mut plan = QueryPlan::default();
    add_node(root, None, &mut plan.nodes);
    if let Some(settings) = fields.object("Settings") {
        let settings = settings.into_map().into_iter();
        let settings =
            settings.filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())));
        plan.settings = Some(settings.collect());
    }
    if let Some(mut planning) = fields.object("Planning") {
        plan.planning_buffers = buffers(&mut planning);
        plan.planning_memory_kb = planning.number("Memory Used");
        keep(planning, "Planning", &mut plan.rest);
    }
    plan.planning_ms = fields.number("Planning Time");
    plan.execution_ms = fields.number("Execution Time");
    if let Some(mut it) = fields.object("Serialization") {
        plan.serialization = Some(Serialization {
            time_ms: it.number("Time"),
            output_kb: it.number("Output Volume").unwrap_or(0.0),
            buffers: buffers(&mut it),
        });
        keep(it, "Serialization", &mut plan.rest);
    }
    if let Some(mut jit) = fields.object("JIT") {
        plan.jit_functions = jit.number("Functions");
        keep(jit, "JIT", &mut plan.rest);
    }
    plan.triggers = fields
        .objects("Triggers")
        .into_iter()
        .map(trigger)
        .collect();
    plan.rest.extend(fields.into_map());
    Some(plan)
}

fn trigger(mut fields: Fields) -> TriggerUse {
    let trigger = fields.text("Trigger Name");
    TriggerUse {
        name: fields
            .text("Constraint Name")
            .or(trigger)
            .unwrap_or_default(),
        relation: fields.text("Relation"),
        time_ms: fields.number("Time"),
        calls: fields.number("Calls").unwrap_or(0.0),
    }
}

/// Keeps what remains of an object.
fn keep(fields: Fields, key: &str, rest: &mut BTreeMap<String, Value>) {
    if !fields.0.is_empty() {
        rest.insert(key.to_owned(), Value::Object(fields.into_map()));
    }
}

/// Adds a node and its subtree, and returns its position.
fn add_node(mut fields: Fields, parent: Option<usize>, nodes: &mut Vec<PlanNode>) -> usize {
    let children = fields.objects("Plans");
    let at = nodes.len();
    nodes.push(node(fields, parent));
    for child in children {
        let child = add_node(child, Some(at), nodes);
        nodes[at].children.push(child);
    }
    nodes[at].end = nodes.len();
    at
}

fn node(mut fields: Fields, parent: Option<usize>) -> PlanNode {
    let it = &mut fields;
    let cte = it.text("CTE Name");
    let object = it
        .text("Relation Name")
        .or_else(|| it.text("Function Name"))
        .or_else(|| it.text("Table Function Name"))
        .or_else(|| it.text("Tuplestore Name"))
        .or_else(|| cte.clone());
    let conditions = CONDITIONS
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), it.text(key)?)))
        .collect();
    let keys = KEYS
        .iter()
        .filter_map(|key| {
            // Single texts are `Cache Key` and `Window`.
            let found = it
                .texts(key)
                .or_else(|| it.text(key).map(|text| vec![text]));
            Some(((*key).to_owned(), found?))
        })
        .collect();
    let mut node = PlanNode {
        parent,
        node_type: it.text("Node Type").unwrap_or_default(),
        relationship: it.text("Parent Relationship"),
        subplan_name: it.text("Subplan Name"),
        is_parallel_aware: it.flag("Parallel Aware").unwrap_or(false),
        is_async: it.flag("Async Capable").unwrap_or(false),
        join_type: it.text("Join Type"),
        strategy: it.text("Strategy"),
        partial_mode: it.text("Partial Mode"),
        operation: it.text("Operation"),
        command: it.text("Command"),
        scan_direction: it.text("Scan Direction"),
        schema: it.text("Schema"),
        object,
        cte,
        alias: it.text("Alias"),
        index: it.text("Index Name"),
        conditions,
        keys,
        output: it.texts("Output").unwrap_or_default(),
        startup_cost: it.number("Startup Cost"),
        total_cost: it.number("Total Cost"),
        plan_rows: it.number("Plan Rows"),
        plan_width: it.number("Plan Width"),
        actual: actuals(it),
        buffers: buffers(it),
        wal: wal(it),
        memory: memory(it),
        workers_planned: it.number("Workers Planned"),
        workers_launched: it.number("Workers Launched"),
        workers: workers(it),
        ..PlanNode::default()
    };
    node.rest = fields.into_map().into_iter().collect();
    node
}

fn actuals(fields: &mut Fields) -> Option<NodeActuals> {
    let rows = fields.number("Actual Rows");
    Some(NodeActuals {
        loops: fields.number("Actual Loops")?,
        rows: rows.unwrap_or(0.0),
        startup_ms: fields.number("Actual Startup Time"),
        total_ms: fields.number("Actual Total Time"),
    })
}

fn buffers(fields: &mut Fields) -> Option<BufferUsage> {
    let keys = [
        "Shared Hit Blocks",
        "Shared Read Blocks",
        "Shared Dirtied Blocks",
        "Shared Written Blocks",
        "Local Hit Blocks",
        "Local Read Blocks",
        "Local Dirtied Blocks",
        "Local Written Blocks",
        "Temp Read Blocks",
        "Temp Written Blocks",
    ];
    let figures = keys.map(|key| fields.number(key));
    figures[0]?;
    Some(BufferUsage::of_figures(
        figures.map(|figure| figure.unwrap_or(0.0)),
    ))
}

fn wal(fields: &mut Fields) -> Option<WalUsage> {
    Some(WalUsage {
        records: fields.number("WAL Records")?,
        full_page_images: fields.number("WAL FPI").unwrap_or(0.0),
        bytes: fields.number("WAL Bytes").unwrap_or(0.0),
    })
}

fn memory(fields: &mut Fields) -> MemoryUse {
    let groups = ["Full-sort Groups", "Pre-sorted Groups"];
    MemoryUse {
        sort_groups: groups
            .iter()
            .filter_map(|key| fields.object(key).map(sort_groups))
            .collect(),
        sort_method: fields.text("Sort Method"),
        sort_space_kb: fields.number("Sort Space Used"),
        sort_space_type: fields.text("Sort Space Type"),
        hash_batches: fields.number("Hash Batches"),
        aggregate_batches: fields.number("HashAgg Batches"),
        disk_kb: fields.number("Disk Usage"),
        peak_kb: fields.number("Peak Memory Usage"),
        storage: fields.text("Storage"),
        storage_kb: fields.number("Maximum Storage"),
        exact_blocks: fields.number("Exact Heap Blocks"),
        lossy_blocks: fields.number("Lossy Heap Blocks"),
    }
}

fn sort_groups(mut fields: Fields) -> SortGroups {
    let mut peak = |key| {
        let mut space: Fields = fields.object(key)?;
        space.number("Peak Sort Space Used")
    };
    let (memory_kb, disk_kb) = (peak("Sort Space Memory"), peak("Sort Space Disk"));
    SortGroups {
        count: fields.number("Group Count").unwrap_or(0.0),
        methods: fields.texts("Sort Methods Used").unwrap_or_default(),
        memory_kb,
        disk_kb,
    }
}

/// The workers of a node. A version can describe a worker in two places.
fn workers(fields: &mut Fields) -> Vec<WorkerActuals> {
    let mut merged: Vec<(usize, Fields)> = Vec::new();
    for mut worker in fields.objects("Workers") {
        let number = worker.number("Worker Number").unwrap_or(0.0) as usize;
        match merged.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => known.0.append(&mut worker.0),
            None => merged.push((number, worker)),
        }
    }
    let workers = merged.into_iter();
    workers
        .map(|(number, mut fields)| WorkerActuals {
            number,
            actual: actuals(&mut fields),
            buffers: buffers(&mut fields),
            memory: memory(&mut fields),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_descriptions_of_a_worker_before_13_are_read() {
        let json = r#"[{"Plan": {"Node Type": "Sort", "Sort Method": "quicksort",
            "Workers": [{"Worker Number": 1, "Sort Method": "external merge", "Sort Space Used": 24,
                         "Sort Space Type": "Disk"}],
            "Workers": [{"Worker Number": 0, "Actual Rows": 0, "Actual Loops": 1},
                        {"Worker Number": 1, "Actual Rows": 1284, "Actual Loops": 1}]}}]"#;
        let plan = QueryPlan::parse(json).unwrap();
        let worker = &plan.nodes[0].workers[0];
        assert_eq!(worker.number, 1);
        assert_eq!(worker.memory.sort_method.as_deref(), Some("external merge"));
        assert_eq!(worker.actual.map(|it| it.rows), Some(1284.0));
        assert_eq!(plan.nodes[0].workers.len(), 2);
    }

    #[test]
    fn unknown_keys_are_kept() {
        let json = r#"{"Query Text": "select", "Plan": {"Node Type": "Result", "Future": {"a": [1]},
            "Alias": 5}, "JIT": {"Functions": 3, "Options": {"Inlining": false}}}"#;
        let plan = QueryPlan::parse(json).unwrap();
        let node = &plan.nodes[0];
        assert_eq!(node.rest["Future"]["a"][0], 1);
        assert_eq!(node.rest["Alias"], 5);
        assert_eq!(plan.jit_functions, Some(3.0));
        assert_eq!(plan.rest["JIT"]["Options"]["Inlining"], false);
        assert_eq!(plan.rest["Query Text"], "select");
    }

    #[test]
    fn what_is_no_plan_is_an_error_that_says_so() {
        let error = |json| QueryPlan::parse(json).unwrap_err().to_string();
        assert!(error("QUERY PLAN").contains("FORMAT JSON"));
        assert!(error(r#"["Utility Statement"]"#).contains("utility statement"));
        assert!(error("[]").contains("no plan"));
        let two = r#"[{"Plan": {}}, {"Plan": {}}]"#;
        assert!(error(two).contains("2 plans"));
        assert_eq!(QueryPlan::parse_all(two).unwrap().len(), 2);
    }

    #[test]
    fn a_plan_with_a_hundred_nested_joins_is_read() {
        let mut json = r#"{"Node Type": "Seq Scan"}"#.to_owned();
        for _ in 0..200 {
            json = format!(r#"{{"Node Type": "Nested Loop", "Plans": [{json}]}}"#);
        }
        let plan = QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap();
        assert_eq!(plan.nodes.len(), 201);
        assert_eq!(plan.nodes[0].end, 201);
    }
}
