//! Variants whose settings have the values that those they are compared with have anyway, or have no effect.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use pgassay_model::plan::{Plan, Point, PointId};
use pgassay_model::study::{DriverKind, Network};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_wire::Exchange;

use super::undefined_settings;
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
        let compared = [baseline, variant];
        let found_of = match same_everywhere(plan, servers, compared, context)? {
            Some(same) => Some((
                WarningKind::SameSettings,
                same_sentence(plan, compared, &same),
            )),
            None => undefined_sentence(plan, servers, compared, context)?
                .map(|it| (WarningKind::SettingUndefined, it)),
        };
        let Some((kind, message)) = found_of else {
            continue;
        };
        context.note(&message);
        found.push(Warning {
            kind,
            variant: Some(plan.variants[variant].clone()),
            message,
        });
    }
    Ok(found)
}

fn same_sentence(plan: &Plan, [baseline, variant]: [usize; 2], same: &[SessionSetting]) -> String {
    let texts: Vec<&str> = same.iter().map(|it| &it.text[..]).collect();
    let mut sentence = format!(
        "\"{}\" and \"{}\" have the same settings: {} in both. This is an A/A comparison, and any difference is noise.",
        plan.variants[baseline],
        plan.variants[variant],
        texts.join(", ")
    );
    if same.iter().any(|it| it.is_undefined) {
        sentence = format!("{sentence} {}.", undefined_settings::HINT);
    }
    sentence
}

/// Which settings of a variant no module defines, except those that the baseline has as well.
fn undefined_sentence(
    plan: &Plan,
    servers: &Servers,
    [baseline, variant]: [usize; 2],
    context: &RunContext<'_>,
) -> Result<Option<String>> {
    let mut undefined: BTreeSet<&str> = BTreeSet::new();
    for condition in 0..plan.conditions.len() {
        let [of_baseline, point] =
            [baseline, variant].map(|it| plan.point(PointId::new(condition, it)));
        let known = undefined_settings::module_settings(plan, of_baseline);
        let mut names = undefined_settings::module_settings(plan, point);
        names.retain(|it| !known.contains(it) && !undefined.contains(it));
        if names.is_empty() || !may_load_libraries(point, servers) {
            continue;
        }
        let Some(mut connection) = connected(point, servers, context)? else {
            continue;
        };
        names.retain(|it| undefined_settings::is_undefined(&mut connection, it));
        undefined.extend(names);
    }
    let names: Vec<&str> = undefined.into_iter().collect();
    Ok((!names.is_empty()).then(|| {
        format!(
            "\"{}\": no loaded module defines {}, so only current_setting() reads it. {}.",
            plan.variants[variant],
            names.join(", "),
            undefined_settings::HINT
        )
    }))
}

/// A setting as a session has it.
#[derive(PartialEq)]
struct SessionSetting {
    /// `name = value`, or why it has no effect.
    text: String,
    /// Whether no module defines it.
    is_undefined: bool,
}

/// The settings in which two variants seem to differ, as `name = value`, if they have the same values under every
/// condition.
fn same_everywhere(
    plan: &Plan,
    servers: &Servers,
    variants: [usize; 2],
    context: &RunContext<'_>,
) -> Result<Option<Vec<SessionSetting>>> {
    let mut same = Vec::new();
    for condition in 0..plan.conditions.len() {
        let Some(names) = plan.only_settings_differ(condition, variants) else {
            return Ok(None);
        };
        let [a, b] = variants.map(|it| plan.point(PointId::new(condition, it)));
        if names.is_empty() || a.driver != DriverKind::Postgres {
            return Ok(None);
        }
        let is_read = |name: &str| {
            let mut points = [a, b].into_iter();
            points.any(|it| undefined_settings::is_mentioned(plan, it, name))
        };
        let values = values(a, servers, &names, &is_read, context)?;
        if values.is_none() || values != self::values(b, servers, &names, &is_read, context)? {
            return Ok(None);
        }
        same = values.unwrap_or_default();
    }
    Ok(Some(same).filter(|it| !it.is_empty()))
}

/// The values of settings in a session as the point's clients have it; `None` if one is not set, or the server does not
/// answer. A setting that no module defines has no value unless it is read.
fn values(
    point: &Point,
    servers: &Servers,
    names: &[&str],
    is_read: &dyn Fn(&str) -> bool,
    context: &RunContext<'_>,
) -> Result<Option<Vec<SessionSetting>>> {
    let Some(mut connection) = connected(point, servers, context)? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for name in names {
        let mut add = |text: String, is_undefined: bool| {
            all.push(SessionSetting { text, is_undefined });
        };
        if name.starts_with("jit") && has_no_compiler(&mut connection) {
            add(format!("{name} has no effect (no JIT compiler)"), false);
            continue;
        }
        if !is_read(name)
            && may_load_libraries(point, servers)
            && undefined_settings::is_undefined(&mut connection, name)
        {
            add(
                format!("{name} has no effect (no loaded module defines it)"),
                true,
            );
            continue;
        }
        let sql = format!(
            "select pg_catalog.current_setting('{}', true)",
            name.replace('\'', "''")
        );
        let Ok(Some(value)) = connection.value(&sql) else {
            return Ok(None);
        };
        add(format!("{name} = {value}"), false);
    }
    Ok(Some(all))
}

/// A session as the point's clients have it; `None` if the server does not answer.
fn connected(
    point: &Point,
    servers: &Servers,
    context: &RunContext<'_>,
) -> Result<Option<Exchange<TimedStream>>> {
    let place = servers.place(point);
    // The network has no part in it.
    let mut target = place.host.target(place.database, Network::Unix, None)?;
    target.settings.extend(point.session.clone());
    let connected = connect_unless_stopped(&target, Some(LIMIT), context.interrupt)?;
    let Ok((connection, _)) = connected else {
        return Ok(None);
    };
    let is_limited = connection.stream().set_limit(Some(LIMIT)).is_ok();
    Ok(is_limited.then_some(connection))
}

/// Only on temporary servers: a library may do anything when it is loaded.
fn may_load_libraries(point: &Point, servers: &Servers) -> bool {
    !servers.place(point).host.is_external()
}

/// Whether the server cannot compile, whatever the settings say: many packages lack the library. The session's settings
/// stay as they are.
fn has_no_compiler(connection: &mut Exchange<TimedStream>) -> bool {
    // The function returns false also where jit is off.
    let begun = ["begin", "set local jit = on"]
        .iter()
        .try_for_each(|sql| connection.run(sql));
    let available = begun.and_then(|()| connection.value("select pg_catalog.pg_jit_available()"));
    let ended = connection.run("rollback");
    ended.is_ok() && matches!(available.as_ref().map(Option::as_deref), Ok(Some("f")))
}
