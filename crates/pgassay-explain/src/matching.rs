//! Which step of one plan is which step of another, in four passes. Each step is matched once at most.
//!
//! 1. Equal subtrees, the largest first.
//! 2. The same set of tables below: a join of a, b and c is the same step of the query, however it is
//!    executed and in whatever order.
//! 3. Scans of the same table.
//! 4. What remains below matched parents: by the longest common subsequence of node types, then by the
//!    role below the parent. Of the tables that both plans have, both steps must have the same below.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::plan::QueryPlan;
use crate::step::{PlanStep, StepClass};

/// The matched steps, by their positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PlanMatching {
    pub(crate) a_to_b: Vec<Option<usize>>,
    pub(crate) b_to_a: Vec<Option<usize>>,
}

impl PlanMatching {
    /// The matched pairs in the order of the first plan.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let pairs = self.a_to_b.iter().enumerate();
        pairs.filter_map(|(a, b)| Some((a, (*b)?)))
    }
}

/// Matches the steps of two plans. Matching b with a gives the same pairs.
pub(crate) fn match_steps(
    (plan_a, a): (&QueryPlan, &[PlanStep]),
    (plan_b, b): (&QueryPlan, &[PlanStep]),
) -> PlanMatching {
    // Ties are broken by the order of the plans, so this order must not depend on the caller's.
    let text = |steps: &[PlanStep]| -> Vec<(usize, String)> {
        let steps = steps.iter();
        steps.map(|it| (it.depth, it.identity.clone())).collect()
    };
    let is_swapped = text(b) < text(a);
    let (plan_a, a, plan_b, b) = if is_swapped {
        (plan_b, b, plan_a, a)
    } else {
        (plan_a, a, plan_b, b)
    };
    let [tables_a, tables_b] = [a, b].map(|steps| {
        let aliases = steps.iter().flat_map(|it| &it.aliases);
        aliases.cloned().collect::<BTreeSet<String>>()
    });
    let mut matcher = Matcher {
        common: &tables_a & &tables_b,
        plans: [plan_a, plan_b],
        steps: [a, b],
        found: PlanMatching {
            a_to_b: vec![None; a.len()],
            b_to_a: vec![None; b.len()],
        },
    };
    matcher.equal_subtrees();
    matcher.same_tables();
    matcher.same_scans();
    matcher.below_matched_parents();
    let PlanMatching { a_to_b, b_to_a } = matcher.found;
    if is_swapped {
        PlanMatching {
            a_to_b: b_to_a,
            b_to_a: a_to_b,
        }
    } else {
        PlanMatching { a_to_b, b_to_a }
    }
}

