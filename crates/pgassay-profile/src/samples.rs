//! What a stretch of sampling found: plain data, by process, with its own quality beside it.
//!
//! Identities, for each process and each sum of them: `total = with_user + kernel_only`, and
//! `with_user = reached_entry + truncated + unwind_failed`. The counts of all stacks add up to `total`.
//!
//! How much CPU time there was is not for samples to say, only where it went. `sampled_ns` agrees
//! with the exact total (`cpu`) within 2 % and chance while the servers have the machine to
//! themselves; no timer is missed then, and none beside others (6 s at 199 to 999 Hz on two virtual
//! CPUs: all samples together stand for 99.5 % of both CPUs' time). But on a virtual machine the
//! timer's interrupt comes late, mostly by 20 to 60 µs in a server's process and 150 to 200 µs in a
//! program that computes without system calls. What then runs is not what ran when it was due: beside
//! two such programs, the load's clients, which run for ten microseconds at a time, had half of the
//! samples due to them, the programs half as many again, and the servers up to 14 % too many (beside
//! a compiler, from 5 % too few to 28 % too many). No rate from 199 to 999 Hz is free of it.

use crate::conditions::Limit;
use crate::frames::Frame;
use crate::off_cpu::OffCpu;
use crate::role::Role;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::AddAssign;
use std::sync::Arc;

/// All that was sampled between a start and a stop.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// From start to stop, by the clock.
    pub window_ns: u64,
    /// The CPU time that one sample stands for.
    pub period_ns: u64,
    /// Functions, in no particular order.
    pub frames: Vec<Frame>,
    /// Stacks: indices into `frames`, outermost first.
    pub stacks: Vec<Arc<[u32]>>,
    /// Every process of the watched servers that was met on a CPU.
    pub processes: Vec<ProcessSamples>,
    /// Samples of processes that belong to no watched server, the load's own among them.
    pub foreign: u64,
    /// Samples of processes that had ended before anything could be learnt of them.
    pub unattributed: u64,
    /// Records that the kernel had no room for, samples most likely.
    pub lost: u64,
    /// How often the kernel paused the sampling since it came too fast.
    pub throttled: u64,
    /// Records that could not be understood.
    pub malformed: u64,
    /// CPU time that reading, unwinding and counting took, in our own process.
    pub reader_cpu_ns: u64,
    /// The kernel's functions have names.
    pub kernel_named: bool,
    /// Files whose code stays unknown, and why.
    pub unreadable_objects: Vec<String>,
    /// Objects with no more names than other files need, and without a debug file.
    pub stripped_objects: Vec<Arc<str>>,
    /// Where processes were while they were not on a CPU, if that was asked for.
    pub off_cpu: Option<OffCpu>,
    /// The samples one by one, where `off_cpu` was asked for; no more than a million.
    pub moments: Vec<SampleMoment>,
}

/// One sample of a watched server's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleMoment {
    /// The process.
    pub pid: u32,
    /// When it was taken, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Index into [`Samples::stacks`].
    pub stack: u32,
}

/// The samples of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSamples {
    /// The process.
    pub pid: u32,
    /// The postmaster of its server.
    pub postmaster_pid: u32,
    /// What it is for.
    pub role: Role,
    /// How well it could be seen.
    pub quality: Quality,
    /// Number of samples of each stack, by the stack's index.
    pub counts: Vec<(u32, u64)>,
}

/// How good samples are, in numbers of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quality {
    /// All.
    pub total: u64,
    /// CPU time that all stand for.
    pub sampled_ns: u64,
    /// Those with a user part, whether the CPU was in user code or in a call into the kernel.
    pub with_user: u64,
    /// Those without one: work of the kernel that has no user side, such as a process's end.
    pub kernel_only: u64,
    /// Those taken while the CPU was in the kernel.
    pub in_kernel: u64,
    /// User parts followed to the process's entry.
    pub reached_entry: u64,
    /// User parts that were deeper than the copy of the stack.
    pub truncated: u64,
    /// User parts that could not be followed for another reason.
    pub unwind_failed: u64,
    /// Samples whose innermost function has no name.
    pub leaf_unknown: u64,
    /// Frames of all samples.
    pub frames: u64,
    /// Those of them that have no name.
    pub frames_unknown: u64,
}

