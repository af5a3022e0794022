//! Checks what variants require of the machine before anything is started.

use std::path::PathBuf;

use anyhow::{Result, bail};
use pgassay_model::plan::{Plan, PointId, Requirement};
use pgassay_model::study::{DriverKind, Requires};
use pgassay_record::run::{ServerFacts, Warning};

use crate::host::{self, ExternalServer, Host};
use crate::run_context::RunContext;

/// A variant that cannot run here.
pub struct Unmet {
    /// The variant's name.
    pub variant: String,
    /// What is missing, and how to get it.
    pub missing: String,
}

/// None of the variants can run, and a baseline alone has nothing to be compared with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingToCompare(String);

impl Unmet {
    /// What a run without the variant says.
    pub fn sentence(&self) -> String {
        format!("variant \"{}\" skipped: {}", self.variant, self.missing)
    }
}

impl NothingToCompare {
    /// The error of a run without these variants, which are all but the baseline.
    pub fn new(baseline: &str, unmet: &[Unmet]) -> Self {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for it in unmet {
            match reasons.iter_mut().find(|(why, _)| *why == it.missing) {
                Some((_, names)) => names.push(&it.variant),
                None => reasons.push((&it.missing, vec![&it.variant])),
            }
        }
        let reasons = reasons.into_iter().map(|(why, names)| {
            let word = if names.len() == 1 {
                "variant"
            } else {
                "variants"
            };
            format!("{word} \"{}\": {why}", names.join("\", \""))
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        Self(format!(
            "nothing to compare with \"{baseline}\", because no other variant can run here: {reasons}. To measure \
             \"{baseline}\" alone, choose it with --variant of pgassay run"
        ))
    }
}

/// Variants whose requirements are not met. It is an error if the baseline is one of them.
pub fn unmet(plan: &Plan, context: &RunContext<'_>) -> Result<Vec<Unmet>> {
    let mut all = Vec::new();
    for requirement in &plan.requirements {
        let Some(missing) = missing(plan, requirement, context)? else {
            continue;
        };
        let name = &plan.variants[requirement.variant];
        if requirement.variant == 0 {
            bail!("variant \"{name}\" is the baseline, but cannot run here: {missing}");
        }
        all.push(Unmet {
            variant: name.clone(),
            missing,
        });
    }
    Ok(all)
}

/// What the plan's servers will be, in its order, without starting them; versions that are not here yet are
/// downloaded. `None` for an external server.
///
/// # Errors
/// If an installation cannot be found.
pub fn builds(plan: &Plan, context: &RunContext<'_>) -> Result<Vec<Option<ServerFacts>>> {
    let servers = plan.servers.iter().map(|server| {
        let is_own = server.dsn.is_none();
        let found = is_own.then(|| host::find(server, context)).transpose()?;
        Ok(found.as_ref().map(host::facts_of))
    });
    servers.collect()
}

/// A warning for each variant that differs from what it is compared with in the directory or version of its server
/// only, where both have the same executable. No server is started.
///
/// # Errors
/// If an installation cannot be found.
pub fn same_builds(plan: &Plan, context: &RunContext<'_>) -> Result<Vec<Warning>> {
    let executables = builds(plan, context)?.into_iter();
    let executables: Vec<Option<String>> = executables.map(|it| it?.executable).collect();
    Ok(host::same_executables(plan, &executables))
}

fn missing(
    plan: &Plan,
    requirement: &Requirement,
    context: &RunContext<'_>,
) -> Result<Option<String>> {
    let requires = &requirement.requires;
    if let Some(program) = requires.program.as_ref().filter(|it| !is_on_path(it)) {
        let first = plan.point(PointId::new(0, requirement.variant));
        let or = match first.driver {
            DriverKind::Redis => {
                "; or specify a running server with `address = \"host:port\"` in the variant"
            }
            DriverKind::Postgres => "",
        };
        return Ok(Some(format!(
            "{program} is not on PATH; install it (the package often has the same name){or}"
        )));
    }
    if requires.extension.is_none() && requires.feature.is_none() {
        return Ok(None);
    }
    let points = plan.points.iter();
    let points = points.filter(|point| point.variant == requirement.variant);
    for server in points.filter_map(|point| plan.servers.get(point.server)) {
        let lacking = match &server.dsn {
            Some(dsn) => lacking(ExternalServer::attach(dsn, context)?, requires)?,
            None => lacking_installed(&host::find(server, context)?, requires),
        };
        if lacking.is_some() {
            return Ok(lacking);
        }
    }
    Ok(None)
}

/// What an installation lacks.
fn lacking_installed(
    installation: &pgassay_server::Installation,
    requires: &Requires,
) -> Option<String> {
    let lacks = |what: String| {
        Some(format!(
            "PostgreSQL {} in {} {what}; use an installation that has it with --binaries DIR, \
             where DIR contains bin/postgres, or a running server with `dsn` in the study",
            installation.version,
            installation.bin_dir.display()
        ))
    };
    if let Some(extension) = &requires.extension
        && !installation.has_extension(extension)
    {
        return lacks(format!("has no extension {extension}"));
    }
    // If the installation does not say, setup on the running server will.
    if let Some(feature) = &requires.feature
        && installation.has_feature(feature) == Some(false)
    {
        return lacks(format!("was built without {feature}"));
    }
    None
}

/// What an external server lacks.
fn lacking(mut external: ExternalServer, requires: &Requires) -> Result<Option<String>> {
    if let Some(extension) = &requires.extension
        && !external.has_extension(extension)?
    {
        let name = external.name();
        return Ok(Some(format!(
            "{name} has no extension {extension}; install it there (the package often has the same name)"
        )));
    }
    if let Some(feature) = &requires.feature
        && external.has_feature(feature)? == Some(false)
    {
        return Ok(Some(format!(
            "{} was built without {feature}",
            external.name()
        )));
    }
    Ok(None)
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path);
    directories.any(|directory: PathBuf| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmet(variant: &str, missing: &str) -> Unmet {
        Unmet {
            variant: variant.to_owned(),
            missing: missing.to_owned(),
        }
    }

    /// Regression: a study of JIT compilation measured one variant for minutes, and compared nothing.
    #[test]
    fn a_study_whose_build_lacks_what_it_compares_says_once_what_is_missing() {
        let llvm = "PostgreSQL 18 was built without llvm; use another with --binaries DIR";
        let all = [
            unmet("default costs", llvm),
            unmet("always", llvm),
            unmet("redis", "redis-server is not on PATH"),
        ];
        assert_eq!(
            NothingToCompare::new("off", &all).to_string(),
            "nothing to compare with \"off\", because no other variant can run here: variants \"default costs\", \
             \"always\": PostgreSQL 18 was built without llvm; use another with --binaries DIR; variant \"redis\": \
             redis-server is not on PATH. To measure \"off\" alone, choose it with --variant of pgassay run"
        );
        assert_eq!(
            all[2].sentence(),
            "variant \"redis\" skipped: redis-server is not on PATH"
        );
    }
}
