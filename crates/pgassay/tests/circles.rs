//! No circle of more than two files in the crates that hold the data and the numbers.
//!
//! A file needs another if it names an item that the other defines; `pub use` alone is not a need. Methods
//! are not followed. The check reads the sources as text, as rustfmt formats them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates without a larger circle. Add a crate once it has none.
const CRATES: &[&str] = &[
    "pgassay-core",
    "pgassay-count",
    "pgassay-profile",
    "pgassay-relay",
    "pgassay-server",
];

/// The most files in a circle: a type and the file that builds it.
const FILES_MAX: usize = 2;

/// A name may be exported again this often.
const REEXPORTS_MAX: u32 = 8;

type ItemPath = Vec<String>;

/// What one file defines and needs.
#[derive(Default)]
struct FileNames {
    /// Items, without those in `impl` blocks.
    defined: BTreeSet<String>,
    /// Names that `use` brings into scope, and the full paths.
    imported: BTreeMap<String, ItemPath>,
    /// The names among them that other files may import from here.
    exported: BTreeSet<String>,
    /// All paths in the code, from `a::b` to a single type name.
    named: BTreeSet<ItemPath>,
}

/// The files of a crate by their module.
type CrateFiles = BTreeMap<ItemPath, FileNames>;

fn collect(folder: &Path, module: &[String], files: &mut BTreeMap<ItemPath, String>) {
    for entry in fs::read_dir(folder).expect("a crate has sources").flatten() {
        let path = entry.path();
        let stem = path.file_stem().and_then(|it| it.to_str()).expect("UTF-8");
        let mut of_entry = module.to_vec();
        if !["mod", "lib", "main"].contains(&stem) {
            of_entry.push(stem.to_owned());
        }
        if path.is_dir() {
            collect(&path, &of_entry, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.insert(of_entry, fs::read_to_string(&path).expect("text"));
        }
    }
}

/// The code without comments and unit tests, and the modules that only tests have.
fn product(text: &str) -> (String, Vec<String>) {
    let (mut code, mut of_tests) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let next = lines.next().unwrap_or_default();
            match next.split("mod ").nth(1).map(|it| it.trim_end_matches(';')) {
                Some(name) if next.ends_with(';') => of_tests.push(name.to_owned()),
                _ => break,
            }
        } else if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    (code, of_tests)
}

/// The leaves of a `use` tree: the full path, and the name that it gets.
fn leaves(tree: &str, prefix: &[String], found: &mut Vec<(ItemPath, String)>) {
    let (mut depth, mut start) = (0, 0);
    for (at, c) in tree.char_indices().chain([(tree.len(), ',')]) {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c != ',' || depth != 0 {
            continue;
        }
        let part = tree[start..at].trim();
        start = at + 1;
        let (path, rest) = part.split_once('{').unwrap_or((part, ""));
        let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
        let mut full = prefix.to_vec();
        full.extend(path.split("::").map(str::trim).map(str::to_owned));
        full.retain(|it| !it.is_empty());
        if !rest.is_empty() {
            leaves(rest.trim_end_matches('}'), &full, found);
        } else if !part.is_empty() {
            full.retain(|it| it != "self" || prefix.is_empty());
            let last = full.last().cloned().unwrap_or_default();
            let name = if alias.is_empty() {
                last
            } else {
                alias.trim().to_owned()
            };
            found.push((full, name));
        }
    }
}

/// Paths such as `a::b::C`, and single names that begin with a capital letter.
fn paths(code: &str) -> BTreeSet<ItemPath> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_part(c));
    let mut found = BTreeSet::new();
    for word in words.map(|it| it.trim_matches(':')) {
        let is_type = word.starts_with(char::is_uppercase);
        if is_type || word.contains("::") {
            found.insert(word.split("::").map(str::to_owned).collect());
        }
    }
    found
}

/// The name that a line at the top of a file defines.
fn defined(line: &str) -> Option<&str> {
    let mut words = line
        .split([' ', '<', '(', ':', ';', '{'])
        .filter(|it| !it.is_empty());
    let keywords = ["struct", "enum", "fn", "const", "static", "type", "trait"];
    let first = words.by_ref().find(|word| keywords.contains(word))?;
    let second = words.next()?;
    // `const fn name`
    if first == "const" && second == "fn" {
        words.next()
    } else {
        Some(second)
    }
}

