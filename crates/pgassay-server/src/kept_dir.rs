//! A directory for another program's server, such as Redis, that is removed as those of PostgreSQL's servers are.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::home;
use crate::keeper::Keeper;
use crate::os;
use crate::server_dir::ServerDir;
use crate::sweep;

/// A new directory that only the current user can access. It is removed when this is dropped; by its keeper if the
/// process is killed; and by the next start of a server if both are.
#[derive(Debug)]
pub struct KeptDir {
    place: ServerDir,
    keeper: Keeper,
}

impl KeptDir {
    /// Removes what earlier servers left, and creates a directory whose path can have a socket.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<Self> {
        Self::create_in(&home::parent_with_socket())
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let mut parents = home::parents(None);
        if !parents.iter().any(|it| it == parent) {
            parents.push(parent.to_owned());
        }
        sweep::stale_of(&parents, &[os::effective_uid()]);
        let place = ServerDir::create(parent)?;
        match Keeper::start(&place, None) {
            Ok(keeper) => Ok(Self { place, keeper }),
            Err(error) => {
                // The first error matters more than one of the cleanup.
                let _ = place.remove(Instant::now() + home::REMOVE_TIMEOUT);
                Err(error)
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.place.path()
    }
}

impl Drop for KeptDir {
    fn drop(&mut self) {
        let removed = self.place.remove(Instant::now() + home::REMOVE_TIMEOUT);
        let path = self.path().to_owned();
        let path = path.display();
        if let Err(error) = removed {
            tracing::error!(%path, %error, "cannot remove a server's directory");
        }
        // Killed, as by the kernel when memory is short, it must not end the run.
        if let Err(error) = self.keeper.release() {
            tracing::warn!(%path, %error, "a server's directory was removed without its keeper");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;
    use crate::waiting::wait_until;

    #[test]
    fn a_kept_directory_is_new_and_closed_to_others_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| KeptDir::create_in(parent.path()).unwrap());
        assert_ne!(one.path(), other.path());
        let mode = one.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::write(one.path().join("file"), "").unwrap();
        drop((one, other));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    /// Regression: the directory of Redis stayed if pgassay was killed.
    #[test]
    fn what_a_killed_process_and_its_killed_keeper_left_is_removed_at_the_next_start() {
        let parent = tempfile::tempdir().unwrap();
        let place = ServerDir::create(parent.path()).unwrap();
        let left = place.path().to_owned();
        std::fs::write(left.join("socket"), "").unwrap();
        let mut keeper = Keeper::start(&place, None).unwrap();
        keeper.kill().unwrap();
        keeper.release().unwrap_err();
        drop(place);
        // Processes that other tests start hold our locks between fork and exec.
        wait_until(Duration::from_secs(5), || {
            KeptDir::create_in(parent.path()).unwrap();
            !left.exists()
        });
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
