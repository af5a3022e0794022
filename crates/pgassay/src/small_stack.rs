//! A stack that is large enough, whatever `ulimit -s` is.

use std::process::ExitCode;
use std::thread;

use crate::exit::FAILURE;
use crate::output::print_line_stderr;

/// A main thread whose stack may grow to this is enough.
const ENOUGH_BYTES: u64 = 4 << 20;
/// Otherwise another thread gets as much as is usual.
const STACK_BYTES: usize = 8 << 20;

/// Runs the program, in a thread with a stack of its size if the main thread's may not grow enough: the process would
/// be killed without a message that a user understands.
pub fn with_enough_stack(run: fn() -> ExitCode) -> ExitCode {
    if limit_bytes().is_none_or(|limit| limit >= ENOUGH_BYTES) {
        return run();
    }
    match thread::Builder::new().stack_size(STACK_BYTES).spawn(run) {
        Ok(running) => running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => {
            print_line_stderr(&format!("pgassay: cannot start a thread: {error}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// The limit of `ulimit -s`; `None` if it is unknown.
fn limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to our rlimit.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0;
    (!failed).then_some(limit.rlim_cur)
}
