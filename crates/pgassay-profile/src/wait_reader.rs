//! What a backend waits for, read from its memory: no query, and the server does nothing for it.
//!
//! A backend keeps `wait_event_info` in its `PGPROC`, in shared memory. From 14 on the exported
//! variable `my_wait_event_info` points at it (`src/include/utils/wait_event.h`, in 14 `pgstat.h`);
//! before, `MyProc` is exported, and where in `PGPROC` the number lies differs from build to build,
//! so [`WaitReader::learn`] finds it by two waits that it causes itself. Both variables are in
//! `.dynsym`, so stripped builds have them. A postmaster's children share one address layout.
//!
//! Invariant: only reads, through `process_vm_readv`; a place is trusted only if it is the one that
//! held what it should each time.

use crate::error::NotPermitted;
use crate::live::LiveServer;
use crate::maps::{self, Mapping};
use crate::memory;
use crate::object_file;
use pgassay_wire::{Exchange, ExchangeError};
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

/// No `PGPROC` is larger before 14 (10.23: 816 bytes).
const PROC_BYTES_MAX: usize = 1024;
/// How long to wait until a connection is seen to wait.
const LEARN_LIMIT: Duration = Duration::from_secs(5);
const LEARN_STEP: Duration = Duration::from_millis(5);

/// Why wait events cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The kernel does not let this user read the server's memory.
    #[error("{0}")]
    NotPermitted(NotPermitted),
    /// The server is before 14, where the place must be learnt over connections.
    #[error(
        "wait events of PostgreSQL before 14 can be read only with a connection to it, which shows \
         where they are kept"
    )]
    NeedsConnection,
    /// The program does not export what leads to the number.
    #[error("wait events cannot be read: the server's program names no {variable}")]
    NoVariable {
        /// The variable that was looked for.
        variable: &'static str,
    },
    /// No place in the process's memory, or several, held what they should.
    #[error("wait events cannot be read: {places} places in memory look like theirs")]
    NotLearnt {
        /// How many.
        places: usize,
    },
    /// The connections that show the place failed.
    #[error("wait events cannot be read: {0}")]
    Exchange(#[from] ExchangeError),
    /// The process or its program cannot be read.
    #[error("wait events cannot be read from process {pid}: {source}")]
    Unreadable {
        /// The process.
        pid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The numbers of the two waits by which a place is learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownWaits {
    /// Waiting for an advisory lock.
    pub advisory: u32,
    /// Waiting for the client; 0 in 9.6, which does not tell.
    pub idle: u32,
}

/// Reads wait events of one server's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitReader {
    /// Address of a pointer.
    pointer: u64,
    /// From where that points to the number.
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
        // Its own is always there, so this shows whether reading is permitted.
        reader.read(pid).map_err(|source| unreadable(pid, source))?;
        Ok(reader)
    }

    /// A reader for 9.6 to 13, by means of two connections, of which one waits for the other for
    /// some milliseconds: the place of the number is the one that shows the wait, and its end.
    ///
    /// # Panics
    /// Never: asking the server returns its failures.
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
        waiter.query("set statement_timeout = '10s'")?;
        // What already looks like the wait before there is one is not its place.
        let before = holding(pid, pointer, known.advisory, &all_places())?;
        let mut open = all_places();
        open.retain(|place| !before.contains(place));
        // The key is ours alone: it holds the number of our own connection's process.
        let lock = format!("pg_advisory_lock({}, {pid})", i32::from_be_bytes(*b"pgas"));
        holder.query(&format!("select {lock}"))?;
        let statement = format!("select {lock}");
        let (locked, waiter) = thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let answer = waiter.query(&statement).map(drop);
                (answer, waiter)
            });
            let places = places(pid, pointer, known.advisory, &open);
            let unlock = lock.replace("_lock", "_unlock");
            let released = holder.query(&format!("select {unlock}"));
            let (answer, waiter) = waiting.join().expect("asking the server does not panic");
            (released.and(answer).and(Ok(places)), waiter)
        });
        let places = places(pid, pointer, known.idle, &locked??)?;
        drop(waiter);
        match places[..] {
            [offset] => Ok(Self { pointer, offset }),
            _ => Err(WaitError::NotLearnt {
                places: places.len(),
            }),
        }
    }

    /// What the process waits for, as `wait_event_info`; 0 if nothing that it would tell.
    ///
    /// # Errors
    /// The process has ended, has no entry among the server's processes, or may not be read.
    pub fn read(&self, pid: u32) -> io::Result<u32> {
        let at = read_pointer(pid, self.pointer)?;
        let mut number = [0; 4];
        memory::read(pid, at + self.offset, &mut number)?;
        Ok(u32::from_ne_bytes(number))
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

/// The address of a variable of the server's program.
fn find_variable(pid: u32, name: &str) -> Result<Option<u64>, WaitError> {
    let mappings = maps::read(pid).map_err(|source| unreadable(pid, source))?;
    if mappings.is_empty() {
        // Where it is refused, the kernel may also show an empty file.
        return Err(unreadable(pid, io::ErrorKind::PermissionDenied.into()));
    }
    // The program itself is in any of its directories, its libraries are named otherwise.
    let is_program = |it: &&Mapping| {
        let name = it.file.path.file_name().unwrap_or_default();
        name.to_string_lossy().contains("postgres")
    };
    for mapping in mappings.iter().filter(is_program) {
        match object_file::variable(pid, mapping, name) {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "an object could not be read"),
        }
    }
    Ok(None)
}

fn all_places() -> Vec<u64> {
    (0..PROC_BYTES_MAX as u64).step_by(4).collect()
}

/// Those of the places in a process's `PGPROC` that hold a number, as soon as any does.
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

/// Those that hold it now.
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

fn read_pointer(pid: u32, address: u64) -> io::Result<u64> {
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
    fn memory_is_read_as_it_is_and_what_is_not_mapped_is_an_error() {
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