struct Matcher<'a> {
    plans: [&'a QueryPlan; 2],
    steps: [&'a [PlanStep]; 2],
    /// The tables of both plans.
    common: BTreeSet<String>,
    found: PlanMatching,
}

impl Matcher<'_> {
    fn pair(&mut self, a: usize, b: usize) {
        debug_assert!(self.found.a_to_b[a].is_none() && self.found.b_to_a[b].is_none());
        self.found.a_to_b[a] = Some(b);
        self.found.b_to_a[b] = Some(a);
    }

    fn is_free(&self, side: usize, at: usize) -> bool {
        let found = [&self.found.a_to_b, &self.found.b_to_a][side];
        found[at].is_none()
    }

    /// The steps of a side that are not matched.
    fn free(&self, side: usize) -> Vec<usize> {
        let all = 0..self.steps[side].len();
        all.filter(|&at| self.is_free(side, at)).collect()
    }

    fn equal_subtrees(&mut self) {
        let mut known = HashMap::new();
        let [a, b] = [0, 1].map(|side| subtrees(self.steps[side], &mut known));
        let mut by_size: BTreeMap<(usize, usize), [Vec<usize>; 2]> = BTreeMap::new();
        for (side, subtrees) in [&a, &b].into_iter().enumerate() {
            for (at, subtree) in subtrees.iter().enumerate() {
                // Without a table, equal steps need not be the same step of the query.
                if !self.steps[side][at].aliases.is_empty() {
                    let key = (subtree.size, subtree.number);
                    by_size.entry(key).or_default()[side].push(at);
                }
            }
        }
        for ((size, _), [in_a, in_b]) in by_size.into_iter().rev() {
            let whole = |side: usize, at: usize| (at..at + size).all(|at| self.is_free(side, at));
            let in_a: Vec<usize> = in_a.into_iter().filter(|&at| whole(0, at)).collect();
            let in_b: Vec<usize> = in_b.into_iter().filter(|&at| whole(1, at)).collect();
            for (a, b) in in_a.into_iter().zip(in_b) {
                for offset in 0..size {
                    self.pair(a + offset, b + offset);
                }
            }
        }
    }

    fn same_tables(&mut self) {
        self.match_by(|step| {
            let is_joint = step.class != StepClass::Scan && !step.aliases.is_empty();
            is_joint.then(|| (step.class, step.aliases.iter().cloned().collect::<Vec<_>>()))
        });
    }

    fn same_scans(&mut self) {
        let text = |parts: [&str; 3]| parts.map(str::to_owned);
        self.match_by(|step| {
            let it = step.scan.as_ref()?;
            Some(text([&it.schema, &it.object, &it.alias]))
        });
        self.match_by(|step| {
            let it = step.scan.as_ref()?;
            Some(text([&it.schema, &it.object, &it.root]))
        });
        self.match_by(|step| {
            let it = step.scan.as_ref().filter(|it| !it.root.is_empty())?;
            Some(it.root.clone())
        });
        self.match_by(|step| {
            let it = step.scan.as_ref().filter(|it| !it.object.is_empty())?;
            Some(it.object.clone())
        });
    }

    /// Matches free steps with equal keys: those that do the same first, then those of the same type,
    /// then from the top down.
    fn match_by<K: Ord>(&mut self, key: impl Fn(&PlanStep) -> Option<K>) {
        let mut groups: BTreeMap<K, [Vec<usize>; 2]> = BTreeMap::new();
        for side in [0, 1] {
            for at in self.free(side) {
                if let Some(key) = key(&self.steps[side][at]) {
                    groups.entry(key).or_default()[side].push(at);
                }
            }
        }
        for [in_a, in_b] in groups.into_values() {
            let identity = |side: usize, at: usize| self.steps[side][at].identity.clone();
            let equal = pairs_by(&in_a, &in_b, identity);
            self.pair_all(equal);
            for side_key in [true, false] {
                let free_a: Vec<usize> = in_a
                    .iter()
                    .copied()
                    .filter(|&it| self.is_free(0, it))
                    .collect();
                let free_b: Vec<usize> = in_b
                    .iter()
                    .copied()
                    .filter(|&it| self.is_free(1, it))
                    .collect();
                let kind = |side: usize, at: usize| {
                    if side_key {
                        self.node_type(side, at).to_owned()
                    } else {
                        String::new()
                    }
                };
                let pairs = pairs_by(&free_a, &free_b, kind);
                self.pair_all(pairs);
            }
        }
    }

    fn pair_all(&mut self, pairs: Vec<(usize, usize)>) {
        for (a, b) in pairs {
            self.pair(a, b);
        }
    }

    fn node_type(&self, side: usize, at: usize) -> &str {
        let node = self.steps[side][at].node;
        &self.plans[side].nodes[node].node_type
    }

    fn below_matched_parents(&mut self) {
        let tops = [0, 1].map(|side| {
            let is_empty = self.steps[side].is_empty();
            self.free_below(side, if is_empty { None } else { Some(0) })
        });
        let mut left = self.rest(&tops);
        left.extend(self.found.pairs());
        while let Some((a, b)) = left.pop() {
            let children = [(0, a), (1, b)].map(|(side, at)| {
                let children = self.steps[side][at].children.iter();
                let below = children.flat_map(|&child| self.free_below(side, Some(child)));
                below.collect::<Vec<usize>>()
            });
            left.extend(self.rest(&children));
        }
    }

    /// A free step, and those that it hides if it only passes rows on.
    fn free_below(&self, side: usize, at: Option<usize>) -> Vec<usize> {
        let Some(at) = at.filter(|&at| self.is_free(side, at)) else {
            return Vec::new();
        };
        let mut found = vec![at];
        let step = &self.steps[side][at];
        if step.class.is_pass_through() {
            for &child in &step.children {
                found.extend(self.free_below(side, Some(child)));
            }
        }
        found
    }

    /// Matches lists of free steps below matched parents, and returns the pairs.
    fn rest(&mut self, lists: &[Vec<usize>; 2]) -> Vec<(usize, usize)> {
        let types = [0, 1].map(|side| {
            let list = lists[side].iter();
            list.map(|&at| (self.node_type(side, at), self.common_tables(side, at)))
                .collect::<Vec<_>>()
        });
        let mut pairs: Vec<(usize, usize)> = common_subsequence(&types[0], &types[1])
            .into_iter()
            .map(|(a, b)| (lists[0][a], lists[1][b]))
            .collect();
        self.pair_all(pairs.clone());
        for &a in &lists[0] {
            let partner = lists[1]
                .iter()
                .copied()
                .find(|&b| self.is_free(0, a) && self.is_free(1, b) && self.has_same_role(a, b));
            if let Some(b) = partner {
                self.pair(a, b);
                pairs.push((a, b));
            }
        }
        pairs
    }

    /// The tables below a step that the other plan has too.
    fn common_tables(&self, side: usize, at: usize) -> BTreeSet<&str> {
        let step = &self.steps[side][at];
        let aliases = step.aliases.iter().filter(|it| self.common.contains(*it));
        aliases.map(String::as_str).collect()
    }

    /// Whether two steps are of the same kind and have the same relationship to their parents.
    fn has_same_role(&self, a: usize, b: usize) -> bool {
        let [step_a, step_b] = [&self.steps[0][a], &self.steps[1][b]];
        let relationship =
            |side: usize, step: &PlanStep| self.plans[side].nodes[step.node].relationship.clone();
        step_a.class == step_b.class
            && self.common_tables(0, a) == self.common_tables(1, b)
            && !step_a.class.is_pass_through()
            && relationship(0, step_a) == relationship(1, step_b)
            && step_a.subplan == step_b.subplan
    }
}

