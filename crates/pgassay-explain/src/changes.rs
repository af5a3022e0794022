//! The differences between matched steps, and the steps without a match.

use crate::change::{PlanChange, PlanChangeKind};
use crate::figures::StepFigures;
use crate::join_order::join_trees;
use crate::matching::PlanMatching;
use crate::number::short;
use crate::plan::BufferUsage;
use crate::side::PlanSide;
use crate::spill::spill_state;
use crate::step::{PlanStep, StepClass};
use crate::triggers;

/// An estimate that is wrong by this factor or more is reported if the other plan's is not.
const ESTIMATE_FACTOR: f64 = 10.0;
/// Blocks and rows differ if they differ by more than this share of the larger one.
const SHARE_MIN: f64 = 0.10;
/// Fewer blocks are the noise of repeated executions: hint bits, visibility map, free space map.
const BLOCKS_MIN: f64 = 8.0;

/// All differences, in the order of their kinds, then of the plan.
pub(crate) fn changes(
    a: &PlanSide<'_>,
    b: &PlanSide<'_>,
    matching: &PlanMatching,
) -> Vec<PlanChange> {
    let comparison = PlanComparison { a, b, matching };
    let mut found = Vec::new();
    comparison.methods(&mut found);
    comparison.join_orders(&mut found);
    comparison.nodes(&mut found);
    found.extend(triggers::changes(a.plan, b.plan));
    comparison.conditions(&mut found);
    comparison.keys(&mut found);
    comparison.estimates(&mut found);
    comparison.spills(&mut found);
    comparison.buffers(&mut found);
    comparison.rows(&mut found);
    found.sort_by_key(|it| it.kind);
    found
}

struct PlanComparison<'a> {
    a: &'a PlanSide<'a>,
    b: &'a PlanSide<'a>,
    matching: &'a PlanMatching,
}

/// A clause at a step.
struct PlacedClause<'a> {
    step: usize,
    kind: &'a str,
    key: &'a str,
    text: &'a str,
}

