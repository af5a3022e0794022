//! The operating-system user that a server runs as.
//!
//! PostgreSQL refuses to run as root (see `check_root` in `src/backend/main/main.c`), so root must
//! run the server as another user. Invariant: only that user writes below a server's directory.
//! Root writes there through a process of that user, never by itself, because the owner of a
//! directory could redirect root's own writes with a symbolic link.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::ServerError;
use crate::os::{self, PasswordEntry, Pid, Signal};
use crate::waiting::wait_until;

/// The user that root runs a server as by default.
const DEFAULT_USER: &str = "nobody";

/// The environment variables passed to PostgreSQL's programs. An allow-list, since PG* variables
/// would change the server, and since another user could read our secrets in `/proc/PID/environ`.
const ENVIRONMENT: [&str; 3] = ["PATH", "TZ", "LD_LIBRARY_PATH"];

/// How much of a program's output is kept.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Time limit of a script that only writes a file.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(30);

/// The user that a server runs as, and the current user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OsAccount {
    pub user: PasswordEntry,
    pub ourselves: PasswordEntry,
}

impl OsAccount {
    /// The user to run as: the current user; for root, `run_as` or `nobody`.
    pub(crate) fn choose(run_as: Option<&str>) -> Result<Self, ServerError> {
        let uid = os::effective_uid();
        let ourselves = os::user_by_id(uid)
            .map_err(|source| ServerError::UserLookUp {
                user: uid.to_string(),
                source,
            })?
            .ok_or_else(|| ServerError::NoSuchUser {
                user: format!("with uid {uid}"),
            })?;
        let name = match run_as {
            Some(name) => name,
            None if uid == 0 => DEFAULT_USER,
            None => {
                return Ok(Self {
                    user: ourselves.clone(),
                    ourselves,
                });
            }
        };
        let user = os::user_by_name(name)
            .map_err(|source| ServerError::UserLookUp {
                user: name.to_owned(),
                source,
            })?
            .ok_or_else(|| ServerError::NoSuchUser {
                user: name.to_owned(),
            })?;
        if user.uid == 0 {
            return Err(ServerError::RootNotAllowed);
        }
        if uid != 0 && user.uid != uid {
            return Err(ServerError::NotRoot {
                user: user.name,
                ourselves: ourselves.name,
            });
        }
        Ok(Self { user, ourselves })
    }

    /// Whether the server's user differs from the current user.
    pub(crate) fn is_other(&self) -> bool {
        self.user.uid != self.ourselves.uid
    }

    /// The uids of the users whose server directories are ours to remove: the current user, who
    /// creates them, and the server's user, to whom they are handed over.
    pub(crate) fn owners(&self) -> Vec<u32> {
        vec![self.ourselves.uid, self.user.uid]
    }

    /// A command that runs as the server's user with a clean environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("LC_ALL", "C")
            .env("LANG", "C")
            .stdin(Stdio::null());
        for name in ENVIRONMENT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if self.is_other() {
            // For root, the standard library also drops the supplementary groups.
            command.uid(self.user.uid).gid(self.user.gid);
        }
        command
    }

    /// Runs a shell script as the server's user, with `input` on its standard input. Kills it and
    /// returns an error if it takes longer than `timeout`.
    pub(crate) fn run_script(
        &self,
        script: &str,
        arguments: &[&OsStr],
        directory: &Path,
        input: &[u8],
        timeout: Duration,
    ) -> io::Result<Output> {
        let mut command = self.command(Path::new("/bin/sh"));
        command
            .arg("-c")
            .arg(script)
            .arg("pgassay")
            .args(arguments)
            .current_dir(directory);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        os::detach(&mut command, &[]);
        run(command, input, OUTPUT_BYTES_MAX, timeout)
    }

    /// Writes or replaces a file that only the server's user can read.
    pub(crate) fn write_file(&self, path: &Path, contents: &str) -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let script = "umask 077; cat > \"$1\"";
        let (arguments, input) = ([path.as_os_str()], contents.as_bytes());
        let output = self.run_script(script, &arguments, directory, input, SHORT_TIMEOUT)?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let full = words.contains("No space left on device");
        let kind = if full {
            io::ErrorKind::StorageFull
        } else {
            io::ErrorKind::Other
        };
        Err(io::Error::new(kind, words))
    }

    /// The first parent directory of `path` that the server's user cannot enter according to its
    /// permission bits. Only used to explain an error.
    pub(crate) fn barrier(&self, path: &Path) -> Option<PathBuf> {
        let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        ancestors.reverse();
        ancestors
            .into_iter()
            .find(|directory| !self.can_execute(directory))
            .map(Path::to_owned)
    }

    /// Whether the mode of a file or directory lets the user execute or enter it; access lists are not looked at.
    pub(crate) fn can_execute(&self, path: &Path) -> bool {
        let Ok(metadata) = path.metadata() else {
            return true;
        };
        let bit = if metadata.uid() == self.user.uid {
            0o100
        } else if metadata.gid() == self.user.gid {
            0o010
        } else {
            0o001
        };
        metadata.mode() & bit != 0
    }
}

