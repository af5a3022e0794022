//! Call trees of all variants of a condition, merged into one, in µs or instructions per transaction.
//!
//! A node's cost is its share of the profile's samples times the exact on-CPU time per transaction
//! of the point (`PointSummary::server_cpu_us`), or the instruction count of its path. Merging puts the
//! same call path of every variant into one node, so that A, B and the difference are drawn from the
//! same tree. A subtree below [`BELOW_SHARE`] of every variant's total goes into its caller's
//! `(below 0.05%)` child: no sample is dropped, and every tree sums to the point's whole cost.

use std::collections::HashMap;
use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use pgassay_account::instructions::{CallTree, InstructionCosts};
use pgassay_model::profile::{Frame, Profile};
use pgassay_record::activity::LoadBy;
use pgassay_record::observation::{Observation, TimeDivisor};
use pgassay_record::run::Run;
use serde_json::{Value, json};

use crate::activity::statement_text;
use crate::outline::{baseline_of_all, comparison, condition_title, explained, point, profile};
use crate::terminal::cut;

/// Subtrees below this share of every variant's total are summed.
const BELOW_SHARE: f64 = 0.0005;
/// Statements with a flame graph of their own, and the width of their titles.
const STATEMENTS_MAX: usize = 20;
const STATEMENT_WIDTH: usize = 60;
const BELOW_NAME: &str = "(below 0.05%)";

/// Times are kept in tenths of a nanosecond: with thousands of nodes, rounding to whole nanoseconds
/// would change the sum.
const NS_PER_US: f64 = 1000.0;

/// The unit of a tree's costs.
#[derive(Clone, Copy)]
struct FlameUnit<'a> {
    /// Printed after every figure.
    name: &'a str,
    /// Costs are kept in this fraction of the unit.
    parts: f64,
}

const MICROS: FlameUnit<'_> = FlameUnit {
    name: "µs/tx",
    parts: NS_PER_US,
};
const INSTRUCTIONS: FlameUnit<'_> = FlameUnit {
    name: "instructions/tx",
    parts: 1.0,
};

/// One call path under a condition.
struct FlameNode {
    parent: Option<usize>,
    /// Index into [`Forest::frames`].
    frame: usize,
    /// Self cost, one per variant, in the unit's fraction per transaction.
    own: Vec<f64>,
}

/// The names that the trees of all conditions share.
#[derive(Default)]
struct Forest {
    frames: Vec<Value>,
    frame_index: HashMap<Frame, usize>,
    objects: Vec<String>,
}

/// The section. Its controls stay hidden until the script runs, since they do nothing without it.
pub(super) fn section(run: &Run) -> Markup {
    let has_counts = run.instructions.as_ref().is_some_and(has_trees);
    let lead = html! {
        "Width is server CPU time per transaction"
        @if has_counts {
            " or, under the conditions marked \"instruction counts\", instructions per transaction"
        }
        "; callers are above their callees. "
        (how_to_read_a_difference(baseline_of_all(run)))
        " Pale boxes are within noise."
    };
    drawing(data(run).as_ref(), &lead)
}

/// The trees of instruction counts without a run.
pub(super) fn instruction_counts(costs: &InstructionCosts) -> Markup {
    let mut forest = Forest::default();
    let below = forest.frame(&named(BELOW_NAME));
    let variants: Vec<&str> = costs
        .counts
        .conditions
        .first()
        .map(|condition| {
            condition
                .variants
                .iter()
                .map(|it| it.name.as_str())
                .collect()
        })
        .unwrap_or_default();
    let conditions = forest.instruction_counts(costs, &variants, below);
    let data = has_trees(costs).then(|| forest.data(&variants, &conditions, [0, 1]));
    let lead = html! {
        "Width is instructions per transaction; callers are above their callees. "
        @if let (Some(baseline), true) = (variants.first(), variants.len() > 1) {
            (how_to_read_a_difference(baseline))
        }
    };
    drawing(data.as_ref(), &lead)
}

/// Whether there is any tree to draw.
fn has_trees(costs: &InstructionCosts) -> bool {
    let mut conditions = costs.counts.conditions.iter();
    conditions.any(|condition| condition.variants.iter().any(|it| it.tree.is_some()))
}

