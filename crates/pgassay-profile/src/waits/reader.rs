//! Reads a backend's wait event from its memory, without a query and at no cost to the server.
//!
//! A backend keeps `wait_event_info` in its `PGPROC`, in shared memory. Since 14 the exported
//! variable `my_wait_event_info` points to it (`src/include/utils/wait_event.h`, in 14 `pgstat.h`).
//! Before 14 only `MyProc` is exported, and the field's offset in `PGPROC` differs between builds,
//! so [`WaitReader::learn`] finds it by causing two known waits. Both variables are in `.dynsym`,
//! so stripped builds have them. A postmaster's children share one address layout.
//!
//! Invariant: only reads, through `process_vm_readv`; an offset is trusted only if it is the only
//! one that held the expected value each time.

use crate::perf::error::NotPermitted;
use crate::proc::live::LiveServer;
use crate::proc::maps::{self, Mapping};
use crate::proc::memory;
use crate::unwind::object_file;
use pgassay_wire::{Exchange, ExchangeError};
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Before 14 no `PGPROC` is larger (10.23: 816 bytes).
const PROC_BYTES_MAX: usize = 1024;
/// So many mappings of a server's program are searched for a variable; there is one.
const PROGRAM_MAPPINGS_MAX: usize = 8;
/// How long to wait for a connection's wait event to appear.
const LEARN_LIMIT: Duration = Duration::from_secs(5);
const LEARN_STEP: Duration = Duration::from_millis(5);

/// Why wait events cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The kernel does not let this user read the server's memory.
    #[error("{0}")]
    NotPermitted(NotPermitted),
    /// The server is older than 14, where finding the offset requires connections.
    #[error(
        "before PostgreSQL 14, reading wait events from memory requires a connection to the server"
    )]
    NeedsConnection,
    /// The program does not export the variable that leads to the wait event.
    #[error("wait events cannot be read: the server's program does not export {variable}")]
    NoVariable {
        /// The variable.
        variable: &'static str,
    },
    /// No offset in the process's memory, or more than one, held the expected values.
    #[error("wait events cannot be read: {places} candidate locations in memory instead of one")]
    AmbiguousLocation {
        /// The number of candidates.
        places: usize,
    },
    /// A pooler is between: the PID is not that of the backend, and the next statement can have another one.
    #[error("wait events cannot be read: the connection goes through a pooler")]
    Pooler,
    /// The connections that cause the known waits failed.
    #[error("wait events cannot be read")]
    Exchange(#[from] ExchangeError),
    /// The process or its program cannot be read.
    #[error("wait events cannot be read from process {pid}")]
    Unreadable {
        /// The process.
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The values of the two waits that identify the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownWaits {
    /// Waiting for an advisory lock.
    pub advisory: u32,
    /// Waiting for the client; 0 in 9.6, which does not report it.
    pub idle: u32,
}

/// Reads the wait events of one server's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitReader {
    /// Address of the exported pointer.
    pointer: u64,
    /// Offset of the wait event from the pointer's target.
    offset: u64,
}

impl WaitReader {
    /// A reader for 14 and later.
    pub fn open(server: &LiveServer) -> Result<Self, WaitError> {
        const VARIABLE: &str = "my_wait_event_info";
        let pid = server.postmaster_pid;
        let Some(pointer) = find_variable(pid, VARIABLE)? else {
            return Err(match find_variable(pid, "MyProc")? {
                Some(_) => WaitError::NeedsConnection,
                None => WaitError::NoVariable { variable: VARIABLE },
            });
        };
        let reader = Self { pointer, offset: 0 };
        // The postmaster always has one, so this shows whether reading is permitted.
        reader.read(pid).map_err(|source| unreadable(pid, source))?;
        Ok(reader)
    }

    /// A reader for 9.6 to 13. One of two connections waits for the other for some milliseconds;
    /// the offset is the one that shows the wait, and then its end.
    ///
    /// # Panics
    /// Never: queries return their errors.
    pub fn learn<S: Read + Write + Send>(
        server: &LiveServer,
        known: KnownWaits,
        holder: &mut Exchange<S>,
        mut waiter: Exchange<S>,
    ) -> Result<Self, WaitError> {
        const VARIABLE: &str = "MyProc";
        let pointer = find_variable(server.postmaster_pid, VARIABLE)?
            .ok_or(WaitError::NoVariable { variable: VARIABLE })?;
        let pid = waiter.backend().map_or(0, |key| key.pid.unsigned_abs());
        if waiter.value("select pg_catalog.pg_backend_pid()")? != Some(pid.to_string()) {
            return Err(WaitError::Pooler);
        }
        // Nothing outlasts the transactions: neither a setting nor a lock may stay in a session that a
        // pooler gives to others.
        holder.query("begin transaction read only")?;
        waiter.query("begin transaction read only; set local statement_timeout = '10s'")?;
        // An offset that holds the value before the wait begins is not the right one.
        let before = holding(pid, pointer, known.advisory, &all_places())?;
        let mut open = all_places();
        open.retain(|place| !before.contains(place));
        // The key is unique to us: it includes the PID of our own connection's backend.
        let key = i32::from_be_bytes(*b"pgas");
        let statement = format!("select pg_catalog.pg_advisory_xact_lock({key}, {pid})");
        holder.query(&statement)?;
        let (locked, waiter) = thread::scope(|scope| {
            let waiting = thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let answer = waiter.query(&statement).map(drop);
                    (answer, waiter)
                })
                .map_err(|source| WaitError::Unreadable { pid, source })?;
            let places = places(pid, pointer, known.advisory, &open);
            let released = holder.query("rollback");
            let (answer, waiter) = waiting.join().expect("asking the server does not panic");
            Ok::<_, WaitError>((released.and(answer).and(Ok(places)), waiter))
        })?;
        let places = places(pid, pointer, known.idle, &locked??)?;
        drop(waiter);
        match places[..] {
            [offset] => Ok(Self { pointer, offset }),
            _ => Err(WaitError::AmbiguousLocation {
                places: places.len(),
            }),
        }
    }

    /// The process's `wait_event_info`; 0 if it reports no wait.
    ///
    /// # Errors
    /// The process has ended, has no `PGPROC`, or is not readable.
    pub fn read(&self, pid: u32) -> io::Result<u32> {
        let mut number = [0; 4];
        memory::read(pid, self.address(pid)?, &mut number)?;
        Ok(u32::from_ne_bytes(number))
    }

    /// The address of the process's `wait_event_info`.
    pub(crate) fn address(&self, pid: u32) -> io::Result<u64> {
        Ok(read_pointer(pid, self.pointer)? + self.offset)
    }
}

