//! CPU profiles as kept: call trees whose counts are samples, with the quality of the sampling.
//!
//! Samples only *divide*: what a function costs is its share of the samples times the exact on-CPU
//! time of the backends (see [`crate::comparison`]).

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A function, or an address whose function is not known.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Frame {
    /// The symbol whose extent holds the address; `None` where no symbol's does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// File name of the program or library; `[kernel]` for the kernel.
    pub object: String,
    /// Where no symbol is known: the address within the object, else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// Whether it is the kernel's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kernel: bool,
}

// Serde hands fields by reference.
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

/// A node of a call tree: a frame under a given caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Index of the caller's node; it is smaller than this node's own. `None` for outermost frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Index into [`Profile::frames`].
    pub frame: u32,
    /// Samples that ended here (this frame was the leaf), one count per block.
    pub samples: Vec<u32>,
}

/// The CPU stacks of one point's backends, all profiled trials together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// Every distinct frame.
    pub frames: Vec<Frame>,
    /// The call tree, callers before callees.
    pub nodes: Vec<Node>,
    /// How good the sampling was.
    pub quality: Quality,
}

/// How good a profile is; nothing is dropped without being counted here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// Samples of the point's backends.
    pub samples: u64,
    /// Of them: samples with a user stack.
    pub user_samples: u64,
    /// Of those: stacks unwound to the process's entry.
    pub unwound_to_entry: u64,
    /// Of those that were not: stacks deeper than the copied part.
    pub truncated: u64,
    /// Samples that the kernel had to drop because nobody read the ring in time.
    pub lost: u64,
    /// Samples whose leaf lies in no known symbol.
    pub unknown_leaf: u64,
}

impl Quality {
    /// Adds another trial's counts.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.user_samples += other.user_samples;
        self.unwound_to_entry += other.unwound_to_entry;
        self.truncated += other.truncated;
        self.lost += other.lost;
        self.unknown_leaf += other.unknown_leaf;
    }
}

/// Builds a [`Profile`] from stacks, a block at a time.
#[derive(Debug, Default)]
pub struct ProfileBuilder {
    profile: Profile,
    frame_index: HashMap<Frame, u32>,
    node_index: HashMap<(Option<u32>, u32), u32>,
    blocks: usize,
}

impl ProfileBuilder {
    /// A builder for counts of `blocks` blocks.
    pub fn new(blocks: usize) -> Self {
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// Adds `count` samples of one stack (outermost frame first) in one block.
    /// An empty stack is counted under a frame called `[no stack]`, so that the sum stays whole.
    pub fn add(&mut self, block: usize, stack: impl IntoIterator<Item = Frame>, count: u32) {
        let mut parent = None;
        for frame in stack {
            parent = Some(self.node(parent, frame));
        }
        let leaf = match parent {
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

    /// Adds a trial's quality counts.
    pub fn add_quality(&mut self, quality: &Quality) {
        self.profile.quality.add(quality);
    }

    /// The profile.
    pub fn finish(self) -> Profile {
        self.profile
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
            });
            nodes.len() as u32 - 1
        })
    }
}

impl Profile {
    /// Samples of all nodes and blocks.
    pub fn total(&self) -> u64 {
        self.nodes.iter().map(Node::total).sum()
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

    /// The folded form that flame-graph tools read: `outer;inner;leaf count`, a line a stack.
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

impl Node {
    /// Samples of all blocks.
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
    fn stacks_share_their_callers_and_no_sample_is_lost() {
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