impl PlanComparison<'_> {
    fn change(&self, kind: PlanChangeKind, a: Option<usize>, b: Option<usize>) -> PlanChange {
        PlanChange {
            kind,
            a: a.map(|it| self.a.place(it)),
            b: b.map(|it| self.b.place(it)),
            before: None,
            after: None,
            before_figure: None,
            after_figure: None,
        }
    }

    /// The matched pairs with their figures.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, &StepFigures, &StepFigures)> {
        let pairs = self.matching.pairs();
        pairs.map(|(a, b)| (a, b, &self.a.figures[a], &self.b.figures[b]))
    }

    fn methods(&self, found: &mut Vec<PlanChange>) {
        for (a, b) in self.matching.pairs() {
            let [before, after] = [&self.a.steps[a], &self.b.steps[b]];
            if before.method != after.method {
                found.push(PlanChange {
                    before: Some(before.label.clone()),
                    after: Some(after.label.clone()),
                    ..self.change(PlanChangeKind::Method, Some(a), Some(b))
                });
            }
        }
    }

    fn join_orders(&self, found: &mut Vec<PlanChange>) {
        let mut others = join_trees(self.b.plan, &self.b.steps);
        for before in join_trees(self.a.plan, &self.a.steps) {
            let Some(at) = others.iter().position(|it| it.leaves == before.leaves) else {
                continue;
            };
            let after = others.remove(at);
            if before.order != after.order {
                found.push(PlanChange {
                    before: Some(before.order),
                    after: Some(after.order),
                    ..self.change(
                        PlanChangeKind::JoinOrder,
                        Some(before.step),
                        Some(after.step),
                    )
                });
            }
        }
    }

    /// Nodes in one plan only. The Hash below a Hash Join is part of the join's method.
    fn nodes(&self, found: &mut Vec<PlanChange>) {
        let is_of_interest = |step: &PlanStep| step.class != StepClass::PassThrough("Hash");
        for (at, step) in self.a.steps.iter().enumerate() {
            if self.matching.a_to_b[at].is_none() && is_of_interest(step) {
                found.push(PlanChange {
                    before: Some(described(step)),
                    ..self.change(PlanChangeKind::NodeRemoved, Some(at), None)
                });
            }
        }
        for (at, step) in self.b.steps.iter().enumerate() {
            if self.matching.b_to_a[at].is_none() && is_of_interest(step) {
                found.push(PlanChange {
                    after: Some(described(step)),
                    ..self.change(PlanChangeKind::NodeAdded, None, Some(at))
                });
            }
        }
    }

    fn conditions(&self, found: &mut Vec<PlanChange>) {
        let (mut a, mut b) = (placed(&self.a.steps), placed(&self.b.steps));
        let partner = |it: &PlacedClause<'_>| self.matching.a_to_b[it.step];
        // Equal at the same step; the same clause elsewhere in the step; elsewhere in the plan.
        let same = |a: &PlacedClause<'_>, b: &PlacedClause<'_>| {
            partner(a) == Some(b.step) && a.kind == b.kind && a.key == b.key
        };
        take_pairs(&mut a, &mut b, same);
        let moved = take_pairs(&mut a, &mut b, |a, b| {
            partner(a) == Some(b.step) && a.key == b.key
        });
        let elsewhere = take_pairs(&mut a, &mut b, |a, b| a.key == b.key);
        for (before, after) in moved.into_iter().chain(elsewhere) {
            if !follows_from_method(before.kind, after.kind) {
                found.push(PlanChange {
                    before: Some(format!("{}: {}", before.kind, before.text)),
                    after: Some(format!("{}: {}", after.kind, after.text)),
                    ..self.change(
                        PlanChangeKind::Condition,
                        Some(before.step),
                        Some(after.step),
                    )
                });
            }
        }
        // The conditions of a node in one plan only came and went with it.
        for before in a {
            if let Some(b) = partner(&before) {
                found.push(PlanChange {
                    before: Some(format!("{}: {}", before.kind, before.text)),
                    ..self.change(PlanChangeKind::Condition, Some(before.step), Some(b))
                });
            }
        }
        for after in b {
            if let Some(a) = self.matching.b_to_a[after.step] {
                found.push(PlanChange {
                    after: Some(format!("{}: {}", after.kind, after.text)),
                    ..self.change(PlanChangeKind::Condition, Some(a), Some(after.step))
                });
            }
        }
    }

    /// Keys that both steps have: another method has other keys.
    fn keys(&self, found: &mut Vec<PlanChange>) {
        for (a, b) in self.matching.pairs() {
            let [before, after] = [&self.a.steps[a].keys, &self.b.steps[b].keys];
            for (kind, (key, text)) in before {
                let Some((_, other)) = after.get(kind).filter(|(it, _)| it != key) else {
                    continue;
                };
                found.push(PlanChange {
                    before: Some(format!("{kind}: {text}")),
                    after: Some(format!("{kind}: {other}")),
                    ..self.change(PlanChangeKind::Condition, Some(a), Some(b))
                });
            }
        }
    }

    fn estimates(&self, found: &mut Vec<PlanChange>) {
        for (a, b, of_a, of_b) in self.pairs() {
            // Of a write, the plan has no rows from 14 on, and those of its input before.
            let class = self.a.steps[a].class;
            let is_repeated = class.is_pass_through() || class == StepClass::Write;
            let (Some(before), Some(after)) = (of_a.estimate_factor(), of_b.estimate_factor())
            else {
                continue;
            };
            let is_off = |factor: f64| factor.max(1.0 / factor) >= ESTIMATE_FACTOR;
            let is_high = |factor: f64| factor >= ESTIMATE_FACTOR;
            let is_unknown = (is_high(before) && stops_early(self.a, a))
                || (is_high(after) && stops_early(self.b, b));
            if is_repeated || is_unknown || is_off(before) == is_off(after) {
                continue;
            }
            found.push(PlanChange {
                before: Some(estimate(of_a, before)),
                after: Some(estimate(of_b, after)),
                before_figure: Some(before),
                after_figure: Some(after),
                ..self.change(PlanChangeKind::Estimate, Some(a), Some(b))
            });
        }
    }

    fn spills(&self, found: &mut Vec<PlanChange>) {
        for (a, b, of_a, of_b) in self.pairs() {
            let [before, after] = [(self.a, a), (self.b, b)]
                .map(|(side, at)| spill_state(side.plan, &side.steps[at].members));
            let differs = match (&before, &after) {
                (Some(before), Some(after)) => before.differs_from(after),
                // The other plan's method has no need of memory.
                (Some(only), None) | (None, Some(only)) => only.is_spilled(),
                (None, None) => false,
            };
            let ran = of_a
                .loops
                .zip(of_b.loops)
                .is_some_and(|(a, b)| a > 0.0 && b > 0.0);
            if differs && ran {
                found.push(PlanChange {
                    before: of_a.memory.clone(),
                    after: of_b.memory.clone(),
                    ..self.change(PlanChangeKind::Spill, Some(a), Some(b))
                });
            }
        }
        for (at, figures) in self.a.figures.iter().enumerate() {
            if self.matching.a_to_b[at].is_none() && figures.is_spilled {
                found.push(PlanChange {
                    before: figures.memory.clone(),
                    ..self.change(PlanChangeKind::Spill, Some(at), None)
                });
            }
        }
        for (at, figures) in self.b.figures.iter().enumerate() {
            if self.matching.b_to_a[at].is_none() && figures.is_spilled {
                found.push(PlanChange {
                    after: figures.memory.clone(),
                    ..self.change(PlanChangeKind::Spill, None, Some(at))
                });
            }
        }
    }

    fn buffers(&self, found: &mut Vec<PlanChange>) {
        for (a, b, of_a, of_b) in self.pairs() {
            let (Some(before), Some(after)) = (of_a.own_buffers, of_b.own_buffers) else {
                continue;
            };
            let accessed = differ(before.accessed(), after.accessed(), BLOCKS_MIN);
            let temp = differ(before.temp(), after.temp(), BLOCKS_MIN);
            if of_a.loops.is_some() && of_b.loops.is_some() && (accessed || temp) {
                found.push(PlanChange {
                    before: Some(blocks(&before)),
                    after: Some(blocks(&after)),
                    before_figure: Some(before.accessed() + before.temp()),
                    after_figure: Some(after.accessed() + after.temp()),
                    ..self.change(PlanChangeKind::Buffers, Some(a), Some(b))
                });
            }
        }
    }

    fn rows(&self, found: &mut Vec<PlanChange>) {
        for (a, b, of_a, of_b) in self.pairs() {
            // What passes rows on repeats the difference of the steps below.
            let repeats = self.a.steps[a].class.is_pass_through();
            let (Some(before), Some(after)) = (of_a.rows, of_b.rows) else {
                continue;
            };
            let error = of_a.rows_error + of_b.rows_error;
            if !repeats && differ(before, after, error) {
                found.push(PlanChange {
                    before: Some(short(before)),
                    after: Some(short(after)),
                    before_figure: Some(before),
                    after_figure: Some(after),
                    ..self.change(PlanChangeKind::Rows, Some(a), Some(b))
                });
            }
        }
    }
}

