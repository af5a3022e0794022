//! Checks what variants require of the machine before anything is started.

use std::path::PathBuf;

use anyhow::{Result, bail};
use pgassay_core::plan::Plan;
use pgassay_core::study::{DriverKind, Requires, Variant};

use super::external_server::ExternalServer;
use super::redis::PROGRAM;
use super::servers;
use crate::catalog::FoundStudy;
use crate::cli::ServerArgs;
use crate::progress::ProgressDisplay;

/// A variant that cannot run here.
pub struct Unmet {
    /// The variant's name.
    pub variant: String,
    /// What is missing, and how to get it.
    pub sentence: String,
}

/// Variants whose requirements are not met. It is an error if the baseline is one of them.
pub fn unmet(
    plan: &Plan,
    found: &FoundStudy,
    args: &ServerArgs,
    progress: &mut ProgressDisplay,
) -> Result<Vec<Unmet>> {
    let mut all = Vec::new();
    for (number, name) in plan.variants.iter().enumerate() {
        let variants = &mut found.study.variant.iter();
        let Some(variant) = variants.find(|variant| variant.name == *name) else {
            continue;
        };
        let Some(missing) = missing(plan, number, variant, found, args, progress)? else {
            continue;
        };
        if number == 0 {
            bail!("variant \"{name}\" is the baseline, but cannot run here: {missing}");
        }
        all.push(Unmet {
            variant: name.clone(),
            sentence: format!("variant \"{name}\" skipped: {missing}"),
        });
    }
    Ok(all)
}

fn missing(
    plan: &Plan,
    number: usize,
    variant: &Variant,
    found: &FoundStudy,
    args: &ServerArgs,
    progress: &mut ProgressDisplay,
) -> Result<Option<String>> {
    let is_redis = variant.driver == Some(DriverKind::Redis);
    let required = variant.requires.clone().unwrap_or_default();
    let program = match required.program.clone() {
        None if is_redis && variant.address.is_none() => Some(PROGRAM.to_owned()),
        program => program,
    };
    if let Some(program) = program
        && !(is_redis && variant.address.is_some())
        && !is_on_path(&program)
    {
        let or = if is_redis {
            "; or specify a running server with `address = \"host:port\"` in the variant"
        } else {
            ""
        };
        return Ok(Some(format!(
            "{program} is not on PATH; install it (the package often has the same name){or}"
        )));
    }
    if required.extension.is_none() && required.feature.is_none() {
        return Ok(None);
    }
    let points = plan.points.iter().filter(|point| point.variant == number);
    for server in points.map(|point| &plan.servers[point.server]) {
        if let Some(dsn) = &server.dsn {
            let external = ExternalServer::attach(dsn, found, progress)?;
            if let Some(lacking) = lacking(external, &required)? {
                return Ok(Some(lacking));
            }
            continue;
        }
        let installation = servers::find(server, found, args, progress)?;
        let lacks = |what: String| {
            Ok(Some(format!(
                "PostgreSQL {} in {} {what}; use an installation that has it with --binaries DIR, \
                 where DIR contains bin/postgres, or a running server with `dsn` in the study",
                installation.version,
                installation.bin_dir.display()
            )))
        };
        if let Some(extension) = &required.extension
            && !installation.has_extension(extension)
        {
            return lacks(format!("has no extension {extension}"));
        }
        // If the installation does not say, setup on the running server will.
        if let Some(feature) = &required.feature
            && installation.has_feature(feature) == Some(false)
        {
            return lacks(format!("was built without {feature}"));
        }
    }
    Ok(None)
}

/// What an external server lacks.
fn lacking(mut external: ExternalServer, required: &Requires) -> Result<Option<String>> {
    if let Some(extension) = &required.extension
        && !external.has_extension(extension)?
    {
        let name = external.name();
        return Ok(Some(format!(
            "{name} has no extension {extension}; install it there (the package often has the same name)"
        )));
    }
    if let Some(feature) = &required.feature
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
