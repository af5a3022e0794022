//! The keeper: a small shell process that outlives us and ends the server after we have died.
//!
//! It reads a pipe whose other end only we hold. Whatever ends us, even SIGKILL, closes that end;
//! the keeper then shuts the server down, removes its directories and exits. It has its own
//! session, so the terminal's Ctrl-C does not reach it, and it holds the lock of the server's
//! directories (see `address`), so no sweep removes them in the meantime. The server is our child,
//! not the keeper's, so that we get its exit status and can restart it; the keeper has its PID from
//! the pipe, and finds all other processes by their directory. The script is `keeper.sh`.

use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgassay_rights::{self as rights, Purpose};

use crate::os;
use crate::server_dir::ServerDir;
use crate::waiting::wait_until;

const SCRIPT: &str = include_str!("keeper.sh");
/// The script's `PATH` if we have none, for `rm`, `rmdir`, `readlink` and `sleep`.
const PROGRAMS: &str = "/usr/local/bin:/usr/bin:/bin";
/// Time limit for the end of a released keeper.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// A running keeper.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    pipe: Option<PipeWriter>,
}

impl Keeper {
    /// Starts a keeper for a server's directory, and for its socket's directory if separate.
    pub(crate) fn start(base: &ServerDir, socket: Option<&ServerDir>) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "pgassay-keeper"])
            .arg(base.path());
        command.arg(socket.map_or(Path::new(""), ServerDir::path));
        command
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let path = std::env::var_os("PATH").unwrap_or_else(|| PROGRAMS.into());
        command.env_clear().env("PATH", path).current_dir("/");
        let locks: Vec<_> = [Some(base), socket]
            .into_iter()
            .flatten()
            .map(|place| place.lock().as_fd())
            .collect();
        rights::limit(&mut command, &[Purpose::Rest, Purpose::Signals]);
        os::detach(&mut command, &locks);
        let child = command.spawn()?;
        Ok(Self {
            child,
            pipe: Some(pipe),
        })
    }

    /// Gives it the PID of the postmaster that was just started.
    pub(crate) fn note_postmaster(&self, pid: u32) {
        let line = format!("{pid}\n");
        let noted = self
            .pipe
            .as_ref()
            .map(|mut pipe| pipe.write_all(line.as_bytes()));
        // A keeper that was killed must not end the run.
        if let Some(Err(error)) = noted {
            tracing::debug!(%error, "the server's keeper has ended");
        }
    }

    /// As the kernel does when memory is short.
    #[cfg(test)]
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Lets the keeper finish: it removes what is left, and ends.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        self.pipe = None;
        let mut status = None;
        wait_until(END_TIMEOUT, || {
            status = self.child.try_wait().transpose();
            status.is_some()
        });
        match status.transpose()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(io::Error::other(format!(
                "the server's keeper failed: {status}"
            ))),
            None => {
                self.child.kill()?;
                self.child.wait()?;
                Err(io::Error::other("the server's keeper did not end"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::fs::{self, File};
    use std::thread;

    #[test]
    fn a_released_keeper_removes_what_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let base = ServerDir::create(parent.path()).unwrap();
        let socket = ServerDir::create(parent.path()).unwrap();
        let mut keeper = Keeper::start(&base, Some(&socket)).unwrap();
        assert!(base.path().exists() && socket.path().exists());
        keeper.release().unwrap();
        assert!(!base.path().exists() && !socket.path().exists());
    }

    /// Regression: the keeper ended `/usr/lib/postgresql/18/bin/psql` of a user in the directory of a server.
    #[test]
    fn a_program_in_a_directory_named_like_postgres_is_not_ended_by_the_keeper() {
        let parent = tempfile::tempdir().unwrap();
        let base = ServerDir::create(parent.path()).unwrap();
        let programs = parent.path().join("postgresql");
        fs::create_dir(&programs).unwrap();
        let program = programs.join("psql");
        pgassay_test_support::copy_program(Path::new("/bin/sleep"), &program);
        let start = || {
            Command::new(&program)
                .arg("60")
                .current_dir(base.path())
                .spawn()
        };
        let mut user = start().unwrap();
        let mut keeper = Keeper::start(&base, None).unwrap();
        keeper.release().unwrap();
        assert!(user.try_wait().unwrap().is_none());
        user.kill().unwrap();
        user.wait().unwrap();
    }

    /// Regression: root's keeper took what another user had written into a pipe. An open for writing waits until the
    /// pipe is opened for reading, so it shows whether that happens.
    #[test]
    fn a_pipe_in_place_of_the_pid_file_is_not_opened_by_the_keeper() {
        let parent = tempfile::tempdir().unwrap();
        let base = ServerDir::create(parent.path()).unwrap();
        let pipe = base.path().join("data/postmaster.pid");
        fs::create_dir(base.path().join("data")).unwrap();
        mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
        let mut keeper = Keeper::start(&base, None).unwrap();
        let path = pipe.clone();
        let writing = thread::spawn(move || File::options().write(true).open(path));
        keeper.release().unwrap();
        assert!(!writing.is_finished());
        File::open(&pipe).unwrap();
        writing.join().unwrap().unwrap();
    }

    #[test]
    fn a_keeper_holds_the_lock_on_its_own() {
        let parent = tempfile::tempdir().unwrap();
        let account = crate::account::OsAccount::choose(None).unwrap();
        let base = ServerDir::create(parent.path()).unwrap();
        let path = base.path().to_owned();
        let mut keeper = Keeper::start(&base, None).unwrap();
        drop(base);
        assert!(
            ServerDir::adopt(&path, &account.owners())
                .unwrap()
                .is_none()
        );
        keeper.release().unwrap();
    }
}