/// A subtree's number, equal for equal subtrees, and its number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subtree {
    number: usize,
    size: usize,
}

/// The subtree of each step; `known` has those of both plans.
fn subtrees<'a>(
    steps: &'a [PlanStep],
    known: &mut HashMap<(&'a str, Vec<usize>), usize>,
) -> Vec<Subtree> {
    let mut found = vec![Subtree { number: 0, size: 1 }; steps.len()];
    for (at, step) in steps.iter().enumerate().rev() {
        let children: Vec<usize> = step.children.iter().map(|&it| found[it].number).collect();
        let below: usize = step.children.iter().map(|&it| found[it].size).sum();
        let next = known.len();
        let number = *known.entry((&step.identity, children)).or_insert(next);
        found[at] = Subtree {
            number,
            size: below + 1,
        };
    }
    found
}

/// Pairs members of two lists with equal keys, in order.
fn pairs_by(a: &[usize], b: &[usize], key: impl Fn(usize, usize) -> String) -> Vec<(usize, usize)> {
    let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for &at in b.iter().rev() {
        by_key.entry(key(1, at)).or_default().push(at);
    }
    let partners = a.iter().filter_map(|&at| {
        let partner = by_key.get_mut(&key(0, at))?.pop()?;
        Some((at, partner))
    });
    partners.collect()
}

/// The positions of the longest common subsequence.
fn common_subsequence<T: PartialEq>(a: &[T], b: &[T]) -> Vec<(usize, usize)> {
    let mut lengths = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            lengths[i][j] = if a[i] == b[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            found.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if lengths[i + 1][j] >= lengths[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests;
