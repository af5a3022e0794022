//! Writes the study that the flags of `pgassay curve` describe: one variant, and a condition for each number
//! of clients.

use anyhow::{Result, bail};
use pgassay_model::plan::{Plan, Point};
use pgassay_wire::conninfo::split_secrets;
use toml::{Table, Value};

use super::args::{CurveArgs, Levels, LevelsForm};
use crate::command::choice::{settings, variant};
use crate::command::compare::question::{absolute, has_builtin, named_scripts};
use crate::command::tables::{TableChoice, table};

/// Clients of a curve against the rate: enough for a server with few processors.
const CLIENTS_WITH_RATE: u32 = 16;
const CLIENTS: &str = "1..64";
/// The fewest numbers of clients that determine the law's three parameters.
const CLIENTS_MIN: usize = 3;

/// The numbers of clients to choose from.
pub fn clients(args: &CurveArgs) -> Result<Vec<u32>> {
    let chosen = |choice: &str| choice.parse::<Levels>().map_err(anyhow::Error::msg);
    let levels = match (&args.clients, &args.rate) {
        (Some(levels), _) => levels.clone(),
        (None, None) => chosen(CLIENTS)?,
        (None, Some(_)) => chosen(&CLIENTS_WITH_RATE.to_string())?,
    };
    if args.rate.is_some() && levels.form != LevelsForm::Single {
        bail!("with --rate, -c takes one number of clients");
    }
    if args.rate.is_none() && levels.values.len() < CLIENTS_MIN {
        bail!(
            "a curve needs at least {CLIENTS_MIN} numbers of clients: give a range, as -c 1..64, or a \
             longer list"
        );
    }
    Ok(levels.values)
}

/// The text of the study, in TOML.
pub fn study_text(args: &CurveArgs, clients: &[u32]) -> Result<String> {
    let select_only = args.select_only.then_some("select-only");
    let simple_update = args.skip_some_updates.then_some("simple-update");
    let builtins = args.builtin.iter().map(String::as_str);
    let builtins: Vec<&str> = builtins.chain(select_only).chain(simple_update).collect();
    let scripts = named_scripts(&args.sql, &args.file, &builtins)?;
    let mut study = Table::new();
    let question = match &args.rate {
        Some(_) => "How does latency grow with the rate?",
        None => "How does throughput grow with the number of clients?",
    };
    study.insert("question".to_owned(), question.into());
    study.insert("server".to_owned(), server(args)?.into());
    let exist = args.dsn.is_some() && !has_builtin(&scripts);
    TableChoice::chosen(&args.setup, args.scale, exist)?.add_to(&mut study, None);
    let clients: Vec<Value> = clients.iter().map(|&it| it.into()).collect();
    let conditions = table([("clients", clients.into())]);
    study.insert("conditions".to_owned(), conditions);
    let length = [
        ("full", Value::from(args.length.to_string())),
        ("threads", args.jobs.into()),
        // A restart between blocks would shift the points of a block against all others.
        ("restart_every", 0.into()),
        // Fixed: the curve decides by itself when it ends.
        ("pairs", 2.into()),
    ];
    study.insert("length".to_owned(), table(length));
    let names: Vec<&str> = scripts.iter().map(|it| it.name.as_str()).collect();
    let only = Value::try_from(variant(&names.join(", "), args.protocol))?;
    study.insert("variant".to_owned(), vec![only].into());
    let scripts = scripts.into_iter().map(|script| {
        let key = if script.is_builtin { "builtin" } else { "text" };
        table([("name", script.name.into()), (key, script.text.into())])
    });
    study.insert("script".to_owned(), scripts.collect::<Vec<_>>().into());
    Ok(toml::to_string(&study)?)
}

fn server(args: &CurveArgs) -> Result<Table> {
    let mut server = Table::new();
    let (key, value) = match (&args.dsn, &args.binaries) {
        (Some(dsn), _) => ("dsn", dsn.clone()),
        (None, Some(directory)) => ("binaries", absolute(directory)?),
        (None, None) => ("version", args.version.clone()),
    };
    server.insert(key.to_owned(), value.into());
    let settings = settings("--set", &args.set)?;
    if !settings.is_empty() {
        server.insert("settings".to_owned(), Value::try_from(settings)?);
    }
    Ok(server)
}

/// What is run, in words.
pub fn load(args: &CurveArgs, plan: &Plan) -> Result<String> {
    let server = match (&args.dsn, &args.binaries) {
        (Some(dsn), _) => split_secrets(dsn)?.0,
        (None, Some(directory)) => directory.clone(),
        (None, None) => format!("PostgreSQL {}", args.version),
    };
    let with_rate = match &args.rate {
        Some(_) => format!(", {} clients", plan.conditions[0].clients),
        None => String::new(),
    };
    let (script, protocol) = (&plan.variants[0], args.protocol.as_str());
    Ok(format!(
        "{script}, {protocol} protocol{with_rate}, {server}"
    ))
}

/// Replaces the plan's only condition by one for each rate.
pub fn with_rates(plan: &mut Plan, rates: &[u32]) {
    let (condition, point) = (plan.conditions[0].clone(), plan.points[0].clone());
    plan.conditions.clear();
    plan.points.clear();
    for (number, rate) in rates.iter().enumerate() {
        let mut condition = condition.clone();
        condition.label = format!("rate={rate}");
        let values = &mut condition.values;
        values.insert("rate".to_owned(), rate.to_string());
        plan.conditions.push(condition);
        plan.points.push(Point {
            condition: number,
            rate_per_s: Some(f64::from(*rate)),
            ..point.clone()
        });
    }
}
