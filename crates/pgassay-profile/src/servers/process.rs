//! Maps processes to servers.
//!
//! The sources are records of forks, exits, executions and mappings while sampling is on, and
//! `/proc` for earlier ones: every process is looked up once in each sampling window, at its first
//! sample, since there are no records between windows. Invariant: a process is attributed to a
//! server only if it is known to belong to it.

use crate::perf::record::MapRecord;
use crate::proc::files::ProcessStat;
use crate::proc::maps::{self, MappedFile, Mapping};
use crate::proc::role::{Role, read_role};
use crate::unwind::space::{SpaceId, Spaces};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Maximum number of generations between a server process and its postmaster.
const ANCESTORS_MAX: usize = 8;
/// With more address spaces than this, all are discarded and made again when they are needed: 20 KB each. Each
/// program that a server executes, such as its `archive_command`, has another.
const SPACES_MAX: usize = 32;

/// A process of a profiled server.
#[derive(Debug, Clone)]
pub(crate) struct ProfiledProcess {
    pub postmaster_pid: u32,
    pub role: Role,
    /// The address space of its mappings; `None` while it has not been needed.
    pub space: Option<SpaceId>,
    /// `None` until they have been read. Children share them until one maps another file.
    mappings: Option<Arc<Vec<Mapping>>>,
    /// It has executed another program, so its title is not a server's.
    is_another_program: bool,
    /// Its mappings have been read in this window.
    is_current: bool,
    has_ended: bool,
}

/// The owner of a sample.
pub(crate) enum SampleOwner<'a> {
    Server(&'a mut ProfiledProcess),
    OtherProgram,
    /// The process ended before it could be identified.
    Unknown,
}

/// All known processes.
#[derive(Default)]
pub(crate) struct ProcessTable {
    postmasters: HashSet<u32>,
    servers: HashMap<u32, ProfiledProcess>,
    other_programs: HashSet<u32>,
    /// Processes whose exit was read, but that are not known, and when they ended. The rings of the CPUs are not read
    /// at the same instant, so the fork of such a process may be among the next records.
    ended_unknown: Vec<(u32, u64)>,
    ended_before: Vec<(u32, u64)>,
}

impl ProcessTable {
    /// Adds a server. Reads its object files at once, which takes longest, so that no window has to
    /// wait for it.
    pub fn watch(&mut self, postmaster_pid: u32, spaces: &mut Spaces) {
        self.postmasters.insert(postmaster_pid);
        self.other_programs.clear();
        self.owner(postmaster_pid, spaces);
    }

    /// Removes a server and its processes.
    pub fn unwatch(&mut self, postmaster_pid: u32) {
        self.postmasters.remove(&postmaster_pid);
        self.servers
            .retain(|_, p| p.postmaster_pid != postmaster_pid);
    }

    /// Prepares for changes since the last window.
    pub fn begin_window(&mut self, spaces: &mut Spaces) {
        self.other_programs.clear();
        // PIDs are reused, also by other programs.
        let mut servers = std::mem::take(&mut self.servers);
        servers.retain(|pid, process| {
            matches!(self.find_postmaster(*pid), Ancestry::Server(it) if it == process.postmaster_pid)
        });
        self.servers = servers;
        self.limit_spaces(spaces);
        for process in self.servers.values_mut() {
            process.is_current = false;
        }
        // Children inherit the postmaster's space, including those that end before they can be
        // read.
        for postmaster_pid in self.postmasters.clone() {
            self.owner(postmaster_pid, spaces);
        }
    }

    /// Finds all processes of the servers, including those that will not be sampled.
    pub fn find_all(&mut self, spaces: &mut Spaces) {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids.collect::<Vec<_>>() {
            let is_child = |stat: ProcessStat| self.postmasters.contains(&stat.parent_pid);
            if ProcessStat::read(pid).is_ok_and(is_child) {
                self.owner(pid, spaces);
            }
        }
    }

    /// All known server processes that have not ended.
    pub fn server_pids(&self) -> impl Iterator<Item = u32> {
        let living = self
            .servers
            .iter()
            .filter(|(_, process)| !process.has_ended);
        living.map(|(pid, _)| *pid)
    }