/// Runs a command of [`OsAccount::command`] without input, as [`OsAccount::run_script`] does. It ends
/// with us: it has no directory by which a keeper or a sweep would find it.
pub(crate) fn run_program(command: Command, timeout: Duration) -> io::Result<Output> {
    run_large_program(command, OUTPUT_BYTES_MAX, timeout)
}

/// As [`run_program`], but keeps up to `kept_bytes` of what it prints.
pub(crate) fn run_large_program(
    mut command: Command,
    kept_bytes: u64,
    timeout: Duration,
) -> io::Result<Output> {
    command
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    os::detach(&mut command, &[]);
    let _killing = os::end_with_us(&mut command);
    run(command, b"", kept_bytes, timeout)
}

/// Runs a command with three pipes, in a session of its own. Keeps only the beginning of a long
/// output.
fn run(
    mut command: Command,
    input: &[u8],
    kept_bytes: u64,
    timeout: Duration,
) -> io::Result<Output> {
    let deadline = Instant::now() + timeout;
    let mut child = os::spawn(&mut command)?;
    // All inputs fit into a pipe's buffer, so this does not block.
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let outputs = [
        read_in_thread(child.stdout.take(), kept_bytes),
        read_in_thread(child.stderr.take(), OUTPUT_BYTES_MAX),
    ];
    let output = match collect(&mut child, outputs, deadline) {
        Ok(output) => output,
        Err(error) => {
            // The command leads a process group, which includes the processes that it started.
            os::send(
                -Pid::try_from(child.id()).map_err(io::Error::other)?,
                Signal::Kill,
            )?;
            child.wait()?;
            return Err(match error.kind() {
                io::ErrorKind::TimedOut => {
                    let words = format!("timed out after {} s", timeout.as_secs());
                    io::Error::new(io::ErrorKind::TimedOut, words)
                }
                _ => error,
            });
        }
    };
    // A script that fails before it has read its input breaks the pipe; its own error is more
    // informative.
    match written {
        Err(error) if output.status.success() => Err(error),
        _ => Ok(output),
    }
}

/// Waits for the end of both outputs and of the command.
fn collect(
    child: &mut Child,
    outputs: [io::Result<Option<Receiver<Vec<u8>>>>; 2],
    deadline: Instant,
) -> io::Result<Output> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let left = || deadline.saturating_duration_since(Instant::now());
    let [stdout, stderr] = outputs.map(|output| match output? {
        Some(output) => output.recv_timeout(left()).map_err(|_| late()),
        None => Ok(Vec::new()),
    });
    let (stdout, stderr) = (stdout?, stderr?);
    let mut status = child.try_wait();
    wait_until(left(), || {
        status = child.try_wait();
        !matches!(status, Ok(None))
    });
    Ok(Output {
        status: status?.ok_or_else(late)?,
        stdout,
        stderr,
    })
}

