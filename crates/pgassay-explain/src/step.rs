//! The steps of a plan: what is matched and compared.
//!
//! Most nodes are a step of their own. A Bitmap Heap Scan and its index scans are one, and so are more
//! than [`CHILDREN_MAX`] partitions below an Append if they are processed in the same way.

use std::collections::{BTreeMap, BTreeSet};

use crate::condition::{Clause, NameMap, clauses, normalized};
use crate::label;
use crate::partitions::{KnownPartitions, append_root, partition_roots};
use crate::plan::{PlanNode, QueryPlan};

/// The most partitions below an Append that are steps of their own.
pub(crate) const CHILDREN_MAX: usize = 8;

/// Conditions that are not compared: they repeat the `Index Cond` of a bitmap.
const REPEATED: &str = "Recheck Cond";

/// What a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepClass {
    Scan,
    Join,
    Aggregate,
    Window,
    /// Several inputs one after the other or against each other.
    SetOperation,
    Write,
    /// Passes rows on, perhaps fewer or in another order; the names of those that do the same
    /// are equal.
    PassThrough(&'static str),
    Other,
}

impl StepClass {
    pub(crate) fn is_pass_through(self) -> bool {
        matches!(self, Self::PassThrough(_))
    }

    fn of(node: &PlanNode) -> Self {
        match node.node_type.as_str() {
            "Nested Loop" | "Hash Join" | "Merge Join" => Self::Join,
            "Aggregate" | "Group" => Self::Aggregate,
            "WindowAgg" => Self::Window,
            "Append" | "Merge Append" | "SetOp" | "Recursive Union" => Self::SetOperation,
            "ModifyTable" => Self::Write,
            "Gather" | "Gather Merge" => Self::PassThrough("Gather"),
            "Sort" | "Incremental Sort" => Self::PassThrough("Sort"),
            "Hash" => Self::PassThrough("Hash"),
            "Materialize" | "Memoize" => Self::PassThrough("Materialize"),
            "Limit" => Self::PassThrough("Limit"),
            "Result" => Self::PassThrough("Result"),
            "Subquery Scan" => Self::PassThrough("Subquery Scan"),
            "Unique" => Self::PassThrough("Unique"),
            "LockRows" => Self::PassThrough("LockRows"),
            scan if scan.ends_with("Scan") => Self::Scan,
            _ => Self::Other,
        }
    }
}

/// What a scan reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScanIdentity {
    pub(crate) schema: String,
    /// Table, function, CTE.
    pub(crate) object: String,
    pub(crate) alias: String,
    /// The alias of the partitioned table, or `alias`.
    pub(crate) root: String,
}

/// A step of a plan. Its subtree follows it, as a node's does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlanStep {
    /// The position of its node in [`QueryPlan::nodes`]; of the first one, if it stands for several.
    pub(crate) node: usize,
    /// All nodes whose figures are the step's: partitions that are one step, or just `node`.
    pub(crate) members: Vec<usize>,
    /// All nodes whose own share is part of the step's.
    pub(crate) parts: Vec<usize>,
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
    pub(crate) depth: usize,
    pub(crate) class: StepClass,
    /// `CTE c`, `InitPlan 1`, `SubPlan 2`.
    pub(crate) subplan: Option<String>,
    /// As EXPLAIN prints it: `Index Scan using i on t`.
    pub(crate) label: String,
    /// The label without alias.
    pub(crate) method: String,
    pub(crate) scan: Option<ScanIdentity>,
    /// Each clause with the kind of its condition.
    pub(crate) clauses: Vec<(String, Clause)>,
    /// `Sort Key` and so on, normalized and as printed.
    pub(crate) keys: BTreeMap<String, (String, String)>,
    /// Aliases of the tables below, partitions by their root, without those of subplans; a CTE by the
    /// tables in it.
    pub(crate) aliases: BTreeSet<String>,
    /// Everything that the plan says about the step, without its figures.
    pub(crate) identity: String,
}

/// The steps of a plan, depth first.
pub(crate) fn steps(plan: &QueryPlan, known: &KnownPartitions) -> Vec<PlanStep> {
    if plan.nodes.is_empty() {
        return Vec::new();
    }
    let names = NameMap::new(plan, partition_roots(plan, known));
    let mut builder = Builder {
        plan,
        folded: &known.folded,
        names,
        steps: Vec::with_capacity(plan.nodes.len()),
    };
    builder.add(&[0], None, 0);
    let Builder {
        mut steps, names, ..
    } = builder;
    add_aliases(plan, &names, &mut steps);
    steps
}

struct Builder<'a> {
    plan: &'a QueryPlan,
    folded: &'a BTreeSet<String>,
    names: NameMap,
    steps: Vec<PlanStep>,
}

