//! What bench asks the system for: a password, the limit on open files, the offset of its clock.

use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;

use pgassay_lab::system_env::{monotonic_ns, unix_us};

/// What to add to a time on the load generator's clock to get the time since 1970, in µs.
pub fn epoch_shift_us() -> u64 {
    let now_us = unix_us().cast_unsigned();
    now_us.saturating_sub(monotonic_ns() / 1000)
}

/// The hard limit on open files.
pub fn open_files_max() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to our rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_max)
}

/// Prompts for a password on the terminal, without echo.
pub fn ask_password() -> io::Result<String> {
    let mut terminal = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")?;
    terminal.write_all(b"Password: ")?;
    // SAFETY: all zeroes is a valid termios.
    let mut before: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the pointer is to our termios.
    let is_terminal = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut before) } == 0;
    if is_terminal {
        let mut silent = before;
        silent.c_lflag &= !libc::ECHO;
        // SAFETY: the pointer is to our termios.
        unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSAFLUSH, &raw const silent) };
    }
    let mut line = String::new();
    let read = io::BufReader::new(&terminal).read_line(&mut line);
    if is_terminal {
        // SAFETY: as above.
        unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSAFLUSH, &raw const before) };
    }
    terminal.write_all(b"\n")?;
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
