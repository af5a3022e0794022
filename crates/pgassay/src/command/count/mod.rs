//! `pgassay count`: counts instructions per transaction.

mod args;
mod countable;
mod files;
mod quick;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_account::instructions::{Counts, InstructionCosts, SCHEMA};
use pgassay_count::against::{self, VariantComparison, VariantOutcome};
use pgassay_count::{markdown, text};
use pgassay_lab::counting::{self, CountingOptions, Valgrind};
use pgassay_lab::{LoadedStudy, RunContext};
use pgassay_model::plan::{Overrides, Plan};
use serde_json::json;

pub use args::CountArgs;
pub use countable::{Countable, countable};

use crate::exit::{Gate, INCONCLUSIVE, NOT_COMPARABLE, REGRESSION, after_printing};
use crate::input_file::read_text;
use crate::output::FileOutput;
use crate::output_file::{check_new, write_new};
use crate::progress::ProgressDisplay;
use crate::style::{columns, folded};
use crate::{catalog, interrupt};

/// Counts or loads instruction counts, then saves, prints and compares them as requested.
pub fn count(args: &CountArgs, out: &mut impl FileOutput) -> Result<()> {
    if let Some(path) = &args.save {
        check_new(path)?;
    }
    files::check(args)?;
    args.check_around()?;
    let earlier = args.against.as_deref().map(read).transpose()?;
    let counts = match &args.show {
        Some(path) => read(path)?,
        None => counted_now(args, earlier.as_ref())?,
    };
    let mut is_saved_there = false;
    if let Some(path) = &args.save {
        let mut kept = serde_json::to_string_pretty(&counts)?;
        kept.push('\n');
        is_saved_there = write_new(path, kept.as_bytes(), out)?;
    }
    let comparisons = earlier.map(|earlier| against::compare(&earlier, &counts, args.tolerance));
    let counted = InstructionCosts::of(counts);
    let printed = if is_saved_there {
        files::write(args, &counted, out).and_then(|()| Ok(out.flush()?))
    } else {
        print_counted(args, &counted, comparisons.as_deref(), out)
    };
    let verdict = comparisons.map_or(Ok(()), |comparisons| gate(&comparisons));
    after_printing(printed, verdict)
}

/// Writes the files that were asked for, and prints the result in the format that was asked for. The result is printed
/// even if a file cannot be written, in the place of one on stdout: counting may have taken minutes.
fn print_counted(
    args: &CountArgs,
    counted: &InstructionCosts,
    comparisons: Option<&[VariantComparison]>,
    out: &mut impl FileOutput,
) -> Result<()> {
    let written = files::write(args, counted, out);
    if args.json {
        let mut document = document(counted);
        if let (Some(fields), Some(comparisons)) = (document.as_object_mut(), comparisons) {
            let comparisons = comparisons.iter().map(compared).collect();
            fields.insert("against".to_owned(), comparisons);
        }
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else if args.markdown {
        write!(out, "{}", markdown::tables(&counted.counts))?;
        if let Some(comparisons) = comparisons {
            write!(
                out,
                "\n{}",
                markdown::comparisons(comparisons, args.tolerance)
            )?;
        }
    } else if written.is_err() || !files::on_stdout(args) {
        print(args, &counted.counts, comparisons, out)?;
    }
    out.flush()?;
    written
}

fn counted_now(args: &CountArgs, earlier: Option<&Counts>) -> Result<Counts> {
    args.check()?;
    let found = match args.named_study() {
        Some(name) => catalog::find(name)?,
        None => quick::study(args)?,
    };
    let interrupt = interrupt::watch()?;
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &found,
        options: &args.servers.options(),
        interrupt: &interrupt,
        events: &progress,
    };
    counted(args, earlier, &context)
}

