//! A study, ready to be planned, without the secrets of its connection strings.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use pgassay_model::study::{Study, StudySource};
use pgassay_wire::conninfo::{Request, Secrets, split_secrets};

/// A study, ready to be planned.
pub struct LoadedStudy {
    /// The built-in name, or the file name without extension.
    pub name: String,
    /// The text and the file it came from.
    pub source: StudySource,
    /// The study, with the text of script files loaded.
    pub study: Study,
    /// Secrets of its connection strings and of `--dsn`, which must not be shown.
    secrets: BTreeMap<String, Secrets>,
    /// The connection strings that the user gave, without secrets. All others are the study's, whose author may be
    /// someone else.
    of_user: BTreeSet<String>,
}

impl LoadedStudy {
    /// Parses variant names from the command line, separated by commas.
    pub fn variants(&self, values: &[String]) -> Vec<String> {
        let known = self.study.variant.iter().map(|it| it.name.as_str());
        split_names(values, &known.collect::<Vec<_>>())
    }

    /// Adds a connection string that the user gave, and returns it without its secrets.
    ///
    /// # Errors
    /// If the string is invalid, or differs from another one only in its secrets.
    pub fn add_dsn_of_user(&mut self, dsn: &str) -> Result<String> {
        let shown = self.remember_secrets(dsn)?;
        self.of_user.insert(shown.clone());
        Ok(shown)
    }

    /// The study, all of whose connection strings the user gave, as on the command line.
    #[must_use]
    pub fn with_dsns_of_user(mut self) -> Self {
        let variants = self.study.variant.iter().map(|it| &it.dsn);
        let all = variants.chain([&self.study.server.dsn]).flatten();
        self.of_user.extend(all.cloned());
        self
    }

    /// Whether the user gave a connection string, without secrets.
    pub fn is_dsn_of_user(&self, dsn: &str) -> bool {
        self.of_user.contains(dsn)
    }

    /// The connection strings of the study and of the user, without secrets.
    pub(crate) fn dsns(&self) -> impl Iterator<Item = &str> {
        let variants = self.study.variant.iter().map(|it| &it.dsn);
        let of_study = variants.chain([&self.study.server.dsn]).flatten();
        of_study.chain(&self.of_user).map(String::as_str)
    }

    /// Whether a connection string, shown without secrets, had some.
    pub fn has_password(&self, dsn: &str) -> bool {
        self.secrets.get(dsn).is_some_and(|it| !it.is_empty())
    }

    /// Remembers the secrets of a connection string and returns the string without them.
    fn remember_secrets(&mut self, dsn: &str) -> Result<String> {
        let (shown, secrets) = split_secrets(dsn)?;
        let known = self.secrets.entry(shown.clone()).or_insert(secrets.clone());
        if *known != secrets {
            bail!("another `dsn` differs only in its password");
        }
        Ok(shown)
    }

    /// Whether its connection strings had secrets, which its text lacks.
    pub fn has_secrets(&self) -> bool {
        self.secrets.values().any(|it| !it.is_empty())
    }

    /// The connection request for a connection string without secrets, with its secrets added.
    pub fn request(&self, dsn: &str) -> Result<Request> {
        let request = Request::new().database(dsn)?;
        Ok(match self.secrets.get(dsn) {
            Some(secrets) => request.secrets(secrets)?,
            None => request,
        })
    }

    /// Takes a parsed study, with the text of script files loaded. Removes secrets from the study and its text,
    /// because both are stored with results. `name` is the name under which results are listed.
    ///
    /// # Errors
    /// If a `dsn` is not a valid connection string.
    pub fn new(name: &str, source: StudySource, study: Study) -> Result<Self> {
        let mut found = Self {
            name: name.to_owned(),
            source,
            study,
            secrets: BTreeMap::new(),
            of_user: BTreeSet::new(),
        };
        for index in 0..found.study.variant.len() {
            if let Some(dsn) = found.study.variant[index].dsn.take() {
                let shown =
                    found.without_secrets_at(&["variant", &index.to_string(), "dsn"], &dsn)?;
                found.study.variant[index].dsn = Some(shown);
            }
        }
        if let Some(dsn) = found.study.server.dsn.take() {
            found.study.server.dsn = Some(found.without_secrets_at(&["server", "dsn"], &dsn)?);
        }
        Ok(found)
    }

