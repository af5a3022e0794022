//! The samples of a window, by process, with their quality: plain data.
//!
//! Identities, for each process and each sum of them: `total = with_user + kernel_only`, and
//! `with_user = reached_entry + truncated + unwind_failed`. The counts of all stacks add up to `total`.
//!
//! Samples show where CPU time went, not how much there was. If only the servers use the machine,
//! `sampled_ns` agrees with the exact total (`cpu`) within 2% and sampling error. No timer is missed
//! then, nor with other programs running (6 s at 199 to 999 Hz on two virtual CPUs: all samples
//! together account for 99.5% of both CPUs' time). But on a virtual machine the timer interrupt is
//! late, mostly by 20 to 60 µs in a server process and 150 to 200 µs in a program that computes
//! without system calls. The process that runs then may not be the one that ran when it was due:
//! with two such programs running, the load's clients, which run for ten microseconds at a time, had
//! half of their share of samples, the programs one and a half times their share, and the servers up
//! to 14% too many (with a compiler running, from 5% too few to 28% too many). All rates from 199 to
//! 999 Hz are affected.

use crate::machine::conditions::Limit;
use crate::off_cpu::data::OffCpu;
use crate::proc::role::Role;
use crate::sampling::kept_time::KeptTime;
use crate::unwind::frames::StackFrame;
use crate::unwind::quality::SampleQuality;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The samples of one window, from start to stop.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Wall-clock time from start to stop.
    pub window_ns: u64,
    /// The CPU time that one sample represents.
    pub period_ns: u64,
    /// Functions, in no particular order.
    pub frames: Vec<StackFrame>,
    /// Stacks: indices into `frames`, outermost first.
    pub stacks: Vec<Arc<[u32]>>,
    /// Every process of the profiled servers that was sampled on a CPU. With many of them, those that have ended
    /// are added up.
    pub processes: Vec<ProcessSamples>,
    /// Samples of processes of other programs, including the load.
    pub other_programs: u64,
    /// Samples of processes that ended before they could be identified.
    pub unattributed: u64,
    /// Records that did not fit into the ring buffer, most likely samples.
    pub lost: u64,
    /// How often the kernel throttled sampling.
    pub throttled: u64,
    /// Records that could not be parsed.
    pub malformed: u64,
    /// CPU time that our own process used for reading, unwinding and counting.
    pub reader_cpu_ns: u64,
    /// Kernel functions have names.
    pub kernel_named: bool,
    /// Object files that could not be read, and why.
    pub unreadable_objects: Vec<String>,
    /// Stripped objects (only dynamic symbols) without a debug file.
    pub stripped_objects: Vec<Arc<str>>,
    /// Off-CPU time, if requested.
    pub off_cpu: Option<OffCpu>,
    /// Individual samples if `off_cpu` or `keeps_moments` was requested; at most 65,536.
    pub moments: Vec<SampleMoment>,
    /// The part of the time that `moments` are of.
    pub kept_time: KeptTime,
}

/// One sample of a server process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleMoment {
    /// The process.
    pub pid: u32,
    /// When it was taken, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Index into [`Samples::stacks`].
    pub stack: u32,
}

/// The samples of one process, or of several of the same role that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSamples {
    /// The process; `None` for several.
    pub pid: Option<u32>,
    /// The postmaster of its server.
    pub postmaster_pid: u32,
    /// Its role.
    pub role: Role,
    /// The quality of its samples.
    pub quality: SampleQuality,
    /// Number of samples of each stack, by the stack's index.
    pub counts: Vec<(u32, u64)>,
}

/// Samples of some processes, added up.
#[derive(Debug, Clone)]
pub struct Selection<'a> {
    samples: &'a Samples,
    /// Number of samples of each stack, by the stack's index.
    pub counts: BTreeMap<u32, u64>,
    /// The quality of their samples.
    pub quality: SampleQuality,
}

