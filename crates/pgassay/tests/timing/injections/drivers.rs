//! Delays from outside the server: a slow log reader, and a CPU hog next to the client. The
//! transaction itself specifies the duration.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes read from a pipe at a time.
const PAGE: usize = 4096;
/// Capacity of a pipe.
const PIPE_BYTES: libc::c_int = 4096;
/// How often to check whether to stop.
const PATIENCE_MS: libc::c_int = 50;
/// Holds closer together than this were queued for the driver. Longer than the driver's own lateness on
/// a busy machine, shorter than the time between trials.
const QUEUED_WITHIN: Duration = Duration::from_millis(30);

/// A driver's measurements of its holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Holds {
    count: u32,
    held: Duration,
    periods: u32,
    period: Duration,
    last: Option<Instant>,
}

impl Holds {
    /// Mean length of a hold, in µs.
    pub fn mean_us(&self) -> f64 {
        self.held.as_secs_f64() * 1e6 / f64::from(self.count.max(1))
    }

    /// Mean time between queued holds, in µs.
    pub fn period_us(&self) -> f64 {
        self.period.as_secs_f64() * 1e6 / f64::from(self.periods.max(1))
    }

    fn add(&mut self, begun: Instant) {
        if let Some(last) = self.last.filter(|it| begun - *it < QUEUED_WITHIN) {
            self.periods += 1;
            self.period += begun - last;
        }
        self.last = Some(begun);
        self.count += 1;
        self.held += begun.elapsed();
    }
}

/// A thread that reads lines from a named pipe and delays the writer if a line requests it.
pub struct Driver {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    holds: Arc<Mutex<Holds>>,
}

impl Driver {
    /// Creates a named pipe and reads a server's log from it. A line with `hold=µs` makes the reader
    /// pause; a process that writes more than the pipes hold is blocked meanwhile.
    pub fn slow_log_reader(path: &Path) -> Self {
        let pipe = named_pipe(path);
        // SAFETY: sets the size of an open pipe.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        let asked = |line: &str| number(line.split_once("hold=")?.1);
        Self::start(pipe, || (), asked, thread::sleep)
    }

    /// Creates a named pipe and occupies this CPU at real-time priority for as many µs as a line in
    /// the pipe says. `Err` if not permitted.
    pub fn hog(path: &Path, cpu: usize) -> io::Result<Self> {
        let pipe = named_pipe(path);
        let permitted = thread::spawn(become_urgent)
            .join()
            .expect("the thread does not panic");
        permitted?;
        let prepare = move || {
            pin(0, cpu).expect("a thread may pin itself");
            become_urgent().expect("another thread was permitted to");
        };
        let occupy = |time: Duration| {
            let until = Instant::now() + time;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        };
        Ok(Self::start(pipe, prepare, number, occupy))
    }

    fn start(
        mut pipe: File,
        prepare: impl FnOnce() + Send + 'static,
        asked_us: impl Fn(&str) -> Option<u64> + Send + 'static,
        hold: impl Fn(Duration) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let holds = Arc::new(Mutex::new(Holds::default()));
        let (stops, counted) = (Arc::clone(&stop), Arc::clone(&holds));
        let thread = thread::spawn(move || {
            prepare();
            wake_on_time();
            let (mut page, mut text) = ([0; PAGE], Vec::new());
            while wait_for(&pipe, &stops) {
                let length = pipe.read(&mut page).expect("a pipe can be read");
                text.extend_from_slice(&page[..length]);
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    let asked = asked_us(&String::from_utf8_lossy(&line));
                    let Some(us) = asked.filter(|us| *us > 0) else {
                        continue;
                    };
                    let begun = Instant::now();
                    hold(Duration::from_micros(us));
                    let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                    counted.add(begun);
                }
            }
        });
        Self {
            thread: Some(thread),
            stop,
            holds,
        }
    }

    /// The measurements since the last call.
    pub fn take_holds(&self) -> Holds {
        std::mem::take(&mut *self.holds.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The number at the start of a text.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let digits = text.find(|it: char| !it.is_ascii_digit());
    text[..digits.unwrap_or(text.len())].parse().ok()
}

/// A named pipe that any user can write to. Also opened for writing, so that it never reaches EOF.
fn named_pipe(path: &Path) -> File {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path has no NUL");
    // SAFETY: the name lives until the call returns.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o666) };
    assert_eq!(
        made,
        0,
        "{}: {}",
        path.display(),
        io::Error::last_os_error()
    );
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).expect("its mode");
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.expect("the pipe opens")
}

/// Waits for data; returns false if it is time to stop.
fn wait_for(pipe: &File, stop: &AtomicBool) -> bool {
    loop {
        let mut poll = libc::pollfd {
            fd: pipe.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: one descriptor, which lives until the call returns.
        if unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MS) } > 0 {
            return true;
        }
    }
}

/// Turns off timer slack, which wakes a thread up to 50 µs late.
fn wake_on_time() {
    // SAFETY: sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Gives the calling thread real-time priority.
fn become_urgent() -> io::Result<()> {
    let urgent = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter lives until the call returns.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const urgent) };
    checked(done)
}

/// Pins a process or thread (0: the caller) to one CPU. Its later children inherit that.
pub fn pin(pid: i32, cpu: usize) -> io::Result<()> {
    // SAFETY: a set of CPUs is plain bits, and lives until the call returns.
    let done = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(pid, size_of_val(&cpus), &raw const cpus)
    };
    checked(done)
}

fn checked(done: libc::c_int) -> io::Result<()> {
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
