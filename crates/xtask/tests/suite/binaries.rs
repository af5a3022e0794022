//! Compares the table with real servers: it must contain at least 90% of a server's functions.
//!
//! Checks every PostgreSQL that is installed or in pgassay's cache. Without one, the test is skipped
//! with a message.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolKind};
use pgassay_knowledge::Symbols;
use pgassay_test_support::skip;

/// `postgres` executables with their versions, as far as folder names contain them.
fn servers() -> Vec<(String, PathBuf)> {
    let mut roots = vec![
        PathBuf::from("/usr/lib/postgresql"),
        PathBuf::from("/var/cache/pgassay"),
    ];
    roots.extend(std::env::var_os("PGASSAY_CACHE").map(PathBuf::from));
    roots.extend(std::env::home_dir().map(|home| home.join(".cache/pgassay")));
    let mut found = BTreeSet::new();
    for root in roots {
        search(&root, 3, &mut |program| {
            let version = program.components().rev().find_map(|part| {
                let name = part.as_os_str().to_str()?;
                // Folder names are like `15`, `18.6` or `postgresql-18.6-linux-amd64`.
                let start = name.find(|letter: char| letter.is_ascii_digit())?;
                let digits: String = name[start..]
                    .chars()
                    .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
                    .collect();
                digits
                    .split('.')
                    .next()?
                    .parse()
                    .is_ok_and(|major: u32| (9..40).contains(&major))
                    .then_some(digits)
            });
            found.extend(version.map(|version| (version, program.to_path_buf())));
        });
    }
    found.into_iter().collect()
}

fn search(folder: &Path, depth: usize, report: &mut impl FnMut(&Path)) {
    let program = folder.join("bin/postgres");
    if program.is_file() {
        report(&program);
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| depth > 0 && entry.path().is_dir()) {
        search(&entry.path(), depth - 1, report);
    }
}

/// Names of a program's functions, from `.symtab` or, if it is stripped, `.dynsym`.
fn functions(program: &Path) -> BTreeSet<String> {
    let bytes = fs::read(program).expect("servers are readable");
    let file = object::File::parse(&*bytes).expect("a server is an ELF file");
    let named = |symbol: object::Symbol<'_, '_>| {
        let is_function =
            symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0;
        symbol
            .name()
            .ok()
            .filter(|_| is_function)
            .map(str::to_owned)
    };
    let all: BTreeSet<String> = file.symbols().filter_map(named).collect();
    if all.is_empty() {
        file.dynamic_symbols().filter_map(named).collect()
    } else {
        all
    }
}

#[test]
fn the_table_contains_most_functions_of_a_server() {
    let servers = servers();
    if servers.is_empty() {
        skip(
            "functions of servers",
            "no PostgreSQL is installed or cached",
        );
    }
    for (version, program) in servers {
        let names = functions(&program);
        let symbols = Symbols::for_major(&version);
        let homeless: Vec<&String> = names
            .iter()
            .filter(|name| symbols.path(name, None).is_none())
            .collect();
        let share = 1.0 - homeless.len() as f64 / names.len() as f64;
        eprintln!(
            "{} {version}: {} functions, {:.1}% in the table",
            program.display(),
            names.len(),
            100.0 * share
        );
        assert!(names.len() > 5_000, "{}", program.display());
        assert!(
            share >= 0.9,
            "{}: {share}; not in the table: {:?}",
            program.display(),
            &homeless[..40.min(homeless.len())]
        );
    }
}
