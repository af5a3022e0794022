//! Call trees of all variants of a condition, merged into one, in µs or instructions per transaction.
//!
//! A node's cost is its share of the profile's samples times the exact on-CPU time per transaction
//! of the point (`PointSummary::server_cpu_us`); or, where instructions were counted, what was counted
//! on its path. Merging puts the same call path of every variant
//! into one node, so that A, B and the difference are drawn from the same tree. A subtree below
//! [`BELOW_SHARE`] of every variant's total goes into its caller's `(below 0.05 %)` child: no
//! sample is dropped, and the sum of every tree is the point's whole cost.

use std::collections::HashMap;
use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use pgassay_core::instructions::{CallTree, InstructionCosts};
use pgassay_core::observation::{Basis, Observation};
use pgassay_core::profile::{Frame, Profile};
use pgassay_core::run::Run;
use serde_json::{Value, json};

use crate::outline::{baseline_name, comparison, condition_title, explained, point, profile};

/// Subtrees below this share of all variants' totals are summed.
const BELOW_SHARE: f64 = 0.0005;
const BELOW_NAME: &str = "(below 0.05 %)";

/// Costs in time are kept in nanoseconds, to a tenth of one: a tree of thousands of nodes that are
/// rounded to whole nanoseconds would miss its sum.
const NS_PER_US: f64 = 1000.0;

/// What a tree's costs are in.
#[derive(Clone, Copy)]
struct Unit<'a> {
    /// Behind every figure.
    name: &'a str,
    /// The small parts of one, in which costs are kept.
    parts: f64,
}

const MICROS: Unit<'_> = Unit {
    name: "µs/tx",
    parts: NS_PER_US,
};
/// Instructions are kept as they are.
const INSTRUCTIONS: Unit<'_> = Unit {
    name: "instructions/tx",
    parts: 1.0,
};

/// One call path under a condition.
struct Branch {
    parent: Option<usize>,
    /// Index into [`Forest::frames`].
    frame: usize,
    /// Cost of the leaf itself, one per variant, in the unit's small parts per transaction.
    own: Vec<f64>,
}

/// The trees of all conditions and the names they share.
#[derive(Default)]
struct Forest {
    frames: Vec<Value>,
    frame_index: HashMap<Frame, usize>,
    objects: Vec<String>,
}

/// The controls stay hidden until the script runs: what does nothing should not be offered.
pub(super) fn section(run: &Run) -> Markup {
    let has_counts = run.instructions.as_ref().is_some_and(has_trees);
    let lead = html! {
        "Width is server CPU time per transaction"
        @if has_counts {
            ", or, under the conditions that say “counted”, instructions per transaction"
        }
        "; callers stand above what they call. "
        (how_to_read_a_difference(baseline_name(run)))
        " Pale boxes are below what can be told from noise."
    };
    drawing(data(run).as_ref(), &lead)
}

/// The trees of counted instructions alone.
pub(super) fn counted(costs: &InstructionCosts) -> Markup {
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
    let conditions = forest.counted(costs, &variants, below);
    let data = has_trees(costs).then(|| forest.data(&variants, &conditions, [0, 1]));
    let lead = html! {
        "Width is instructions per transaction; callers stand above what they call. "
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
        "Under Δ a box is as wide as the rises and falls below it together, and the "
        "part that remains when they are set off is shaded: "
        span.key.up { "costs more" } " or " span.key.down { "costs less" }
        " than " (baseline) "."
    }
}

