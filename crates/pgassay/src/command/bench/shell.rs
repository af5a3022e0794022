//! `\shell` and `\setshell`. Source: `runShellCommand` in pgbench.c.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The size of pgbench's buffer without the NUL.
const OUTPUT_BYTES_MAX: u64 = 63;

/// Runs a command line. With `captures`, returns the beginning of its first line of output.
pub fn run(line: &[u8], captures: bool) -> Result<Vec<u8>, &'static str> {
    const LAUNCH: &str = "could not launch shell command";
    let mut command = Command::new("/bin/sh");
    // As system(3), which pgbench calls; the shell begins its messages with this name.
    command.arg0("sh").arg("-c").arg(OsStr::from_bytes(line));
    if !captures {
        return match command.status() {
            Ok(status) if status.success() => Ok(Vec::new()),
            _ => Err(LAUNCH),
        };
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|_| LAUNCH)?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout.take(OUTPUT_BYTES_MAX)).read_until(b'\n', &mut output);
        if read.is_err() {
            output.clear();
        }
    }
    child.wait().map_err(|_| "could not close shell command")?;
    if output.is_empty() {
        return Err("could not read result of shell command");
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_counts() {
        assert_eq!(run(b"echo 1; echo 2", true), Ok(b"1\n".to_vec()));
        assert_eq!(run(b"true", false), Ok(Vec::new()));
        assert!(run(b"true", true).is_err() && run(b"false", false).is_err());
    }
}
