//! Which nodes of a call graph lie on a cycle: Tarjan's strongly connected components, without
//! recursion, since call graphs are deep.
//!
//! Source: R. Tarjan, "Depth-first search and linear graph algorithms" (SIAM J. Computing, 1972).

const UNSEEN: usize = usize::MAX;

/// For every node, whether it shares a component with another one. `edges` must not include edges
/// from a node to itself.
pub fn members(edges: &[Vec<usize>]) -> Vec<bool> {
    let mut search = Search {
        edges,
        order: vec![UNSEEN; edges.len()],
        low: vec![0; edges.len()],
        on_stack: vec![false; edges.len()],
        stack: Vec::new(),
        seen: 0,
        in_cycle: vec![false; edges.len()],
    };
    for node in 0..edges.len() {
        if search.order[node] == UNSEEN {
            search.visit(node);
        }
    }
    search.in_cycle
}

struct Search<'a> {
    edges: &'a [Vec<usize>],
    order: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    seen: usize,
    in_cycle: Vec<bool>,
}

impl Search<'_> {
    fn visit(&mut self, root: usize) {
        let mut path = vec![(root, 0)];
        self.enter(root);
        while let Some((node, next)) = path.last_mut() {
            let node = *node;
            if let Some(&to) = self.edges[node].get(*next) {
                *next += 1;
                if self.order[to] == UNSEEN {
                    self.enter(to);
                    path.push((to, 0));
                } else if self.on_stack[to] {
                    self.low[node] = self.low[node].min(self.order[to]);
                }
                continue;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                self.low[parent] = self.low[parent].min(self.low[node]);
            }
            if self.low[node] == self.order[node] {
                self.leave(node);
            }
        }
    }

    fn enter(&mut self, node: usize) {
        self.order[node] = self.seen;
        self.low[node] = self.seen;
        self.seen += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
    }

    /// Pops a finished component from the stack.
    fn leave(&mut self, root: usize) {
        let from = self
            .stack
            .iter()
            .rposition(|&node| node == root)
            .unwrap_or(0);
        let component = self.stack.split_off(from);
        for &node in &component {
            self.on_stack[node] = false;
            self.in_cycle[node] = component.len() > 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::members;

    #[test]
    fn only_nodes_on_cycles_are_members() {
        // 0 → 1 → 2 → 1, 2 → 3; 4 ↔ 5; 6 alone.
        let edges = [
            vec![1],
            vec![2],
            vec![1, 3],
            vec![],
            vec![5],
            vec![4],
            vec![],
        ];
        assert_eq!(
            members(&edges),
            [false, true, true, false, true, true, false]
        );
    }
}
