//! Watches a server's processes: CPU stacks, exact CPU totals, symbols, and the conditions under
//! which it all was measured.
//!
//! - [`Sampler`] samples the stacks of servers' processes, kernel and user part, through
//!   `perf_event_open`, without the `perf` program, and gives [`Samples`] for each stretch between
//!   [`Sampler::start`] and [`Sampler::stop`]. It needs permission; where that is missing,
//!   [`SamplerError::NotPermitted`] says what grants it.
//! - [`CpuTotals`] are exact and need no privilege. Samples *allocate* these totals among stacks;
//!   they are never shares of the clock's time: on a full machine a sampler does not see what waits.
//! - [`LiveServer`] finds a server that somebody else runs, and [`CpuLog`] keeps exact totals of its
//!   processes as they come and go.
//! - [`WaitReader`] reads from a backend's memory what it waits for, [`Activity`] asks the server
//!   where that is refused, and [`WaitLog`] counts it: the blocked time's composition, never a share
//!   of the clock's.
//! - [`EventCounter`] counts instructions and cycles of processes where the processor has counters.
//! - [`Conditions`] is what a result must keep to be believed later.
//! - [`ClockSteps`] and [`Clock`] are what reading the time costs here.
//!
//! # Invariants
//! Nothing here waits in the load's path, or talks to the server but for [`Activity`], and for
//! [`WaitReader::learn`] at the start. A sampler that is open but not
//! started costs a microsecond for each process and mapping that is made, and nothing else. Whatever
//! is lost, cut short or unknown is counted and said. A function is named only inside its own extent.
//!
//! # How
//! One event per CPU (`event`) writes records into a ring (`ring`), which a thread (`sampler`)
//! reads, decodes (`record`) and counts (`tally`). Processes are told apart by what happens to
//! them (`process`) and by their titles (`role`). User stacks are unwound from a copy of the
//! stack with `.eh_frame` (`space`, `object_file`), since servers are built without frame
//! pointers. Frames are functions, kept once (`frames`), named by `symbols` and `kallsyms`.

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
mod family_cpu;
mod frames;
mod kallsyms;
mod live;
mod look;
mod maps;
mod memory;
mod object_file;
mod object_functions;
mod off_cpu;
mod process;
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
mod switch_record;
mod symbols;
mod tally;
mod tier;
mod timeline;
mod tracefs;
mod wait_log;
mod wait_reader;
mod wake;

pub use activity::{Activity, NamedWait};
pub use clock::{Clock, ClockSource, ClockSteps, own_cpu_ns, process_cpu_ns};
pub use conditions::{Conditions, Limit};
pub use cpu::{CpuTotals, CpuUse, MachineCpu, ProcessCpu};
pub use cpu_log::{CpuLog, LoggedProcess, RoleCpu};
pub use error::{NotPermitted, SamplerError};
pub use event_counter::{CountedEvent, EventCounter, EventCounterError};
pub use family_cpu::{FamiliesCpu, FamilyCpu};
pub use frames::Frame;
pub use live::{LiveError, LiveProcess, LiveServer};
pub use object_functions::{FunctionAt, ObjectFunctions};
pub use off_cpu::{
    Blocked, OffCpu, OffCpuCause, OffCpuConfig, OffCpuInterval, ProcessOffCpu, Slice,
};
pub use role::Role;
pub use sampler::{Sampler, SamplerConfig};
pub use samples::{ProcessSamples, Quality, SampleMoment, Samples, Selection};
pub use span::{Span, SpanAccount};
pub use symbols::source_name;
pub use tier::{Access, Missing, Tier};
pub use wait_log::WaitLog;
pub use wait_reader::{KnownWaits, WaitError, WaitReader};
