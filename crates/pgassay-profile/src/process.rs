//! Which processes belong to which server.
//!
//! Learnt from records of forks, exits, programs and mappings while sampling is on, and from
//! `/proc` for what was there before: every process is looked up once in each window of sampling,
//! when its first sample comes, since no records come in between. Invariant: a process that is
//! not known to be a server's is never counted as one.

use crate::maps::{self, MappedFile, Mapping};
use crate::procfs::ProcessStat;
use crate::record::MapRecord;
use crate::role::Role;
use crate::space::{SpaceId, Spaces};
use std::collections::{HashMap, HashSet};

/// How many generations a server's helpers may be away from its postmaster.
const ANCESTORS_MAX: usize = 8;
/// Above this many address spaces, all are forgotten and learnt anew.
const SPACES_MAX: usize = 512;

/// A process of a watched server.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub postmaster_pid: u32,
    pub role: Role,
    /// Where its code lies; nothing until it could be read once.
    pub space: Option<SpaceId>,
    /// It has run another program than the server, and its title tells nothing.
    is_another_program: bool,
    /// Its mappings were read in this window.
    is_current: bool,
    has_ended: bool,
}

/// What is known of the process of a sample.
pub(crate) enum Owner<'a> {
    Server(&'a mut Process),
    Foreign,
    /// It ended before it could be asked.
    Unknown,
}

/// All processes that were met.
#[derive(Default)]
pub(crate) struct ProcessTable {
    postmasters: HashSet<u32>,
    servers: HashMap<u32, Process>,
    foreign: HashSet<u32>,
    ended_foreign: Vec<u32>,
}

impl ProcessTable {
    /// Watches a server from now on. Its objects are read at once, which takes longest, so that
    /// no window has to wait for it.
    pub fn watch(&mut self, postmaster_pid: u32, spaces: &mut Spaces) {
        self.postmasters.insert(postmaster_pid);
        self.foreign.clear();
        self.owner(postmaster_pid, spaces);
    }

    /// Forgets a server and its processes.
    pub fn unwatch(&mut self, postmaster_pid: u32) {
        self.postmasters.remove(&postmaster_pid);
        self.servers
            .retain(|_, p| p.postmaster_pid != postmaster_pid);
    }

    /// What was learnt may have changed unseen since the last window.
    pub fn begin_window(&mut self, spaces: &mut Spaces) {
        self.foreign.clear();
        self.servers
            .retain(|pid, _| std::path::Path::new(&format!("/proc/{pid}")).exists());
        let forget = spaces.len() > SPACES_MAX;
        if forget {
            spaces.clear();
        }
        for process in self.servers.values_mut() {
            process.is_current = false;
            if forget {
                process.space = None;
            }
        }
        // The postmaster's space is what its children inherit, also those that end so soon that
        // they can't be asked.
        for postmaster_pid in self.postmasters.clone() {
            self.owner(postmaster_pid, spaces);
        }
    }

    /// Looks for all processes of the servers, those too that no sample will meet.
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

    /// All processes of servers that are known and have not ended.
    pub fn server_pids(&self) -> impl Iterator<Item = u32> {
        let living = self
            .servers
            .iter()
            .filter(|(_, process)| !process.has_ended);
        living.map(|(pid, _)| *pid)
    }

    /// The process of a sample, looked up if it is new.
    pub fn owner(&mut self, pid: u32, spaces: &mut Spaces) -> Owner<'_> {
        if !self.servers.contains_key(&pid) {
            if self.foreign.contains(&pid) {
                return Owner::Foreign;
            }
            match self.find_postmaster(pid) {
                Ancestry::Server(postmaster_pid) => self.adopt(pid, postmaster_pid),
                Ancestry::Foreign => {
                    self.foreign.insert(pid);
                    return Owner::Foreign;
                }
                Ancestry::Ended => return Owner::Unknown,
            }
        }
        let process = self
            .servers
            .get_mut(&pid)
            .expect("it was there or has just been adopted");
        process.refresh(pid, spaces);
        Owner::Server(process)
    }

    pub fn forked(&mut self, pid: u32, parent_pid: u32, spaces: &mut Spaces) {
        // A number may be given anew.
        self.foreign.remove(&pid);
        self.servers.remove(&pid);
        // Asked now, since the child may be gone before it is.
        match self.owner(parent_pid, spaces) {
            Owner::Server(parent) => {
                let child = Process {
                    role: Role::Unknown,
                    is_current: false,
                    has_ended: false,
                    ..parent.clone()
                };
                self.servers.insert(pid, child);
            }
            Owner::Foreign => {
                self.foreign.insert(pid);
            }
            Owner::Unknown => {}
        }
    }

    /// The process may still have samples to be read, so it is forgotten only by `bury`.
    pub fn exited(&mut self, pid: u32) {
        match self.servers.get_mut(&pid) {
            Some(process) => process.has_ended = true,
            None => self.ended_foreign.push(pid),
        }
    }

    /// Forgets the processes that have ended.
    pub fn bury(&mut self) {
        self.servers.retain(|_, p| !p.has_ended);
        for pid in self.ended_foreign.drain(..) {
            self.foreign.remove(&pid);
        }
    }

    pub fn executed(&mut self, pid: u32, spaces: &mut Spaces) {
        if let Some(process) = self.servers.get_mut(&pid) {
            process.is_another_program = !self.postmasters.contains(&pid);
            process.role = Role::Unknown;
            // The new program's mappings follow as records.
            process.space = Some(spaces.intern(pid, Vec::new()));
            process.is_current = false;
        }
    }

    pub fn mapped(&mut self, record: &MapRecord<'_>, spaces: &mut Spaces) {
        let Some(process) = self.servers.get_mut(&record.pid) else {
            return;
        };
        let text = String::from_utf8_lossy(record.path);
        let file = MappedFile::from_kernel(&text, record.device, record.inode);
        if let (true, Some(space), Some(file)) = (record.executable, process.space, file) {
            let mapping = Mapping {
                start: record.start,
                end: record.start.saturating_add(record.len),
                file_offset: record.file_offset,
                file,
            };
            process.space = Some(spaces.with(space, record.pid, mapping));
        }
    }

    fn adopt(&mut self, pid: u32, postmaster_pid: u32) {
        let space = self.servers.get(&postmaster_pid).and_then(|p| p.space);
        self.servers.insert(
            pid,
            Process {
                postmaster_pid,
                role: Role::Unknown,
                space,
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
                Err(_) => return Ancestry::Ended,
            }
        }
        Ancestry::Foreign
    }
}

enum Ancestry {
    Server(u32),
    Foreign,
    Ended,
}

impl Process {
    /// Reads the mappings once a window, and the title until it says something.
    fn refresh(&mut self, pid: u32, spaces: &mut Spaces) {
        if !self.is_current {
            self.is_current = true;
            // A process that has just ended keeps what it inherited.
            if let Ok(mappings) = maps::read(pid)
                && !mappings.is_empty()
            {
                self.space = Some(spaces.intern(pid, mappings));
            }
        }
        self.learn_role(pid);
    }

    /// Asks for the role, unless it is known or cannot be.
    pub fn learn_role(&mut self, pid: u32) {
        if pid == self.postmaster_pid {
            self.role = Role::Postmaster;
        } else if self.role == Role::Unknown && !self.is_another_program {
            self.role = Role::read(pid);
        }
    }
}
