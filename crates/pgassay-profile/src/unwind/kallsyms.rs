//! The kernel's symbols, including modules, from `/proc/kallsyms`.
//!
//! The list has no sizes. A function extends to the next symbol of any kind, since all symbols are
//! listed; the last one of a run extends at most a page. If the addresses are hidden
//! (`kernel.kptr_restrict`, or `kernel.perf_event_paranoid` above 1 without `CAP_SYSLOG`), they are
//! all zero, and the table is empty.

use crate::unwind::symbols::{RawSymbol, SymbolBinding, SymbolTable};
use pgassay_rights::{self as rights, Purpose};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

/// The object of a kernel frame outside modules.
pub(crate) const KERNEL: &str = "[kernel]";

/// Maximum size of a function without a successor.
const LAST_BYTES_MAX: u64 = 4096;

/// Kernel functions by address.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols {
    /// By object, ordered by lowest address.
    objects: Vec<(Arc<str>, SymbolTable)>,
}

impl KernelSymbols {
    /// Reads the running kernel's symbols; empty if they are hidden.
    pub fn read() -> Self {
        let _raised = rights::raise(Purpose::Sampling);
        fs::read_to_string("/proc/kallsyms")
            .map(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Lines of `address type name` and, for modules, a tab and `[module]`.
    fn parse(text: &str) -> Self {
        let mut lines: Vec<(u64, &str, &str, &str)> = text.lines().filter_map(parse_line).collect();
        lines.sort_by_key(|line| line.0);
        let mut by_object: BTreeMap<&str, Vec<RawSymbol<'_>>> = BTreeMap::new();
        for (i, &(start, kind, name, object)) in lines.iter().enumerate() {
            let binding = match kind {
                "T" => SymbolBinding::Global,
                "W" | "w" => SymbolBinding::Weak,
                "t" => SymbolBinding::Local,
                _ => continue,
            };
            let next = lines[i..]
                .iter()
                .map(|line| line.0)
                .find(|&address| address > start);
            let size = next.map_or(LAST_BYTES_MAX, |next| (next - start).min(1 << 20));
            // There is no code between modules.
            let size = if object == KERNEL {
                size
            } else {
                size.min(LAST_BYTES_MAX * 16)
            };
            by_object.entry(object).or_default().push(RawSymbol {
                start,
                size,
                binding,
                name,
            });
        }
        let objects = by_object
            .into_iter()
            .map(|(object, symbols)| (Arc::from(object), SymbolTable::new(symbols)))
            .collect();
        Self { objects }
    }

    /// The function, its object and its first address.
    pub fn lookup(&self, address: u64) -> Option<(&str, &Arc<str>, u64)> {
        self.objects.iter().find_map(|(object, table)| {
            table
                .lookup(address)
                .map(|(name, extent)| (name, object, extent.start))
        })
    }

    /// There are no symbols, most likely because addresses are hidden.
    pub fn is_empty(&self) -> bool {
        self.objects.iter().all(|(_, table)| table.len() == 0)
    }
}

fn parse_line(line: &str) -> Option<(u64, &str, &str, &str)> {
    let (line, object) = match line.split_once('\t') {
        Some((line, module)) => (line, module.trim()),
        None => (line, KERNEL),
    };
    let mut fields = line.split(' ');
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    // Per-CPU variables have small offsets as addresses, and hidden addresses are zero.
    if address < 1 << 63 {
        return None;
    }
    Some((address, fields.next()?, fields.next()?, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t do_one
ffffffff81000140 T do_two
ffffffff81000180 D some_data
ffffffff81000200 T last
ffffffffc0000000 t mod_fn\t[nf_tables]
ffffffffc0000040 r __func__\t[nf_tables]
";

    #[test]
    fn functions_extend_to_the_next_symbol_of_any_kind() {
        let symbols = KernelSymbols::parse(TEXT);
        let name = |address| symbols.lookup(address).map(|found| found.0);
        assert_eq!(name(0xffff_ffff_8100_0120), Some("do_one"));
        assert_eq!(name(0xffff_ffff_8100_0140), Some("do_two"));
        assert_eq!(name(0xffff_ffff_8100_017f), Some("do_two"));
        assert_eq!(name(0xffff_ffff_8100_0180), None, "data has no functions");
        assert_eq!(name(0x10), None);
    }

    #[test]
    fn modules_are_separate_objects() {
        let symbols = KernelSymbols::parse(TEXT);
        let (name, object, start) = symbols.lookup(0xffff_ffff_c000_0010).unwrap();
        assert_eq!(
            (name, &**object, start),
            ("mod_fn", "[nf_tables]", 0xffff_ffff_c000_0000)
        );
        assert!(symbols.lookup(0xffff_ffff_c000_0040).is_none());
    }

    #[test]
    fn hidden_addresses_give_an_empty_table() {
        let symbols = KernelSymbols::parse("0000000000000000 T _text\n0000000000000000 t do_one\n");
        assert!(symbols.is_empty());
        assert!(symbols.lookup(0).is_none());
        assert!(!KernelSymbols::parse(TEXT).is_empty());
    }
}
