//! Names of functions by address.
//!
//! Invariant: a symbol names only addresses inside its own extent. In the gaps of a stripped object
//! the nearest symbol before an address would be wrong: Debian's PostgreSQL 15 has symbols for 54% of
//! its code.

use std::ops::Range;

/// Symbols whose names exceed this together are left out: names of a file can overlap.
const NAMES_BYTES_MAX: usize = 128 << 20;

/// Functions of one object, by address.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    /// Sorted by start, without aliases.
    entries: Vec<SymbolEntry>,
    names: String,
}

#[derive(Debug, Clone, Copy)]
struct SymbolEntry {
    start: u64,
    end: u64,
    /// The highest end of this and all earlier entries: limits how far back a search must go.
    reach: u64,
    name_at: u32,
    name_len: u32,
}

/// A symbol's binding, best first: of several names for one function, the most public one is the
/// best known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SymbolBinding {
    Global,
    Weak,
    Local,
}

/// A symbol of an object or of the kernel.
#[derive(Debug, Clone)]
pub(crate) struct RawSymbol<'a> {
    pub start: u64,
    pub size: u64,
    pub binding: SymbolBinding,
    pub name: &'a str,
}

impl RawSymbol<'_> {
    /// Orders aliases: `write` before `__write`, then the more public, then the longer extent,
    /// then by name, to be deterministic.
    fn rank(&self) -> impl Ord {
        let underscores = self.name.len() - self.name.trim_start_matches('_').len();
        let longest_first = u64::MAX - self.size;
        (
            underscores,
            self.binding,
            longest_first,
            self.name.len(),
            self.name.to_owned(),
        )
    }
}

impl SymbolTable {
    pub fn new(mut symbols: Vec<RawSymbol<'_>>) -> Self {
        symbols.retain(|s| s.size > 0 && !s.name.is_empty());
        symbols.sort_by(|a, b| a.start.cmp(&b.start).then_with(|| a.rank().cmp(&b.rank())));
        symbols.dedup_by_key(|s| s.start);
        let mut table = Self::default();
        let mut reach = 0;
        for symbol in symbols {
            if table.names.len() + symbol.name.len() > NAMES_BYTES_MAX {
                break;
            }
            let end = symbol.start.saturating_add(symbol.size);
            reach = reach.max(end);
            table.entries.push(SymbolEntry {
                start: symbol.start,
                end,
                reach,
                name_at: table.names.len() as u32,
                name_len: symbol.name.len() as u32,
            });
            table.names.push_str(symbol.name);
        }
        table
    }

    /// The innermost function whose extent includes the address.
    pub fn lookup(&self, address: u64) -> Option<(&str, Range<u64>)> {
        let after = self.entries.partition_point(|e| e.start <= address);
        self.entries[..after]
            .iter()
            .rev()
            .take_while(|e| e.reach > address)
            .find(|e| address < e.end)
            .map(|e| {
                let at = e.name_at as usize;
                (&self.names[at..at + e.name_len as usize], e.start..e.end)
            })
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.names.len() + size_of_val(&*self.entries)
    }
}

/// A function's name in the source: without the suffixes that compilers add when they split, clone
/// or specialize functions.
///
/// The suffixes are GCC's and LLVM's: `.part.N`, `.isra.N`, `.constprop.N`, `.cold`, `.cold.N`,
/// `.lto_priv.N`, `.llvm.HASH` and their combinations.
pub fn source_name(symbol: &str) -> &str {
    const KINDS: [&str; 7] = [
        "part",
        "isra",
        "constprop",
        "cold",
        "lto_priv",
        "llvm",
        "localalias",
    ];
    let Some(first) = symbol.find('.') else {
        return symbol;
    };
    let suffixes = &symbol[first + 1..];
    let all_known = suffixes
        .split('.')
        .all(|s| KINDS.contains(&s) || s.bytes().all(|b| b.is_ascii_digit()));
    // A name can begin with a dot; a bare number is a suffix only after one of the kinds.
    let begins_known = suffixes
        .split('.')
        .next()
        .is_some_and(|s| KINDS.contains(&s));
    if first > 0 && all_known && begins_known {
        &symbol[..first]
    } else {
        symbol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(start: u64, size: u64, name: &str) -> RawSymbol<'_> {
        RawSymbol {
            start,
            size,
            binding: SymbolBinding::Global,
            name,
        }
    }

    fn name(table: &SymbolTable, address: u64) -> Option<&str> {
        table.lookup(address).map(|(name, _)| name)
    }

    #[test]
    fn a_symbol_names_only_addresses_in_its_own_extent() {
        let table = SymbolTable::new(vec![symbol(100, 20, "a"), symbol(200, 10, "b")]);
        assert_eq!(name(&table, 99), None);
        assert_eq!(name(&table, 100), Some("a"));
        assert_eq!(name(&table, 119), Some("a"));
        assert_eq!(name(&table, 120), None);
        assert_eq!(name(&table, 209), Some("b"));
        assert_eq!(name(&table, 210), None);
        assert_eq!(table.lookup(105).unwrap().1, 100..120);
    }

    #[test]
    fn a_symbol_without_size_names_nothing() {
        let table = SymbolTable::new(vec![symbol(100, 0, "marker"), symbol(90, 5, "a")]);
        assert_eq!(name(&table, 100), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn names_that_overlap_do_not_exhaust_the_memory() {
        let name = "a".repeat(1 << 20);
        let symbols = (0..200).map(|start| symbol(start, 1, &name)).collect();
        assert_eq!(SymbolTable::new(symbols).len(), NAMES_BYTES_MAX >> 20);
    }

    #[test]
    fn the_innermost_of_nested_extents_wins() {
        let table = SymbolTable::new(vec![
            symbol(100, 100, "outer"),
            symbol(120, 10, "inner"),
            symbol(140, 5, "inner2"),
        ]);
        assert_eq!(name(&table, 125), Some("inner"));
        assert_eq!(name(&table, 135), Some("outer"));
        assert_eq!(name(&table, 199), Some("outer"));
        assert_eq!(name(&table, 200), None);
    }

    #[test]
    fn the_plainest_alias_is_chosen() {
        let mut weak = symbol(8, 4, "send");
        weak.binding = SymbolBinding::Weak;
        let table = SymbolTable::new(vec![
            symbol(8, 4, "__send"),
            weak,
            symbol(8, 4, "__libc_send"),
        ]);
        assert_eq!(name(&table, 9), Some("send"));
        let mut local = symbol(8, 4, "abc");
        local.binding = SymbolBinding::Local;
        let table = SymbolTable::new(vec![local, symbol(8, 4, "abcdef")]);
        assert_eq!(name(&table, 9), Some("abcdef"));
    }

    #[test]
    fn only_compiler_suffixes_are_stripped() {
        for (symbol, source) in [
            ("ExecInitNode", "ExecInitNode"),
            ("AllocSetAlloc.part.0", "AllocSetAlloc"),
            ("hash_search.isra.0.cold", "hash_search"),
            ("errfinish.cold", "errfinish"),
            ("foo.constprop.12.isra.3", "foo"),
            ("foo.llvm.1234567", "foo"),
            ("foo.5", "foo.5"),
            ("foo.bar.part.0", "foo.bar.part.0"),
            (".cold", ".cold"),
            ("a.", "a."),
        ] {
            assert_eq!(source_name(symbol), source);
        }
    }
}
