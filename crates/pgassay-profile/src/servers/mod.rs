//! The profiled servers: their processes, code, and wait events.

pub(crate) mod process;

use crate::servers::process::{ProcessTable, SampleOwner};
use crate::unwind::kallsyms::KernelSymbols;
use crate::unwind::stack_reader::StackReader;
use crate::waits::reader::WaitReader;
use std::collections::HashMap;

/// What is known of the profiled servers, from window to window.
pub(crate) struct ProfiledServers {
    pub processes: ProcessTable,
    pub stacks: StackReader,
    /// By postmaster.
    pub wait_readers: HashMap<u32, WaitReader>,
}

impl ProfiledServers {
    pub fn new(kernel: KernelSymbols) -> Self {
        Self {
            processes: ProcessTable::default(),
            stacks: StackReader::new(kernel),
            wait_readers: HashMap::new(),
        }
    }

    /// Adds a server.
    pub fn watch(&mut self, postmaster_pid: u32) {
        self.processes
            .watch(postmaster_pid, &mut self.stacks.spaces);
    }

    /// Removes a server.
    pub fn unwatch(&mut self, postmaster_pid: u32) {
        self.processes.unwatch(postmaster_pid);
        self.wait_readers.remove(&postmaster_pid);
    }

    /// Prepares for changes since the last window.
    pub fn begin_window(&mut self) {
        self.processes.begin_window(&mut self.stacks.spaces);
        self.stacks.begin_window();
    }

    /// Finds all processes of the servers, including those that will not be sampled.
    pub fn find_all(&mut self) {
        self.processes.find_all(&mut self.stacks.spaces);
    }

    /// Forgets the processes that have ended. No record of theirs may be left to read.
    pub fn remove_ended(&mut self) {
        self.processes.remove_ended(&mut self.stacks.spaces);
    }

    /// The process of a sample, looked up if it is new.
    pub fn owner(&mut self, pid: u32) -> SampleOwner<'_> {
        self.processes.owner(pid, &mut self.stacks.spaces)
    }
}
