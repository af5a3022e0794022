//! Whether a run can be compared with a baseline.
//!
//! Rates of two runs differ with the state of the machine, so a gate compares ratios to a baseline that both runs
//! have. Such a ratio carries over if machine, configuration and the baseline's build are the same.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use pgassay_model::check::Check;
use pgassay_model::plan::{Plan, PointId};
use pgassay_record::baseline::GateBaseline;
use pgassay_record::run::ServerFacts;
use serde_json::{Value, json};

use crate::checks;
use crate::command::first_difference::first_difference;

/// Checks of the machine that must have the same values. The processor is part of the machine's key.
const SAME_CHECKS: [&str; 4] = ["kernel", "governor", "cgroup_quota", "disk"];

/// Why the ratios of this plan cannot be compared with those of the baseline; `None` if they can. The servers' data are
/// below `data_parent`.
pub fn why_not(
    baseline: &GateBaseline,
    plan: &Plan,
    data_parent: Option<&Path>,
    builds: impl FnOnce() -> Result<Vec<Option<ServerFacts>>>,
) -> Result<Option<String>> {
    if baseline.trials.is_empty() {
        return Ok(Some(format!(
            "\"{}\" has no times, only instruction counts: use --fail-if 'instructions > 2%'",
            baseline.name
        )));
    }
    let of_machine = another_machine(baseline, data_parent);
    let reason = of_machine
        .or_else(|| another_plan(baseline.plan.as_ref(), plan, true))
        .or_else(|| without_restarts(plan))
        .or_else(|| without_ratio(baseline, plan));
    if reason.is_some() {
        return Ok(reason);
    }
    Ok(another_build(baseline, plan, &builds()?))
}

fn another_machine(baseline: &GateBaseline, data_parent: Option<&Path>) -> Option<String> {
    let version = env!("CARGO_PKG_VERSION");
    let before = baseline.pgassay_version.as_deref();
    if before != Some(version) {
        let before = before.unwrap_or("of unknown version");
        return Some(format!(
            "it is from pgassay {before}, and this is {version}"
        ));
    }
    let machine = checks::machine();
    if baseline.machine_key.as_ref() != Some(&machine.key) {
        return Some("it is from another machine".to_owned());
    }
    let mut now = checks::all();
    now.push(checks::disk(data_parent));
    SAME_CHECKS.iter().find_map(|name| {
        let value = |checks: &[Check]| {
            let found = checks.iter().find(|it| it.name == *name);
            found.map_or("unknown".to_owned(), |it| it.value.clone())
        };
        let (before, after) = (value(&baseline.checks), value(&now));
        let found = now.iter().find(|it| it.name == *name);
        let title = found.map_or((*name).to_owned(), Check::title);
        (before != after).then(|| format!("{title} of the machine was {before}, is {after}"))
    })
}

/// The first part of the plan that was different. Versions and directories of servers are not compared, because
/// another build is what a gate is for.
pub fn another_plan(before: Option<&Plan>, now: &Plan, is_timed: bool) -> Option<String> {
    let before = before?;
    let difference = first_difference(
        "plan",
        &configuration(before, is_timed),
        &configuration(now, is_timed),
    )?;
    // In words, if there are any, and then where.
    let trials = || other_trials(before, now).filter(|_| is_timed);
    let words = another_configuration(before, now).or_else(trials);
    let words = words.map_or(String::new(), |it| format!("{it}: "));
    Some(format!(
        "it is from another configuration: {words}{difference}"
    ))
}

/// Whether a timed run, whose conditions are not those of a count, had other scripts or other data.
pub fn another_load(before: Option<&Plan>, now: &Plan) -> Option<String> {
    let what = another_configuration(before?, now)?;
    Some(format!("it is from another configuration: {what}"))
}

fn another_configuration(before: &Plan, now: &Plan) -> Option<&'static str> {
    let scripts = |plan: &Plan| -> BTreeSet<(String, u32)> {
        let scripts = plan.points.iter().flat_map(|it| &it.scripts);
        scripts.map(|it| (it.text.clone(), it.weight)).collect()
    };
    let setups = |plan: &Plan| -> BTreeSet<String> {
        let databases = plan.servers.iter().flat_map(|it| &it.databases);
        let setups = databases.flat_map(|it| &it.setup);
        setups.map(|it| it.text.clone()).collect()
    };
    let sessions = |plan: &Plan| -> BTreeSet<String> {
        let points = plan.points.iter();
        let sessions = points.map(|it| json!([it.protocol, it.session]).to_string());
        sessions.collect()
    };
    let servers = |plan: &Plan| -> BTreeSet<String> {
        let servers = plan.servers.iter();
        let servers =
            servers.map(|it| json!([it.settings, it.environment, it.data_checksums]).to_string());
        servers.collect()
    };
    let different = [
        ("other scripts", scripts(before) != scripts(now)),
        ("another setup", setups(before) != setups(now)),
        (
            "another protocol, or other session settings",
            sessions(before) != sessions(now),
        ),
        ("other server settings", servers(before) != servers(now)),
    ];
    let mut different = different.into_iter();
    different.find_map(|(what, is_different)| is_different.then_some(what))
}

