//! `pgassay study …`: checks, plans or prints a study without running it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use pgassay_lab::system_env::unix_us;
use pgassay_lab::{ExternalUse, LoadedStudy, PlannedMaintenance, study_checks};
use pgassay_model::plan::{Overrides, Plan, StoppingRule, plan};
use pgassay_model::study::{HumanDuration, MaintenanceTime, Variant};
use pgassay_model::wording::counted;
use pgassay_report::printable;
use pgassay_wire::conninfo::split_secrets;

use crate::args::{ChoiceArgs, ExistingStudyCommand};
use crate::catalog;
use crate::command::compare::question::absolute;
use crate::style::folded;

/// Runs one of the subcommands.
pub fn study(command: &ExistingStudyCommand, out: &mut impl Write) -> Result<()> {
    match command {
        ExistingStudyCommand::Check { study } => {
            let PlannedStudy {
                found, plan, notes, ..
            } = planned(study, &ChoiceArgs::default())?;
            for note in notes {
                writeln!(out, "{}: {note}", found.source.file)?;
            }
            writeln!(
                out,
                "{}: ok, {} on {}",
                found.source.file,
                counted(plan.points.len(), "point"),
                counted(plan.servers.len(), "server"),
            )?;
        }
        ExistingStudyCommand::Plan {
            study,
            choice,
            all_blocks,
            json,
        } => {
            let PlannedStudy { found, plan, .. } = planned(study, choice)?;
            if *json {
                writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
            } else {
                let mut text = Vec::new();
                print_servers(&plan, &found, &mut text)?;
                print_summary(&plan, &mut text)?;
                print_order(&plan, *all_blocks, &mut text)?;
                let text = folded(&String::from_utf8_lossy(&text));
                // Also in a pipe, which can lead to a terminal.
                out.write_all(printable(&text).as_bytes())?;
            }
        }
        ExistingStudyCommand::Show { study } => {
            out.write_all(catalog::find(study)?.source.text.as_bytes())?;
        }
        ExistingStudyCommand::Schema => out.write_all(pgassay_report::study_schema().as_bytes())?,
    }
    Ok(())
}

/// A study and its plan.
pub struct PlannedStudy {
    pub found: LoadedStudy,
    pub plan: Plan,
    /// What the command line changed in the study.
    pub overrides: Overrides,
    /// Notes for the user on its scripts and variants, without duplicates.
    pub notes: BTreeSet<String>,
}

/// Finds a study and plans it. Parses every script and every version, so errors surface here.
pub fn planned(name: &str, choice: &ChoiceArgs) -> Result<PlannedStudy> {
    let mut found = catalog::find(name)?;
    if let Some(dsn) = &choice.dsn {
        found
            .add_dsn_of_user(dsn)
            .map_err(|error| anyhow!("--dsn: {error}"))?;
    }
    check_server_choice(&found, choice)?;
    let overrides = overrides(&found, choice)?;
    PlannedStudy::of(found, overrides)
}

impl PlannedStudy {
    /// Plans a study.
    pub fn of(found: LoadedStudy, overrides: Overrides) -> Result<Self> {
        let plan = plan(&found.study, &found.source, &overrides)?;
        let mut notes = study_checks::check(&plan, &found)?;
        notes.extend(pgassay_report::identical_variants(&plan));
        Ok(Self {
            found,
            plan,
            overrides,
            notes,
        })
    }
}

/// Fails if a server that the command line names would not be used, because variants name theirs.
fn check_server_choice(found: &LoadedStudy, choice: &ChoiceArgs) -> Result<()> {
    let chosen = choice.variant.as_deref().map(|it| found.variants(it));
    let is_chosen = |name: &String| chosen.as_ref().is_none_or(|it| it.contains(name));
    let mut variants = found.study.variant.iter().filter(|it| is_chosen(&it.name));
    let names_server = |it: &&Variant| it.version.is_some() || it.binaries.is_some();
    let flag = match () {
        () if choice.dsn.is_some() => "--dsn",
        () if choice.binaries.is_some() => "--binaries",
        () if !choice.versions.is_empty() => "--server",
        () => return Ok(()),
    };
    let is_external = choice.dsn.is_some();
    if let Some(variant) = variants.clone().find(names_server).filter(|_| is_external) {
        bail!(
            "{flag}: variant \"{}\" names the PostgreSQL version or binaries that it runs on; choose variants that \
             do not (--variant NAME)",
            variant.name
        );
    }
    let has_any = variants.clone().next().is_some();
    if has_any && variants.all(|it| names_server(&it) || it.dsn.is_some()) {
        bail!("{flag} would have no effect: every variant names the server that it runs on");
    }
    Ok(())
}

