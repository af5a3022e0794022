//! Stored CPU profiles: call trees of sample counts, with the quality of the sampling.
//!
//! Samples only apportion time: the cost of a function is its share of the samples times the exact
//! on-CPU time of the backends (see the crate `pgassay-account`).

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::transactions::Transactions;

/// A function, or an address whose function is unknown.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Frame {
    /// The symbol that contains the address; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// File name of the program or library; `[kernel]` for the kernel.
    pub object: String,
    /// The address within the object if the symbol is unknown, otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// Whether it belongs to the kernel.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kernel: bool,
}

// Serde passes fields by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Frame {
    /// The name to print: the symbol, or `object+0xoffset`.
    pub fn label(&self) -> String {
        match &self.symbol {
            Some(symbol) => symbol.clone(),
            None => format!("{}+{:#x}", self.object, self.offset),
        }
    }
}

/// A node of a call tree: a frame with a given caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Index of the caller's node, smaller than this node's index. `None` for outermost frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Index into [`Profile::frames`].
    pub frame: u32,
    /// Samples with this frame as the leaf, by block.
    pub samples: Vec<u32>,
    /// Of which, over all blocks, within transactions that ended in a trial's window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_transactions: u64,
    /// Of which within transactions that took longer than their trial's p99.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_tail: u64,
}

/// The CPU stacks of one point's backends, over all profiled trials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// Every distinct frame.
    pub frames: Vec<Frame>,
    /// The call tree, callers before callees.
    pub nodes: Vec<Node>,
    /// Where the backends were blocked; empty if not observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<BlockedStack>,
    /// How the backends spent their time within transactions; `None` if not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions: Option<Transactions>,
    /// Quality of the sampling.
    pub quality: Quality,
}

/// Blocked time at one call site.
///
/// It is time within the observed slices, so it only apportions the blocked time of the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockedStack {
    /// Index of the innermost frame's node; `None` if no stack was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// `wait_event_type` during that time; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wait_event_type: String,
    /// `wait_event` during that time; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wait_event: String,
    /// Blocked time in nanoseconds, by block.
    pub blocked_ns: Vec<u64>,
    /// Of which, over all blocks, within transactions that ended in a trial's window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_transactions_ns: u64,
    /// Of which within transactions that took longer than their trial's p99.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_tail_ns: u64,
}

/// Quality of a profile. Everything that is dropped is counted here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// Samples of the point's backends.
    pub samples: u64,
    /// Of which with a user stack.
    pub user_samples: u64,
    /// Of which with a stack unwound to the entry point of the process.
    pub unwound_to_entry: u64,
    /// Of the others, stacks deeper than the copied part.
    pub truncated: u64,
    /// Samples that the kernel dropped because the ring buffer was full.
    pub lost: u64,
    /// Samples whose leaf has no known symbol.
    pub unknown_leaf: u64,
    /// CPU time that the backends' samples represent, in nanoseconds, excluding parallel workers, whose
    /// time is not part of the backends' exact totals; 0 if not recorded.
    #[serde(default)]
    pub sampled_ns: u64,
    /// Time of backends within the slices in which context switches were observed, in nanoseconds.
    #[serde(default)]
    pub observed_ns: u64,
    /// Of which in an unknown state.
    #[serde(default)]
    pub unknown_state_ns: u64,
    /// Of which on a CPU according to the context switches; 0 if wake-ups were not observed.
    #[serde(default)]
    pub switched_cpu_ns: u64,
    /// Of which in a run queue according to the context switches and wake-ups; 0 if not observed.
    #[serde(default)]
    pub switched_run_queue_ns: u64,
}

impl Quality {
    /// Adds another trial's counts.
    pub fn add(&mut self, other: &Self) {
        // A file of a run from elsewhere may have any numbers.
        let sum = |total: &mut u64, more: u64| *total = total.saturating_add(more);
        sum(&mut self.samples, other.samples);
        sum(&mut self.user_samples, other.user_samples);
        sum(&mut self.unwound_to_entry, other.unwound_to_entry);
        sum(&mut self.truncated, other.truncated);
        sum(&mut self.lost, other.lost);
        sum(&mut self.unknown_leaf, other.unknown_leaf);
        sum(&mut self.sampled_ns, other.sampled_ns);
        sum(&mut self.observed_ns, other.observed_ns);
        sum(&mut self.unknown_state_ns, other.unknown_state_ns);
        sum(&mut self.switched_cpu_ns, other.switched_cpu_ns);
        sum(&mut self.switched_run_queue_ns, other.switched_run_queue_ns);
    }
}