    /// The process of a sample, looked up if it is new.
    pub fn owner(&mut self, pid: u32, spaces: &mut Spaces) -> SampleOwner<'_> {
        let owner = self.find(pid);
        if let SampleOwner::Server(process) = owner {
            process.make_space(pid, spaces);
            return SampleOwner::Server(process);
        }
        owner
    }

    /// As [`Self::owner`], perhaps without its space.
    fn find(&mut self, pid: u32) -> SampleOwner<'_> {
        if !self.servers.contains_key(&pid) {
            if self.other_programs.contains(&pid) {
                return SampleOwner::OtherProgram;
            }
            match self.find_postmaster(pid) {
                Ancestry::Server(postmaster_pid) => self.adopt(pid, postmaster_pid),
                Ancestry::OtherProgram => {
                    self.other_programs.insert(pid);
                    return SampleOwner::OtherProgram;
                }
                Ancestry::Ended => return SampleOwner::Unknown,
            }
        }
        let process = self
            .servers
            .get_mut(&pid)
            .expect("it exists or has just been added");
        process.refresh(pid);
        SampleOwner::Server(process)
    }

    pub fn forked(&mut self, pid: u32, parent_pid: u32, time_ns: u64) {
        let mut ended = self.ended_before.iter().chain(&self.ended_unknown);
        let has_ended = ended.any(|(it, ended_ns)| *it == pid && *ended_ns >= time_ns);
        // PIDs are reused.
        self.other_programs.remove(&pid);
        self.servers.remove(&pid);
        // Copied now, since the child may end before it is read.
        match self.find(parent_pid) {
            SampleOwner::Server(parent) => {
                let child = ProfiledProcess {
                    role: Role::Unknown,
                    is_current: false,
                    has_ended,
                    ..parent.clone()
                };
                self.servers.insert(pid, child);
            }
            SampleOwner::OtherProgram if !has_ended => {
                self.other_programs.insert(pid);
            }
            SampleOwner::OtherProgram | SampleOwner::Unknown => {}
        }
    }

    /// There may still be samples of the process to read, so only `remove_ended` removes it.
    pub fn exited(&mut self, pid: u32, time_ns: u64) {
        match self.servers.get_mut(&pid) {
            Some(process) => process.has_ended = true,
            None => self.ended_unknown.push((pid, time_ns)),
        }
    }

    /// Removes the processes that have ended, and address spaces if there are many.
    pub fn remove_ended(&mut self, spaces: &mut Spaces) {
        self.limit_spaces(spaces);
        self.servers.retain(|_, p| !p.has_ended);
        for (pid, _) in &self.ended_unknown {
            self.other_programs.remove(pid);
        }
        self.ended_before = std::mem::take(&mut self.ended_unknown);
    }

    fn limit_spaces(&mut self, spaces: &mut Spaces) {
        if spaces.len() > SPACES_MAX {
            spaces.clear();
            for process in self.servers.values_mut() {
                process.space = None;
            }
        }
    }

    pub fn executed(&mut self, pid: u32) {
        if let Some(process) = self.servers.get_mut(&pid) {
            process.is_another_program = !self.postmasters.contains(&pid);
            process.role = Role::Unknown;
            // The new program's mappings follow as records.
            process.mappings = Some(Arc::default());
            process.space = None;
            process.is_current = false;
        }
    }

    pub fn mapped(&mut self, record: &MapRecord<'_>) {
        let Some(process) = self.servers.get_mut(&record.pid) else {
            return;
        };
        let text = String::from_utf8_lossy(record.path);
        let file = MappedFile::from_kernel(&text, record.device, record.inode);
        if let (true, Some(mappings), Some(file)) = (record.executable, &mut process.mappings, file)
        {
            let mapping = Mapping {
                start: record.start,
                end: record.start.saturating_add(record.len),
                file_offset: record.file_offset,
                file,
            };
            maps::insert(Arc::make_mut(mappings), mapping);
            process.space = None;
        }
    }

    fn adopt(&mut self, pid: u32, postmaster_pid: u32) {
        let postmaster = self.servers.get(&postmaster_pid);
        let (space, mappings) = postmaster
            .map(|it| (it.space, it.mappings.clone()))
            .unwrap_or_default();
        self.servers.insert(
            pid,
            ProfiledProcess {
                postmaster_pid,
                role: Role::Unknown,
                space,
                mappings,
                is_another_program: false,
                is_current: false,
                has_ended: false,
            },
        );
    }

    fn find_postmaster(&self, pid: u32) -> Ancestry {
        let mut ancestor = pid;
        for _ in 0..ANCESTORS_MAX {
            if self.postmasters.contains(&ancestor) {
                return Ancestry::Server(ancestor);
            }
            if ancestor <= 1 {
                break;
            }
            match ProcessStat::read(ancestor) {
                Ok(stat) => ancestor = stat.parent_pid,
                // The postmaster's processes are visible.
                Err(_) if exists(ancestor) => break,
                Err(_) => return Ancestry::Ended,
            }
        }
        Ancestry::OtherProgram
    }
}

