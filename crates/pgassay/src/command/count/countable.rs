//! Reduces a study to what instruction counts can measure: the user-space work of one backend.
//!
//! What is dropped is reported: higher client counts, networks (except TLS, which the backend
//! itself executes), scripts that reconnect, servers other than PostgreSQL, variants that cannot
//! run here.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use pgassay_lab::requirements::{self, Unmet};
use pgassay_lab::{LoadedStudy, RunContext, counting, study_checks};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::{DriverKind, Network, Study};

/// A plan with one client, and what it omits from the study.
pub struct Countable {
    pub plan: Plan,
    /// Phrases, for a list.
    pub left_out: Vec<String>,
}

/// Plans instruction counting for a study. `clients` are the client counts that a timed run uses.
pub fn countable(
    clients: &[u32],
    overrides: Overrides,
    context: &RunContext<'_>,
) -> Result<Countable> {
    let found = context.study;
    let (mut study, mut left_out) = without_network(&found.study);
    if *clients != [1] {
        let numbers: Vec<String> = clients.iter().map(u32::to_string).collect();
        let numbers = numbers.join(", ");
        left_out.insert(
            0,
            format!("clients = [{numbers}]: only one client is counted, because more clients add waiting, not work"),
        );
    }
    let mut overrides = Overrides {
        clients: Some(vec![1]),
        without_profile: true,
        ..overrides
    };
    only_postgresql(found, &mut overrides, &mut left_out)?;
    without_reconnecting(&mut study, &mut overrides, &mut left_out)?;
    let mut counted = plan(&study, &found.source, &overrides)?;
    counting::check_countable(&counted, found)?;
    let unmet = requirements::unmet(&counted, context)?;
    if !unmet.is_empty() {
        let is_met = |name: &&String| !unmet.iter().any(|unmet| unmet.variant == **name);
        overrides.variants = Some(counted.variants.iter().filter(is_met).cloned().collect());
        counted = plan(&study, &found.source, &overrides)?;
        let phrase = |it: &Unmet| format!("variant \"{}\": {}", it.variant, it.missing);
        left_out.extend(unmet.iter().map(phrase));
    }
    study_checks::check(&counted, found)?;
    if is_parallel(&counted) {
        left_out.push("parallel workers: only the client's own backend is counted".to_owned());
    }
    Ok(Countable {
        plan: counted,
        left_out,
    })
}

/// Whether a variant enables parallel workers.
fn is_parallel(plan: &Plan) -> bool {
    let wanted = |settings: &BTreeMap<String, String>| {
        let workers = settings.get("max_parallel_workers_per_gather");
        workers.is_some_and(|number| number.trim() != "0")
    };
    let mut points = plan.points.iter();
    points.any(|point| wanted(&point.session) || wanted(&plan.servers[point.server].settings))
}

/// Drops the networks of a study: a backend executes the same instructions over each of them, except
/// for TLS. If TLS is among them, the networks without a relay stay.
fn without_network(study: &Study) -> (Study, Vec<String>) {
    let mut study = study.clone();
    let of_variants = study.variant.iter().filter_map(|it| it.network);
    let has_tls = of_variants
        .chain(study.conditions.network.iter().copied())
        .any(|it| it == Network::Tls);
    let stays = |way: &Network| has_tls && way.delay().is_none();
    let mut ways: BTreeSet<String> = BTreeSet::new();
    let mut drops = |way: &Network| {
        let is_dropped = !stays(way);
        if is_dropped {
            ways.insert(way.to_string());
        }
        is_dropped
    };
    study.conditions.network.retain(|way| !drops(way));
    if let Some(quick) = &mut study.quick {
        quick.network = None;
    }
    for variant in &mut study.variant {
        if variant.network.as_ref().is_some_and(&mut drops) {
            variant.network = None;
        }
    }
    let ways: Vec<String> = ways.into_iter().collect();
    let left_out = if ways.is_empty() {
        Vec::new()
    } else {
        vec![format!(
            "network ({}): a backend executes the same instructions over any network",
            ways.join(", ")
        )]
    };
    (study, left_out)
}

/// Drops scripts that reconnect for each transaction.
fn without_reconnecting(
    study: &mut Study,
    overrides: &mut Overrides,
    left_out: &mut Vec<String>,
) -> Result<()> {
    let reconnecting: BTreeSet<String> = study
        .script
        .iter()
        .filter(|it| it.reconnects)
        .map(|it| it.name.clone())
        .collect();
    let reason = "each of its transactions starts a new backend, and counting begins in PostgresMain, after process start and TLS handshake";
    let chosen = overrides.scripts.as_mut();
    let scripts = chosen.unwrap_or(&mut study.conditions.script);
    let left: Vec<String> = scripts
        .iter()
        .filter(|it| reconnecting.contains(*it))
        .cloned()
        .collect();
    scripts.retain(|it| !reconnecting.contains(it));
    if (scripts.is_empty() && !left.is_empty()) || study.script.iter().all(|it| it.reconnects) {
        let names: Vec<String> = reconnecting.into_iter().collect();
        bail!(
            "script \"{}\" cannot be counted: {reason}",
            names.join("\", \"")
        );
    }
    left_out.extend(
        left.into_iter()
            .map(|name| format!("script \"{name}\": {reason}")),
    );
    Ok(())
}

/// Drops variants that do not run on PostgreSQL.
fn only_postgresql(
    found: &LoadedStudy,
    overrides: &mut Overrides,
    left_out: &mut Vec<String>,
) -> Result<()> {
    let is_other = |name: &String| {
        let mut variants = found.study.variant.iter();
        variants.any(|it| it.name == *name && it.driver == Some(DriverKind::Redis))
    };
    let all = || {
        found
            .study
            .variant
            .iter()
            .map(|it| it.name.clone())
            .collect()
    };
    let chosen: Vec<String> = overrides.variants.clone().unwrap_or_else(all);
    let (others, ours): (Vec<String>, Vec<String>) = chosen.into_iter().partition(is_other);
    if others.is_empty() {
        return Ok(());
    }
    if ours.is_empty() {
        bail!(
            "instructions can be counted only for PostgreSQL, and none of these variants runs on it: {}",
            others.join(", ")
        );
    }
    left_out.extend(
        others
            .iter()
            .map(|name| format!("variant \"{name}\": not PostgreSQL")),
    );
    overrides.variants = Some(ours);
    Ok(())
}
