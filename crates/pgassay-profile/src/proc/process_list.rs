//! Lists the processes of a server again and again, at little cost.
//!
//! Most processes of a machine were there at the previous listing, and neither their parent nor a known role
//! changes. The kernel gives each process's directory under `/proc` a new inode number
//! (`proc_pid_make_inode` in Linux's `fs/proc/base.c`), which tells a new process from an earlier one with the
//! same PID without reading any of its files. If the kernel forgets an inode meanwhile, the process only is
//! read again.

use crate::proc::files::ProcessStat;
use crate::proc::live::{LiveProcess, LiveServer};
use crate::proc::role::{Role, read_role};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::DirEntryExt as _;

/// The children of a postmaster.
#[derive(Debug)]
pub struct ProcessList {
    postmaster_pid: u32,
    known: HashMap<u32, KnownProcess>,
}

#[derive(Debug, Clone)]
struct KnownProcess {
    inode: u64,
    /// `None` for a process of another program.
    role: Option<Role>,
}

impl ProcessList {
    /// The processes of a server, none of which is known yet.
    pub fn of_server(server: &LiveServer) -> Self {
        Self {
            postmaster_pid: server.postmaster_pid,
            known: HashMap::new(),
        }
    }

    /// The postmaster's current children. A microsecond for each process that is known, and some tens for a
    /// new one.
    pub fn read(&mut self) -> Vec<LiveProcess> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let inodes = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
            Some((pid, entry.ino()))
        });
        let known = std::mem::take(&mut self.known);
        self.known = inodes
            .filter_map(|(pid, inode)| Some((pid, self.process(pid, inode, known.get(&pid))?)))
            .collect();
        let children = self.known.iter().filter_map(|(&pid, process)| {
            let role = process.role.clone()?;
            Some(LiveProcess { pid, role })
        });
        children.collect()
    }

    /// A process; `None` if it has ended.
    fn process(&self, pid: u32, inode: u64, known: Option<&KnownProcess>) -> Option<KnownProcess> {
        match known.filter(|it| it.inode == inode) {
            Some(known) if known.role != Some(Role::Unknown) => Some(known.clone()),
            _ => {
                let stat = ProcessStat::read(pid).ok()?;
                let is_child = stat.parent_pid == self.postmaster_pid;
                let role = is_child.then(|| read_role(pid));
                Some(KnownProcess { inode, role })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn pids(list: &mut ProcessList) -> Vec<u32> {
        list.read().into_iter().map(|it| it.pid).collect()
    }

    #[test]
    fn children_are_listed_while_they_exist() {
        let mut list = ProcessList::of_server(&LiveServer::of_postmaster(std::process::id()));
        let mut first = sleeping();
        assert!(pids(&mut list).contains(&first.id()));
        let mut second = sleeping();
        let both = pids(&mut list);
        assert!(both.contains(&first.id()) && both.contains(&second.id()));
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let after = pids(&mut list);
        assert!(!after.contains(&first.id()) && !after.contains(&second.id()));
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        let own = std::process::id();
        let mut list = ProcessList::of_server(&LiveServer::of_postmaster(own));
        let mut child = sleeping();
        list.read();
        // As if the PID had belonged to another program, and then to another child, before.
        for role in [None, Some(Role::Checkpointer)] {
            let inode = list.known[&child.id()].inode;
            let earlier = KnownProcess {
                inode: inode + 1,
                role,
            };
            list.known.insert(child.id(), earlier);
            let now = list.read().into_iter().find(|it| it.pid == child.id());
            assert_eq!(now.map(|it| it.role), Some(Role::Unknown));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
