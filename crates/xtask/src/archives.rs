//! The table of known archives of PostgreSQL's programs, `crates/pgassay-server/data/archives.tsv`.
//!
//! A row is written once, when its archive is first seen, and never changes. So a repository cannot
//! later replace an archive without notice.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pgassay_server::{ArchiveRow, FetchError, VersionRequest, archive_row};

/// The series whose newest archives are added by default.
pub const SERIES: [&str; 10] = ["9.6", "10", "11", "12", "13", "14", "15", "16", "17", "18"];
/// The architectures, as the compiler names them.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// The rows of the table by version and machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ArchiveTable {
    comments: String,
    rows: BTreeMap<(Vec<u64>, String, String), String>,
}

impl ArchiveTable {
    /// Reads the text of a table.
    pub fn read(text: &str) -> Result<Self> {
        let mut table = Self::default();
        for line in text.lines() {
            if line.starts_with('#') {
                writeln!(table.comments, "{line}")?;
                continue;
            }
            let [version, machine, sha512] = line.split('\t').collect::<Vec<_>>()[..] else {
                bail!("not a row of three fields: {line}");
            };
            table.add(&ArchiveRow {
                version: version.to_owned(),
                machine: machine.to_owned(),
                sha512: sha512.to_owned(),
            })?;
        }
        Ok(table)
    }

    /// Adds a row. An error if the table has the archive with another checksum.
    pub fn add(&mut self, row: &ArchiveRow) -> Result<()> {
        let numbers = row.version.split(['.', '-']).map(str::parse);
        let numbers: Vec<u64> = numbers
            .collect::<Result<_, _>>()
            .with_context(|| format!("not a version: {}", row.version))?;
        let key = (numbers, row.version.clone(), row.machine.clone());
        let known = self.rows.entry(key).or_insert_with(|| row.sha512.clone());
        if *known != row.sha512 {
            bail!(
                "the archive of {} for {} was replaced: its SHA-512 was {known}, and is {}",
                row.version,
                row.machine,
                row.sha512
            );
        }
        Ok(())
    }

    /// The text of the table, oldest version first.
    pub fn write(&self) -> String {
        let rows = self.rows.iter();
        rows.map(|((_, version, machine), sha512)| format!("{version}\t{machine}\t{sha512}\n"))
            .fold(self.comments.clone(), |text, row| text + &row)
    }
}

/// Where the table is.
pub fn table_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pgassay-server/data/archives.tsv")
}

/// Downloads the newest archive for each version from a Maven repository and adds it to the table.
/// Returns what it did, in lines.
pub fn update(repository: &str, versions: &[&str]) -> Result<String> {
    let path = table_path();
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let mut table = ArchiveTable::read(&text)?;
    let mut done = String::new();
    for version in versions {
        let request = VersionRequest::parse(version)?;
        for arch in ARCHITECTURES {
            match archive_row(repository, arch, &request) {
                Ok(row) => {
                    table.add(&row)?;
                    writeln!(done, "{} {}", row.version, row.machine)?;
                }
                // Not every version was built for every architecture.
                Err(FetchError::NoSuchVersion) => {
                    writeln!(done, "no PostgreSQL {version} for {arch}")?;
                }
                Err(error) => bail!("PostgreSQL {version} for {arch}: {error}"),
            }
        }
    }
    std::fs::write(&path, table.write())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(version: &str, sha512: &str) -> ArchiveRow {
        ArchiveRow {
            version: version.to_owned(),
            machine: "amd64".to_owned(),
            sha512: sha512.to_owned(),
        }
    }

    #[test]
    fn rows_are_sorted_by_version_and_never_change() {
        let mut table = ArchiveTable::read("# note\n18.6.0\tamd64\tab\n").unwrap();
        for version in ["18.10.0", "9.6.24", "10.5.0-1"] {
            table.add(&row(version, "cd")).unwrap();
        }
        table.add(&row("18.6.0", "ab")).unwrap();
        let error = table.add(&row("18.6.0", "other")).unwrap_err();
        assert!(error.to_string().contains("was replaced"), "{error}");
        let written = table.write();
        let expected = "# note\n9.6.24\tamd64\tcd\n10.5.0-1\tamd64\tcd\n18.6.0\tamd64\tab\n\
                        18.10.0\tamd64\tcd\n";
        assert_eq!(written, expected);
        assert_eq!(ArchiveTable::read(&written).unwrap(), table);
        assert!(ArchiveTable::read("18.6.0\tamd64\n").is_err());
    }

    #[test]
    fn the_committed_table_is_as_it_would_be_written() {
        let text = std::fs::read_to_string(table_path()).unwrap();
        assert_eq!(ArchiveTable::read(&text).unwrap().write(), text);
    }
}