fn how_to_read_a_difference(baseline: &str) -> Markup {
    html! {
        "With Δ, the width of a box is the sum of all increases and decreases below it, and the "
        "shaded part is their net effect: "
        span.key.up { "costs more" } " or " span.key.down { "costs less" }
        " than " (baseline) "."
    }
}

/// The tree of an observed live server.
pub(super) fn observed(observation: &Observation) -> Markup {
    let per = match observation.basis() {
        TimeDivisor::Transactions(_) => "per transaction",
        TimeDivisor::Seconds(_) => "per second",
    };
    let lead = html! {
        "Width is the backends' CPU time " (per) "; callers are above their callees."
        @if observation.seen_blocked().is_some() {
            " Select the other condition to see the time that they were blocked, by call path and wait."
        }
        @if !sampled_statements(observation).is_empty() {
            " The other conditions are the statements with the highest load, on the same scale."
        }
    };
    drawing(observed_data(observation).as_ref(), &lead)
}

fn drawing(data: Option<&Value>, lead: &Markup) -> Markup {
    html! {
        section #flame {
            h2 { "Flame graphs" }
            @if let Some(data) = data {
                p.lead { (lead) }
                div #flame-controls hidden {
                    label { "Condition " select #flame-condition {} }
                    label { "Variant " select #flame-variant {} }
                    div.switch role="group" aria-label="What to show" {
                        button type="button" data-mode="a" { "A" }
                        button type="button" data-mode="b" { "B" }
                        button type="button" data-mode="d" aria-pressed="true" { "Δ" }
                    }
                    label { "Search " input #flame-search type="search" autocomplete="off"; }
                    label.pairing title="Show the callees of exec_simple_query and the exec_…_message functions under their caller, so that Δ compares the same work across protocols" {
                        input #flame-pair type="checkbox" checked; "Merge message functions"
                    }
                    button #flame-reset type="button" { "Whole tree" }
                }
                p #flame-info aria-live="polite" { "The flame graph requires JavaScript." }
                div #flame-view tabindex="0" role="application"
                    aria-label="Flame graph: arrow keys move, Enter zooms, Escape shows all" {}
                script #flame-data type="application/json" { (PreEscaped(embedded(data))) }
            } @else {
                p { "No CPU profile was recorded; see the warnings above." }
            }
        }
    }
}

/// JSON that cannot end its script element, whatever names it contains.
fn embedded(data: &Value) -> String {
    let mut out = String::new();
    for c in data.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out
}

/// The script's data; `None` if no point has a profile.
fn data(run: &Run) -> Option<Value> {
    let mut forest = Forest::default();
    let below = forest.frame(&named(BELOW_NAME));
    let mut conditions: Vec<Value> = (0..run.plan.conditions.len())
        .map(|condition| {
            let branches = forest.merged(run, condition);
            let variants = run.plan.variants.len();
            let resolvable_us: Vec<f64> = (0..variants)
                .map(|variant| {
                    let cost = comparison(run, condition, variant).and_then(|it| it.cost.as_ref());
                    cost.map_or(0.0, |cost| cost.minimum_detectable_us)
                })
                .collect();
            let branches = pruned(&branches, below);
            let title = condition_title(run, condition);
            tree_json(&title, &branches, &resolvable_us, MICROS)
        })
        .collect();
    let variants: Vec<&str> = run.plan.variants.iter().map(String::as_str).collect();
    if let Some(costs) = &run.instructions {
        conditions.extend(forest.instruction_counts(costs, &variants, below));
    }
    let has_tree = |it: &Value| it["parents"].as_array().is_some_and(|it| !it.is_empty());
    let first = conditions.iter().position(has_tree)?;
    let start = match explained(run) {
        Some(shown) if conditions.get(shown.condition).is_some_and(has_tree) => {
            [shown.condition, shown.variant]
        }
        _ => [first, 1],
    };
    Some(forest.data(&variants, &conditions, start))
}

/// The script's data for an observation: one variant without a name, and the conditions on CPU and
/// blocked.
fn observed_data(observation: &Observation) -> Option<Value> {
    let blocked = observation.seen_blocked();
    let sides = [
        ("on CPU", observation.sampled(), observation.on_cpu_us()),
        ("blocked", blocked.as_ref(), observation.blocked_us()),
    ];
    let mut forest = Forest::default();
    let below = forest.frame(&named(BELOW_NAME));
    let unit = FlameUnit {
        name: observation.basis().unit(),
        parts: NS_PER_US,
    };
    let mut conditions = Vec::new();
    for (title, profile, whole_us) in sides {
        let Some(profile) = profile else { continue };
        let mut tree = Tree::default();
        let us_per_sample = whole_us / profile.total() as f64;
        let ns_per_sample = observation.basis().of(us_per_sample) * NS_PER_US;
        tree.grow(&mut forest, profile, (0, 1), ns_per_sample);
        let branches = pruned(&tree.branches, below);
        conditions.push(tree_json(title, &branches, &[0.0], unit));
    }
    let ns_per_sample = observation.basis().of(observation.cpu_us_per_sample()) * NS_PER_US;
    for (statement, column) in sampled_statements(observation) {
        let (Some(profile), Some(activity)) = (observation.sampled(), &observation.activity) else {
            break;
        };
        let of_statement = profile.of_column(column);
        let mut tree = Tree::default();
        tree.grow(&mut forest, &of_statement, (0, 1), ns_per_sample);
        let branches = pruned(&tree.branches, below);
        let text = cut(&statement_text(activity, Some(statement)), STATEMENT_WIDTH);
        let title = format!("on CPU: {text}");
        conditions.push(tree_json(&title, &branches, &[0.0], unit));
    }
    if conditions.is_empty() {
        return None;
    }
    Some(forest.data(&[""], &conditions, [0, 0]))
}

/// The statements that have CPU samples, those with the highest load first: index of the statement, and
/// column of the profile.
fn sampled_statements(observation: &Observation) -> Vec<(u32, u32)> {
    let (Some(profile), Some(activity)) = (observation.sampled(), &observation.activity) else {
        return Vec::new();
    };
    let rows = activity.load_by(LoadBy::Statement).into_iter();
    let has_samples = |column: u32| {
        let at = column as usize;
        let mut nodes = profile.nodes.iter();
        nodes.any(|node| node.samples.get(at).is_some_and(|count| *count > 0))
    };
    rows.filter_map(|row| {
        let statement = row.index?;
        let column = activity.statements.get(statement as usize)?.profile_column;
        Some((statement, column.filter(|it| has_samples(*it))?))
    })
    .take(STATEMENTS_MAX)
    .collect()
}

/// The condition of each statement's flame graph, by the statement's index.
pub(super) fn statement_conditions(observation: &Observation) -> HashMap<u32, usize> {
    let sides = usize::from(observation.sampled().is_some())
        + usize::from(observation.seen_blocked().is_some());
    let statements = sampled_statements(observation).into_iter();
    statements
        .zip(sides..)
        .map(|((statement, _), condition)| (statement, condition))
        .collect()
}

/// A frame that is not a function of a program.
fn named(name: &str) -> Frame {
    Frame {
        symbol: Some(name.to_owned()),
        object: String::new(),
        offset: 0,
        kernel: false,
    }
}

impl Forest {
    /// The frame's index. Sharing names across conditions saves most of the space.
    fn frame(&mut self, frame: &Frame) -> usize {
        if let Some(index) = self.frame_index.get(frame) {
            return *index;
        }
        let object = self
            .objects
            .iter()
            .position(|it| *it == frame.object)
            .unwrap_or_else(|| {
                self.objects.push(frame.object.clone());
                self.objects.len() - 1
            });
        self.frames.push(json!([frame.label(), object]));
        self.frame_index
            .insert(frame.clone(), self.frames.len() - 1);
        self.frames.len() - 1
    }

    /// The script's data.
    fn data(&self, variants: &[&str], conditions: &[Value], start: [usize; 2]) -> Value {
        json!({
            "variants": variants,
            "frames": self.frames,
            "objects": self.objects,
            "conditions": conditions,
            "start": start,
        })
    }

    /// Every condition's tree of instruction counts, for variants of these names.
    fn instruction_counts(
        &mut self,
        costs: &InstructionCosts,
        variants: &[&str],
        below: usize,
    ) -> Vec<Value> {
        let conditions = costs.counts.conditions.iter();
        conditions
            .map(|condition| {
                let mut tree = Tree::default();
                let mut resolvable = vec![0.0; variants.len()];
                for (at, name) in variants.iter().enumerate() {
                    let found = condition.variants.iter().find(|it| it.name == *name);
                    if let Some(paths) = found.and_then(|it| it.tree.as_ref()) {
                        tree.add_instruction_counts(self, paths, (at, variants.len()));
                    }
                    if let Some(difference) = costs.difference(&condition.title, name) {
                        resolvable[at] = difference.margin;
                    }
                }
                let branches = pruned(&tree.branches, below);
                let title = match condition.title.as_str() {
                    "" => "instruction counts".to_owned(),
                    title => format!("{title}, instruction counts"),
                };
                tree_json(&title, &branches, &resolvable, INSTRUCTIONS)
            })
            .collect()
    }

    /// One tree of all variants' profiles; callers come before their callees.
    fn merged(&mut self, run: &Run, condition: usize) -> Vec<FlameNode> {
        let variants = run.plan.variants.len();
        let mut tree = Tree::default();
        for variant in 0..variants {
            let (Some(profile), Some(cpu_us)) = (
                profile(run, condition, variant),
                point(run, condition, variant).and_then(|it| it.server_cpu_us),
            ) else {
                continue;
            };
            let ns_per_sample = cpu_us * NS_PER_US / profile.total() as f64;
            tree.grow(self, profile, (variant, variants), ns_per_sample);
        }
        tree.branches
    }
}

/// A tree into which profiles are merged.
#[derive(Default)]
struct Tree {
    branches: Vec<FlameNode>,
    index: HashMap<(Option<usize>, usize), usize>,
}

impl Tree {
    /// Adds a variant's profile; `fix_variants` is the number of all variants.
    fn grow(
        &mut self,
        forest: &mut Forest,
        profile: &Profile,
        (variant, variants): (usize, usize),
        ns_per_sample: f64,
    ) {
        let unknown = named("?");
        let mut places: Vec<usize> = Vec::with_capacity(profile.nodes.len());
        for node in &profile.nodes {
            // Only in a damaged file a parent does not precede its child, which then becomes a root.
            let parent = node.parent.and_then(|it| places.get(it as usize).copied());
            let frame = profile.frames.get(node.frame as usize);
            let frame = forest.frame(frame.unwrap_or(&unknown));
            let position = self.place(parent, frame, variants);
            self.branches[position].own[variant] += node.total() as f64 * ns_per_sample;
            places.push(position);
        }
    }

    /// Adds a variant's call paths; `fix_variants` is the number of all variants.
    fn add_instruction_counts(
        &mut self,
        forest: &mut Forest,
        paths: &CallTree,
        (variant, variants): (usize, usize),
    ) {
        let mut places: Vec<usize> = Vec::with_capacity(paths.paths.len());
        for path in &paths.paths {
            let parent = path.parent.and_then(|it| places.get(it as usize).copied());
            let function = paths.functions.get(path.function as usize);
            let frame = forest.frame(&Frame {
                object: function.map_or_else(String::new, |it| it.object.clone()),
                ..named(function.map_or("?", |it| &it.name))
            });
            let position = self.place(parent, frame, variants);
            self.branches[position].own[variant] += paths.per_transaction(path.instructions);
            places.push(position);
        }
    }

    fn place(&mut self, parent: Option<usize>, frame: usize, variants: usize) -> usize {
        *self.index.entry((parent, frame)).or_insert_with(|| {
            self.branches.push(FlameNode {
                parent,
                frame,
                own: vec![0.0; variants],
            });
            self.branches.len() - 1
        })
    }
}

/// A condition's tree as the script expects it, with each variant's noise limit.
fn tree_json(
    title: &str,
    branches: &[FlameNode],
    resolvable: &[f64],
    unit: FlameUnit<'_>,
) -> Value {
    // −1 for a root: the script adds a node above all roots.
    let parents: Vec<i64> = branches
        .iter()
        .map(|it| {
            it.parent
                .and_then(|parent| i64::try_from(parent).ok())
                .unwrap_or(-1)
        })
        .collect();
    let frames: Vec<usize> = branches.iter().map(|it| it.frame).collect();
    let costs: Vec<Vec<Value>> = (0..resolvable.len())
        .map(|variant| branches.iter().map(|it| short(it.own[variant])).collect())
        .collect();
    json!({
        "title": title,
        "unit": unit.name,
        "parts": unit.parts,
        "parents": parents,
        "frames": frames,
        "self": costs,
        "resolvable": resolvable,
    })
}

/// Rounds to a tenth; zeros take one character.
fn short(cost: f64) -> Value {
    let rounded = (cost * 10.0).round() / 10.0;
    if rounded.fract() == 0.0 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

/// The tree without its smallest subtrees; their costs go into one child of their caller.
fn pruned(branches: &[FlameNode], below: usize) -> Vec<FlameNode> {
    let variants = branches.first().map_or(0, |it| it.own.len());
    let mut subtree: Vec<Vec<f64>> = branches.iter().map(|it| it.own.clone()).collect();
    let mut whole = vec![0.0; variants];
    for at in (0..branches.len()).rev() {
        for variant in 0..variants {
            let cost = subtree[at][variant];
            match branches[at].parent {
                Some(parent) => subtree[parent][variant] += cost,
                None => whole[variant] += cost,
            }
        }
    }
    let large = |at: usize| {
        let mut costs = subtree[at].iter().zip(&whole);
        costs.any(|(cost, whole)| *cost > 0.0 && *cost >= whole * BELOW_SHARE)
    };
    let mut kept: Vec<FlameNode> = Vec::new();
    let mut new_place: Vec<Option<usize>> = vec![None; branches.len()];
    let mut remainders: HashMap<Option<usize>, Vec<f64>> = HashMap::new();
    for (at, branch) in branches.iter().enumerate() {
        let parent = branch.parent.map(|parent| new_place[parent]);
        // The whole subtree was summed already.
        if parent == Some(None) {
            continue;
        }
        let parent = parent.flatten();
        if large(at) {
            new_place[at] = Some(kept.len());
            kept.push(FlameNode {
                parent,
                frame: branch.frame,
                own: branch.own.clone(),
            });
        } else {
            let sum = remainders
                .entry(parent)
                .or_insert_with(|| vec![0.0; variants]);
            for (sum, cost) in sum.iter_mut().zip(&subtree[at]) {
                *sum += cost;
            }
        }
    }
    let mut remainders: Vec<(Option<usize>, Vec<f64>)> = remainders.into_iter().collect();
    remainders.sort_by_key(|(parent, _)| *parent);
    for (parent, own) in remainders {
        kept.push(FlameNode {
            parent,
            frame: below,
            own,
        });
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(parent: Option<usize>, frame: usize, own: [f64; 2]) -> FlameNode {
        FlameNode {
            parent,
            frame,
            own: own.to_vec(),
        }
    }

    #[test]
    fn small_subtrees_are_summed_under_their_caller() {
        let branches = [
            branch(None, 1, [900.0, 1000.0]),
            branch(Some(0), 2, [99.8, 0.0]),
            branch(Some(0), 3, [0.1, 0.0]),
            branch(Some(2), 4, [0.1, 0.2]),
            // Small on one side only: kept, or the difference would show a new function.
            branch(Some(0), 5, [0.1, 5.0]),
        ];
        let kept = pruned(&branches, 0);
        let frames: Vec<usize> = kept.iter().map(|it| it.frame).collect();
        assert_eq!(frames, [1, 2, 5, 0]);
        for variant in 0..2 {
            let sum = |of: &[FlameNode]| of.iter().map(|it| it.own[variant]).sum::<f64>();
            assert!((sum(&kept) - sum(&branches)).abs() < 1e-9);
        }
        assert_eq!(kept[3].parent, Some(0));
    }

    #[test]
    fn embedded_json_cannot_end_its_element() {
        let text = embedded(&json!(["</script><b>&\u{2028}"]));
        assert_eq!(text, r#"["\u003c/script\u003e\u003cb\u003e\u0026\u2028"]"#);
        let back: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back[0], "</script><b>&\u{2028}");
    }
}