/// Which flags make the trials of both runs equal.
fn other_trials(before: &Plan, now: &Plan) -> Option<&'static str> {
    let (before, now) = (&before.schedule, &now.schedule);
    let different = [
        (
            "idle CPUs were kept awake in one run only (root does so by default; otherwise give --keep-cpus-awake or \
             --let-cpus-sleep)",
            before.keep_cpus_awake != now.keep_cpus_awake,
        ),
        (
            "another number of threads (-j)",
            before.threads != now.threads,
        ),
        (
            "trials of another length (--length, and --no-profile, which leaves more time to each)",
            before.trial_us != now.trial_us,
        ),
    ];
    let mut different = different.into_iter();
    different.find_map(|(what, is_different)| is_different.then_some(what))
}

fn configuration(plan: &Plan, is_timed: bool) -> Value {
    // A plan has no maps but those with strings as keys, so it can be a value.
    let mut value = serde_json::to_value(plan).unwrap_or_default();
    let schedule = &plan.schedule;
    let trials = json!({
        "trial_us": schedule.trial_us,
        "threads": schedule.threads,
        "maintenance": schedule.maintenance,
        "keep_cpus_awake": schedule.keep_cpus_awake,
        "blocks_per_server_start": schedule.blocks_per_server_start,
    });
    if let Some(fields) = value.as_object_mut() {
        fields.remove("gate_against");
        fields.insert(
            "schedule".to_owned(),
            if is_timed { trials } else { Value::Null },
        );
    }
    let servers = value.get_mut("servers").and_then(Value::as_array_mut);
    for server in servers.into_iter().flatten() {
        if let Some(fields) = server.as_object_mut() {
            fields.remove("version");
            fields.remove("binaries");
        }
    }
    value
}

/// Why the ratios of this plan are of no use to a later gate; `None` if they are.
pub fn without_restarts(plan: &Plan) -> Option<String> {
    let reason =
        "a ratio measured on servers that are not restarted holds for these server starts only";
    let is_external = plan.servers.iter().any(|it| it.dsn.is_some());
    (is_external || !plan.restarts_servers()).then(|| reason.to_owned())
}

fn without_ratio(baseline: &GateBaseline, plan: &Plan) -> Option<String> {
    let comparisons = (0..plan.conditions.len())
        .flat_map(|condition| (1..plan.variants.len()).map(move |variant| (condition, variant)));
    let is_known = |&(condition, variant): &(usize, usize)| {
        let title = plan.conditions[condition].title();
        let mut known = baseline.ratios.iter();
        known.any(|it| it.variant == plan.variants[variant] && it.condition == title)
    };
    let unknown = comparisons.into_iter().find(|it| !is_known(it));
    unknown.map(|(condition, variant)| {
        format!(
            "it has no interval for {} with {}: it had fewer than four server starts, was unstable, or did not vary",
            plan.variants[variant],
            plan.conditions[condition].title()
        )
    })
}

/// The first difference between the builds of a baseline, then and now. The variants' own may differ.
fn another_build(
    before: &GateBaseline,
    plan: &Plan,
    builds: &[Option<ServerFacts>],
) -> Option<String> {
    let baselines = (1..plan.variants.len()).map(|variant| plan.baseline_of(variant));
    let points = baselines.flat_map(|variant| {
        let conditions = 0..plan.conditions.len();
        conditions.map(move |condition| plan.point(PointId::new(condition, variant)))
    });
    let mut servers = points.map(|point| (point.variant, point.server));
    servers.find_map(|(variant, server)| {
        let then = before.servers.get(server)?;
        let now = builds.get(server)?.as_ref()?;
        let (what, then, now) = then.build_differences(now).into_iter().next()?;
        let name = &plan.variants[variant];
        Some(format!(
            "the build of the baseline \"{name}\" has changed: {what} was {then}, is {now}"
        ))
    })
}