    /// The connection string at `path` without its secrets. Removes them from the text, too.
    fn without_secrets_at(&mut self, path: &[&str], dsn: &str) -> Result<String> {
        let shown = self
            .remember_secrets(dsn)
            .map_err(|error| self.source.error_at(path, format!("`dsn`: {error}")))?;
        if shown != dsn {
            self.source.replace(path, &shown);
        }
        Ok(shown)
    }

    /// Parses script names from the command line, separated by commas.
    pub fn scripts(&self, values: &[String]) -> Vec<String> {
        let known = self.study.script.iter().map(|it| it.name.as_str());
        split_names(values, &known.collect::<Vec<_>>())
    }
}

/// Splits values into names at commas. Because a name may contain commas itself, the longest run of
/// parts that is a known name is taken as one. Planning rejects unknown names.
fn split_names(values: &[String], known: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for value in values {
        let parts: Vec<&str> = value.split(',').collect();
        let mut at = 0;
        while at < parts.len() {
            let run = |end: usize| parts[at..end].join(",").trim().to_owned();
            let longest = (at + 1..=parts.len())
                .rev()
                .find(|end| known.contains(&run(*end).as_str()));
            let end = longest.unwrap_or(at + 1);
            names.push(run(end));
            at = end;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use pgassay_model::study::StudySource;

    use super::{LoadedStudy, split_names};

    fn found(text: &str) -> anyhow::Result<LoadedStudy> {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n{text}"
            ),
        };
        let study = source.parse()?;
        LoadedStudy::new("s", source, study)
    }

    #[test]
    fn a_password_in_a_study_is_only_in_the_request() {
        let dsn = "postgresql://me:s3cret@h/db";
        let text =
            format!("[[variant]]\nname = \"v\"\ndsn = \"{dsn}\"\n[server]\ndsn = \"{dsn}\"\n");
        let found = found(&text).unwrap();
        assert!(
            !found.source.text.contains("s3cret"),
            "{}",
            found.source.text
        );
        assert!(!format!("{:?}", found.study).contains("s3cret"));
        let shown = found.study.server.dsn.as_deref().unwrap();
        assert_eq!(found.source.parse().unwrap(), found.study);
        let target = found.request(shown).unwrap();
        let target = target.resolve(&pgassay_wire::conninfo::EmptyEnvironment);
        let password = target.unwrap().hosts.remove(0).password;
        assert_eq!(password.unwrap().reveal(), "s3cret");
    }

    #[test]
    fn two_passwords_for_one_server_are_an_error() {
        let variant = |password| {
            format!("[[variant]]\nname = \"{password}\"\ndsn = \"host=h password={password}\"\n")
        };
        let refused = found(&(variant("a1") + &variant("b2"))).err().unwrap();
        let words = refused.to_string();
        assert!(words.starts_with("s.toml:10:"), "{words}");
        assert!(!words.contains("b2") && !words.contains("a1"), "{words}");
    }

    #[test]
    fn a_variant_whose_name_holds_commas_can_be_chosen() {
        let known = ["a", "b", "a=1, b=2", "search_path=x, y, public"];
        let chosen = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
            split_names(&values, &known)
        };
        assert_eq!(chosen(&["a,b"]), ["a", "b"]);
        assert_eq!(chosen(&["a", "b"]), ["a", "b"]);
        assert_eq!(chosen(&["a=1, b=2"]), ["a=1, b=2"]);
        assert_eq!(
            chosen(&["b,search_path=x, y, public, a,a=1, b=2"]),
            ["b", "search_path=x, y, public", "a", "a=1, b=2"]
        );
        assert_eq!(chosen(&["no,a"]), ["no", "a"]);
    }
}
