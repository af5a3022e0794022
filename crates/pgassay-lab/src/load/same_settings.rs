//! Variants whose settings have the values that those they are compared with have anyway.

use std::time::Duration;

use anyhow::Result;
use pgassay_model::plan::{Plan, Point, PointId};
use pgassay_model::study::{DriverKind, Network};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_wire::Exchange;

use crate::connector::{TimedStream, connect_unless_stopped};
use crate::host::Servers;
use crate::run_context::RunContext;

/// How long connecting and asking may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A warning for each variant that differs from what it is compared with in settings only, all of which have the same
/// values in the sessions of both: such a comparison measures noise.
///
/// # Errors
/// If a stop was requested. A server that does not answer has no warning.
pub fn warnings(plan: &Plan, servers: &Servers, context: &RunContext<'_>) -> Result<Vec<Warning>> {
    let mut found = Vec::new();
    for variant in 1..plan.variants.len() {
        let baseline = plan.baseline_of(variant);
        let Some(same) = same_everywhere(plan, servers, [baseline, variant], context)? else {
            continue;
        };
        let message = format!(
            "\"{}\" and \"{}\" have the same settings: {} in both. This is an A/A comparison, and any difference is noise.",
            plan.variants[baseline],
            plan.variants[variant],
            same.join(", ")
        );
        context.note(&message);
        found.push(Warning {
            kind: WarningKind::SameSettings,
            variant: Some(plan.variants[variant].clone()),
            message,
        });
    }
    Ok(found)
}

/// The settings in which two variants seem to differ, as `name = value`, if they have the same values under every
/// condition.
fn same_everywhere(
    plan: &Plan,
    servers: &Servers,
    variants: [usize; 2],
    context: &RunContext<'_>,
) -> Result<Option<Vec<String>>> {
    let mut same = Vec::new();
    for condition in 0..plan.conditions.len() {
        let Some(names) = plan.only_settings_differ(condition, variants) else {
            return Ok(None);
        };
        let [a, b] = variants.map(|it| plan.point(PointId::new(condition, it)));
        if names.is_empty() || a.driver != DriverKind::Postgres {
            return Ok(None);
        }
        let values = values(a, servers, &names, context)?;
        if values.is_none() || values != self::values(b, servers, &names, context)? {
            return Ok(None);
        }
        same = values.unwrap_or_default();
    }
    Ok(Some(same).filter(|it| !it.is_empty()))
}

/// The values of settings in a session as the point's clients have it; `None` if one is not set, or the server does not
/// answer.
fn values(
    point: &Point,
    servers: &Servers,
    names: &[&str],
    context: &RunContext<'_>,
) -> Result<Option<Vec<String>>> {
    let place = servers.place(point);
    // The network has no part in it.
    let mut target = place.host.target(place.database, Network::Unix, None)?;
    target.settings.extend(point.session.clone());
    let Ok((mut connection, _)) = connect_unless_stopped(&target, Some(LIMIT), context.interrupt)?
    else {
        return Ok(None);
    };
    if connection.stream().set_limit(Some(LIMIT)).is_err() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for name in names {
        if name.starts_with("jit") && has_no_compiler(&mut connection) {
            all.push(format!("{name} has no effect (no JIT compiler)"));
            continue;
        }
        let sql = format!(
            "select pg_catalog.current_setting('{}', true)",
            name.replace('\'', "''")
        );
        let Ok(Some(value)) = connection.value(&sql) else {
            return Ok(None);
        };
        all.push(format!("{name} = {value}"));
    }
    Ok(Some(all))
}

/// Whether the server cannot compile, whatever the settings say: many packages lack the library. The session is not
/// used for anything else.
fn has_no_compiler(connection: &mut Exchange<TimedStream>) -> bool {
    // The function returns false also where jit is off.
    let available = connection.run("set jit = on");
    let available =
        available.and_then(|()| connection.value("select pg_catalog.pg_jit_available()"));
    matches!(available.as_ref().map(Option::as_deref), Ok(Some("f")))
}