/// Builds a [`Profile`] from stacks, a block at a time.
#[derive(Debug, Default)]
pub struct ProfileBuilder {
    profile: Profile,
    frame_index: HashMap<Frame, u32>,
    node_index: HashMap<(Option<u32>, u32), u32>,
    blocked_index: HashMap<(Option<u32>, String, String), usize>,
    blocks: usize,
}

impl ProfileBuilder {
    /// A builder for `blocks` blocks.
    pub fn new(blocks: usize) -> Self {
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// Adds `count` samples of one stack (outermost frame first) in one block. Counts an empty stack under
    /// a frame called `[no stack]`, so that the total is complete.
    pub fn add(&mut self, block: usize, stack: impl IntoIterator<Item = Frame>, count: u32) {
        let leaf = match self.leaf(stack) {
            Some(leaf) => leaf,
            None => self.node(
                None,
                Frame {
                    symbol: Some("[no stack]".to_owned()),
                    object: String::new(),
                    offset: 0,
                    kernel: false,
                },
            ),
        };
        self.profile.nodes[leaf as usize].samples[block] += count;
    }

    /// Adds the numbers of samples of a stack (see [`Self::add`]) that were within transactions and within
    /// those of the tail. Ignores empty stacks.
    pub fn add_in_transactions(
        &mut self,
        stack: impl IntoIterator<Item = Frame>,
        (in_transactions, in_tail): (u64, u64),
    ) {
        if let Some(leaf) = self.leaf(stack) {
            let node = &mut self.profile.nodes[leaf as usize];
            node.in_transactions += in_transactions;
            node.in_tail += in_tail;
        }
    }

    /// Adds blocked time at a stack (outermost frame first, empty if none was sampled) with its wait event
    /// type and wait event, as in `pg_stat_activity`.
    pub fn add_blocked(
        &mut self,
        block: usize,
        stack: impl IntoIterator<Item = Frame>,
        (kind, name): (&str, &str),
        blocked_ns: u64,
    ) {
        self.blocked_at(stack, (kind, name)).blocked_ns[block] += blocked_ns;
    }

    /// Adds the parts of the blocked time at a stack (see [`Self::add_blocked`]) that were within
    /// transactions and within those of the tail.
    pub fn add_blocked_in_transactions(
        &mut self,
        stack: impl IntoIterator<Item = Frame>,
        wait: (&str, &str),
        (in_transactions_ns, in_tail_ns): (u64, u64),
    ) {
        let blocked = self.blocked_at(stack, wait);
        blocked.in_transactions_ns += in_transactions_ns;
        blocked.in_tail_ns += in_tail_ns;
    }

    /// Adds the transaction times of a trial.
    pub fn add_transactions(&mut self, transactions: &Transactions) {
        let sum = &mut self.profile.transactions;
        sum.get_or_insert_default().add(transactions);
    }

    fn blocked_at(
        &mut self,
        stack: impl IntoIterator<Item = Frame>,
        (kind, name): (&str, &str),
    ) -> &mut BlockedStack {
        let node = self.leaf(stack);
        self.blocked_at_node(node, (kind, name))
    }

    fn blocked_at_node(
        &mut self,
        node: Option<u32>,
        (kind, name): (&str, &str),
    ) -> &mut BlockedStack {
        let (blocked, blocks) = (&mut self.profile.blocked, self.blocks);
        let key = (node, kind.to_owned(), name.to_owned());
        let at = *self.blocked_index.entry(key).or_insert_with(|| {
            blocked.push(BlockedStack {
                node,
                wait_event_type: kind.to_owned(),
                wait_event: name.to_owned(),
                blocked_ns: vec![0; blocks],
                in_transactions_ns: 0,
                in_tail_ns: 0,
            });
            blocked.len() - 1
        });
        &mut blocked[at]
    }

    /// Adds a profile that was built apart from this one, as samples of one block. The result is the same
    /// as if its stacks had been added here.
    pub fn add_profile(&mut self, block: usize, other: &Profile) {
        // Callers come before callees, so the node of a caller is known.
        let mut nodes: Vec<u32> = Vec::with_capacity(other.nodes.len());
        for node in &other.nodes {
            let parent = node.parent.and_then(|at| nodes.get(at as usize).copied());
            // Only in a damaged profile.
            let Some(frame) = other.frames.get(node.frame as usize) else {
                break;
            };
            let ours = self.node(parent, frame.clone());
            nodes.push(ours);
            let sum = &mut self.profile.nodes[ours as usize];
            sum.samples[block] += node.samples.iter().sum::<u32>();
            sum.in_transactions += node.in_transactions;
            sum.in_tail += node.in_tail;
        }
        for blocked in &other.blocked {
            let node = blocked.node.and_then(|at| nodes.get(at as usize).copied());
            let wait = (&*blocked.wait_event_type, &*blocked.wait_event);
            let sum = self.blocked_at_node(node, wait);
            sum.blocked_ns[block] += blocked.blocked_ns.iter().sum::<u64>();
            sum.in_transactions_ns += blocked.in_transactions_ns;
            sum.in_tail_ns += blocked.in_tail_ns;
        }
        if let Some(transactions) = &other.transactions {
            self.add_transactions(transactions);
        }
        self.add_quality(&other.quality);
    }

    /// Adds a trial's quality counts.
    pub fn add_quality(&mut self, quality: &Quality) {
        self.profile.quality.add(quality);
    }

    /// The profile.
    pub fn finish(self) -> Profile {
        self.profile
    }

    /// The node of a stack's innermost frame; `None` for an empty stack.
    fn leaf(&mut self, stack: impl IntoIterator<Item = Frame>) -> Option<u32> {
        let mut parent = None;
        for frame in stack {
            parent = Some(self.node(parent, frame));
        }
        parent
    }

    fn node(&mut self, parent: Option<u32>, frame: Frame) -> u32 {
        let frames = &mut self.profile.frames;
        let frame = *self.frame_index.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            frames.len() as u32 - 1
        });
        let nodes = &mut self.profile.nodes;
        let blocks = self.blocks;
        *self.node_index.entry((parent, frame)).or_insert_with(|| {
            nodes.push(Node {
                parent,
                frame,
                samples: vec![0; blocks],
                in_transactions: 0,
                in_tail: 0,
            });
            nodes.len() as u32 - 1
        })
    }
}