impl AddAssign for Quality {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.sampled_ns += other.sampled_ns;
        self.with_user += other.with_user;
        self.kernel_only += other.kernel_only;
        self.in_kernel += other.in_kernel;
        self.reached_entry += other.reached_entry;
        self.truncated += other.truncated;
        self.unwind_failed += other.unwind_failed;
        self.leaf_unknown += other.leaf_unknown;
        self.frames += other.frames;
        self.frames_unknown += other.frames_unknown;
    }
}

impl Quality {
    /// The share of user parts that were followed to the process's entry; nothing without any.
    pub fn reached_entry_share(&self) -> Option<f64> {
        (self.with_user > 0).then(|| self.reached_entry as f64 / self.with_user as f64)
    }
}

/// Samples of some processes, added up.
#[derive(Debug, Clone)]
pub struct Selection<'a> {
    samples: &'a Samples,
    /// Number of samples of each stack, by the stack's index.
    pub counts: BTreeMap<u32, u64>,
    /// How well the processes could be seen.
    pub quality: Quality,
}

impl Samples {
    /// What keeps these samples from being the whole truth, each with its remedy if there is one.
    pub fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut add = |condition, effect, remedy: Option<&str>| {
            let remedy = remedy.map(str::to_owned);
            limits.push(Limit {
                condition,
                effect,
                remedy,
            });
        };
        let quality = self.select(|_| true).quality;
        if self.lost > 0 {
            let effect = format!(
                "{} samples were lost, since nobody read them in time",
                self.lost
            );
            add(
                "lost_samples",
                effect,
                Some("sample less often, or with a larger ring"),
            );
        }
        if self.throttled > 0 {
            let effect = format!("the kernel paused the sampling {} times", self.throttled);
            add("throttled", effect, Some("sample less often"));
        }
        if self.malformed > 0 {
            let effect = format!("{} records could not be understood", self.malformed);
            add("malformed_records", effect, None);
        }
        if self.unattributed > 0 {
            let effect = format!(
                "{} samples are of processes that ended before it was known whose they were",
                self.unattributed
            );
            add("unattributed_samples", effect, None);
        }
        if quality.truncated > 0 {
            let effect = format!(
                "{} of {} stacks were deeper than what was copied of them",
                quality.truncated, quality.with_user
            );
            add("truncated_stacks", effect, Some("copy more of each stack"));
        }
        if quality.unwind_failed > 0 {
            let (failed, all) = (quality.unwind_failed, quality.with_user);
            add(
                "broken_stacks",
                format!("{failed} of {all} stacks break off"),
                None,
            );
        }
        if !self.kernel_named {
            let effect = "the kernel's functions have no names".to_owned();
            let remedy = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=0";
            add("kernel_names", effect, Some(remedy));
        }
        for object in &self.unreadable_objects {
            add(
                "unreadable_object",
                format!("its code stays unknown: {object}"),
                None,
            );
        }
        for (object, unnamed) in self.unnamed_in_stripped() {
            let effect = format!(
                "{unnamed} of {} samples are in functions of {object} that have no name, since it \
                 was stripped of them",
                quality.total
            );
            let remedy = "install the debug symbols of its package, such as postgresql-NN-dbgsym";
            add("stripped_object", effect, Some(remedy));
        }
        limits.extend(self.off_cpu.iter().flat_map(OffCpu::limits));
        limits
    }

    /// Samples whose innermost function has no name, by the stripped object that it lies in.
    fn unnamed_in_stripped(&self) -> BTreeMap<&str, u64> {
        let mut unnamed = BTreeMap::new();
        for (&stack, &count) in &self.select(|_| true).counts {
            let leaf = self.stacks[stack as usize].last();
            let leaf = leaf.map(|&frame| &self.frames[frame as usize]);
            let is_unnamed =
                |it: &&Frame| it.symbol.is_none() && self.stripped_objects.contains(&it.object);
            if let Some(leaf) = leaf.filter(is_unnamed) {
                *unnamed.entry(&*leaf.object).or_default() += count;
            }
        }
        unnamed
    }

    /// The samples of those processes that `of_interest` picks.
    pub fn select(&self, of_interest: impl Fn(&ProcessSamples) -> bool) -> Selection<'_> {
        let mut selection = Selection {
            samples: self,
            counts: BTreeMap::new(),
            quality: Quality::default(),
        };
        for process in self.processes.iter().filter(|p| of_interest(p)) {
            selection.quality += process.quality;
            for &(stack, count) in &process.counts {
                *selection.counts.entry(stack).or_default() += count;
            }
        }
        selection
    }

    /// The samples of these backends. Parallel workers work beside them: what they use is in no
    /// backend's total, which the samples divide.
    pub fn backends(&self, pids: &[u32]) -> Selection<'_> {
        self.select(|process| pids.contains(&process.pid))
    }
}

