//! Profiles a server's processes: CPU stacks, exact CPU totals, wait events, symbols, and the
//! conditions of the machine.
//!
//! - [`Sampler`] samples the kernel and user stacks of server processes through `perf_event_open`,
//!   without the `perf` program, and returns [`Samples`] for each window between
//!   [`Sampler::start`] and [`Sampler::stop`]. Without the required privilege,
//!   [`SamplerError::NotPermitted`] shows how to get it.
//! - [`ProcessTotals`] are exact and require no privilege. Samples *allocate* these totals among stacks;
//!   they are never shares of wall-clock time: on a saturated machine a sampling profiler is biased.
//! - [`LiveServer`] finds an external server, and [`CpuLog`] keeps exact totals of its processes as
//!   they start and end.
//! - [`WaitReader`] reads wait events from a backend's memory, [`ActivitySampler`] queries the server if
//!   that is not permitted, and [`WaitLog`] counts them: they divide the blocked time and are never
//!   shares of wall-clock time.
//! - [`EventCounter`] reads hardware counters of processes.
//! - [`MachineConditions`] of the machine, which every result keeps.
//! - [`ClockSteps`] and [`Clock`] measure the overhead of reading the clock.
//!
//! # Invariants
//! Nothing here blocks the load. Only [`ActivitySampler`], and [`WaitReader::learn`] at the start, use a
//! connection to the server. A sampler that is open but not started costs a microsecond for each
//! new process and mapping, and nothing else. Lost, truncated and unknown samples are counted and
//! reported. A symbol names only addresses inside its own extent.
//!
//! # How
//! One event per CPU (`event`) writes records into a ring buffer (`ring`), which a thread
//! (`sampler`) reads, decodes (`record`) and counts (`tally`). Processes are identified by records
//! of their forks and executions (`process`) and by their titles (`role`). User stacks are unwound
//! from a copy of the stack with `.eh_frame` (`space`, `object_file`), since servers are built
//! without frame pointers. Frames are functions, stored once (`frames`), with names from `symbols`
//! and `kallsyms`.

mod activity;
mod arch;
mod clock;
mod conditions;
mod cpu;
mod cpu_log;
mod debug_file;
mod error;
mod event;
mod event_counter;
mod frames;
mod kallsyms;
mod live;
mod maps;
mod memory;
mod object_file;
mod object_functions;
mod off_cpu;
mod process;
mod process_tree_cpu;
mod procfs;
mod record;
mod ring;
mod role;
mod sampler;
mod samples;
mod site;
mod slicer;
mod slices;
mod space;
mod span;
mod state_sample;
mod switch_record;
mod symbols;
mod tally;
mod tier;
mod timeline;
mod tracefs;
mod wait_log;
mod wait_reader;
mod wake;

pub use activity::{ActivitySampler, NamedWait};
pub use clock::{Clock, ClockSource, ClockSteps, own_cpu_ns, process_cpu_ns};
pub use conditions::{Limit, MachineConditions};
pub use cpu::{CpuUse, MachineCpu, ProcessCpu, ProcessTotals};
pub use cpu_log::{CpuLog, LoggedProcess, RoleCpu};
pub use error::{NotPermitted, SamplerError};
pub use event_counter::{CountedEvent, EventCounter, EventCounterError};
pub use frames::StackFrame;
pub use live::{LiveError, LiveProcess, LiveServer};
pub use object_functions::{FunctionAt, ObjectFunctions};
pub use off_cpu::{
    Blocked, OffCpu, OffCpuCause, OffCpuConfig, OffCpuInterval, ProcessOffCpu, Slice,
};
pub use process_tree_cpu::{ProcessTreeCpu, ProcessTreesCpu};
pub use role::Role;
pub use sampler::{Sampler, SamplerConfig};
pub use samples::{ProcessSamples, SampleMoment, SampleQuality, Samples, Selection};
pub use span::{Span, SpanAccount};
pub use symbols::source_name;
pub use tier::{Access, Missing, Tier};
pub use wait_log::WaitLog;
pub use wait_reader::{KnownWaits, WaitError, WaitReader};
