//! The program, as its users run it: on servers that it starts, and on others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answer_limits;
mod bench;
mod bench_cancel;
mod bench_edges;
mod capabilities;
mod circles;
mod compare;
mod counters;
mod counting;
mod crate_dependencies;
mod curve;
mod documents;
mod doubtful_questions;
mod external_changes;
mod external_server;
mod external_settings;
mod faults;
mod founding_scripts;
mod gate;
mod gate_against;
mod half_width;
mod initialization;
mod language;
mod long_profile;
mod own_server;
mod own_study;
mod pgbench;
mod plans;
mod printed;
mod profile;
mod profile_pooler;
mod profile_remote;
mod profiling;
mod redis;
mod resume;
mod search_path;
mod server_files;
mod shipped;
mod silent_servers;
mod study_keys;
mod study_new;
mod study_passwords;
mod study_to_answer;
mod terminal;
mod timing_command;
mod top;
mod variant_servers;
mod waits;
mod workflows;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pgassay");
