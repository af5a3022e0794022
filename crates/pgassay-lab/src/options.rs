//! Where PostgreSQL comes from and where its data go.

use std::path::PathBuf;

/// Whether an external server may get the user's passwords: of the password file, of a service, and of `PGPASSWORD`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PasswordUse {
    /// The user named the server, or allows it.
    Allowed,
    /// A study names the server.
    #[default]
    Refused,
}

impl PasswordUse {
    /// [`Self::Allowed`] if `is_allowed`.
    pub fn allowed_if(is_allowed: bool) -> Self {
        if is_allowed {
            Self::Allowed
        } else {
            Self::Refused
        }
    }
}

/// Options for the servers that a run starts, and what it may do on external ones.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Download nothing; use cached or installed versions.
    pub offline: bool,
    /// Mirror of the repository to download PostgreSQL from; `https`, unless it is on this machine.
    pub mirror: Option<String>,
    /// Directory for downloaded versions; `None` means the user's cache directory.
    pub cache: Option<PathBuf>,
    /// Operating system user for the servers if the program runs as root; `None` means `nobody`.
    pub run_as: Option<String>,
    /// Parent of temporary data directories; `None` means the system's temporary directory.
    pub data_parent: Option<PathBuf>,
    /// Whether a study may create databases on external servers, and change what else its
    /// statements change there.
    pub allow_writes: bool,
    /// Whether a study may connect to external servers as a superuser.
    pub allow_superuser: bool,
    /// Whether external servers that a study names may get the user's passwords.
    pub passwords: PasswordUse,
    /// Directory for journals of changes to external servers, from which [`crate::recover`] undoes
    /// what a killed run left; `None` keeps no journals.
    pub journal_dir: Option<PathBuf>,
}