/// The one tree of a server that was watched without a study.
pub(super) fn observed(observation: &Observation) -> Markup {
    let per = match observation.basis() {
        Basis::Transactions(_) => "per transaction",
        Basis::Seconds(_) => "per second",
    };
    let lead = html! {
        "Width is the backends' CPU time " (per) "; callers stand above what they call."
        @if observation.seen_blocked().is_some() {
            " The other condition is the time that they were blocked, by where and on what."
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
                    label.pairing title="What exec_simple_query and the exec_…_message functions call is shown under their caller, so that Δ sets off the same work" {
                        input #flame-pair type="checkbox" checked; "See through messages"
                    }
                    button #flame-reset type="button" { "Whole tree" }
                }
                p #flame-info aria-live="polite" { "This part needs JavaScript; it fetches nothing." }
                div #flame-view tabindex="0" role="application"
                    aria-label="Flame graph: arrow keys move, Enter zooms, Escape shows all" {}
                script #flame-data type="application/json" { (PreEscaped(embedded(data))) }
            } @else {
                p { "There is no CPU profile; the warnings above say why." }
            }
        }
    }
}

/// JSON that cannot end its script element, whatever names it holds.
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

/// What the script draws from; `None` where no point has a profile.
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
                    cost.map_or(0.0, |cost| cost.resolvable_us)
                })
                .collect();
            let branches = pruned(&branches, below);
            let title = condition_title(run, condition);
            drawn(&title, &branches, &resolvable_us, MICROS)
        })
        .collect();
    let variants: Vec<&str> = run.plan.variants.iter().map(String::as_str).collect();
    if let Some(costs) = &run.instructions {
        conditions.extend(forest.counted(costs, &variants, below));
    }
    let has_tree = |it: &Value| it["parents"].as_array().is_some_and(|it| !it.is_empty());
    let first = conditions.iter().position(has_tree)?;
    let start = match explained(run) {
        Some(telling) if has_tree(&conditions[telling.condition]) => {
            [telling.condition, telling.variant]
        }
        _ => [first, 1],
    };
    Some(forest.data(&variants, &conditions, start))
}

/// The same for an observation: one variant without a name, and a condition for what was on a CPU
/// and one for what was blocked.
fn observed_data(observation: &Observation) -> Option<Value> {
    let blocked = observation.seen_blocked();
    let sides = [
        ("on a CPU", observation.sampled(), observation.on_cpu_us()),
        ("blocked", blocked.as_ref(), observation.blocked_us()),
    ];
    let mut forest = Forest::default();
    let below = forest.frame(&named(BELOW_NAME));
    let unit = Unit {
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
        conditions.push(drawn(title, &branches, &[0.0], unit));
    }
    if conditions.is_empty() {
        return None;
    }
    Some(forest.data(&[""], &conditions, [0, 0]))
}

/// A frame that is no function of any program.
fn named(name: &str) -> Frame {
    Frame {
        symbol: Some(name.to_owned()),
        object: String::new(),
        offset: 0,
        kernel: false,
    }
}

impl Forest {
    /// The frame's index. Names are kept once for all conditions, which is most of what saves space.
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

    /// The whole that the script draws from.
    fn data(&self, variants: &[&str], conditions: &[Value], start: [usize; 2]) -> Value {
        json!({
            "variants": variants,
            "frames": self.frames,
            "objects": self.objects,
            "conditions": conditions,
            "start": start,
        })
    }

    /// Every condition's tree of counted instructions, for variants of these names.
    fn counted(&mut self, costs: &InstructionCosts, variants: &[&str], below: usize) -> Vec<Value> {
        let conditions = costs.counts.conditions.iter();
        conditions
            .map(|condition| {
                let mut tree = Tree::default();
                let mut resolvable = vec![0.0; variants.len()];
                for (at, name) in variants.iter().enumerate() {
                    let found = condition.variants.iter().find(|it| it.name == *name);
                    if let Some(paths) = found.and_then(|it| it.tree.as_ref()) {
                        tree.grow_counted(self, paths, (at, variants.len()));
                    }
                    if let Some(difference) = costs.difference(&condition.title, name) {
                        resolvable[at] = difference.repeatability;
                    }
                }
                let branches = pruned(&tree.branches, below);
                let title = match condition.title.as_str() {
                    "" => "counted: instructions per transaction".to_owned(),
                    title => format!("{title}, counted: instructions per transaction"),
                };
                drawn(&title, &branches, &resolvable, INSTRUCTIONS)
            })
            .collect()
    }

