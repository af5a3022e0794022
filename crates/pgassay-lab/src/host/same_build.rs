//! Whether a run is continued on servers like those that it began on.

use anyhow::{Result, bail};
use pgassay_model::plan::ServerPlan;
use pgassay_record::run::ServerFacts;
use pgassay_server::VersionRequest;

/// Requests the version that the earlier trials ran on: a series such as 18 may have a newer one by now.
pub fn pin_version(wanted: &mut ServerPlan, before: &ServerFacts) {
    if wanted.version.is_some() && VersionRequest::parse(&before.version).is_ok() {
        wanted.version = Some(before.version.clone());
    }
}

/// Returns an error if a server of the run differs from the one that the earlier trials ran on. Where its
/// binaries came from does not matter.
pub fn check_same_build(index: usize, before: &ServerFacts, now: &ServerFacts) -> Result<()> {
    let parts = before.build_differences(now);
    let mut differences: Vec<String> = parts
        .iter()
        .map(|(what, before, now)| format!("{what} {now}, was {before}"))
        .collect();
    let names = before.settings.keys().chain(now.settings.keys());
    let mut names: Vec<&String> = names
        .filter(|name| before.settings.get(*name) != now.settings.get(*name))
        .collect();
    names.sort();
    names.dedup();
    let value = |facts: &ServerFacts, name| {
        let value = facts.settings.get(name).map(String::as_str);
        value.unwrap_or("the default").to_owned()
    };
    let settings = names.into_iter().map(|name| {
        let (before, now) = (value(before, name), value(now, name));
        format!("{name} is {now}, was {before}")
    });
    differences.extend(settings);
    if !differences.is_empty() {
        bail!(
            "server {index} differs from the one that the run began on: {}; continue the run on the same \
             server, or start a new run",
            differences.join("; ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ServerFacts {
        ServerFacts {
            version: "18.1".to_owned(),
            origin: "cache".to_owned(),
            configure: "--with-llvm".to_owned(),
            cflags: "-O2".to_owned(),
            compiler: "gcc 12".to_owned(),
            executable: Some("0123456789abcdef".to_owned()),
            settings: [("jit".to_owned(), "off".to_owned())].into(),
        }
    }

    #[test]
    fn another_origin_is_the_same_build() {
        let downloaded = ServerFacts {
            origin: "downloaded for this run".to_owned(),
            ..facts()
        };
        check_same_build(0, &facts(), &downloaded).unwrap();
    }

    #[test]
    fn a_build_that_was_rebuilt_with_the_same_flags_is_another_one() {
        let rebuilt = ServerFacts {
            executable: Some("fedcba9876543210".to_owned()),
            ..facts()
        };
        let message = check_same_build(0, &facts(), &rebuilt).unwrap_err();
        assert!(
            message
                .to_string()
                .contains("SHA-256 of its executable fedcba987654, was 0123456789ab"),
            "{message}"
        );
        let of_an_older_version = ServerFacts {
            executable: None,
            ..facts()
        };
        check_same_build(0, &of_an_older_version, &rebuilt).unwrap();
    }

    #[test]
    fn every_difference_is_named() {
        let now = ServerFacts {
            version: "18.2".to_owned(),
            cflags: "-O3".to_owned(),
            settings: [("work_mem".to_owned(), "8MB".to_owned())].into(),
            ..facts()
        };
        let message = check_same_build(1, &facts(), &now).unwrap_err().to_string();
        for part in [
            "server 1 differs",
            "version 18.2, was 18.1",
            "compiler flags -O3, was -O2",
            "jit is the default, was off",
            "work_mem is 8MB, was the default",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
