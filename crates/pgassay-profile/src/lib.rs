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
//! - [`SessionReader`] reads what all sessions of a server do (state, statement, wait event) from their
//!   status entries in shared memory, and [`SessionQuery`] queries the server if that is not possible.
//! - [`EventCounter`] reads hardware counters of processes, and [`peak_pss_bytes`] the peak of their memory.
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
//! `perf` opens one event per CPU, which writes records into a ring buffer. The thread of `sampling`
//! reads these rings and counts the samples. `servers` knows which process belongs to which server,
//! from records of forks and executions and from the processes' titles (`proc`). `unwind` unwinds
//! user stacks from a copy of the stack with `.eh_frame`, since servers are built without frame
//! pointers, and names the functions, each stored once. `off_cpu` records every context switch in
//! short slices of time and accounts for each process's time in them. `waits` reads wait events, and
//! `machine` examines the machine and what it permits.
//!
//! Each folder uses only those before it in this order: `proc`, `perf`, `unwind`, `waits`, `machine`,
//! `servers`, `off_cpu`, `sampling`, `sessions`.

mod arch;
mod machine;
mod off_cpu;
mod perf;
mod proc;
mod regular_file;
mod sampling;
mod servers;
mod sessions;
mod unwind;
mod waits;

pub use machine::awake_cpus::AwakeCpus;
pub use machine::clock::{Clock, ClockSource, ClockSteps, allowed_cpus};
pub use machine::conditions::{Limit, MachineConditions};
pub use machine::tier::{Access, Missing, Tier};
pub use off_cpu::data::{
    Blocked, OffCpu, OffCpuCause, OffCpuConfig, OffCpuInterval, ProcessOffCpu, Slice,
};
pub use perf::error::{NotPermitted, SamplerError};
pub use perf::event_counter::{CountedEvent, EventCounter, EventCounterError};
pub use proc::clocks::{own_cpu_ns, process_cpu_ns};
pub use proc::cpu::{CpuUse, MachineCpu, ProcessCpu, ProcessTotals};
pub use proc::cpu_log::{CpuLog, LoggedProcess, RoleCpu};
pub use proc::live::{LiveError, LiveProcess, LiveServer};
pub use proc::machine_processes::MachineProcesses;
pub use proc::peak_memory::{own_peak_bytes, own_resident_bytes, peak_pss_bytes};
pub use proc::priority::raise_thread_priority;
pub use proc::process_list::ProcessList;
pub use proc::process_states::ProcessStates;
pub use proc::process_tree_cpu::{ProcessTreeCpu, ProcessTreesCpu};
pub use proc::role::Role;
pub use sampling::kept_time::KeptTime;
pub use sampling::sampler::{Sampler, SamplerConfig};
pub use sampling::samples::{ProcessSamples, SampleMoment, Samples, Selection};
pub use sampling::span::{Span, SpanAccount};
pub use sessions::error::SessionsError;
pub use sessions::query::SessionQuery;
pub use sessions::reader::{SessionReader, SessionSweep};
pub use sessions::reading::{SessionIdentity, SessionReading, SessionState, SessionWait};
pub use unwind::frames::StackFrame;
pub use unwind::object_functions::{FunctionAt, ObjectFunctions};
pub use unwind::quality::SampleQuality;
pub use unwind::symbols::source_name;
pub use waits::activity::{ActivitySampler, NamedWait};
pub use waits::log::WaitLog;
pub use waits::reader::{KnownWaits, WaitError, WaitReader};
