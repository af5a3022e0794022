//! `xtask licenses`: checks the license of every dependency against the list in `deny.toml`.
//!
//! The file has the format of `cargo-deny`, so `cargo deny check licenses` does the same if it is
//! installed. Building it here would take longer than building pgassay.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use spdx::{Expression, Licensee};

/// Fails if a dependency is banned or has no license on the list.
pub fn check() -> Result<String> {
    let (allowed, banned) = policy()?;
    let packages = dependencies()?;
    let mut wrong = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        if banned.contains(name) {
            wrong.push(format!("{name} is banned in deny.toml"));
            continue;
        }
        if let Err(error) = permitted(package, &allowed) {
            wrong.push(format!("{name}: {error}"));
        }
    }
    if !wrong.is_empty() {
        bail!("deny.toml does not allow:\n  {}", wrong.join("\n  "));
    }
    Ok(format!("{} packages, all licenses allowed", packages.len()))
}

fn permitted(package: &Value, allowed: &[Licensee]) -> Result<()> {
    let Some(text) = package["license"].as_str() else {
        bail!("has no license")
    };
    // Older manifests use MIT/Apache-2.0 for MIT OR Apache-2.0.
    let expression = Expression::parse(&text.replace('/', " OR "))
        .with_context(|| format!("invalid license {text:?}"))?;
    let is_allowed = |requirement: &spdx::LicenseReq| {
        allowed
            .iter()
            .any(|licensee| licensee.satisfies(requirement))
    };
    if !expression.evaluate(is_allowed) {
        bail!("{text}");
    }
    Ok(())
}

fn policy() -> Result<(Vec<Licensee>, BTreeSet<String>)> {
    let path = root().join("deny.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let policy: toml::Table = text.parse()?;
    let list = |table: &str, key: &str| -> Vec<toml::Value> {
        let found = policy
            .get(table)
            .and_then(|table| table.get(key))
            .and_then(toml::Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let allowed = list("licenses", "allow")
        .iter()
        .filter_map(toml::Value::as_str)
        .map(|name| Licensee::parse(name).with_context(|| format!("deny.toml: {name}")))
        .collect::<Result<_>>()?;
    let banned = list("bans", "deny");
    let names = banned
        .iter()
        .filter_map(|entry| entry.get("crate")?.as_str().map(str::to_owned));
    Ok((allowed, names.collect()))
}

/// Every package of the lock file that is not part of the workspace.
fn dependencies() -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
        ])
        .current_dir(root())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    Ok(packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .cloned()
        .collect())
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_allowed_alternative_is_enough_and_every_requirement_counts() {
        let allowed = [
            Licensee::parse("MIT").unwrap(),
            Licensee::parse("Unicode-3.0").unwrap(),
        ];
        let verdict = |license: &str| permitted(&json!({ "license": license }), &allowed).is_ok();
        assert!(
            verdict("MIT")
                && verdict("MIT/Apache-2.0")
                && verdict("(MIT OR GPL-3.0-only) AND Unicode-3.0")
        );
        assert!(!verdict("CDDL-1.0") && !verdict("MIT AND CDDL-1.0"));
        assert!(
            permitted(&json!({}), &allowed).is_err(),
            "a package without a license is not permitted"
        );
    }
}