/// A step with its keys, since `Sort` alone says little.
fn described(step: &PlanStep) -> String {
    let keys = ["Sort Key", "Group Key", "Cache Key"];
    let keys = keys.into_iter().find_map(|it| step.keys.get(it));
    let subplan = step.subplan.as_ref().map(|it| format!("{it}: "));
    let keys = keys.map(|(_, text)| format!(" by {text}"));
    format!(
        "{}{}{}",
        subplan.unwrap_or_default(),
        step.label,
        keys.unwrap_or_default()
    )
}

fn placed(steps: &[PlanStep]) -> Vec<PlacedClause<'_>> {
    let of_step = |(step, it): (usize, &'_ PlanStep)| -> Vec<(usize, usize)> {
        (0..it.clauses.len()).map(|clause| (step, clause)).collect()
    };
    let all = steps.iter().enumerate().flat_map(of_step);
    all.map(|(step, clause)| {
        let (kind, clause) = &steps[step].clauses[clause];
        PlacedClause {
            step,
            kind,
            key: &clause.key,
            text: &clause.text,
        }
    })
    .collect()
}

/// Removes and returns the pairs for which `is_pair` holds, each member once.
fn take_pairs<'a, 'b>(
    a: &mut Vec<PlacedClause<'a>>,
    b: &mut Vec<PlacedClause<'b>>,
    is_pair: impl Fn(&PlacedClause<'a>, &PlacedClause<'b>) -> bool,
) -> Vec<(PlacedClause<'a>, PlacedClause<'b>)> {
    let mut pairs = Vec::new();
    let mut left = Vec::new();
    for it in std::mem::take(a) {
        match b.iter().position(|other| is_pair(&it, other)) {
            Some(at) => pairs.push((it, b.remove(at))),
            None => left.push(it),
        }
    }
    *a = left;
    pairs
}

