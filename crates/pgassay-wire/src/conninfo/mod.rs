//! Where and as whom to connect, by libpq's conventions.
//!
//! A [`Request`] collects what the user said, flags and connection strings, in the order that
//! counts: what comes later wins. (psql and pgbench put flags *before* a connection string given
//! as the database, so that the string wins; to let flags win, give them after it.)
//! [`Request::resolve`] then fills in what is missing: first from the service, then from the
//! environment, then from `.pgpass`, then libpq's defaults.
//!
//! Reading variables and files is left to the caller's [`Surroundings`].
//!
//! Source: `src/interfaces/libpq/fe-connect.c` of PostgreSQL 15 and 18 (`conninfo_parse`,
//! `conninfo_uri_parse_options`, `conninfo_add_defaults`, `parseServiceInfo`, `passwordFromFile`).

mod attempts;
mod encryption;
mod error;
mod files;
mod keywords;
mod methods;
mod resolve;
mod secrets;
mod syntax;
mod target;

use std::io;
use std::path::{Path, PathBuf};

pub use attempts::{Attempt, Attempts, Endpoint, Failure};
pub use error::ConninfoError;
pub use methods::Methods;
pub use secrets::{Secrets, without_secrets};
pub use target::{Address, ChannelBinding, Host, SessionAttributes, SslMode, Target};

/// A file as [`Surroundings`] read it.
#[derive(Clone, Debug, Default)]
pub struct FileText {
    /// Its content.
    pub text: String,
    /// Its permission bits, as in `st_mode & 0o777`.
    pub mode: u32,
    /// Whether it belongs to root.
    pub is_of_root: bool,
}

/// What the process was started with and finds around it.
pub trait Surroundings {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// The name of the operating system's user.
    fn user(&self) -> Option<String>;
    /// The user's home directory.
    fn home(&self) -> Option<PathBuf>;
    /// A file's content; `None` where there is no such file.
    ///
    /// # Errors
    /// Where there is a file that cannot be read.
    fn read(&self, path: &Path) -> io::Result<Option<FileText>>;
    /// The certificates in DER that the system trusts.
    fn system_roots(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Where unix sockets are expected if nobody says: libpq's is set when it is built.
    fn socket_directory(&self) -> String {
        "/tmp".into()
    }
}

/// Neither variables nor files: the request says all, as for a server of our own, which `PGHOST` and
/// the like must not lead away from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSurroundings;

impl Surroundings for NoSurroundings {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn user(&self) -> Option<String> {
        None
    }

    fn home(&self) -> Option<PathBuf> {
        None
    }

    fn read(&self, _path: &Path) -> io::Result<Option<FileText>> {
        Ok(None)
    }
}

/// What the user asked for, in the order in which later wins.
#[derive(Clone, Default)]
pub struct Request {
    options: Vec<(String, String)>,
    fallback_application_name: Option<String>,
}

impl Request {
    /// Nothing asked for: everything comes from the surroundings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one option, as a flag does. An empty value is none, while an empty one in a connection
    /// string keeps the environment's away (`conninfo_array_parse`, `conninfo_parse`).
    ///
    /// # Errors
    /// [`ConninfoError::UnknownOption`].
    pub fn option(mut self, name: &str, value: &str) -> Result<Self, ConninfoError> {
        if value.is_empty() && keywords::find(name).is_some() {
            return Ok(self);
        }
        self.store(name, value)?;
        Ok(self)
    }

    /// Takes what is given as a database: a URI, a string of `keyword=value`, or a plain name.
    ///
    /// # Errors
    /// A syntax error or an unknown option.
    pub fn database(self, text: &str) -> Result<Self, ConninfoError> {
        if syntax::is_uri(text) || text.contains('=') {
            return self.conninfo(text);
        }
        self.option("dbname", text)
    }

    /// Takes a URI or a string of `keyword=value`.
    ///
    /// # Errors
    /// A syntax error or an unknown option.
    pub fn conninfo(mut self, text: &str) -> Result<Self, ConninfoError> {
        let pairs = if syntax::is_uri(text) {
            syntax::uri(text)?
        } else {
            syntax::pairs(text)?
        };
        for (name, value) in pairs {
            self.store(&name, &value)?;
        }
        Ok(self)
    }

    /// The application's name, should nobody set another.
    #[must_use]
    pub fn fallback_application_name(mut self, name: &str) -> Self {
        self.fallback_application_name = Some(name.into());
        self
    }

    /// Fills in what is missing, and checks the whole.
    ///
    /// # Errors
    /// Values that mean nothing, what is not supported, an unreadable service.
    pub fn resolve(&self, surroundings: &dyn Surroundings) -> Result<Target, ConninfoError> {
        resolve::resolve(self, surroundings)
    }

    fn store(&mut self, name: &str, value: &str) -> Result<(), ConninfoError> {
        if keywords::find(name).is_none() {
            return Err(ConninfoError::UnknownOption { name: name.into() });
        }
        self.options.retain(|(known, _)| known != name);
        self.options.push((name.into(), value.into()));
        Ok(())
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.options.iter().map(|(name, value)| {
            (
                name,
                if keywords::is_secret(name) {
                    "***"
                } else {
                    value.as_str()
                },
            )
        });
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests;
