//! Session settings, which a server rejects only when a client connects.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use pgassay_model::plan::{Plan, Point};
use pgassay_model::study::{DriverKind, Network};
use pgassay_wire::{ExchangeError, ServerMessage};

use crate::connector::connect_unless_stopped;
use crate::host::Host;
use crate::run_context::RunContext;
use crate::study::LoadedStudy;
use crate::study_errors::{SettingInUse, at_setting};

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Settings whose values name what a study's setup may create: roles, tablespaces and the like.
const OF_DATA: [&str; 6] = [
    "role",
    "session_authorization",
    "default_tablespace",
    "temp_tablespaces",
    "default_table_access_method",
    "default_text_search_config",
];

/// Connects once with each point's session settings, before the data are set up: an hour of setup must not
/// end with a misspelled name.
///
/// # Errors
/// If the server rejects a setting; with its line in the study.
pub fn check(plan: &Plan, server: usize, host: &dyn Host, context: &RunContext<'_>) -> Result<()> {
    let mut tried: Vec<BTreeMap<String, String>> = Vec::new();
    let of_server = |it: &&Point| it.server == server && it.driver == DriverKind::Postgres;
    for point in plan.points.iter().filter(of_server) {
        let settings = point.session.iter();
        let settings = settings.filter(|(name, _)| !is_of_data(name));
        let settings: BTreeMap<_, _> = settings.map(|(k, v)| (k.clone(), v.clone())).collect();
        if settings.is_empty() || tried.contains(&settings) {
            continue;
        }
        // The network has no part in it.
        let mut target = host.target(host.database(), Network::Unix, None)?;
        target.settings.extend(settings.clone());
        let tried_now = connect_unless_stopped(&target, Some(CONNECT_LIMIT), context.interrupt)?;
        if let Err(error) = tried_now {
            let Some(ExchangeError::Server(refusal)) = error.last() else {
                // A server that does not answer is not asked again: each time can take the whole limit.
                return Ok(());
            };
            if let Some(error) = refused(refusal, context.study, &settings) {
                return Err(error);
            }
        }
        // Other errors are left to the clients, which connect to the point's own database.
        tried.push(settings);
    }
    Ok(())
}

fn is_of_data(name: &str) -> bool {
    OF_DATA.iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// The error with its line in the study, if a server refused a connection because of a session setting.
pub fn refused(
    refusal: &ServerMessage,
    found: &LoadedStudy,
    session: &BTreeMap<String, String>,
) -> Option<anyhow::Error> {
    let (name, value) = session
        .iter()
        .find(|(name, _)| refusal.message.contains(name.as_str()))?;
    let setting = SettingInUse {
        table: "session",
        name,
        value,
    };
    let message = format!(
        "the server rejected the session setting {name} = \"{value}\": {}; correct it, or remove it",
        refusal.message
    );
    Some(at_setting(found, setting, &message))
}