/// Whether there is a process, even if `/proc` hides it: see `hidepid` in proc(5).
fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    // SAFETY: signal 0 is never sent.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

enum Ancestry {
    Server(u32),
    OtherProgram,
    Ended,
}

impl ProfiledProcess {
    /// Reads the mappings once per window, and the title until the role is known.
    fn refresh(&mut self, pid: u32) {
        if !self.is_current {
            self.is_current = true;
            // A process that has just ended keeps its inherited mappings.
            if let Ok(mappings) = maps::read(pid)
                && !mappings.is_empty()
            {
                self.mappings = Some(Arc::new(mappings));
                self.space = None;
            }
        }
        self.learn_role(pid);
    }

    fn make_space(&mut self, pid: u32, spaces: &mut Spaces) {
        if let (None, Some(mappings)) = (self.space, &self.mappings) {
            self.space = Some(spaces.intern(pid, mappings));
        }
    }

    /// Reads the role, unless it is known or cannot be known.
    pub fn learn_role(&mut self, pid: u32) {
        if pid == self.postmaster_pid {
            self.role = Role::Postmaster;
        } else if self.role == Role::Unknown && !self.is_another_program {
            self.role = read_role(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::space::KnownCode;

    /// A PID that no process has.
    const PID: u32 = 5_000_000;

    /// Regression: with `hidepid`, the processes of other users had ended before they could be identified.
    #[test]
    fn a_process_that_proc_hides_has_not_ended() {
        // Another user's, unless the test runs as root.
        assert!(exists(1) && exists(std::process::id()));
        for ended in [PID, u32::MAX] {
            assert!(!exists(ended));
        }
    }

    /// Regression: each mapping of each program, such as an `archive_command`, had an address space of 20 KB until the
    /// end of the window.
    #[test]
    fn programs_that_a_server_executes_do_not_fill_memory() {
        let mut spaces = Spaces::default();
        let mut table = ProcessTable::default();
        table.watch(std::process::id(), &mut spaces);
        for number in 0..3 * SPACES_MAX as u64 {
            let unsampled = spaces.len();
            table.forked(PID, std::process::id(), number);
            table.executed(PID);
            for place in [number, 1_000_000 + number] {
                table.mapped(&MapRecord {
                    pid: PID,
                    start: place << 20,
                    len: 1 << 20,
                    file_offset: 0,
                    device: (0, 0),
                    inode: 1,
                    executable: true,
                    path: b"/not/there",
                });
            }
            // A program that starts another is not sampled for that.
            table.forked(PID + 1, PID, number);
            table.exited(PID + 1, number);
            assert_eq!(spaces.len(), unsampled);
            if number % 2 == 0 {
                let SampleOwner::Server(process) = table.owner(PID, &mut spaces) else {
                    panic!("a child of the server");
                };
                assert!(process.space.is_some());
                assert_eq!(process.mappings.as_ref().map(|it| it.len()), Some(2));
                assert_eq!(spaces.len(), unsampled + 1);
            }
            table.exited(PID, number);
            table.remove_ended(&mut spaces);
            assert!(spaces.len() <= SPACES_MAX + 1);
        }
        // The server has another space than before, with the same mappings.
        let SampleOwner::Server(server) = table.owner(std::process::id(), &mut spaces) else {
            panic!("the server");
        };
        let regs = [0; crate::arch::REGS_COUNT];
        let code = KnownCode {
            is_code: false,
            can_unwind: true,
        };
        spaces.unwind(server.space.unwrap(), &regs, &[], false, |_, _| code);
    }
}