impl Profile {
    /// Number of samples, over all nodes and blocks.
    pub fn total(&self) -> u64 {
        self.nodes.iter().map(Node::total).sum()
    }

    /// The samples of one column (a block, or on a live server a statement): the same nodes with a single
    /// column. A column that does not exist has no samples.
    #[must_use]
    pub fn of_column(&self, column: u32) -> Self {
        let count = |node: &Node| node.samples.get(column as usize).copied().unwrap_or(0);
        let nodes = self.nodes.iter().map(|node| Node {
            samples: vec![count(node)],
            in_transactions: 0,
            in_tail: 0,
            ..node.clone()
        });
        Self {
            frames: self.frames.clone(),
            nodes: nodes.collect(),
            ..Self::default()
        }
    }

    /// Blocked time within the observed slices as a call tree, in [`Self::off_cpu_unit_us`]. The leaf of a stack is its
    /// wait event, as a frame of the object `[wait]`.
    #[must_use]
    pub fn off_cpu(&self) -> Self {
        let mut builder = ProfileBuilder::new(1);
        let unit_us = self.off_cpu_unit_us();
        for blocked in &self.blocked {
            let stack = blocked.node.map_or_else(Vec::new, |node| self.stack(node));
            let wait = (!blocked.wait_event.is_empty()).then(|| Frame {
                symbol: Some(format!(
                    "{}: {}",
                    blocked.wait_event_type, blocked.wait_event
                )),
                object: "[wait]".to_owned(),
                offset: 0,
                kernel: false,
            });
            let count = u32::try_from(blocked.total_us() / unit_us).unwrap_or(u32::MAX);
            builder.add(0, stack.into_iter().cloned().chain(wait), count);
        }
        builder.finish()
    }

    /// Microseconds that a count of [`Self::off_cpu`] stands for: one, or more if a stack has more than 4,294 s.
    pub fn off_cpu_unit_us(&self) -> u64 {
        let longest_us = self.blocked.iter().map(BlockedStack::total_us).max();
        longest_us.unwrap_or(0).div_ceil(u32::MAX.into()).max(1)
    }

    /// The frames from the outermost to `node`.
    pub fn stack(&self, node: u32) -> Vec<&Frame> {
        let mut frames = Vec::new();
        let mut at = Some(node);
        while let Some(index) = at {
            let node = &self.nodes[index as usize];
            frames.push(&self.frames[node.frame as usize]);
            at = node.parent;
        }
        frames.reverse();
        frames
    }

    /// The folded format of flame-graph tools: one `outer;inner;leaf count` line per stack.
    pub fn folded(&self) -> String {
        let mut lines: Vec<String> = (0u32..)
            .zip(&self.nodes)
            .filter(|(_, node)| node.total() > 0)
            .map(|(index, node)| {
                let labels: Vec<String> = self.stack(index).into_iter().map(Frame::label).collect();
                format!("{} {}\n", labels.join(";"), node.total())
            })
            .collect();
        lines.sort();
        lines.concat()
    }
}