/// A join's condition that has another name because of its method.
fn follows_from_method(before: &str, after: &str) -> bool {
    let is_of_join = |kind| matches!(kind, "Hash Cond" | "Merge Cond");
    is_of_join(before) && is_of_join(after)
}

/// Whether a step may have ended before its last row because what is above had enough: a Limit, a semi-join or an
/// anti-join that found its match, a merge join whose other input ended, or EXISTS. Then a high estimate is not wrong.
fn stops_early(side: &PlanSide<'_>, at: usize) -> bool {
    let nodes = &side.plan.nodes;
    let mut node = side.steps[at].node;
    loop {
        let it = &nodes[node];
        // The subplan of EXISTS is executed up to its first row; others look the same.
        let is_cte = || {
            it.subplan_name
                .as_deref()
                .is_some_and(|name| name.starts_with("CTE "))
        };
        if it.is_subplan() && !is_cte() {
            return true;
        }
        let Some(parent) = it.parent else {
            return false;
        };
        let is_inner = it.relationship.as_deref() == Some("Inner");
        let above = &nodes[parent];
        let join_type = above.join_type.as_deref().unwrap_or_default();
        match above.node_type.as_str() {
            "Limit" | "Merge Join" => return true,
            "Nested Loop" if is_inner && matches!(join_type, "Semi" | "Anti") => return true,
            "Sort" | "Hash" | "Aggregate" | "ModifyTable" => return false,
            _ => node = parent,
        }
    }
}

/// Whether figures differ by more than `at_least`, and by more than [`SHARE_MIN`].
pub(crate) fn differ(a: f64, b: f64, at_least: f64) -> bool {
    let difference = (a - b).abs();
    difference > at_least && difference > SHARE_MIN * a.max(b)
}

fn estimate(figures: &StepFigures, factor: f64) -> String {
    let rows = |it: Option<f64>| it.map_or_else(String::new, short);
    let (estimated, actual) = (rows(figures.estimated_rows), rows(figures.rows_per_loop));
    let (factor, direction) = if factor >= 1.0 {
        (factor, "high")
    } else {
        (1.0 / factor, "low")
    };
    if factor < 1.05 {
        return format!("estimated {estimated}, actual {actual}");
    }
    format!(
        "estimated {estimated}, actual {actual} ({}× too {direction})",
        short(factor)
    )
}

fn blocks(usage: &BufferUsage) -> String {
    let accessed = short(usage.accessed());
    let plural = if accessed == "1" { "" } else { "s" };
    let mut text = format!("{accessed} block{plural}");
    if usage.temp() > 0.0 {
        text = format!("{text}, {} temporary", short(usage.temp()));
    }
    text
}
