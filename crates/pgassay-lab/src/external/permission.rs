//! Whether the user allows what a study does on external servers, before anything is touched.

use anyhow::Result;
use pgassay_model::plan::Plan;

use super::planned::ExternalUse;
use crate::host::ExternalServer;
use crate::run_context::RunContext;
use crate::study_errors::at_dsn;

/// Returns an error if the study changes external servers and the user has not allowed it. Connects
/// to none.
///
/// # Errors
/// It names each change.
pub fn check_writes(plan: &Plan, context: &RunContext<'_>) -> Result<()> {
    for (index, server) in plan.servers.iter().enumerate() {
        let Some(dsn) = &server.dsn else { continue };
        let planned = ExternalUse::of(plan, index, context.source())?;
        if let Some(message) = planned.refusal(context.options.allow_writes) {
            return Err(at_dsn(context.study, dsn, &message));
        }
    }
    Ok(())
}

/// Returns an error if the study changes external servers or connects as a superuser, and the user
/// has not allowed it, or if a role may not do what is necessary. Only reads.
///
/// # Errors
/// It names each change.
pub fn check(plan: &Plan, context: &RunContext<'_>) -> Result<()> {
    check_writes(plan, context)?;
    for (index, server) in plan.servers.iter().enumerate() {
        let Some(dsn) = &server.dsn else { continue };
        let planned = ExternalUse::of(plan, index, context.source())?;
        let external = ExternalServer::attach(dsn, context)?;
        external
            .check_permission(&planned, context)
            .map_err(|error| at_dsn(context.study, dsn, &format!("{error:#}")))?;
    }
    Ok(())
}
