//! Maps function names to the source files that define them, by major version.
//!
//! Invariants: the table is unpacked once and shared; unknown versions use the nearest known one,
//! because directories rarely change between major versions; compiler suffixes (`.part.0`, `.isra.0`,
//! `.constprop.0`, `.cold`) are ignored.

use std::sync::LazyLock;

use super::macros;
use super::packed::{self, FunctionTable};

static TEXT: LazyLock<String> = LazyLock::new(|| {
    packed::unpack(include_bytes!("../data/functions.zlib"))
        .expect("a test checks the format of the embedded table")
});

static TABLE: LazyLock<FunctionTable<'static>> = LazyLock::new(|| {
    packed::functions(&TEXT).expect("a test checks the format of the embedded table")
});

/// Where a function is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceFile {
    /// In this source file.
    At(&'static str),
    /// A static function that several files define, if it is unknown which one is meant.
    OneOf(Vec<&'static str>),
}

impl SourceFile {
    /// All candidate files.
    pub fn paths(&self) -> &[&'static str] {
        match self {
            Self::At(path) => std::slice::from_ref(path),
            Self::OneOf(paths) => paths,
        }
    }
}

/// The functions of one major version.
#[derive(Debug, Clone, Copy)]
pub struct Symbols {
    table: &'static FunctionTable<'static>,
    major: u8,
}

impl Symbols {
    /// The functions of `major`, such as `9.6`, `18` or `18.6`.
    ///
    /// Uses the newest version of the table for newer versions, and the oldest for older ones.
    pub fn for_major(major: &str) -> Self {
        let table = &*TABLE;
        let wanted = major_number(major);
        let known = table
            .majors
            .iter()
            .rposition(|known| major_number(known) <= wanted);
        Self {
            table,
            major: known.unwrap_or(0) as u8,
        }
    }

    /// All paths of all versions.
    #[cfg(test)]
    pub(super) fn known_paths() -> std::collections::BTreeSet<&'static str> {
        TABLE.rows.iter().map(|row| row.path).collect()
    }

    /// The file that defines `symbol`; `None` if no file of this version does.
    ///
    /// `file_hint` is the base name of an ELF FILE symbol (`lock.c`), which disambiguates static functions
    /// that several files define. Generated names are recognized by prefix.
    pub fn path(&self, symbol: &str, file_hint: Option<&str>) -> Option<SourceFile> {
        let name = stem(symbol);
        let from = self.table.rows.partition_point(|row| row.symbol < name);
        let mut paths: Vec<&'static str> = self.table.rows[from..]
            .iter()
            .take_while(|row| row.symbol == name)
            .filter(|row| (row.first..=row.last).contains(&self.major))
            .map(|row| row.path)
            .collect();
        if let Some(hint) = file_hint
            && let Some(named) = paths.iter().find(|path| base_name(path) == base_name(hint))
        {
            return Some(SourceFile::At(named));
        }
        match paths.len() {
            0 => macros::path(name).map(SourceFile::At),
            1 => paths.pop().map(SourceFile::At),
            _ => Some(SourceFile::OneOf(paths)),
        }
    }
}

/// A name without suffixes from compilers (`.part.0`) and linkers (`@GLIBC_2.2.5`).
pub(super) fn stem(symbol: &str) -> &str {
    // A name that begins with a dot comes from the assembler and has no suffix.
    symbol
        .find(['.', '@'])
        .filter(|at| *at > 0)
        .map_or(symbol, |at| &symbol[..at])
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `9.6` → 906, `18` and `18.6` → 1800, so that major versions compare as numbers. Unparsable versions
/// count as newest, like unreleased ones.
fn major_number(major: &str) -> u32 {
    let mut parts = major.split('.').map(|part| {
        part.bytes()
            .take_while(u8::is_ascii_digit)
            .fold(None, |number: Option<u32>, digit| {
                Some(
                    number
                        .unwrap_or(0)
                        .saturating_mul(10)
                        .saturating_add(u32::from(digit - b'0')),
                )
            })
    });
    match (parts.next().flatten(), parts.next().flatten()) {
        // Before 10, the second part belongs to the major version.
        (Some(first @ 0..=9), Some(second)) => first * 100 + second.min(99),
        (Some(first), _) => first.saturating_mul(100),
        (None, _) => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(major: &str, symbol: &str) -> Option<SourceFile> {
        Symbols::for_major(major).path(symbol, None)
    }

    #[test]
    fn functions_move_between_versions() {
        let found = |path| Some(SourceFile::At(path));
        assert_eq!(
            at("17", "WaitEventSetWait"),
            found("src/backend/storage/ipc/latch.c")
        );
        assert_eq!(
            at("18", "WaitEventSetWait"),
            found("src/backend/storage/ipc/waiteventset.c")
        );
        assert_eq!(
            at("11", "HeapTupleSatisfiesMVCC"),
            found("src/backend/utils/time/tqual.c")
        );
        assert_eq!(
            at("12", "HeapTupleSatisfiesMVCC"),
            found("src/backend/access/heap/heapam_visibility.c")
        );
        assert_eq!(
            at("14", "parse_analyze"),
            found("src/backend/parser/analyze.c")
        );
        assert_eq!(at("15", "parse_analyze"), None);
        assert_eq!(at("18", "no_such_function"), None);
    }

    #[test]
    fn suffixes_do_not_matter() {
        for symbol in [
            "standard_planner",
            "standard_planner.cold",
            "standard_planner.part.0.constprop.1",
        ] {
            assert_eq!(
                at("16", symbol),
                Some(SourceFile::At("src/backend/optimizer/plan/planner.c")),
                "{symbol}"
            );
        }
        assert_eq!(stem("memcpy@GLIBC_2.14"), "memcpy");
        assert_eq!(stem(".plt"), ".plt");
    }

    #[test]
    fn a_file_hint_disambiguates_static_functions() {
        let symbols = Symbols::for_major("15");
        let Some(SourceFile::OneOf(paths)) = symbols.path("r_mark_regions", None) else {
            panic!()
        };
        assert!(paths.len() > 5);
        let hinted = symbols.path("r_mark_regions", Some("stem_UTF_8_german.c"));
        assert_eq!(
            hinted,
            Some(SourceFile::At(
                "src/backend/snowball/libstemmer/stem_UTF_8_german.c"
            ))
        );
        // A hint that matches none of them has no effect.
        assert_eq!(
            symbols.path("r_mark_regions", Some("other.c")),
            Some(SourceFile::OneOf(paths))
        );
    }

    #[test]
    fn unknown_versions_use_the_nearest_known_one() {
        for (asked, served) in [
            ("8.4", "9.6"),
            ("9.6.24", "9.6"),
            ("15.18", "15"),
            ("99", "19"),
            ("devel", "19"),
        ] {
            let symbols = Symbols::for_major(asked);
            assert_eq!(
                symbols.table.majors[usize::from(symbols.major)],
                served,
                "{asked}"
            );
        }
        assert_eq!(
            Symbols::for_major("18beta1").major,
            Symbols::for_major("18").major
        );
    }
}
