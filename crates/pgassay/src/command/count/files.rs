//! Files that `pgassay count` writes: the HTML page and exported call paths.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use pgassay_account::instructions::{InstructionCosts, VariantCount};

use pgassay_report::ExportFormat;

use super::CountArgs;
use crate::output_file::{check_writable, is_stdout, write_to};

const ONLY_TEXT: &str =
    "instruction counts can be exported only as folded or perf; the other formats need times";

/// Fails if a file that was asked for cannot be written, before anything is counted.
pub fn check(args: &CountArgs) -> Result<()> {
    let is_possible = |it: ExportFormat| matches!(it, ExportFormat::Folded | ExportFormat::Perf);
    if !args.export.iter().all(|it| is_possible(it.format)) {
        bail!(ONLY_TEXT);
    }
    let saved = args.save.iter().filter(|it| is_stdout(it)).count();
    let on_stdout = files(args).filter(|it| is_stdout(it)).count();
    if saved + on_stdout + usize::from(args.json || args.markdown) > 1 {
        bail!(
            "only one of --json, --markdown, --save -, --html - and --export FORMAT=- can be written to stdout"
        );
    }
    files(args).try_for_each(check_writable)
}

/// Whether a page or an export goes to stdout, instead of the result.
pub fn on_stdout(args: &CountArgs) -> bool {
    files(args).any(is_stdout)
}

fn files(args: &CountArgs) -> impl Iterator<Item = &Path> {
    let exports = args.export.iter().map(|it| it.file.as_path());
    exports.chain(args.html.as_deref())
}

/// Writes the requested files.
pub fn write(args: &CountArgs, counted: &InstructionCosts, out: &mut impl Write) -> Result<()> {
    for export in &args.export {
        let variant = chosen(args, counted)?;
        let Some(tree) = &variant.tree else {
            bail!(
                "no call paths for \"{}\": the counts were saved without --html or --export, or the server has no symbols",
                variant.name
            );
        };
        let title = format!("{}, PostgreSQL {}", variant.name, variant.build.version);
        let content = pgassay_report::export_instruction_counts(tree, &title, export.format)
            .ok_or_else(|| anyhow!(ONLY_TEXT))?;
        write_to(&export.file, &content, out)?;
    }
    if let Some(file) = &args.html {
        let page = pgassay_report::instruction_counts_html(counted, env!("CARGO_PKG_VERSION"));
        write_to(file, page.as_bytes(), out)?;
    }
    Ok(())
}

/// The error of `--of` with a name that no variant has.
pub fn no_such_variant(name: &str, names: &[String]) -> Error {
    anyhow!(
        "--of {name}: no such variant; use one of {}",
        names.join(", ")
    )
}

fn chosen<'a>(args: &CountArgs, counted: &'a InstructionCosts) -> Result<&'a VariantCount> {
    let conditions = counted.counts.conditions.iter();
    let mut variants = conditions.flat_map(|condition| &condition.variants);
    match &args.of {
        None => variants.next().context("nothing was counted"),
        Some(name) => {
            let names: Vec<String> = variants.clone().map(|it| it.name.clone()).collect();
            let found = variants.find(|it| it.name == *name);
            found.ok_or_else(|| no_such_variant(name, &names))
        }
    }
}