impl Samples {
    /// The limitations of these samples, each with a fix if there is one.
    pub fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut add = |condition, effect, fix| limits.push(Limit::new(condition, effect, fix));
        let quality = self.select(|_| true).quality;
        if self.lost > 0 {
            let effect = format!(
                "{} lost because the ring buffer was full",
                agreeing(self.lost, ["sample was", "samples were"])
            );
            add(
                "lost_samples",
                effect,
                Some("reduce the sampling frequency, or use a larger ring buffer"),
            );
        }
        if self.throttled > 0 {
            let effect = format!(
                "the kernel throttled sampling {}",
                agreeing(self.throttled, ["time", "times"])
            );
            add("throttled", effect, Some("reduce the sampling frequency"));
        }
        if self.malformed > 0 {
            let effect = format!(
                "{} could not be parsed",
                agreeing(self.malformed, ["record", "records"])
            );
            add("malformed_records", effect, None);
        }
        if self.unattributed > 0 {
            let effect = format!(
                "{} to a process that ended before it could be identified",
                agreeing(self.unattributed, ["sample belongs", "samples belong"])
            );
            add("unattributed_samples", effect, None);
        }
        if quality.truncated > 0 {
            let effect = format!(
                "stacks deeper than the copied part are truncated: {} of {}",
                quality.truncated, quality.with_user
            );
            add("truncated_stacks", effect, Some("copy more of each stack"));
        }
        if quality.unwind_failed > 0 {
            let (failed, all) = (quality.unwind_failed, quality.with_user);
            add(
                "broken_stacks",
                format!("stacks that could not be unwound to the end: {failed} of {all}"),
                None,
            );
        }
        limits.extend(self.unnamed_functions(quality.total));
        limits.extend(self.off_cpu.iter().flat_map(OffCpu::limits));
        limits
    }

    /// Limitations of functions' names.
    fn unnamed_functions(&self, samples: u64) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut add = |condition, effect, fix| limits.push(Limit::new(condition, effect, fix));
        if !self.kernel_named {
            let effect = "kernel functions have no names".to_owned();
            let fix = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=0";
            add("kernel_names", effect, Some(fix));
        }
        for object in &self.unreadable_objects {
            add(
                "unreadable_object",
                format!("functions without names: cannot read {object}"),
                None,
            );
        }
        for (object, unnamed) in self.unnamed_in_stripped() {
            let effect = format!(
                "{object} is stripped: its functions without a name have {unnamed} of {samples} samples of all \
                 processes"
            );
            let fix = "install its debug symbols package, such as postgresql-NN-dbgsym";
            add("stripped_object", effect, Some(fix));
        }
        limits
    }

    /// Samples whose innermost function has no name, by stripped object.
    fn unnamed_in_stripped(&self) -> BTreeMap<&str, u64> {
        let mut unnamed = BTreeMap::new();
        for (&stack, &count) in &self.select(|_| true).counts {
            let leaf = self.stacks[stack as usize].last();
            let leaf = leaf.map(|&frame| &self.frames[frame as usize]);
            let is_unnamed = |it: &&StackFrame| {
                it.symbol.is_none() && self.stripped_objects.contains(&it.object)
            };
            if let Some(leaf) = leaf.filter(is_unnamed) {
                *unnamed.entry(&*leaf.object).or_default() += count;
            }
        }
        unnamed
    }

    /// The samples of the processes that `of_interest` selects.
    pub fn select(&self, of_interest: impl Fn(&ProcessSamples) -> bool) -> Selection<'_> {
        let mut selection = Selection {
            samples: self,
            counts: BTreeMap::new(),
            quality: SampleQuality::default(),
        };
        for process in self.processes.iter().filter(|p| of_interest(p)) {
            selection.quality += process.quality;
            for &(stack, count) in &process.counts {
                *selection.counts.entry(stack).or_default() += count;
            }
        }
        selection
    }

    /// The samples of these backends, without their parallel workers, whose CPU time is not in the
    /// backends' totals that the samples divide.
    pub fn backends(&self, pids: &[u32]) -> Selection<'_> {
        self.select(|process| process.pid.is_some_and(|it| pids.contains(&it)))
    }
}

impl<'a> Selection<'a> {
    /// Each stack, outermost function first, with its number of samples.
    pub fn stacks(&self) -> impl Iterator<Item = (impl Iterator<Item = &'a StackFrame>, u64)> {
        let samples = self.samples;
        self.counts.iter().map(move |(&stack, &count)| {
            let frames = samples.stacks[stack as usize].iter();
            (
                frames.map(move |&frame| &samples.frames[frame as usize]),
                count,
            )
        })
    }

    /// Folded stacks for flame graphs, sorted: one line per stack with names joined by `;` and the
    /// number of samples; kernel functions end in `_[k]`.
    pub fn folded(&self) -> String {
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for (frames, count) in self.stacks() {
            let mut line = String::new();
            for (depth, frame) in frames.enumerate() {
                let separator = if depth == 0 { "" } else { ";" };
                let suffix = if frame.kernel { "_[k]" } else { "" };
                write!(line, "{separator}{frame}{suffix}")
                    .expect("writing to a String cannot fail");
            }
            *lines.entry(line).or_default() += count;
        }
        let mut text = String::new();
        for (line, count) in lines {
            writeln!(text, "{line} {count}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// A number with the words for one and for several.
fn agreeing(count: u64, [one, several]: [&str; 2]) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(symbol: &str, kernel: bool) -> StackFrame {
        StackFrame {
            symbol: Some(symbol.into()),
            object: "postgres".into(),
            offset: 1,
            kernel,
        }
    }

    fn process(pid: u32, role: Role, counts: &[(u32, u64)]) -> ProcessSamples {
        let total = counts.iter().map(|c| c.1).sum();
        ProcessSamples {
            pid: Some(pid),
            postmaster_pid: 1,
            role,
            quality: SampleQuality {
                total,
                with_user: total,
                reached_entry: total,
                ..SampleQuality::default()
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
    fn a_parallel_workers_samples_are_not_counted_for_its_leader() {
        let samples = samples();
        let chosen = samples.backends(&[10]);
        assert_eq!(chosen.counts, BTreeMap::from([(0, 5), (1, 2)]));
        assert_eq!(chosen.quality.total, 7);
        assert_eq!(chosen.quality.reached_entry_share(), Some(1.0));
        assert_eq!(samples.backends(&[99]).quality.reached_entry_share(), None);
    }

    #[test]
    fn all_limitations_are_listed() {
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
    fn folded_lines_are_sorted_and_kernel_functions_marked() {
        let samples = samples();
        assert_eq!(
            samples.backends(&[10, 11]).folded(),
            "main;work 6\nmain;work;read_[k] 2\n"
        );
    }

    #[test]
    fn one_lost_sample_is_not_several() {
        let mut samples = samples();
        (samples.lost, samples.unattributed, samples.throttled) = (1, 1, 1);
        let effects: Vec<_> = samples.limits().into_iter().map(|it| it.effect).collect();
        let effects = effects.join("\n");
        for expected in [
            "1 sample was lost because",
            "the kernel throttled sampling 1 time\n",
            "1 sample belongs to a process that ended",
        ] {
            assert!(effects.contains(expected), "{effects}");
        }
    }
}