fn counted(args: &CountArgs, earlier: Option<&Counts>, context: &RunContext<'_>) -> Result<Counts> {
    let found = context.study;
    let clients: &[u32] = match args.named_study() {
        Some(_) => &found.study.conditions.clients,
        None => &[1],
    };
    let overrides = overrides(args, found)?;
    let Countable { plan, left_out } = countable(clients, overrides, context)?;
    if let Some(name) = &args.of
        && !plan.variants.contains(name)
    {
        return Err(files::no_such_variant(name, &plan.variants));
    }
    // Counts that are to be saved or exported are wanted, whatever they are compared with.
    let is_wanted = args.save.is_some()
        || args.json
        || args.markdown
        || args.html.is_some()
        || !args.export.is_empty();
    if let Some(earlier) = earlier.filter(|_| !is_wanted) {
        check_comparable(earlier, &plan)?;
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
    let options = CountingOptions {
        repeats: args.repeats,
        unit: args.transactions,
        segments_of: &segments_of,
        call_paths: args.html.is_some() || !args.export.is_empty(),
        left_out,
    };
    counting::count(&plan, &options, context)
}

/// Fails if nothing of the plan can be compared with earlier counts: counting takes minutes.
fn check_comparable(earlier: &Counts, plan: &Plan) -> Result<()> {
    let machine = counting::machine(&Valgrind::find()?);
    let points = plan.points.iter().map(|point| {
        let label = plan.conditions[point.condition].label.as_str();
        (label, plan.variants[point.variant].as_str())
    });
    let points: Vec<(&str, &str)> = points.collect();
    let Some(reason) = against::refusal(earlier, (&machine, plan.schedule.seed), &points) else {
        return Ok(());
    };
    Err(Gate {
        code: NOT_COMPARABLE,
        reason: format!("not comparable, so nothing was counted: {reason}"),
    }
    .into())
}

fn overrides(args: &CountArgs, found: &LoadedStudy) -> Result<Overrides> {
    let mut parameters = BTreeMap::new();
    for parameter in &args.parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            bail!("--param {parameter}: expected NAME=VALUE, for example --param rows=1000");
        };
        parameters.insert(name.trim().to_owned(), value.to_owned());
    }
    Ok(Overrides {
        variants: args.variant.as_deref().map(|it| found.variants(it)),
        scripts: args.scripts.as_deref().map(|it| found.scripts(it)),
        parameters,
        versions: match (args.named_study(), &args.version) {
            (Some(_), Some(versions)) => versions.split(',').map(str::to_owned).collect(),
            _ => Vec::new(),
        },
        binaries: args.named_study().and(args.binaries.clone()),
        dsn: None,
        seed: args.seed,
        ..Overrides::default()
    })
}

fn read(path: &Path) -> Result<Counts> {
    let text =
        read_text(path).with_context(|| format!("cannot read counts from {}", path.display()))?;
    let counts: Counts = serde_json::from_str(&text)
        .with_context(|| format!("{} was not written by --save", path.display()))?;
    if counts.schema != SCHEMA {
        bail!(
            "{} has schema {}, expected {SCHEMA}",
            path.display(),
            counts.schema
        );
    }
    Ok(counts)
}

/// The JSON of `--json`.
pub fn document(counted: &InstructionCosts) -> serde_json::Value {
    json!({
        "schema": "pgassay.count-result/1",
        "counts": counted.counts,
        "differences": counted.differences,
    })
}

/// One variant, compared with its earlier counts.
fn compared(comparison: &VariantComparison) -> serde_json::Value {
    let (outcome, difference, reason) = match &comparison.outcome {
        VariantOutcome::Within(difference) => ("within", Some(difference), None),
        VariantOutcome::Over(difference) => ("over", Some(difference), None),
        VariantOutcome::Inconclusive(reason) => ("inconclusive", None, Some(reason)),
        VariantOutcome::NotComparable(reason) => ("not_comparable", None, Some(reason)),
    };
    json!({
        "title": comparison.title,
        "outcome": outcome,
        "difference": difference.map(|it| it.per_transaction),
        "margin": difference.map(|it| it.margin),
        "ratio": difference.map(|it| it.ratio),
        "reason": reason,
    })
}

fn print(
    args: &CountArgs,
    counts: &Counts,
    comparisons: Option<&[VariantComparison]>,
    out: &mut impl Write,
) -> Result<()> {
    write!(
        out,
        "{}",
        folded(&text::answer(counts, args.functions, columns()))
    )?;
    if let Some(file) = &args.html {
        writeln!(out, "\nflame graphs: {}", file.display())?;
    }
    if let Some(name) = &args.around {
        for condition in &counts.conditions {
            for variant in &condition.variants {
                match text::around(variant, name) {
                    Some(calls) => write!(out, "{}", folded(&calls))?,
                    None => writeln!(out, "\n  {}: {name} is not called", variant.name)?,
                }
            }
        }
    }
    if let Some(comparisons) = comparisons {
        let words = text::comparisons(comparisons, args.tolerance, args.functions);
        write!(out, "\n{}", folded(&words))?;
    }
    Ok(())
}

fn gate(comparisons: &[VariantComparison]) -> Result<()> {
    let titles = |of: fn(&VariantOutcome) -> bool| -> Vec<&str> {
        let those = comparisons
            .iter()
            .filter(|comparison| of(&comparison.outcome));
        those.map(|comparison| comparison.title.as_str()).collect()
    };
    let over = titles(|outcome| matches!(outcome, VariantOutcome::Over(_)));
    let unlike = titles(|outcome| matches!(outcome, VariantOutcome::NotComparable(_)));
    let unknown = titles(|outcome| matches!(outcome, VariantOutcome::Inconclusive(_)));
    for (code, titles, what) in [
        (REGRESSION, over, "costs more than the tolerance allows"),
        (NOT_COMPARABLE, unlike, "not comparable"),
        (INCONCLUSIVE, unknown, "inconclusive"),
    ] {
        if !titles.is_empty() {
            let reason = format!("{what}: {}", titles.join("; "));
            return Err(Gate { code, reason }.into());
        }
    }
    Ok(())
}
