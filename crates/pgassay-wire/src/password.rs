//! A password type that does not reveal its content.

use std::fmt;

/// A password. `Debug` prints asterisks, and there is no `Display`, so that no log, error or stored
/// result can contain it by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps a password.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the password, for sending it to a server or writing it to a file that only the user
    /// can read.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
