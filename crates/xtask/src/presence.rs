//! Which file defines which function in which major versions.
//!
//! Its text form is a table with the tab-separated columns `symbol path first_major last_major` and
//! one row per contiguous range of majors: a function in 15 and 17 but not in 16 has two rows.
//!
//! Invariants: rows are sorted by symbol, path and first major; reading a written table yields the
//! same value; adding an existing major replaces it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

/// The header line of the table.
pub const HEADER: &str = "symbol\tpath\tfirst_major\tlast_major";

/// A contiguous range of majors in which a file defines a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MajorRange {
    /// Function name.
    pub symbol: String,
    /// Source path.
    pub path: String,
    /// First major, as an index into [`Presence::majors`].
    pub first: usize,
    /// Last major, as an index into [`Presence::majors`].
    pub last: usize,
}

/// Functions by file and major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// Known majors, oldest first.
    majors: BTreeSet<Major>,
    /// (symbol, path) → majors.
    files: BTreeMap<(String, String), BTreeSet<Major>>,
}

/// A major version, in version order: 9.6 before 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Major {
    first: u32,
    second: Option<u32>,
}

impl Major {
    /// Parses `9.6` or `18`: versions before 10 have two parts, later ones one.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            format!("`{text}` is not a major version of PostgreSQL; expected one like 9.6 or 18")
        };
        let (first, second) = match text.split_once('.') {
            Some((first, second)) => (first, Some(second.parse().with_context(wrong)?)),
            None => (text, None),
        };
        let first = first.parse().with_context(wrong)?;
        if second.is_some() != (first < 10) {
            bail!(wrong());
        }
        Ok(Self { first, second })
    }
}

impl std::fmt::Display for Major {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.second {
            Some(second) => write!(formatter, "{}.{second}", self.first),
            None => write!(formatter, "{}", self.first),
        }
    }
}

impl Presence {
    /// Reads the tab-separated table.
    pub fn read(table: &str) -> Result<Self> {
        let mut lines = (1..).zip(table.lines());
        let Some((_, HEADER)) = lines.next() else {
            bail!(
                "line 1: expected the header `{}`",
                HEADER.replace('\t', " ")
            );
        };
        let mut spans = Vec::new();
        for (line, row) in lines {
            let fields: Vec<&str> = row.split('\t').collect();
            let [symbol, path, first, last] = fields[..] else {
                bail!("line {line}: expected 4 columns, found {}", fields.len());
            };
            let major = |text| Major::parse(text).with_context(|| format!("line {line}"));
            let (first, last) = (major(first)?, major(last)?);
            if last < first {
                bail!("line {line}: {last} comes before {first}");
            }
            spans.push((symbol.to_owned(), path.to_owned(), first, last));
        }
        let majors: BTreeSet<Major> = spans
            .iter()
            .flat_map(|(_, _, first, last)| [*first, *last])
            .collect();
        let mut homes: BTreeMap<_, BTreeSet<Major>> = BTreeMap::new();
        for (symbol, path, first, last) in spans {
            homes
                .entry((symbol, path))
                .or_default()
                .extend(majors.range(first..=last));
        }
        Ok(Self {
            majors,
            files: homes,
        })
    }

    /// Sets the functions of one major, as (symbol, path).
    pub fn set(&mut self, major: Major, functions: impl IntoIterator<Item = (String, String)>) {
        self.majors.insert(major);
        for majors in self.files.values_mut() {
            majors.remove(&major);
        }
        for home in functions {
            self.files.entry(home).or_default().insert(major);
        }
        self.files.retain(|_, majors| !majors.is_empty());
    }

    /// Known majors, oldest first.
    pub fn majors(&self) -> Vec<Major> {
        self.majors.iter().copied().collect()
    }

    /// The ranges, sorted.
    pub fn runs(&self) -> Vec<MajorRange> {
        let majors = self.majors();
        let mut runs = Vec::new();
        for ((symbol, path), present) in &self.files {
            let mut open: Option<MajorRange> = None;
            for (index, major) in majors.iter().enumerate() {
                match (&mut open, present.contains(major)) {
                    (Some(run), true) => run.last = index,
                    (None, true) => {
                        let (symbol, path) = (symbol.clone(), path.clone());
                        open = Some(MajorRange {
                            symbol,
                            path,
                            first: index,
                            last: index,
                        });
                    }
                    (_, false) => runs.extend(open.take()),
                }
            }
            runs.extend(open);
        }
        runs
    }

    /// Writes the tab-separated table.
    pub fn write(&self) -> String {
        let majors = self.majors();
        let mut table = format!("{HEADER}\n");
        for MajorRange {
            symbol,
            path,
            first,
            last,
        } in self.runs()
        {
            for field in [&symbol, "\t", &path, "\t"] {
                table.push_str(field);
            }
            table.push_str(&majors[first].to_string());
            table.push('\t');
            table.push_str(&majors[last].to_string());
            table.push('\n');
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(symbol, path)| ((*symbol).to_owned(), (*path).to_owned()))
            .collect()
    }

    #[test]
    fn trees_merge_into_runs_of_majors() {
        let mut presence = Presence::default();
        let (old, middle, new) = (
            Major::parse("9.6").unwrap(),
            Major::parse("10").unwrap(),
            Major::parse("11").unwrap(),
        );
        presence.set(new, owned(&[("a", "x.c"), ("b", "y.c")]));
        presence.set(old, owned(&[("a", "x.c"), ("b", "x.c")]));
        presence.set(middle, owned(&[("b", "y.c")]));
        let expected = format!(
            "{HEADER}\na\tx.c\t9.6\t9.6\na\tx.c\t11\t11\nb\tx.c\t9.6\t9.6\nb\ty.c\t10\t11\n"
        );
        assert_eq!(presence.write(), expected);
        assert_eq!(Presence::read(&expected).unwrap(), presence);
        presence.set(middle, owned(&[("a", "x.c"), ("b", "y.c")]));
        assert!(presence.write().contains("a\tx.c\t9.6\t11\n"));
    }

    #[test]
    fn errors_name_the_line() {
        let read = |rows: &str| {
            format!(
                "{:#}",
                Presence::read(&format!("{HEADER}\n{rows}")).unwrap_err()
            )
        };
        assert!(read("a\tx.c\t10").contains("line 2"));
        assert!(read("a\tx.c\t10\t9.6\n").contains("line 2: 9.6 comes before 10"));
        assert!(read("a\tx.c\tten\t11\n").contains("line 2"));
        assert!(
            Presence::read("").is_err()
                && Major::parse("9").is_err()
                && Major::parse("18.6").is_err()
        );
    }
}
