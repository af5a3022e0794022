//! What is undone at the end of a run, and what is different from before.

use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_record::run::{Warning, WarningKind};
use pgassay_server::Connection;

use super::backup::SettingBackup;
use super::restoring::restore;
use super::state::ServerState;

/// Puts settings back. Warnings name what differs from the state before the run, and settings that others have changed
/// since.
///
/// # Errors
/// As for statements.
pub fn restore_and_compare(
    connection: &mut Connection,
    place: &str,
    before: &ServerState,
    settings: &[SettingBackup],
) -> Result<Vec<Warning>> {
    let changed = before.differences(&ServerState::read(connection)?);
    let restored = restore(connection, settings)?;
    let left = before.differences(&ServerState::read(connection)?);
    let describe = |(name, what): (&String, &&str)| match left.get(name) {
        Some(_) => format!("{name} {what}"),
        None => format!("{name} {what} and put back"),
    };
    let all: BTreeMap<_, _> = left.iter().chain(&changed).collect();
    let all: Vec<String> = all.into_iter().map(describe).collect();
    let different = (!all.is_empty()).then(|| {
        format!(
            "during the run, the study or other sessions changed the external server at {place}: {}",
            all.join(", ")
        )
    });
    let messages = different.into_iter().chain(restored.warning(place));
    Ok(messages
        .map(|message| Warning {
            kind: WarningKind::ServerChanged,
            variant: None,
            message,
        })
        .collect())
}
