//! The laboratory: runs a plan on real servers and returns the measurements.
//!
//! [`Laboratory::run`] is the loop: ask the [`Scheduler`] for the next block, run its trials with the
//! run's [`Host`]s, [`LoadDriver`] and [`TrialObserver`]s, announce each as an [`LabEvent`] so that a
//! program can store it at once, and hand the block's trials to the scheduler. [`assemble()`] turns the
//! [`Outcome`] into a stored run: comparison, ledgers and findings.
//!
//! [`Equipment`] says where servers, load and observers come from. [`RealEquipment`] starts PostgreSQL,
//! drives it with `pgassay-load` and observes it with `pgassay-profile`; [`fake::FakeEquipment`] records
//! what a run does, in which order, and fails on demand.
//!
//! [`Laboratory::resume`] continues a run from the trials that a program stored.
//!
//! Invariants: servers run from before the first trial until after the last; external servers keep
//! running, but nothing is left on them. If a run ends early for whatever reason, completed trials
//! are returned and nothing is left running. While trials run, verdicts decide when they end and nothing
//! else. The laboratory prints nothing and handles no signals.
//!
//! `examples/embed.rs` shows how a program runs its own study.

mod assemble;
mod cancel;
pub mod connector;
pub mod counting;
mod curve_blocks;
mod equipment;
mod event;
mod external;
pub mod fake;
mod host;
mod interrupt;
mod load;
pub mod local_server;
mod major_version;
mod observe;
mod open_blocks;
mod options;
mod pace;
mod patience;
mod planned_scheduler;
mod plans;
mod precision_blocks;
mod rate_search;
mod raw_results;
mod real_equipment;
mod repeats;
mod replay;
pub mod requirements;
mod returned_rows;
mod run;
mod run_context;
mod scheduler;
mod sequential_blocks;
mod shared_setup;
mod stalls;
mod study;
pub mod study_checks;
pub mod study_errors;
pub mod system_env;
mod trial_runner;
mod trial_slot;
mod unchanged_rows;
mod warnings;
pub mod watch;
mod worker_cpu;
mod write_commands;

pub use assemble::{RunIdentity, assemble};
pub use cancel::{CancelReport, CancelWatch, Cancelable, Canceler};
pub use curve_blocks::{CurveBlocks, Placement};
pub use equipment::Equipment;
pub use event::{EventSink, LabEvent, NoEvents};
pub use external::{ExternalUse, check_writes as check_external_writes, recover};
pub use host::{DataLocation, Host, PlannedMaintenance, Servers, SqlConnection};
pub use interrupt::{Interrupt, Interrupted};
pub use load::{Clients, ClientsOrder, LoadDriver, scripts};
pub use major_version::major_of;
pub use observe::{
    ProfiledTrial, TrialObserver, TrialWatch, WatchDecision, WatchedTrial, add_blocked,
    add_samples_by_column, waits,
};
pub use options::{PasswordUse, ServerOptions};
pub use patience::Patience;
pub use planned_scheduler::scheduler_of;
pub use plans::TakenPlans;
pub use raw_results::RawResults;
pub use real_equipment::RealEquipment;
pub use replay::EarlierResults;
pub use run::{Laboratory, Outcome};
pub use run_context::RunContext;
pub use scheduler::{Block, FixedBlocks, Scheduler};
pub use sequential_blocks::SequentialBlocks;
pub use study::LoadedStudy;
pub use trial_slot::TrialSlot;
