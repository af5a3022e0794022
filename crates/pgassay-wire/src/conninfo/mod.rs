//! Connection parameters, by libpq's conventions.
//!
//! A [`Request`] collects the user's flags and connection strings in order of precedence: later
//! ones win. (psql and pgbench put flags *before* a connection string given as the database, so the
//! string wins. To let flags win, add them after it.) [`Request::resolve`] then fills in missing
//! parameters from the service file, the environment, `.pgpass`, and libpq's defaults, in this
//! order.
//!
//! The caller reads environment variables and files by implementing [`Environment`].
//!
//! Source: `src/interfaces/libpq/fe-connect.c` of PostgreSQL 15 and 18 (`conninfo_parse`,
//! `conninfo_uri_parse_options`, `conninfo_add_defaults`, `parseServiceInfo`, `passwordFromFile`).

mod attempts;
mod encryption;
mod environment;
mod error;
mod files;
mod keywords;
mod locale;
mod methods;
mod options;
mod resolve;
mod secrets;
mod syntax;
mod target;

pub use attempts::{Attempt, AttemptFailure, Attempts, Endpoint};
pub use environment::{EmptyEnvironment, Environment, FileText};
pub use error::ConninfoError;
pub use methods::Methods;
pub use secrets::{Secrets, split_secrets};
pub use target::{Address, ChannelBinding, SessionAttributes, SslMode, Target, TargetHost};

/// The user's connection parameters, in order of precedence.
#[derive(Clone, Default)]
pub struct Request {
    options: Vec<(String, String)>,
    fallback_application_name: Option<String>,
    fallback_database: Option<String>,
    /// Whether [`Request::resolve`] takes passwords from nowhere else.
    has_all_passwords: bool,
}

impl Request {
    /// Creates an empty request: everything comes from the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one option, as a command-line flag does. An empty value counts as unset, whereas an
    /// empty value in a connection string overrides the environment (`conninfo_array_parse`,
    /// `conninfo_parse`).
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

    /// Adds a database argument: a URI, a `keyword=value` string, or a plain name.
    ///
    /// # Errors
    /// A syntax error or an unknown option.
    pub fn database(self, text: &str) -> Result<Self, ConninfoError> {
        if syntax::is_uri(text) || text.contains('=') {
            return self.conninfo(text);
        }
        self.option("dbname", text)
    }

    /// Adds a URI or a `keyword=value` string.
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

    /// Sets the application's name if nothing else does.
    #[must_use]
    pub fn fallback_application_name(mut self, name: &str) -> Self {
        self.fallback_application_name = Some(name.into());
        self
    }

    /// Names the database if nothing else does, instead of the user.
    #[must_use]
    pub fn fallback_database(mut self, name: &str) -> Self {
        self.fallback_database = Some(name.into());
        self
    }

    /// Looks up no password: none of `PGPASSWORD`, of the service file, and of the password file. For a request of
    /// someone who may not use the user's passwords.
    #[must_use]
    pub fn without_looking_up_passwords(mut self) -> Self {
        self.has_all_passwords = true;
        self
    }

    /// An option, or a combination, that decides where passwords come from or which server gets those of a
    /// service; `None` if there is none.
    pub fn directs_passwords(&self) -> Option<&'static str> {
        let has = |name: &str| self.options.iter().any(|(known, _)| known == name);
        let has_place = || ["host", "hostaddr", "port"].into_iter().any(has);
        let found = [
            ("passfile", has("passfile")),
            ("servicefile", has("servicefile")),
            (
                "service with host, hostaddr or port",
                has("service") && has_place(),
            ),
        ];
        let mut found = found.into_iter().filter(|(_, is_set)| *is_set);
        found.next().map(|(name, _)| name)
    }

    /// Fills in missing parameters and checks the result.
    ///
    /// # Errors
    /// Invalid or unsupported values, or an unreadable service file.
    pub fn resolve(&self, environment: &dyn Environment) -> Result<Target, ConninfoError> {
        resolve::resolve(self, environment)
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
                if keywords::has_secret_value(name) {
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