impl<'a> Selection<'a> {
    /// Each stack, outermost function first, with its number of samples.
    pub fn stacks(&self) -> impl Iterator<Item = (impl Iterator<Item = &'a Frame>, u64)> {
        let samples = self.samples;
        self.counts.iter().map(move |(&stack, &count)| {
            let frames = samples.stacks[stack as usize].iter();
            (
                frames.map(move |&frame| &samples.frames[frame as usize]),
                count,
            )
        })
    }

    /// One line a stack: names joined by `;`, then the number of samples; the kernel's functions
    /// end in `_[k]`, as tools that draw flame graphs expect. Sorted.
    pub fn folded(&self) -> String {
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for (frames, count) in self.stacks() {
            let mut line = String::new();
            for (depth, frame) in frames.enumerate() {
                let separator = if depth == 0 { "" } else { ";" };
                let suffix = if frame.kernel { "_[k]" } else { "" };
                write!(line, "{separator}{frame}{suffix}").expect("a String takes all text");
            }
            *lines.entry(line).or_default() += count;
        }
        let mut text = String::new();
        for (line, count) in lines {
            writeln!(text, "{line} {count}").expect("a String takes all text");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(symbol: &str, kernel: bool) -> Frame {
        Frame {
            symbol: Some(symbol.into()),
            object: "postgres".into(),
            offset: 1,
            kernel,
        }
    }

    fn process(pid: u32, role: Role, counts: &[(u32, u64)]) -> ProcessSamples {
        let total = counts.iter().map(|c| c.1).sum();
        ProcessSamples {
            pid,
            postmaster_pid: 1,
            role,
            quality: Quality {
                total,
                with_user: total,
                reached_entry: total,
                ..Quality::default()
            },
            counts: counts.to_vec(),
        }
    }

    fn samples() -> Samples {
        Samples {
            frames: vec![
                frame("main", false),
                frame("work.part.0", false),
                frame("read", true),
            ],
            stacks: vec![vec![0, 1].into(), vec![0, 1, 2].into(), vec![0].into()],
            processes: vec![
                process(10, Role::Backend, &[(0, 5), (1, 2)]),
                process(11, Role::Backend, &[(0, 1)]),
                process(
                    12,
                    Role::ParallelWorker {
                        leader_pid: Some(10),
                    },
                    &[(2, 3)],
                ),
                process(13, Role::Checkpointer, &[(2, 7)]),
            ],
            ..Samples::default()
        }
    }

    #[test]
    fn a_parallel_workers_samples_are_not_its_leaders() {
        let samples = samples();
        let chosen = samples.backends(&[10]);
        assert_eq!(chosen.counts, BTreeMap::from([(0, 5), (1, 2)]));
        assert_eq!(chosen.quality.total, 7);
        assert_eq!(chosen.quality.reached_entry_share(), Some(1.0));
        assert_eq!(samples.backends(&[99]).quality.reached_entry_share(), None);
    }

    #[test]
    fn whatever_limits_the_samples_is_said() {
        let mut samples = samples();
        samples.kernel_named = true;
        assert_eq!(samples.limits(), []);
        samples.lost = 3;
        samples.kernel_named = false;
        samples.processes[0].quality.truncated = 2;
        samples.unreadable_objects.push("/x.so: gone".to_owned());
        let conditions: Vec<_> = samples.limits().iter().map(|l| l.condition).collect();
        assert_eq!(
            conditions,
            [
                "lost_samples",
                "truncated_stacks",
                "kernel_names",
                "unreadable_object"
            ]
        );
    }

    #[test]
    fn folded_lines_are_sorted_and_mark_the_kernel() {
        let samples = samples();
        assert_eq!(
            samples.backends(&[10, 11]).folded(),
            "main;work 6\nmain;work;read_[k] 2\n"
        );
    }
}
