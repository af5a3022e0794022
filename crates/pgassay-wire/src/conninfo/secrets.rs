//! Connection strings without secrets, because results are stored, sent and printed.

use super::{ConninfoError, Request, keywords};
use crate::password::Password;

/// Secret values of a connection string, by option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(Vec<(String, Password)>);

impl Secrets {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Splits a database argument (a URI, `keyword=value …` or a plain name) into a string that can be
/// displayed and its secrets. Without secrets the string is returned unchanged, otherwise as
/// `keyword=value …`.
///
/// # Errors
/// A syntax error or an unknown option, as for [`Request::database`].
pub fn split_secrets(text: &str) -> Result<(String, Secrets), ConninfoError> {
    let options = Request::new().database(text)?.options;
    let is_secret = |(name, _): &(String, String)| keywords::has_secret_value(name);
    let (secret, open): (Vec<_>, Vec<_>) = options.into_iter().partition(is_secret);
    if secret.is_empty() {
        return Ok((text.to_owned(), Secrets::default()));
    }
    let shown = keyword_string(&open);
    let secret = secret
        .into_iter()
        .map(|(name, value)| (name, Password::new(value)));
    Ok((shown, Secrets(secret.collect())))
}

/// Options as `keyword=value …`.
fn keyword_string(options: &[(String, String)]) -> String {
    let pairs = options.iter();
    let pairs = pairs.map(|(name, value)| format!("{name}={}", quoted(value)));
    pairs.collect::<Vec<_>>().join(" ")
}

/// Quotes a value for `keyword=value` if necessary.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\';
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

impl Request {
    /// The options as `keyword=value …`, secrets included.
    pub fn keyword_string(&self) -> String {
        keyword_string(&self.options)
    }

    /// Adds the secrets of a connection string that was [split](split_secrets).
    ///
    /// # Errors
    /// None if [`split_secrets`] returned none.
    pub fn secrets(mut self, secrets: &Secrets) -> Result<Self, ConninfoError> {
        for (name, value) in &secrets.0 {
            self.store(name, value.reveal())?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Vec<(String, String)> {
        let mut options = Request::new().conninfo(text).unwrap().options;
        options.sort();
        options
    }

    #[test]
    fn splitting_off_secrets_is_lossless() {
        for text in [
            "host=/tmp user='a b' password='s3cret' dbname=x",
            r"password = 'quo\'te \\ s3cret' host=h user=''",
            "postgresql://user:s3cret@h:5433,g/db?sslmode=require&application_name=a%20b",
            "postgres:///db?host=/run&password=s3cret",
        ] {
            let (shown, secrets) = split_secrets(text).unwrap();
            assert!(
                !shown.contains("s3cret") && !shown.contains("password"),
                "{shown}"
            );
            assert!(!format!("{secrets:?}").contains("s3cret"));
            let mut whole = Request::new().conninfo(&shown).unwrap();
            whole = whole.secrets(&secrets).unwrap();
            whole.options.sort();
            assert_eq!(whole.options, options(text), "{shown}");
        }
    }

    #[test]
    fn string_without_secrets_is_unchanged() {
        for text in ["", "host = h", "postgresql://user@h/db"] {
            assert_eq!(
                split_secrets(text).unwrap(),
                (text.to_owned(), Secrets::default())
            );
        }
        assert!(split_secrets("password=s3cret nonsense=1").is_err());
    }
}
