//! Who waits for whom as trees: pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A session, with its parallel workers, or a prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockOwner {
    /// The PID of a backend.
    Session(u32),
    /// The transaction ID of a prepared transaction.
    Prepared(u32),
}

impl LockOwner {
    /// As `pg_blocking_pids` reports it.
    pub fn pid(self) -> u32 {
        match self {
            Self::Session(pid) => pid,
            Self::Prepared(_) => 0,
        }
    }
}

/// Waiters and whom each waits for. Those it names are not all waiters.
pub(super) type WaitGraph = BTreeMap<LockOwner, BTreeSet<LockOwner>>;

/// A lock owner that does not wait, with all that wait behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LockTree {
    pub root: LockOwner,
    /// The root waits, too: for one of those behind it.
    pub is_cycle: bool,
    /// Each after the one that blocks it.
    pub behind: Vec<TreePlace>,
}

/// A waiter's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreePlace {
    pub owner: LockOwner,
    pub blocked_by: LockOwner,
    pub depth: u32,
}

/// The trees of a graph. A waiter that waits for several appears as near to the root as possible, so a
/// queue behind one holder is flat; one that waits for several roots appears behind each of them. A
/// cycle is cut at the waiter that has waited longest, who becomes a root.
///
/// `waited` says how long someone has waited; siblings are in this order, longest first.
pub(super) fn trees(graph: &WaitGraph, waited: impl Fn(LockOwner) -> f64) -> Vec<LockTree> {
    let mut waiters_of: WaitGraph = BTreeMap::new();
    for (&waiter, blockers) in graph {
        for &blocker in blockers.iter().filter(|&&it| it != waiter) {
            waiters_of.entry(blocker).or_default().insert(waiter);
        }
    }
    let waits = |owner: LockOwner| graph.get(&owner).is_some_and(|it| !it.is_empty());
    let mut reached = BTreeSet::new();
    let mut found = Vec::new();
    for &root in waiters_of.keys().filter(|&&it| !waits(it)) {
        found.push(tree(root, &waiters_of, &waited));
    }
    for tree in &found {
        reached.extend(tree.behind.iter().map(|it| it.owner));
    }
    // Everyone else waits for someone in a cycle.
    let mut by_wait: Vec<LockOwner> = graph.keys().copied().filter(|&it| waits(it)).collect();
    by_wait.sort_by(|&a, &b| waited(b).total_cmp(&waited(a)).then(a.cmp(&b)));
    for owner in by_wait {
        if !reached.contains(&owner) && is_in_cycle(owner, &waiters_of) {
            let mut cut = tree(owner, &waiters_of, &waited);
            cut.is_cycle = true;
            reached.insert(owner);
            reached.extend(cut.behind.iter().map(|it| it.owner));
            found.push(cut);
        }
    }
    found
}

/// Everyone behind a root, by the shortest way.
fn tree(root: LockOwner, waiters_of: &WaitGraph, waited: impl Fn(LockOwner) -> f64) -> LockTree {
    let mut places: BTreeMap<LockOwner, TreePlace> = BTreeMap::new();
    let mut children: BTreeMap<LockOwner, Vec<LockOwner>> = BTreeMap::new();
    let mut queue = VecDeque::from([(root, 0)]);
    while let Some((blocker, depth)) = queue.pop_front() {
        for &owner in waiters_of.get(&blocker).into_iter().flatten() {
            if owner == root || places.contains_key(&owner) {
                continue;
            }
            let depth = depth + 1;
            places.insert(
                owner,
                TreePlace {
                    owner,
                    blocked_by: blocker,
                    depth,
                },
            );
            children.entry(blocker).or_default().push(owner);
            queue.push_back((owner, depth));
        }
    }
    for siblings in children.values_mut() {
        siblings.sort_by(|&a, &b| waited(a).total_cmp(&waited(b)).then(b.cmp(&a)));
    }
    let mut behind = Vec::with_capacity(places.len());
    let mut open = children.remove(&root).unwrap_or_default();
    while let Some(owner) = open.pop() {
        behind.push(places[&owner]);
        open.extend(children.remove(&owner).into_iter().flatten());
    }
    LockTree {
        root,
        is_cycle: false,
        behind,
    }
}

fn is_in_cycle(owner: LockOwner, waiters_of: &WaitGraph) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![owner];
    while let Some(at) = open.pop() {
        for &next in waiters_of.get(&at).into_iter().flatten() {
            if next == owner {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::LockOwner::{Prepared, Session};
    use super::*;

    fn graph(edges: &[(u32, &[LockOwner])]) -> WaitGraph {
        let edge = |(waiter, blockers): &(u32, &[LockOwner])| {
            (Session(*waiter), blockers.iter().copied().collect())
        };
        edges.iter().map(edge).collect()
    }

    /// A root, then owner, blocker and depth of everyone behind it.
    type Described = (u32, Vec<(u32, u32, u32)>);

    /// A higher PID has waited less.
    fn described(edges: &[(u32, &[LockOwner])]) -> Vec<Described> {
        let trees = trees(&graph(edges), |owner| -f64::from(owner.pid()));
        let place = |it: &TreePlace| (it.owner.pid(), it.blocked_by.pid(), it.depth);
        let tree = |it: &LockTree| (it.root.pid(), it.behind.iter().map(place).collect());
        trees.iter().map(tree).collect()
    }

    #[test]
    fn everyone_follows_the_one_who_blocks_it_by_the_shortest_way() {
        // 2 waits for 1; 3 and 4 queue behind 2; 4 also behind 3; 5 waits for 3.
        let edges: &[(u32, &[LockOwner])] = &[
            (2, &[Session(1)]),
            (3, &[Session(2)]),
            (4, &[Session(2), Session(3)]),
            (5, &[Session(3)]),
        ];
        let behind = vec![(2, 1, 1), (3, 2, 2), (5, 3, 3), (4, 2, 2)];
        assert_eq!(described(edges), [(1, behind)]);
    }

    #[test]
    fn a_waiter_is_behind_each_of_its_roots() {
        let edges: &[(u32, &[LockOwner])] = &[(3, &[Session(1), Prepared(9)])];
        assert_eq!(
            described(edges),
            [(1, vec![(3, 1, 1)]), (0, vec![(3, 0, 1)])]
        );
    }

    #[test]
    fn a_cycle_is_cut_at_its_oldest_waiter_with_those_behind_it() {
        // 1 is the oldest waiter of all, but only behind the cycle of 2 and 3.
        let edges: &[(u32, &[LockOwner])] = &[
            (1, &[Session(3)]),
            (2, &[Session(3)]),
            (3, &[Session(2)]),
            (4, &[Session(4)]),
        ];
        let behind = vec![(3, 2, 1), (1, 3, 2)];
        assert_eq!(described(edges), [(2, behind)]);
        assert!(trees(&graph(edges), |_| 0.0)[0].is_cycle);
    }

    #[test]
    fn a_graph_without_waiters_has_no_trees() {
        assert_eq!(described(&[(1, &[])]), []);
        assert_eq!(described(&[]), []);
    }
}