/// The overrides that the command line specifies.
pub fn overrides(found: &LoadedStudy, choice: &ChoiceArgs) -> Result<Overrides> {
    let mut parameters = BTreeMap::new();
    for parameter in &choice.parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            bail!("--param {parameter}: expected NAME=VALUE, for example --param rows=1000");
        };
        parameters.insert(name.trim().to_owned(), value.to_owned());
    }
    Ok(Overrides {
        length: choice.length,
        quick: choice.quick,
        pairs: choice.pairs,
        half_width: choice.half_width,
        max_time: choice.max_time,
        gate_limit_percent: None,
        gate_against: Vec::new(),
        clients: choice.clients.clone(),
        variants: choice.variant.as_deref().map(|it| found.variants(it)),
        scripts: choice.script.as_deref().map(|it| found.scripts(it)),
        parameters,
        versions: choice.versions.clone(),
        // The run may be continued from another directory.
        binaries: choice.binaries.as_deref().map(absolute).transpose()?,
        dsn: choice.dsn.as_deref().map(shown).transpose()?,
        seed: choice.seed.unwrap_or_else(seed_of_now),
        without_profile: choice.no_profile,
        without_plans: choice.no_plans,
        threads: choice.jobs,
        keep_cpus_awake: choice.idle_cpus.are_kept_awake(),
    })
}

/// A connection string without its secrets.
fn shown(dsn: &str) -> Result<String> {
    Ok(split_secrets(dsn)?.0)
}

/// A seed that differs between runs.
pub fn seed_of_now() -> u64 {
    // Short enough to retype.
    (unix_us() % 1_000_000_000).cast_unsigned()
}

fn print_servers(plan: &Plan, found: &LoadedStudy, out: &mut impl Write) -> Result<()> {
    for (index, server) in plan.servers.iter().enumerate() {
        let what = match (&server.dsn, &server.binaries, &server.version) {
            (Some(dsn), ..) => format!("external server, {dsn}"),
            (_, Some(directory), _) => format!("PostgreSQL in {directory}"),
            (_, _, version) => format!("PostgreSQL {}", version.as_deref().unwrap_or_default()),
        };
        // pgassay does not change settings of an external server.
        let made = server.settings.iter().chain(&server.environment);
        let settings: Vec<String> = made
            .filter(|_| server.dsn.is_none())
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        writeln!(
            out,
            "server {index}: {what}, up to {}{}",
            counted(server.connections as usize, "connection"),
            match &settings[..] {
                [] => String::new(),
                _ => format!("; {}", settings.join(", ")),
            }
        )?;
        if let Some(dsn) = &server.dsn {
            print_changes(&ExternalUse::of(plan, index, &found.source)?, out)?;
            if !found.is_dsn_of_user(dsn) && !found.has_password(dsn) {
                writeln!(out, "  gets your password only with --allow-passwords")?;
            }
        }
    }
    Ok(())
}

/// What a run changes on an external server.
fn print_changes(planned: &ExternalUse, out: &mut impl Write) -> Result<()> {
    let lines = planned.lines();
    if lines.is_empty() {
        writeln!(out, "  only reads, in the database that `dsn` names")?;
        return Ok(());
    }
    writeln!(out, "  changes, which require --allow-writes:")?;
    for line in lines {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

/// Names, separated by commas; one that contains a comma is in quotes.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let quoted = |name: &'a String| {
        if name.contains(',') {
            format!("\"{name}\"")
        } else {
            name.clone()
        }
    };
    names.into_iter().map(quoted).collect::<Vec<_>>().join(", ")
}

