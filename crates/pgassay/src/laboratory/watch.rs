//! What is read around each trial: exact totals of the server's processes and of the machine.

use anyhow::{Context, Result};
use pgassay_core::plan::Plan;
use pgassay_core::profile::{Frame, Profile, ProfileBuilder, Quality};
use pgassay_core::trial::CpuTotals;
use pgassay_profile::{CpuTotals as ProcessTotals, MachineCpu, Samples, Selection};

/// Totals at one instant.
pub struct Reading {
    backends: ProcessTotals,
    /// All processes of all servers and our own, to tell other programs' load from ours.
    ours: ProcessTotals,
    machine: MachineCpu,
}

/// What passed between two readings.
#[derive(Debug, Clone, Copy)]
pub struct Passed {
    /// The backends' totals.
    pub server: CpuTotals,
    /// Share of the machine that the hypervisor gave to others.
    pub steal: f64,
    /// Share of the machine that other programs used.
    pub foreign: f64,
    /// Share of the machine that nobody used.
    pub idle: f64,
}

impl Reading {
    /// Reads now. A backend that has ended is left out; the load engine reports why it ended.
    pub fn take(backend_pids: &[u32], server_pids: &[u32]) -> Result<Self> {
        let ours: Vec<u32> = server_pids
            .iter()
            .copied()
            .chain([std::process::id()])
            .collect();
        Ok(Self {
            backends: ProcessTotals::read(backend_pids),
            ours: ProcessTotals::read(&ours),
            machine: MachineCpu::read().context("cannot read /proc/stat")?,
        })
    }

    /// What passed since `earlier`.
    pub fn since(&self, earlier: &Self) -> Passed {
        let backends = self.backends.since(&earlier.backends);
        let total = backends.total();
        let ours_ns = self.ours.since(&earlier.ours).total().on_cpu_ns;
        let machine = self.machine.since(&earlier.machine);
        let capacity_ns = machine.total_ns().max(1) as f64;
        Passed {
            server: CpuTotals {
                on_cpu_us: total.on_cpu_ns as f64 / 1e3,
                run_queue_us: total.run_queue_ns as f64 / 1e3,
                processes: backends.by_pid.len() as u32,
            },
            steal: machine.steal_ns as f64 / capacity_ns,
            foreign: machine.busy_ns().saturating_sub(ours_ns) as f64 / capacity_ns,
            idle: (machine.idle_ns + machine.io_wait_ns) as f64 / capacity_ns,
        }
    }
}

/// The profiles of all points, filled trial by trial.
pub struct Profiles {
    builders: Vec<ProfileBuilder>,
    variants: usize,
}

impl Profiles {
    /// One empty profile per point.
    pub fn new(plan: &Plan) -> Self {
        let blocks = plan.schedule.blocks as usize;
        let builders = plan
            .points
            .iter()
            .map(|_| ProfileBuilder::new(blocks))
            .collect();
        Self {
            builders,
            variants: plan.variants.len(),
        }
    }

    /// Adds one profiled trial's samples of its backends.
    pub fn add(
        &mut self,
        condition: usize,
        variant: usize,
        block: u32,
        samples: &Samples,
        backend_pids: &[u32],
    ) {
        let builder = &mut self.builders[condition * self.variants + variant];
        add_samples(
            builder,
            block as usize,
            samples,
            &samples.backends(backend_pids),
        );
    }

    /// The profiles, in the plan's order of points.
    pub fn finish(self) -> Vec<Profile> {
        self.builders
            .into_iter()
            .map(ProfileBuilder::finish)
            .collect()
    }
}

/// Adds the samples of some processes to a block of a profile.
pub fn add_samples(
    builder: &mut ProfileBuilder,
    block: usize,
    samples: &Samples,
    selection: &Selection<'_>,
) {
    for (stack, count) in selection.stacks() {
        let frames = stack.map(|frame| Frame {
            symbol: frame.name().map(str::to_owned),
            object: frame.object.to_string(),
            // A named function is one row wherever its code lies.
            offset: if frame.symbol.is_some() {
                0
            } else {
                frame.offset
            },
            kernel: frame.kernel,
        });
        builder.add(block, frames, u32::try_from(count).unwrap_or(u32::MAX));
    }
    builder.add_quality(&Quality {
        samples: selection.quality.total,
        user_samples: selection.quality.with_user,
        unwound_to_entry: selection.quality.reached_entry,
        truncated: selection.quality.truncated,
        lost: samples.lost,
        unknown_leaf: selection.quality.leaf_unknown,
    });
}
