//! Files that `pgassay count` writes: the HTML page and exported call paths.

use std::io::Write;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_account::instructions::{InstructionCosts, VariantCount};

use super::CountArgs;
use crate::output_file::write_to;

/// Writes the requested files. Returns whether one of them went to stdout.
pub fn write(args: &CountArgs, counted: &InstructionCosts, out: &mut impl Write) -> Result<bool> {
    let mut is_taken = false;
    for export in &args.export {
        let variant = chosen(args, counted)?;
        let Some(tree) = &variant.tree else {
            bail!(
                "no call paths for \"{}\": the counts were saved without --html or --export, or the server has no symbols",
                variant.name
            );
        };
        let title = format!("{}, PostgreSQL {}", variant.name, variant.build.version);
        let content =
            pgassay_report::export_instruction_counts(tree, &title, export.format).ok_or_else(|| {
                anyhow!(
                    "instruction counts can be exported only as folded or perf; the other formats need times"
                )
            })?;
        is_taken |= write_to(&export.file, &content, out)?;
    }
    if let Some(file) = &args.html {
        let page = pgassay_report::instruction_counts_html(counted, env!("CARGO_PKG_VERSION"));
        is_taken |= write_to(file, page.as_bytes(), out)?;
    }
    Ok(is_taken)
}

fn chosen<'a>(args: &CountArgs, counted: &'a InstructionCosts) -> Result<&'a VariantCount> {
    let conditions = counted.counts.conditions.iter();
    let mut variants = conditions.flat_map(|condition| &condition.variants);
    match &args.of {
        None => variants.next().context("nothing was counted"),
        Some(name) => {
            let names: Vec<&str> = variants.clone().map(|it| it.name.as_str()).collect();
            let found = variants.find(|it| it.name == *name);
            found.ok_or_else(|| {
                anyhow!(
                    "--of {name}: no such variant; use one of {}",
                    names.join(", ")
                )
            })
        }
    }
}