fn unreadable(pid: u32, source: io::Error) -> WaitError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        let program = std::env::current_exe().ok();
        WaitError::NotPermitted(NotPermitted::reading_memory(pid, program))
    } else {
        WaitError::Unreadable { pid, source }
    }
}

/// The address of a variable in the server's program.
pub(crate) fn find_variable(pid: u32, name: &str) -> Result<Option<u64>, WaitError> {
    let mappings = maps::read(pid).map_err(|source| unreadable(pid, source))?;
    if mappings.is_empty() {
        // If reading is not permitted, the kernel may also show an empty file.
        return Err(unreadable(pid, io::ErrorKind::PermissionDenied.into()));
    }
    // The directory can be any; the server's libraries have other names than the program.
    let is_program = |it: &&Mapping| {
        let name = it.file.path.file_name().unwrap_or_default();
        name.to_string_lossy().contains("postgres")
    };
    for mapping in mappings
        .iter()
        .filter(is_program)
        .take(PROGRAM_MAPPINGS_MAX)
    {
        match object_file::variable(pid, mapping, name) {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot read an object file"),
        }
    }
    Ok(None)
}

fn all_places() -> Vec<u64> {
    (0..PROC_BYTES_MAX as u64).step_by(4).collect()
}

/// Waits until one of these offsets in a process's `PGPROC` holds a number; gives all that do.
fn places(pid: u32, pointer: u64, number: u32, among: &[u64]) -> Result<Vec<u64>, WaitError> {
    let until = Instant::now() + LEARN_LIMIT;
    loop {
        let found = holding(pid, pointer, number, among)?;
        if !found.is_empty() || Instant::now() > until {
            return Ok(found);
        }
        thread::sleep(LEARN_STEP);
    }
}

/// The offsets that hold the number now.
fn holding(pid: u32, pointer: u64, number: u32, among: &[u64]) -> Result<Vec<u64>, WaitError> {
    let mut memory = [0; PROC_BYTES_MAX];
    let at = read_pointer(pid, pointer);
    at.and_then(|at| memory::read(pid, at, &mut memory))
        .map_err(|source| unreadable(pid, source))?;
    let holds = |&&place: &&u64| {
        let bytes = &memory[place as usize..place as usize + 4];
        bytes == number.to_ne_bytes()
    };
    Ok(among.iter().filter(holds).copied().collect())
}

pub(crate) fn read_pointer(pid: u32, address: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory::read(pid, address, &mut bytes)?;
    match u64::from_ne_bytes(bytes) {
        0 => Err(io::ErrorKind::NotFound.into()),
        pointer => Ok(pointer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_memory_and_unmapped_memory_is_an_error() {
        let own = std::process::id();
        let value = Box::new(0x0600_0000_u32);
        let pointer: Box<u64> = Box::new(&raw const *value as u64);
        let reader = WaitReader {
            pointer: &raw const *pointer as u64,
            offset: 0,
        };
        assert_eq!(reader.read(own).unwrap(), 0x0600_0000);
        let nowhere = Box::new(0_u64);
        let reader = WaitReader {
            pointer: &raw const *nowhere as u64,
            offset: 0,
        };
        assert_eq!(
            reader.read(own).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let unmapped = WaitReader {
            pointer: 8,
            offset: 0,
        };
        assert!(unmapped.read(own).is_err());
    }
}
