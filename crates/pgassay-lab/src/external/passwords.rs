//! Whether an external server may get the user's passwords: not if a study names it, whose author may be someone
//! else, unless the user allows it.

use anyhow::{Result, anyhow, bail};
use pgassay_wire::conninfo::{Environment, Target};
use pgassay_wire::{ExchangeError, WireError};

use crate::connector::ConnectError;
use crate::options::PasswordUse;
use crate::run_context::RunContext;

impl PasswordUse {
    /// For the server of a connection string without secrets.
    pub fn of(dsn: &str, context: &RunContext<'_>) -> Self {
        if context.study.is_dsn_of_user(dsn) {
            return Self::Allowed;
        }
        context.options.passwords
    }

    /// Where a connection string leads. A password that it has itself is always used.
    ///
    /// # Errors
    /// If it is invalid, or directs passwords that may not be used.
    pub fn resolve(
        self,
        dsn: &str,
        environment: &dyn Environment,
        context: &RunContext<'_>,
    ) -> Result<Target> {
        let request = context
            .study
            .request(dsn)?
            .fallback_application_name("pgassay");
        if self == Self::Allowed {
            return Ok(request.resolve(environment)?);
        }
        if let Some(option) = request.directs_passwords() {
            bail!(
                "{option} in the `dsn` of a study decides which server gets which of your passwords: if you trust the \
                 study, add --allow-passwords"
            );
        }
        let request = request.without_looking_up_passwords();
        Ok(request.resolve(environment)?)
    }

    /// Why a connection failed.
    pub fn explain(self, error: &ConnectError) -> anyhow::Error {
        let text = error.describe(|error| match error {
            ExchangeError::Wire(WireError::PasswordNeeded { user }) if self == Self::Refused => {
                format!(
                    "the server requires a password for user \"{user}\". The study names this server, and the password \
                     would be yours: if you trust the study, add --allow-passwords"
                )
            }
            other => other.to_string(),
        });
        anyhow!(text)
    }
}