fn print_summary(plan: &Plan, out: &mut impl Write) -> Result<()> {
    let schedule = &plan.schedule;
    let most = match schedule.stopping {
        StoppingRule::AllBlocks => "",
        StoppingRule::Sequential => "at most ",
        StoppingRule::Precision => "first stage: ",
    };
    writeln!(
        out,
        "variants: {} (the first is the baseline)",
        listed(&plan.variants)
    )?;
    writeln!(
        out,
        "{} × {}, {most}{} of {} of {} ({} timed, {} profiled per point and block), seed {}",
        counted(plan.conditions.len(), "condition"),
        counted(plan.variants.len(), "variant"),
        counted(schedule.blocks as usize, "block"),
        counted(plan.trials_per_block() as usize, "trial"),
        spaced(schedule.trial_us),
        schedule.timed(),
        schedule.profiled,
        schedule.seed,
    )?;
    writeln!(
        out,
        "{most}{} of measuring time{}, about {} including warm-up, plus setup",
        seconds(plan.measurement_us()),
        if plan.trials() > plan.trials_without_hardware_counters() {
            " (including trials for hardware counters)"
        } else {
            ""
        },
        seconds(plan.estimated_us())
    )?;
    if let Some(limit_us) = schedule.max_time_us {
        writeln!(
            out,
            "ends about {} after the first trial begins, or earlier",
            seconds(limit_us)
        )?;
    }
    if let Some(wanted) = schedule.half_width_percent {
        writeln!(
            out,
            "then a second stage of timed trials, until the half-width of the intervals is at most {wanted}%"
        )?;
    }
    if let Some(own) = plan.servers.iter().position(|it| it.dsn.is_none()) {
        writeln!(out, "{}", restarts_and_maintenance(plan, own))?;
    }
    if schedule.keep_cpus_awake {
        writeln!(
            out,
            "idle CPUs of this machine are kept awake during the run (requires root)"
        )?;
    }
    Ok(())
}

/// When servers restart, and when checkpoints and vacuum run on this one, as on all that pgassay starts.
fn restarts_and_maintenance(plan: &Plan, server: usize) -> String {
    let restarts = match plan.schedule.blocks_per_server_start {
        0 => "do not restart".to_owned(),
        1 => "restart after every block".to_owned(),
        blocks => format!("restart after every {blocks} blocks"),
    };
    let decided = PlannedMaintenance::of(&plan.servers, server, plan.schedule.maintenance);
    let [checkpoints, vacuum] = [decided.checkpoint, decided.vacuum]
        .map(|it| it.unwrap_or(MaintenanceTime::AsConfigured).as_str());
    format!("servers {restarts}; checkpoints {checkpoints}, vacuum {vacuum}")
}

fn print_order(plan: &Plan, all_blocks: bool, out: &mut impl Write) -> Result<()> {
    let blocks = plan.schedule.blocks;
    let printed = if all_blocks { blocks } else { blocks.min(1) };
    for block in 0..printed {
        writeln!(out, "block {}:", block + 1)?;
        for round in plan.block(block) {
            let names = |order: &[usize]| listed(order.iter().map(|it| &plan.variants[*it]));
            let also = |what: &str, order: &[usize]| match order {
                [] => String::new(),
                _ => format!("; {what}: {}", names(order)),
            };
            writeln!(
                out,
                "  {}: {}{}{}",
                plan.conditions[round.condition].title(),
                names(&round.timed),
                also("profiled", &round.profiled),
                also("hardware counters, if available", &round.hardware_counters),
            )?;
        }
    }
    let further = (blocks - printed) as usize;
    if further > 0 {
        writeln!(
            out,
            "{} {}, each in a different random order (--all-blocks prints them)",
            counted(further, "more block"),
            if further == 1 { "follows" } else { "follow" },
        )?;
    }
    Ok(())
}

/// A duration as in prose, `143 ms`; a study has `143ms`.
fn spaced(us: u64) -> String {
    let text = HumanDuration::from(Duration::from_micros(us)).to_string();
    let unit = text.find(|it: char| !it.is_ascii_digit());
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    format!("{number} {unit}")
}

fn seconds(us: u64) -> String {
    format!("{:.0} s", us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use pgassay_model::study::StudySource;

    use super::*;

    /// Regression: `a=1, b=2` was two variants.
    #[test]
    fn names_with_commas_are_in_quotes() {
        let names = ["default", "jit=off, work_mem=8MB"].map(str::to_owned);
        assert_eq!(listed(&names), "default, \"jit=off, work_mem=8MB\"");
    }

    /// Regression: "servers restart never".
    #[test]
    fn servers_that_keep_running_do_not_restart_never() {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: "question = \"?\"\n[length]\nrestart_every = 0\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                   [[variant]]\nname = \"a\"\n"
                .to_owned(),
        };
        let planned = plan(&source.parse().unwrap(), &source, &Overrides::default()).unwrap();
        let mut text = Vec::new();
        print_summary(&planned, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("\nservers do not restart; checkpoints"),
            "{text}"
        );
        // Regression: "between trials, unless overridden by the settings above", which had overridden it or had not.
        assert!(
            text.contains("checkpoints between trials, vacuum between trials\n"),
            "{text}"
        );
        let mut set = planned;
        let settings = &mut set.servers[0].settings;
        settings.insert("max_wal_size".to_owned(), "1GB".to_owned());
        let text = restarts_and_maintenance(&set, 0);
        let decided = "checkpoints as configured, vacuum between trials";
        assert!(text.ends_with(decided), "{text}");
    }
}