impl Builder<'_> {
    /// Adds a step for these nodes, and the steps below.
    fn add(&mut self, members: &[usize], parent: Option<usize>, depth: usize) {
        let at = self.steps.len();
        let step = self.step(members, parent, depth);
        let node = step.node;
        self.steps.push(step);
        if let Some(parent) = parent {
            self.steps[parent].children.push(at);
        }
        if members.len() > 1 {
            return;
        }
        for group in self.groups(node) {
            let is_part = self.is_bitmap(node) && !self.plan.nodes[group[0]].is_subplan();
            if !is_part {
                self.add(&group, Some(at), depth + 1);
            }
        }
    }

    fn is_bitmap(&self, at: usize) -> bool {
        self.plan.nodes[at].node_type == "Bitmap Heap Scan"
    }

    /// The children of a node, with partitions that are one step in one group.
    fn groups(&self, at: usize) -> Vec<Vec<usize>> {
        let node = &self.plan.nodes[at];
        let is_folded = append_root(self.plan, at).is_some_and(|it| self.folded.contains(&it));
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for &child in &node.children {
            let shape = if is_folded && !self.plan.nodes[child].is_subplan() {
                self.shape(child)
            } else {
                String::new()
            };
            match groups
                .iter_mut()
                .find(|(it, _)| !it.is_empty() && *it == shape)
            {
                Some((_, group)) => group.push(child),
                None => groups.push((shape, vec![child])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// How a partition is processed: the types of its nodes.
    fn shape(&self, at: usize) -> String {
        let nodes = &self.plan.nodes[at..self.plan.nodes[at].end];
        let types: Vec<String> = nodes
            .iter()
            .map(|it| format!("{}{}", it.node_type, it.children.len()))
            .collect();
        types.join(" ")
    }

    fn step(&self, members: &[usize], parent: Option<usize>, depth: usize) -> PlanStep {
        let nodes = &self.plan.nodes;
        let at = members[0];
        let node = &nodes[at];
        let is_many = members.len() > 1;
        let mut parts: Vec<usize> = Vec::new();
        for &member in members {
            parts.push(member);
            if is_many {
                parts.extend(member + 1..nodes[member].end);
            } else if self.is_bitmap(member) {
                let children = node.children.iter().filter(|it| !nodes[**it].is_subplan());
                parts.extend(children.flat_map(|&it| it..nodes[it].end));
            }
        }
        // The partitions of a step differ in names only, so the first one stands for all.
        let of_first = parts.iter().filter(|it| (at..node.end).contains(it));
        let clauses = self.clauses(of_first);
        let mut scan = self.scan(node);
        let (mut label, mut method) = (label::label(self.plan, at), label::method(self.plan, at));
        if is_many {
            let root = scan.as_ref().map_or_else(
                || node.parent.and_then(|it| append_root(self.plan, it)),
                |it| Some(it.root.clone()),
            );
            let root = root.unwrap_or_default();
            label = label::folded(self.plan, members, &root);
            method.clone_from(&label);
            if let Some(scan) = &mut scan {
                scan.object.clone_from(&root);
                scan.alias = root;
            }
        }
        let mut step = PlanStep {
            node: at,
            members: members.to_vec(),
            parts,
            parent,
            children: Vec::new(),
            depth,
            class: StepClass::of(node),
            subplan: node.subplan_name.as_deref().map(label::subplan),
            label,
            method,
            scan,
            clauses,
            keys: keys(node, &self.names),
            aliases: BTreeSet::new(),
            identity: String::new(),
        };
        step.identity = identity(&step);
        step
    }

    /// The clauses of these nodes, each once.
    fn clauses<'n>(&self, nodes: impl Iterator<Item = &'n usize>) -> Vec<(String, Clause)> {
        let mut found: Vec<(String, Clause)> = Vec::new();
        for node in nodes.map(|&at| &self.plan.nodes[at]) {
            for (kind, condition) in &node.conditions {
                if kind == REPEATED && node.node_type == "Bitmap Heap Scan" {
                    continue;
                }
                for clause in clauses(condition, &self.names) {
                    let is_known = |it: &(String, Clause)| it.0 == *kind && it.1.key == clause.key;
                    if !found.iter().any(is_known) {
                        found.push((kind.clone(), clause));
                    }
                }
            }
        }
        found
    }

    fn scan(&self, node: &PlanNode) -> Option<ScanIdentity> {
        if StepClass::of(node) != StepClass::Scan {
            return None;
        }
        let alias = node.alias.clone().unwrap_or_default();
        let root = self.names.roots.get(&alias).unwrap_or(&alias).clone();
        let schema = node.schema.clone().unwrap_or_default();
        Some(ScanIdentity {
            // Each session has its own schema of temporary tables.
            schema: match schema.strip_prefix("pg_temp_") {
                Some(_) => "pg_temp".to_owned(),
                None => schema,
            },
            object: node.object.clone().unwrap_or_default(),
            alias,
            root,
        })
    }
}

/// A text that is equal for two steps that do the same.
fn identity(step: &PlanStep) -> String {
    let mut clauses: Vec<String> = step
        .clauses
        .iter()
        .map(|(kind, clause)| format!("{kind}: {}", clause.key))
        .collect();
    clauses.sort();
    let keys = step.keys.iter();
    let keys: Vec<String> = keys
        .map(|(kind, (key, _))| format!("{kind}: {key}"))
        .collect();
    let scan = step
        .scan
        .as_ref()
        .map(|it| format!("{} {} {}", it.schema, it.object, it.root));
    let subplan = step.subplan.as_deref().and_then(|it| it.split(' ').next());
    format!(
        "{} | {} | {} | {} | {}",
        step.method,
        scan.unwrap_or_default(),
        clauses.join("; "),
        keys.join("; "),
        subplan.unwrap_or_default()
    )
}

/// `Sort Key` and so on, normalized and as printed.
fn keys(node: &PlanNode, names: &NameMap) -> BTreeMap<String, (String, String)> {
    let keys = node.keys.iter().map(|(kind, keys)| {
        let normal: Vec<String> = keys.iter().map(|it| normalized(it, names)).collect();
        (kind.clone(), (normal.join(", "), keys.join(", ")))
    });
    keys.collect()
}

/// Compares the steps' conditions and keys as if tables had other aliases from now on.
pub(crate) fn rename(
    plan: &QueryPlan,
    known: &KnownPartitions,
    renamed: &BTreeMap<String, String>,
    steps: &mut [PlanStep],
) {
    let mut names = NameMap::new(plan, partition_roots(plan, known));
    for root in names.roots.values_mut() {
        if let Some(name) = renamed.get(root) {
            root.clone_from(name);
        }
    }
    for (alias, name) in renamed {
        let known = names.roots.entry(alias.clone());
        known.or_insert_with(|| name.clone());
    }
    for step in steps {
        step.keys = keys(&plan.nodes[step.node], &names);
        for (_, clause) in &mut step.clauses {
            if let [again] = &clauses(&clause.text, &names)[..] {
                clause.key.clone_from(&again.key);
            }
        }
    }
}

/// Sets the aliases below each step.
fn add_aliases(plan: &QueryPlan, names: &NameMap, steps: &mut [PlanStep]) {
    // Children follow their parents, and so do the nodes that are part of a step.
    for at in (0..steps.len()).rev() {
        let step = &steps[at];
        let mut aliases = BTreeSet::new();
        if let Some(scan) = step.scan.as_ref().filter(|it| !it.root.is_empty()) {
            aliases.insert(scan.root.clone());
        } else if step.members.len() > 1 {
            // Joins of partitions.
            let nodes = step.parts.iter().map(|&it| &plan.nodes[it]);
            let scanned = nodes.filter(|it| StepClass::of(it) == StepClass::Scan);
            aliases.extend(scanned.filter_map(|it| {
                let alias = it.alias.as_ref()?;
                Some(names.roots.get(alias).unwrap_or(alias).clone())
            }));
        }
        for &child in &step.children {
            if !plan.nodes[steps[child].node].is_subplan() {
                aliases.extend(steps[child].aliases.iter().cloned());
            }
        }
        steps[at].aliases = aliases;
    }
    replace_ctes(plan, steps);
}

/// Replaces the alias of a CTE by those in its query: since 12 it can be part of the main query, and a
/// join with it must remain the same join.
fn replace_ctes(plan: &QueryPlan, steps: &mut [PlanStep]) {
    // A CTE can read the ones before it, so each replacement may need those of the earlier ones.
    let ctes: Vec<(String, usize)> = steps
        .iter()
        .enumerate()
        .filter_map(|(at, step)| {
            let cte = step.subplan.as_deref()?.strip_prefix("CTE ")?;
            Some((cte.to_owned(), at))
        })
        .collect();
    for (cte, query) in ctes {
        let inner = steps[query].aliases.clone();
        let scans: BTreeSet<String> = steps
            .iter()
            .filter(|step| plan.nodes[step.node].node_type == "CTE Scan")
            .filter_map(|step| step.scan.as_ref())
            .filter(|scan| scan.object == cte)
            .map(|scan| scan.alias.clone())
            .collect();
        if inner.is_empty() || scans.iter().any(|it| inner.contains(it)) {
            continue;
        }
        for step in steps.iter_mut() {
            let before = step.aliases.len();
            step.aliases.retain(|it| !scans.contains(it));
            if step.aliases.len() < before {
                step.aliases.extend(inner.iter().cloned());
            }
        }
    }
}