/// Reads a pipe to its end, so that its writer never waits, and returns its beginning. The thread
/// ends with the pipe's last writer.
fn read_in_thread(
    pipe: Option<impl Read + Send + 'static>,
    kept_bytes: u64,
) -> io::Result<Option<Receiver<Vec<u8>>>> {
    let Some(mut pipe) = pipe else {
        return Ok(None);
    };
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || {
        let mut kept = Vec::new();
        // An error ends the output, as the end of the pipe does.
        let _ = pipe.by_ref().take(kept_bytes).read_to_end(&mut kept);
        let _ = io::copy(&mut pipe, &mut io::sink());
        // After the time limit there is no receiver.
        let _ = sender.send(kept);
    })?;
    Ok(Some(receiver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;

    use pgassay_rights::{self as rights, Purpose, StartedPrograms};

    #[test]
    fn a_server_never_runs_as_root() {
        let account = OsAccount::choose(None).unwrap();
        assert_ne!(account.user.uid, 0);
        let ours = os::effective_uid();
        assert_eq!(account.is_other(), ours == 0);
        if ours == 0 {
            assert_eq!(account.user.name, DEFAULT_USER);
            assert!(matches!(
                OsAccount::choose(Some("root")),
                Err(ServerError::RootNotAllowed)
            ));
        }
    }

    #[test]
    fn the_error_for_an_unknown_user_includes_its_name() {
        let error = OsAccount::choose(Some("no-such-user-here")).unwrap_err();
        assert!(error.to_string().contains("no-such-user-here"), "{error}");
    }

    #[test]
    fn a_parent_directory_without_access_is_found() {
        let base = tempfile::tempdir().unwrap();
        let closed = base.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let account = OsAccount::choose(None).unwrap();
        assert_eq!(
            account.barrier(&closed.join("bin/postgres")),
            Some(closed.clone())
        );
        assert_eq!(account.barrier(Path::new("/bin/sh")), None);
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn a_script_that_takes_too_long_is_killed() {
        let account = OsAccount::choose(None).unwrap();
        let run = |script, timeout| {
            account.run_script(
                script,
                &[],
                Path::new("/"),
                b"in",
                Duration::from_millis(timeout),
            )
        };
        let start = std::time::Instant::now();
        let error = run("sleep 30 & sleep 30", 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(
            run("cat; echo out; exit 3", 10_000).unwrap().stdout,
            b"inout\n"
        );
    }

    #[test]
    fn endless_output_is_not_kept_and_ends_at_the_time_limit() {
        let account = OsAccount::choose(None).unwrap();
        let mut command = account.command(Path::new("/bin/sh"));
        command.args(["-c", "cat /dev/zero"]);
        let error = run_program(command, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut command = account.command(Path::new("/bin/sh"));
        command.args(["-c", "head -c 3000000 /dev/zero; echo no >&2"]);
        let output = run_program(command, Duration::from_mins(1)).unwrap();
        assert_eq!(output.stdout.len() as u64, OUTPUT_BYTES_MAX);
        assert_eq!(output.stderr, b"no\n");
    }

    /// Regression test: a stopped `postgres --version` of a killed process stayed for ever.
    #[test]
    fn a_stopped_program_ends_with_the_thread_that_runs_it() {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        let file = directory.path().join("pid");
        let account = OsAccount::choose(None).unwrap();
        let mut command = account.command(Path::new("/bin/sh"));
        command.args(["-c", "echo $$ >\"$1\"; kill -STOP $$", "sh"]);
        command.arg(&file).stdin(Stdio::null());
        // The thread starts it and ends without waiting for it. Its rights are those of the program: with
        // root's, which other tests have, the kernel always kills it.
        let start = move || {
            rights::keep(&Purpose::ALL, StartedPrograms::Unlimited).unwrap();
            let killing = os::end_with_us(&mut command);
            let child = os::spawn(&mut command).unwrap();
            // As a thread that is killed, it does not lower its rights.
            std::mem::forget(killing);
            child
        };
        let mut child = thread::spawn(start).join().unwrap();
        let mut ended = None;
        wait_until(Duration::from_mins(1), || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        if ended.is_none() {
            child.kill().unwrap();
        }
        let signal = ended.and_then(|status| status.signal());
        assert_eq!(signal, Some(libc::SIGKILL));
    }

    #[test]
    fn only_allowed_environment_variables_are_passed_to_a_server() {
        let account = OsAccount::choose(None).unwrap();
        let command = account.command(Path::new("/bin/sh"));
        let allowed =
            |name: &str| ENVIRONMENT.contains(&name) || name == "LC_ALL" || name == "LANG";
        for (name, value) in command.get_envs() {
            assert!(
                value.is_none() || allowed(name.to_str().unwrap()),
                "{name:?}"
            );
        }
    }
}
