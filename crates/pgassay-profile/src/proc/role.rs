//! The role of a server process, from its title.

pub use pgassay_knowledge::Role;

use crate::proc::files::with_line;

/// Reads the title of a process; [`Role::Unknown`] if it has ended or has no title yet.
pub(crate) fn read_role(pid: u32) -> Role {
    let path = format!("/proc/{pid}/cmdline");
    with_line(path, |title| Role::parse(&String::from_utf8_lossy(title))).unwrap_or(Role::Unknown)
}
