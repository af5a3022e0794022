//! CPU time of functions by name, including callees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pgassay_knowledge::{FrameName, Phase};
use pgassay_model::profile::{Frame, Node, Profile};

/// A point's CPU stacks, each sample worth an equal part of the exact CPU time per transaction.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    /// CPU time per transaction that a sample stands for.
    pub us_per_sample: f64,
    /// Parent, frame and self time of each node, callers first.
    nodes: Vec<(Option<u32>, u32, f64)>,
    /// Time by phase.
    phases: BTreeMap<&'static str, f64>,
    names: Arc<ProfileNames>,
}

/// Names and phases of a profile, shared by all its blocks.
#[derive(Debug, Default)]
struct ProfileNames {
    /// Indices of frames by name, without compiler-added suffixes.
    by_name: BTreeMap<String, Vec<u32>>,
    frames: usize,
    /// The phase of each node's stack; empty for nodes in which no sample ended.
    phases: Vec<&'static str>,
}

impl ProfileNames {
    fn of(profile: &Profile) -> Self {
        let mut by_name: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (index, frame) in (0..).zip(&profile.frames) {
            let names = frame.symbol.as_deref().map(bare);
            // A library is also addressed as a whole, by its file name up to the first dot.
            let library = frame.object.split('.').next().unwrap_or_default();
            for name in names.into_iter().chain([library]) {
                by_name.entry(name.to_owned()).or_default().push(index);
            }
        }
        let phase = |(index, node): (u32, &Node)| {
            if node.total() == 0 {
                return "";
            }
            let names: Vec<FrameName<'_>> = profile.stack(index).into_iter().map(name).collect();
            Phase::of(&names).name()
        };
        Self {
            by_name,
            frames: profile.frames.len(),
            phases: (0u32..).zip(&profile.nodes).map(phase).collect(),
        }
    }
}

impl Stacks {
    /// Distributes `cpu_us` per transaction over a profile's stacks; empty without samples.
    pub fn new(profile: &Profile, cpu_us: f64) -> Self {
        Self::of(
            profile,
            cpu_us,
            Arc::new(ProfileNames::of(profile)),
            Node::total,
        )
    }

    /// The same with the samples of one block of the profile, or with all samples if the block has
    /// none.
    pub fn in_block(&self, profile: &Profile, cpu_us: f64, block: u32) -> Self {
        let in_block = |node: &Node| {
            let samples = node.samples.get(block as usize);
            u64::from(samples.copied().unwrap_or(0))
        };
        let names = Arc::clone(&self.names);
        if profile.nodes.iter().all(|node| in_block(node) == 0) {
            return Self::of(profile, cpu_us, names, Node::total);
        }
        Self::of(profile, cpu_us, names, in_block)
    }

    fn of(
        profile: &Profile,
        cpu_us: f64,
        names: Arc<ProfileNames>,
        samples: impl Fn(&Node) -> u64,
    ) -> Self {
        let total: u64 = profile.nodes.iter().map(&samples).sum();
        if total == 0 {
            return Self::default();
        }
        let us_per_sample = cpu_us / total as f64;
        let own_us = |node: &Node| samples(node) as f64 * us_per_sample;
        let mut phases: BTreeMap<&'static str, f64> = BTreeMap::new();
        for (node, phase) in profile.nodes.iter().zip(&names.phases) {
            if samples(node) > 0 {
                *phases.entry(phase).or_default() += own_us(node);
            }
        }
        Self {
            us_per_sample,
            nodes: profile
                .nodes
                .iter()
                .map(|node| (node.parent, node.frame, own_us(node)))
                .collect(),
            phases,
            names,
        }
    }

    /// Time in these phases.
    pub fn phases(&self, phases: &[&str]) -> f64 {
        phases
            .iter()
            .filter_map(|phase| self.phases.get(phase))
            .sum()
    }

    /// Time of stacks that contain any of these functions; each stack counts once.
    pub fn in_functions(&self, names: &[&str]) -> f64 {
        self.in_nested_functions(&[names])
    }

    /// Time of stacks that contain a function of each list, in this order, outermost first.
    pub fn in_nested_functions(&self, lists: &[&[&str]]) -> f64 {
        let lists: Vec<Vec<bool>> = lists.iter().map(|names| self.flags(names)).collect();
        // How many of the lists the path to each node has matched so far.
        let mut met = vec![0; self.nodes.len()];
        let mut sum_us = 0.0;
        for (index, (parent, frame, own_us)) in self.nodes.iter().enumerate() {
            let mut so_far = parent.map_or(0, |parent| met[parent as usize]);
            if lists
                .get(so_far)
                .is_some_and(|flags| flags[*frame as usize])
            {
                so_far += 1;
            }
            met[index] = so_far;
            if so_far == lists.len() {
                sum_us += own_us;
            }
        }
        sum_us
    }

    fn flags(&self, names: &[&str]) -> Vec<bool> {
        let mut flags = vec![false; self.names.frames];
        let indices: BTreeSet<u32> = names
            .iter()
            .filter_map(|name| self.names.by_name.get(*name))
            .flatten()
            .copied()
            .collect();
        for index in indices {
            flags[index as usize] = true;
        }
        flags
    }
}

/// The name without a compiler-added suffix such as `.isra.0`.
fn bare(symbol: &str) -> &str {
    symbol.split('.').next().unwrap_or(symbol)
}

fn name(frame: &Frame) -> FrameName<'_> {
    FrameName {
        symbol: frame.symbol.as_deref(),
        object: &frame.object,
        kernel: frame.kernel,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use pgassay_model::profile::ProfileBuilder;

    /// A profile of `outer;inner samples` lines.
    pub fn profile(stacks: &[(&str, u32)]) -> Profile {
        let mut builder = ProfileBuilder::new(1);
        for (stack, samples) in stacks {
            let frames = stack.split(';').map(|symbol| Frame {
                symbol: Some(symbol.to_owned()),
                object: "postgres".to_owned(),
                offset: 0,
                kernel: false,
            });
            builder.add(0, frames, *samples);
        }
        builder.finish()
    }

    #[test]
    fn a_stack_counts_once_and_paths_have_an_order() {
        let stacks = Stacks::new(
            &profile(&[
                (
                    "PostgresMain;PortalRun;nextval_internal.isra.0;XLogInsert",
                    3,
                ),
                ("PostgresMain;PortalRun;XLogInsert;XLogInsert", 1),
                ("PostgresMain;pg_plan_query", 6),
            ]),
            100.0,
        );
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(stacks.in_functions(&["XLogInsert"]), 40.0);
        close(
            stacks.in_functions(&["XLogInsert", "nextval_internal"]),
            40.0,
        );
        close(
            stacks.in_nested_functions(&[&["nextval_internal"], &["XLogInsert"]]),
            30.0,
        );
        close(
            stacks.in_nested_functions(&[&["XLogInsert"], &["nextval_internal"]]),
            0.0,
        );
        close(stacks.phases(&["plan", "parse"]), 60.0);
        close(stacks.in_functions(&["postgres"]), 100.0);
        close(stacks.in_functions(&["absent"]), 0.0);
        close(
            Stacks::new(&Profile::default(), 5.0).in_functions(&["postgres"]),
            0.0,
        );
    }
}
