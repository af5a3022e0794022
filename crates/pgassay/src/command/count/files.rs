//! Files that `pgassay count` writes: the HTML page and exported call paths.

use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use pgassay_account::instructions::{InstructionCosts, VariantCount};

use pgassay_report::ExportFormat;

use super::CountArgs;
use crate::output::FileOutput;
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

/// Writes the requested files. What goes to stdout is written last, so that nothing is there after an error.
pub fn write(
    args: &CountArgs,
    counted: &InstructionCosts,
    out: &mut impl FileOutput,
) -> Result<()> {
    let mut contents: Vec<(&Path, Vec<u8>)> = Vec::new();
    for export in &args.export {
        let variant = chosen(args, counted)?;
        let Some(tree) = &variant.tree else {
            bail!(no_paths(&variant.name, args.show.is_some()));
        };
        let title = format!("{}, PostgreSQL {}", variant.name, variant.build.version);
        let content = pgassay_report::export_instruction_counts(tree, &title, export.format)
            .ok_or_else(|| anyhow!(ONLY_TEXT))?;
        contents.push((export.file.as_path(), content));
    }
    if let Some(file) = &args.html {
        let page = pgassay_report::instruction_counts_html(counted, env!("CARGO_PKG_VERSION"));
        contents.push((file.as_path(), page.into_bytes()));
    }
    contents.sort_by_key(|(file, _)| is_stdout(file));
    for (file, content) in contents {
        write_to(file, &content, out)?;
    }
    Ok(())
}

/// Why call paths cannot be exported, and what to do.
fn no_paths(name: &str, are_saved: bool) -> String {
    if are_saved {
        return format!(
            "no call paths for \"{name}\" in the saved counts: count again with --save and --export (a stripped server \
             program has none)"
        );
    }
    format!(
        "no call paths for \"{name}\": its server program has no symbols, without which they would have wrong names; \
         count a build that is not stripped (--binaries DIR), or a version that pgassay downloads"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "the counts were saved without --html or --export, or the server has no symbols", after counting.
    #[test]
    fn who_has_no_call_paths_learns_what_to_do() {
        let text = no_paths("v", false);
        assert!(text.contains("not stripped (--binaries DIR)"), "{text}");
        assert!(!text.contains("--save"), "{text}");
        assert!(no_paths("v", true).contains("count again with --save and --export"));
    }
}
