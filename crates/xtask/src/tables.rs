//! Writes, unpacks and checks the packed tables of `pgassay-knowledge`.
//!
//! [`pgassay_knowledge::packed`] describes the format. Rows are grouped by path and letters
//! stand for majors, which reduces 1.5 MB of functions to about 160 kB.
//!
//! Invariant: [`pack_functions`] and [`pack_wait_events`] are the only writers; a test compares the
//! committed files with their output byte by byte.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use pgassay_knowledge::packed::{
    self, FUNCTIONS_HEADER, FunctionTable, WAIT_EVENTS_HEADER, WaitEventRow,
};

use crate::presence::{HEADER, Presence};

/// The header line of the table of wait events.
pub const WAIT_EVENTS_TSV_HEADER: &str = "major\twait_event_info\ttype\tname";

/// The highest compression level of `miniz_oxide`.
const LEVEL: u8 = 10;

/// The folder of the packed tables.
pub fn data_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../pgassay-knowledge/data")
}

/// Packs a tab-separated table of functions.
pub fn pack_functions(tsv: &str) -> Result<Vec<u8>> {
    let presence = Presence::read(tsv)?;
    let majors: Vec<String> = presence.majors().iter().map(ToString::to_string).collect();
    if majors.is_empty() || majors.len() > 26 {
        bail!("the format supports 1 to 26 majors, not {}", majors.len());
    }
    let everywhere = (0, majors.len() - 1);
    let letter = |index: usize| char::from(b'a' + index as u8);
    let mut by_path: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in presence.runs() {
        let line = if (run.first, run.last) == everywhere {
            run.symbol
        } else {
            format!("{} {}{}", run.symbol, letter(run.first), letter(run.last))
        };
        by_path.entry(run.path).or_default().push(line);
    }
    let mut text = format!("{FUNCTIONS_HEADER}\n{}\n", majors.join(" "));
    for (path, lines) in by_path {
        write!(text, "@{path}\n{}\n", lines.join("\n"))?;
    }
    Ok(compress(&text))
}

/// Packs a tab-separated table of wait events (`major wait_event_info type name`).
pub fn pack_wait_events(tsv: &str) -> Result<Vec<u8>> {
    let mut lines = (1..).zip(tsv.lines());
    let Some((_, WAIT_EVENTS_TSV_HEADER)) = lines.next() else {
        bail!(
            "line 1: expected the header `{}`",
            WAIT_EVENTS_TSV_HEADER.replace('\t', " ")
        );
    };
    let mut rows = Vec::new();
    for (line, row) in lines {
        let fields: Vec<&str> = row.split('\t').collect();
        let [major, info, kind, name] = fields[..] else {
            bail!("line {line}: expected 4 columns, found {}", fields.len());
        };
        let number = info
            .strip_prefix("0x")
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let info =
            number.with_context(|| format!("line {line}: `{info}` is not a hexadecimal number"))?;
        if kind.contains(' ') {
            bail!("line {line}: the type `{kind}` contains a space");
        }
        rows.push((crate::presence::Major::parse(major)?, info, kind, name));
    }
    rows.sort_unstable();
    let (mut text, mut open) = (format!("{WAIT_EVENTS_HEADER}\n"), None);
    for (major, info, kind, name) in rows {
        if open != Some(major) {
            writeln!(text, "@{major}")?;
            open = Some(major);
        }
        writeln!(text, "{info:08x} {kind} {name}")?;
    }
    Ok(compress(&text))
}

/// Unpacks functions into a tab-separated table.
pub fn dump_functions(packed: &[u8]) -> Result<String> {
    let text = packed::unpack(packed)?;
    let FunctionTable { majors, rows } = packed::functions(&text)?;
    let mut tsv = format!("{HEADER}\n");
    for row in rows {
        let (first, last) = (
            majors[usize::from(row.first)],
            majors[usize::from(row.last)],
        );
        writeln!(tsv, "{}\t{}\t{first}\t{last}", row.symbol, row.path)?;
    }
    Ok(tsv)
}

/// Unpacks wait events into a tab-separated table.
pub fn dump_wait_events(packed: &[u8]) -> Result<String> {
    let text = packed::unpack(packed)?;
    let mut tsv = format!("{WAIT_EVENTS_TSV_HEADER}\n");
    for WaitEventRow {
        major,
        info,
        kind,
        name,
    } in packed::wait_events(&text)?
    {
        writeln!(tsv, "{major}\t{info:#010x}\t{kind}\t{name}")?;
    }
    Ok(tsv)
}

/// Fails if packing the rows of a committed table does not reproduce the file.
pub fn check() -> Result<()> {
    let read = |name: &str| {
        let path = data_folder().join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let functions = read("functions.zlib")?;
    if pack_functions(&dump_functions(&functions)?)? != functions {
        bail!(
            "packing the rows of functions.zlib does not reproduce it; regenerate it with `xtask tables`"
        );
    }
    let wait_events = read("wait-events.zlib")?;
    if pack_wait_events(&dump_wait_events(&wait_events)?)? != wait_events {
        bail!(
            "packing the rows of wait-events.zlib does not reproduce it; regenerate it with `xtask tables`"
        );
    }
    Ok(())
}

fn compress(text: &str) -> Vec<u8> {
    miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), LEVEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_reproduces_the_committed_tables() {
        check().unwrap();
        let size = |name: &str| std::fs::metadata(data_folder().join(name)).unwrap().len();
        assert!(size("functions.zlib") < 250_000 && size("wait-events.zlib") < 25_000);
    }

    #[test]
    fn packed_functions_round_trip() {
        let tsv = format!(
            "{HEADER}\na\tx.c\t9.6\t9.6\na\tx.c\t11\t18\nb\ty.c\t9.6\t18\nc\tz.c\t10\t10\n"
        );
        let packed = pack_functions(&tsv).unwrap();
        assert_eq!(dump_functions(&packed).unwrap(), tsv);
        assert_eq!(pack_functions(&tsv).unwrap(), packed);
    }

    #[test]
    fn packed_wait_events_round_trip() {
        let tsv = format!(
            "{WAIT_EVENTS_TSV_HEADER}\n9.6\t0x03000006\tLock\tspeculative token\n18\t0x01000001\tLWLock\tShmemIndex\n"
        );
        assert_eq!(
            dump_wait_events(&pack_wait_events(&tsv).unwrap()).unwrap(),
            tsv
        );
        assert!(
            pack_wait_events(&format!("{WAIT_EVENTS_TSV_HEADER}\n18\tx\tLWLock\tA\n")).is_err()
        );
    }
}