    /// One tree of all variants' profiles; callers stand before what they call.
    fn merged(&mut self, run: &Run, condition: usize) -> Vec<Branch> {
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

/// A tree that profiles are merged into.
#[derive(Default)]
struct Tree {
    branches: Vec<Branch>,
    index: HashMap<(Option<usize>, usize), usize>,
}

impl Tree {
    /// Adds the profile of a variant, given with the number of all.
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
            // A parent that does not stand before its child is a damaged file's: a root then.
            let parent = node.parent.and_then(|it| places.get(it as usize).copied());
            let frame = profile.frames.get(node.frame as usize);
            let frame = forest.frame(frame.unwrap_or(&unknown));
            let place = self.place(parent, frame, variants);
            self.branches[place].own[variant] += node.total() as f64 * ns_per_sample;
            places.push(place);
        }
    }

    /// Adds the call paths of a variant, given with the number of all.
    fn grow_counted(
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
            let place = self.place(parent, frame, variants);
            self.branches[place].own[variant] += paths.per_transaction(path.instructions);
            places.push(place);
        }
    }

    fn place(&mut self, parent: Option<usize>, frame: usize, variants: usize) -> usize {
        *self.index.entry((parent, frame)).or_insert_with(|| {
            self.branches.push(Branch {
                parent,
                frame,
                own: vec![0.0; variants],
            });
            self.branches.len() - 1
        })
    }
}

/// A condition's tree in the form that the script draws, with each variant's smallest difference
/// that can be told.
fn drawn(title: &str, branches: &[Branch], resolvable: &[f64], unit: Unit<'_>) -> Value {
    // −1 for a root: the script keeps a node above all roots.
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

/// A tenth of a small part is enough, and zeros take one character.
fn short(cost: f64) -> Value {
    let rounded = (cost * 10.0).round() / 10.0;
    if rounded.fract() == 0.0 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

/// The tree without its smallest subtrees, whose costs their callers' remainders take.
fn pruned(branches: &[Branch], below: usize) -> Vec<Branch> {
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
    let mut kept: Vec<Branch> = Vec::new();
    let mut new_place: Vec<Option<usize>> = vec![None; branches.len()];
    let mut remainders: HashMap<Option<usize>, Vec<f64>> = HashMap::new();
    for (at, branch) in branches.iter().enumerate() {
        let parent = branch.parent.map(|parent| new_place[parent]);
        // Below a subtree that is summed, nothing is left to do.
        if parent == Some(None) {
            continue;
        }
        let parent = parent.flatten();
        if large(at) {
            new_place[at] = Some(kept.len());
            kept.push(Branch {
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
        kept.push(Branch {
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

    fn branch(parent: Option<usize>, frame: usize, own: [f64; 2]) -> Branch {
        Branch {
            parent,
            frame,
            own: own.to_vec(),
        }
    }

    #[test]
    fn what_is_small_is_summed_under_its_caller_and_no_cost_is_lost() {
        let branches = [
            branch(None, 1, [900.0, 1000.0]),
            branch(Some(0), 2, [99.8, 0.0]),
            branch(Some(0), 3, [0.1, 0.0]),
            branch(Some(2), 4, [0.1, 0.2]),
            // Small on one side only: kept, or the difference would invent a new function.
            branch(Some(0), 5, [0.1, 5.0]),
        ];
        let kept = pruned(&branches, 0);
        let frames: Vec<usize> = kept.iter().map(|it| it.frame).collect();
        assert_eq!(frames, [1, 2, 5, 0]);
        for variant in 0..2 {
            let sum = |of: &[Branch]| of.iter().map(|it| it.own[variant]).sum::<f64>();
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