/// A path from the root of the crate; `None` if it leads out of the crate or stays in the file.
fn absolute(
    module: &[String],
    path: &[String],
    names: &FileNames,
    files: &CrateFiles,
) -> Option<ItemPath> {
    let mut base = module.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => return Some(path[1..].to_vec()),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|it| it == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        first => {
            base.push(first.to_owned());
            let is_child = files.contains_key(&base);
            match names.imported.get(first) {
                // A function may have the name of its module.
                Some(_) if is_child && path.len() > 1 => {}
                // A crate is not a file.
                Some(imported) if imported[0] == *first => return None,
                Some(imported) => {
                    let full: ItemPath = imported.iter().chain(&path[1..]).cloned().collect();
                    return absolute(module, &full, names, files);
                }
                _ if !is_child => return None,
                _ => {}
            }
            rest = &path[1..];
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The file that defines what a full path names; follows `pub use`.
fn owner(path: &[String], files: &CrateFiles, depth: u32) -> Option<ItemPath> {
    let length = (0..=path.len())
        .rev()
        .find(|it| files.contains_key(&path[..*it]))?;
    let (module, rest) = path.split_at(length);
    let names = &files[module];
    let item = rest.first()?;
    if names.defined.contains(item) {
        return Some(module.to_vec());
    }
    if depth == 0 || !names.exported.contains(item) {
        return None;
    }
    let full = absolute(module, rest, names, files)?;
    owner(&full, files, depth - 1)
}

/// What a file without comments and tests defines and names.
fn names_of(code: &str) -> FileNames {
    let mut names = FileNames::default();
    let mut body = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let after = line.trim_start();
        let visible = after.strip_prefix("pub");
        let after = visible.map_or(after, |it| it.trim_start_matches(|c| c != ' ').trim_start());
        if let Some(first) = after.strip_prefix("use ") {
            let mut tree = first.to_owned();
            while !tree.ends_with(';') {
                tree.push_str(lines.next().expect("`use` ends with a semicolon").trim());
            }
            let mut found = Vec::new();
            leaves(tree.trim_end_matches(';'), &[], &mut found);
            for (path, name) in found {
                if visible.is_some() {
                    names.exported.insert(name.clone());
                } else {
                    names.named.insert(path.clone());
                }
                names.imported.insert(name, path);
            }
        } else if !after.starts_with("mod ") {
            let is_item = !line.starts_with(' ');
            let item = defined(line).filter(|_| is_item);
            names.defined.extend(item.map(str::to_owned));
            body.push_str(line);
            body.push('\n');
        }
    }
    names.named.extend(paths(&body));
    names
}

fn read(name: &str) -> CrateFiles {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut texts = BTreeMap::new();
    let folder: PathBuf = crates.join(name).join("src");
    collect(&folder, &[], &mut texts);
    let mut files = CrateFiles::new();
    let mut of_tests: Vec<ItemPath> = Vec::new();
    for (module, text) in &texts {
        let (code, tests) = product(text);
        of_tests.extend(tests.into_iter().map(|it| [&module[..], &[it]].concat()));
        files.insert(module.clone(), names_of(&code));
    }
    files.retain(|module, _| !of_tests.iter().any(|it| module.starts_with(it)));
    files
}

/// The files that each file needs.
fn needs(files: &CrateFiles) -> BTreeMap<&ItemPath, BTreeSet<ItemPath>> {
    let of_file = |module: &ItemPath, names: &FileNames| -> BTreeSet<ItemPath> {
        let named = names.named.iter();
        let full = named.filter_map(|it| absolute(module, it, names, files));
        full.filter_map(|it| owner(&it, files, REEXPORTS_MAX))
            .filter(|it| it != module)
            .collect()
    };
    let files = files.iter();
    files
        .map(|(module, names)| (module, of_file(module, names)))
        .collect()
}

fn reached<'a>(
    from: &'a ItemPath,
    needs: &'a BTreeMap<&ItemPath, BTreeSet<ItemPath>>,
) -> BTreeSet<&'a ItemPath> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        open.extend(needs[next].iter().filter(|it| found.insert(*it)));
    }
    found
}

#[test]
fn no_circle_has_more_than_two_files() {
    let mut wrong = BTreeSet::new();
    for name in CRATES {
        let files = read(name);
        let needs = needs(&files);
        let edges: usize = needs.values().map(BTreeSet::len).sum();
        assert!(
            files.len() < 3 || edges >= files.len() / 2,
            "{name}: {edges}"
        );
        for module in files.keys() {
            let mut circle = reached(module, &needs);
            circle.retain(|it| reached(it, &needs).contains(module));
            if circle.len() > FILES_MAX {
                let circle: Vec<String> = circle.iter().map(|it| it.join("::")).collect();
                wrong.insert(format!("{name}: {}", circle.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
