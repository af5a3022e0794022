//! What the kernel shows of processes from outside: CPU time, roles, mappings, and memory.

pub(crate) mod clocks;
pub(crate) mod cpu;
pub(crate) mod cpu_log;
pub(crate) mod files;
pub(crate) mod live;
pub(crate) mod machine_processes;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod peak_memory;
pub(crate) mod priority;
pub(crate) mod process_list;
pub(crate) mod process_states;
pub(crate) mod process_tree_cpu;
pub(crate) mod role;
