//! `pgassay count`: what a transaction costs in instructions.

mod args;
mod quick;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_core::plan::{Overrides, plan};
use pgassay_count::against::{self, Comparison, Outcome};
use pgassay_count::{Counts, Difference, SCHEMA, text};
use pgassay_server::VersionRequest;
use serde_json::json;

pub use args::CountArgs;

use crate::catalogue::{self, Found};
use crate::exit::{CANNOT_TELL, Gate, REGRESSION};
use crate::interrupt::Interrupt;
use crate::laboratory::counting::{self, Options};
use crate::laboratory::scripts;
use crate::places;
use crate::progress::Progress;

/// Counts, prints, keeps and compares.
pub fn count(args: &CountArgs, out: &mut impl Write) -> Result<()> {
    let earlier = args.against.as_deref().map(read).transpose()?;
    let counts = match &args.show {
        Some(path) => read(path)?,
        None => counted_now(args, earlier.as_ref())?,
    };
    if let Some(path) = &args.save {
        let mut kept = serde_json::to_string_pretty(&counts)?;
        kept.push('\n');
        std::fs::write(path, kept).with_context(|| format!("cannot keep {}", path.display()))?;
    }
    let comparisons = earlier.map(|earlier| against::compare(&earlier, &counts, args.tolerance));
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document(&counts))?)?;
    } else {
        print(args, &counts, comparisons.as_deref(), out)?;
    }
    out.flush()?;
    comparisons.map_or(Ok(()), |comparisons| gate(&comparisons))
}

fn counted_now(args: &CountArgs, earlier: Option<&Counts>) -> Result<Counts> {
    let found = match &args.study {
        Some(name) => catalogue::find(name)?,
        None => quick::study(args)?,
    };
    let interrupt = Interrupt::watch()?;
    let mut progress = Progress::on_stderr();
    counted(args, &found, earlier, &interrupt, &mut progress)
}

fn counted(
    args: &CountArgs,
    found: &Found,
    earlier: Option<&Counts>,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Counts> {
    let plan = plan(&found.study, &found.source, &overrides(args)?)?;
    for server in &plan.servers {
        VersionRequest::parse(&server.version)
            .map_err(|error| places::at_version(found, &server.version, &error.to_string()))?;
    }
    for point in &plan.points {
        scripts::parse(point, &found.source)?;
    }
    let segments_of = |condition: &str, variant: &str| {
        let conditions = &earlier?.conditions;
        let condition = conditions.iter().find(|other| other.title == condition)?;
        let variant = condition
            .variants
            .iter()
            .find(|other| other.name == variant)?;
        Some(variant.segments)
    };
    let options = Options {
        repeats: args.repeats,
        unit: args.transactions,
        segments_of: &segments_of,
    };
    counting::count(&plan, found, &args.servers, &options, interrupt, progress)
}

fn overrides(args: &CountArgs) -> Result<Overrides> {
    let mut parameters = BTreeMap::new();
    for parameter in &args.parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            bail!("--param {parameter}: write name=value, as --param rows=1000");
        };
        parameters.insert(name.trim().to_owned(), value.to_owned());
    }
    Ok(Overrides {
        clients: Some(vec![1]),
        variants: args.variant.clone(),
        scripts: args.scripts.clone(),
        parameters,
        versions: args
            .study
            .as_ref()
            .and(args.version.clone())
            .into_iter()
            .collect(),
        binaries: args.study.as_ref().and(args.binaries.clone()),
        seed: args.seed,
        without_profile: true,
        ..Overrides::default()
    })
}

fn read(path: &Path) -> Result<Counts> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the counts of {}", path.display()))?;
    let counts: Counts = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no counts as --save keeps them", path.display()))?;
    if counts.schema != SCHEMA {
        bail!(
            "{} is of form {}, not {SCHEMA}",
            path.display(),
            counts.schema
        );
    }
    Ok(counts)
}

/// The counts and the differences of every condition's variants to its first.
fn document(counts: &Counts) -> serde_json::Value {
    let differences: Vec<_> = counts
        .conditions
        .iter()
        .flat_map(|condition| {
            let (baseline, others) = condition.variants.split_first().into_iter().next().unzip();
            let others = others.into_iter().flatten();
            others.map(move |variant| {
                json!({
                    "condition": condition.title,
                    "baseline": baseline.map(|baseline| &baseline.name),
                    "variant": variant.name,
                    "difference": baseline.map(|baseline| Difference::between(baseline, variant)),
                })
            })
        })
        .collect();
    json!({
        "schema": "pgassay.count-result/1",
        "counts": counts,
        "differences": differences,
    })
}

fn print(
    args: &CountArgs,
    counts: &Counts,
    comparisons: Option<&[Comparison]>,
    out: &mut impl Write,
) -> Result<()> {
    write!(out, "{}", text::answer(counts, args.functions))?;
    if let Some(name) = &args.around {
        for condition in &counts.conditions {
            for variant in &condition.variants {
                match text::around(variant, name) {
                    Some(calls) => write!(out, "{calls}")?,
                    None => writeln!(out, "\n  {}: {name} is not called", variant.name)?,
                }
            }
        }
    }
    if let Some(comparisons) = comparisons {
        let words = text::comparisons(comparisons, args.tolerance, args.functions);
        write!(out, "\n{words}")?;
    }
    Ok(())
}

fn gate(comparisons: &[Comparison]) -> Result<()> {
    let titles = |of: fn(&Outcome) -> bool| -> Vec<&str> {
        let those = comparisons
            .iter()
            .filter(|comparison| of(&comparison.outcome));
        those.map(|comparison| comparison.title.as_str()).collect()
    };
    let over = titles(|outcome| matches!(outcome, Outcome::Over(_)));
    let unknown = titles(|outcome| matches!(outcome, Outcome::NotComparable(_)));
    if !over.is_empty() {
        let reason = format!("costs more than the tolerance allows: {}", over.join("; "));
        return Err(Gate {
            code: REGRESSION,
            reason,
        }
        .into());
    }
    if !unknown.is_empty() {
        let reason = format!("cannot be compared: {}", unknown.join("; "));
        return Err(Gate {
            code: CANNOT_TELL,
            reason,
        }
        .into());
    }
    Ok(())
}
