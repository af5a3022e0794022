//! `cargo xtask …`; see [`USAGE`].

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use xtask::presence::{Major, Presence};
use xtask::{archives, licenses, source_tree, tables};

const USAGE: &str = "\
usage:
  xtask symbols [--merge FILE.tsv] SRCDIR MAJOR [SRCDIR MAJOR]...
      Writes the functions of PostgreSQL source trees to standard output, one row
      per function, file, and range of major versions. --merge adds them to a table.
  xtask tables --functions FILE.tsv | --wait-events FILE.tsv
      Packs a table into crates/pgassay-knowledge/data.
  xtask tables --dump functions | --dump wait-events
      Writes the rows of a packed table to standard output.
  xtask tables --check
      Fails if packing the rows of a committed table does not reproduce the file.
  xtask archives MAVEN_URL [VERSION]...
      Downloads the newest archive of each version, by default of each series, and
      adds its checksum to crates/pgassay-server/data/archives.tsv.
  xtask licenses
      Fails if deny.toml does not allow the license of a dependency.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["symbols", "--merge", older, trees @ ..] => symbols(Presence::read(&text(older)?)?, trees),
        ["symbols", trees @ ..] => symbols(Presence::default(), trees),
        ["tables", "--functions", table] => store(
            "functions.zlib",
            &tables::pack_functions(&text(table)?).context(table.to_string())?,
        ),
        ["tables", "--wait-events", table] => store(
            "wait-events.zlib",
            &tables::pack_wait_events(&text(table)?).context(table.to_string())?,
        ),
        ["tables", "--dump", "functions"] => {
            print(&tables::dump_functions(&stored("functions.zlib")?)?)
        }
        ["tables", "--dump", "wait-events"] => {
            print(&tables::dump_wait_events(&stored("wait-events.zlib")?)?)
        }
        ["tables", "--check"] => tables::check(),
        ["archives", repository] => print(&archives::update(repository, &archives::SERIES)?),
        ["archives", repository, versions @ ..] => print(&archives::update(repository, versions)?),
        ["licenses"] => print(&format!("{}\n", licenses::check()?)),
        _ => bail!("unknown arguments\n{USAGE}"),
    }
}

fn symbols(mut presence: Presence, trees: &[&str]) -> Result<()> {
    let (pairs, []) = trees.as_chunks::<2>() else {
        bail!("expected a MAJOR after each SRCDIR\n{USAGE}")
    };
    if pairs.is_empty() {
        bail!("missing SRCDIR\n{USAGE}");
    }
    for [tree, major] in pairs {
        presence.set(
            Major::parse(major)?,
            source_tree::functions(Path::new(tree))?,
        );
    }
    print(&presence.write())
}

fn text(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

fn stored(name: &str) -> Result<Vec<u8>> {
    let path = tables::data_folder().join(name);
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn store(name: &str, packed: &[u8]) -> Result<()> {
    let path = tables::data_folder().join(name);
    std::fs::write(&path, packed).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