impl BlockedStack {
    /// Blocked time over all blocks, in microseconds.
    fn total_us(&self) -> u64 {
        self.blocked_ns.iter().sum::<u64>() / 1000
    }
}

impl Node {
    /// Number of samples, over all blocks.
    pub fn total(&self) -> u64 {
        self.samples.iter().map(|count| u64::from(*count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(symbol: &str) -> Frame {
        Frame {
            symbol: Some(symbol.to_owned()),
            object: "postgres".to_owned(),
            offset: 0,
            kernel: false,
        }
    }

    #[test]
    fn blocked_time_is_a_call_tree_with_wait_events_as_leaves() {
        let mut builder = ProfileBuilder::new(2);
        builder.add(0, [frame("main"), frame("work")], 3);
        let read = || [frame("main"), frame("read")];
        builder.add_blocked(0, read(), ("Client", "ClientRead"), 5_000);
        builder.add_blocked(1, read(), ("Client", "ClientRead"), 2_000);
        builder.add_blocked(1, read(), ("", ""), 1_000);
        builder.add_blocked(1, [], ("", ""), 4_000);
        assert_eq!(
            builder.finish().off_cpu().folded(),
            "[no stack] 4\nmain;read 1\nmain;read;Client: ClientRead 7\n"
        );
    }

    /// Regression: each stack had 4,295 s at most, so that the shares of all others were too large.
    #[test]
    fn hours_of_blocked_time_do_not_change_the_shares() {
        let mut builder = ProfileBuilder::new(1);
        for (leaf, hours) in [("read", 10), ("lock", 2)] {
            let blocked_ns = hours * 3_600_000_000_000;
            builder.add_blocked(0, [frame("main"), frame(leaf)], ("", ""), blocked_ns);
        }
        let tree = builder.finish().off_cpu();
        let count = |leaf: &str| {
            let label = |node: &&Node| tree.frames[node.frame as usize].label() == leaf;
            tree.nodes.iter().find(label).unwrap().total()
        };
        assert_eq!(count("read"), 5 * count("lock"));
        assert_eq!(count("read") + count("lock"), tree.total());
    }

    #[test]
    fn stacks_share_callers_and_keep_all_samples() {
        let mut builder = ProfileBuilder::new(2);
        builder.add(0, [frame("main"), frame("parse")], 3);
        builder.add(1, [frame("main"), frame("plan")], 4);
        builder.add(1, [frame("main")], 1);
        builder.add(1, [], 2);
        let profile = builder.finish();
        assert_eq!(profile.nodes.len(), 4);
        assert_eq!(profile.total(), 10);
        assert_eq!(
            profile.folded(),
            "[no stack] 2\nmain 1\nmain;parse 3\nmain;plan 4\n"
        );
    }

    #[test]
    fn profiles_of_trials_add_up_to_the_profile_of_all() {
        let fill = |builder: &mut ProfileBuilder, trial: usize, block: usize| {
            let leaf = ["parse", "plan", "execute"][trial % 3];
            builder.add(block, [frame("main"), frame(leaf)], 3 + trial as u32);
            builder.add(block, [frame("main")], 1);
            builder.add(block, [], 2);
            builder.add_in_transactions([frame("main"), frame(leaf)], (2, 1));
            let wait = ("Client", "ClientRead");
            builder.add_blocked(block, [frame("main"), frame("read")], wait, 5_000);
            builder.add_blocked(block, [], ("", ""), 1_000);
            let wait = ("IO", "WalSync");
            builder.add_blocked_in_transactions([frame("main"), frame(leaf)], wait, (7, 3));
            builder.add_transactions(&Transactions {
                p99_ns: vec![trial as u64],
                ..Transactions::default()
            });
            builder.add_quality(&Quality {
                samples: 6 + trial as u64,
                lost: 1,
                ..Quality::default()
            });
        };
        let (mut direct, mut added) = (ProfileBuilder::new(2), ProfileBuilder::new(2));
        for trial in 0..5 {
            fill(&mut direct, trial, trial / 3);
            let mut of_trial = ProfileBuilder::new(1);
            fill(&mut of_trial, trial, 0);
            added.add_profile(trial / 3, &of_trial.finish());
        }
        let (direct, added) = (direct.finish(), added.finish());
        assert_eq!(added, direct);
        assert_eq!(added.total(), 5 * 6 + 10);
    }

    #[test]
    fn an_unknown_function_is_printed_as_object_and_offset() {
        let frame = Frame {
            symbol: None,
            object: "libssl.so.3".to_owned(),
            offset: 0x1f,
            kernel: false,
        };
        assert_eq!(frame.label(), "libssl.so.3+0x1f");
    }
}
