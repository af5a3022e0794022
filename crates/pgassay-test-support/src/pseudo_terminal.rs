//! A program in a pseudo-terminal: keys in, a screen out.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{wait_for_exit, wait_within};

/// A program whose terminal this is. It is killed when this is dropped.
pub struct PseudoTerminal {
    child: Child,
    ours: File,
    /// Kept open, so that its modes can be read after the program's end.
    theirs: File,
    received: Arc<Mutex<vt100::Parser>>,
    reading: Option<JoinHandle<()>>,
}

impl PseudoTerminal {
    /// Starts a program in a terminal of this size.
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: the pointers are to our own variables; the name and the modes may be null.
        let opened = unsafe {
            libc::openpty(
                &raw mut ours,
                &raw mut theirs,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0);
        // SAFETY: both descriptors are open and not used elsewhere.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(command, theirs.try_clone().unwrap());
        }
        let our_end = ours.as_raw_fd();
        // SAFETY: only system calls that are safe between fork and exec. The program becomes the leader
        // of a session whose terminal is its standard input.
        unsafe {
            command.pre_exec(move || {
                libc::close(our_end);
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let received = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (into, mut from) = (Arc::clone(&received), ours.try_clone().unwrap());
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // `theirs` stays open, so reading ends with a mark of our own.
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let bytes = &buffer[..count];
                let is_end = bytes.contains(&END);
                into.lock().unwrap().process(bytes);
                if is_end {
                    return;
                }
            }
        });
        Self {
            child,
            ours,
            theirs,
            received,
            reading: Some(reading),
        }
    }

    /// The process ID of the program.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Types keys.
    pub fn send(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// The screen as text, without trailing blanks.
    pub fn screen(&self) -> String {
        self.received.lock().unwrap().screen().contents()
    }

    /// Whether the program's own screen is shown, and not that of the shell.
    pub fn is_alternate(&self) -> bool {
        self.received.lock().unwrap().screen().alternate_screen()
    }

    /// Whether the cursor is hidden.
    pub fn hides_cursor(&self) -> bool {
        self.received.lock().unwrap().screen().hide_cursor()
    }

    /// Whether lines are edited and echoed, as a shell expects it.
    pub fn is_cooked(&self) -> bool {
        let mut modes = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the descriptor is open, and the kernel fills the structure if it returns 0.
        let modes = unsafe {
            assert_eq!(
                libc::tcgetattr(self.theirs.as_raw_fd(), modes.as_mut_ptr()),
                0
            );
            modes.assume_init()
        };
        let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
        modes.c_lflag & wanted == wanted
    }

    /// Waits until the screen satisfies a condition.
    ///
    /// # Panics
    /// If it does not within `limit`.
    pub fn wait_for(&self, what: &str, limit: Duration, holds: impl Fn(&str) -> bool) {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_within(what, limit, || holds(&self.screen()));
        }));
        assert!(shown.is_ok(), "{what}: the screen is\n{}", self.screen());
    }

    /// Waits for the program's end, and until all of its output was read. Returns its exit code.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let code = wait_for_exit(&mut self.child, limit);
        self.end_reading();
        code
    }

    /// Closes the terminal's window, and waits for the program's end. Returns its exit code.
    pub fn hang_up(mut self, limit: Duration) -> Option<i32> {
        self.end_reading();
        let nowhere = || File::open("/dev/null").unwrap();
        self.theirs = nowhere();
        self.ours = nowhere();
        wait_for_exit(&mut self.child, limit)
    }

    fn end_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.theirs.write_all(&[END]).unwrap();
            reading.join().unwrap();
        }
    }
}

/// No program under test sends this: NUL, which terminals ignore.
const END: u8 = 0;

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.end_reading();
    }
}
