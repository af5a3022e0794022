//! Which file of a crate uses what another one defines, and that no more than two files do so in a circle.
//!
//! A file uses another one if its code names an item that the other one defines. A re-export is
//! followed to the definition: naming `crate::Item` where `lib.rs` has `pub use item::Item` is a use of
//! `item.rs`. Neither `mod` nor `pub use` is a use by itself. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Areas that are exempt until they are rebuilt. The test fails once an entry is not needed anymore.
const BEING_REBUILT: [&str; 0] = [];

/// The path of a module or item below the crate's root: `["worker", "steps"]`.
type Segments = Vec<String>;

/// A module, whether a file of its own or inline.
#[derive(Default)]
struct ModuleNames {
    /// Below `crates/`.
    file: PathBuf,
    items: BTreeSet<String>,
    children: BTreeSet<String>,
    /// Imported and re-exported names, and what they stand for.
    imports: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
}

/// From file to file, with a path that the first one names.
type Uses<'a> = BTreeMap<(&'a Path, &'a Path), String>;

/// All modules of a crate, and every path that their code names.
#[derive(Default)]
struct ModuleTree {
    modules: BTreeMap<Segments, ModuleNames>,
    named: Vec<(Segments, Segments)>,
}

enum Target {
    /// The module that defines the item.
    ItemOf(Segments),
    /// A module, or what another crate defines.
    Other,
}

impl ModuleTree {
    /// What a path stands for in a module; `None` for a name that the module does not know, such as a
    /// local variable.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Target> {
        let mut module = module.to_vec();
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => module.clear(),
                "self" => {}
                "super" => {
                    module.pop()?;
                }
                _ => break,
            }
            rest = after;
        }
        if depth == 0 {
            return None;
        }
        let Some((name, after)) = rest.split_first() else {
            return Some(Target::Other);
        };
        let names = self.modules.get(&module)?;
        let child = || [module.as_slice(), std::slice::from_ref(name)].concat();
        if !after.is_empty() && names.children.contains(name) {
            return self.resolve(&child(), after, depth - 1);
        }
        if names.items.contains(name) {
            return Some(Target::ItemOf(module));
        }
        if let Some(import) = names.imports.get(name) {
            let whole = [import.as_slice(), after].concat();
            return self
                .resolve(&module, &whole, depth - 1)
                .or(Some(Target::Other));
        }
        if names.children.contains(name) {
            return Some(Target::Other);
        }
        names.globs.iter().find_map(|glob| {
            let whole = [glob.as_slice(), rest].concat();
            self.resolve(&module, &whole, depth - 1)
        })
    }

    fn uses(&self) -> Uses<'_> {
        const DEPTH: usize = 16;
        let mut found = BTreeMap::new();
        for (module, path) in &self.named {
            let from = self.modules[module].file.as_path();
            match self.resolve(module, path, DEPTH) {
                Some(Target::ItemOf(definer)) => {
                    let to = self.modules[&definer].file.as_path();
                    if from != to {
                        found.entry((from, to)).or_insert_with(|| path.join("::"));
                    }
                }
                Some(Target::Other) => {}
                None => assert!(
                    !["crate", "super"].contains(&path[0].as_str()),
                    "{}: cannot find {}",
                    from.display(),
                    path.join("::")
                ),
            }
        }
        found
    }
}

/// Reads one module after the other into a tree.
struct SourceReader {
    crates: PathBuf,
    tree: ModuleTree,
    module: Segments,
    /// Where the files of the module's children are, below `crates/`.
    folder: PathBuf,
}

impl SourceReader {
    fn read_crate(crates: &Path, root: &Path) -> ModuleTree {
        let mut reader = SourceReader {
            crates: crates.to_owned(),
            tree: ModuleTree::default(),
            module: Segments::new(),
            folder: root.parent().expect("a root lies in src").to_owned(),
        };
        reader.read_file(root.to_owned());
        reader.tree
    }

    fn read_file(&mut self, file: PathBuf) {
        let text = fs::read_to_string(self.crates.join(&file)).expect("sources are text");
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let names = ModuleNames {
            file,
            ..ModuleNames::default()
        };
        self.tree.modules.insert(self.module.clone(), names);
        self.visit_file(&parsed);
    }

    fn names(&mut self) -> &mut ModuleNames {
        self.tree
            .modules
            .get_mut(&self.module)
            .expect("the module is being read")
    }

    fn names_path(&mut self, path: Segments) {
        self.tree.named.push((self.module.clone(), path));
    }

    /// Records the names that a `use` binds. A private one uses what it names, a public one only re-exports it.
    fn import(&mut self, tree: &syn::UseTree, prefix: &[String], public: bool) {
        let path = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        let (name, path) = match tree {
            syn::UseTree::Path(part) => return self.import(&part.tree, &path(&part.ident), public),
            syn::UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.import(tree, prefix, public));
            }
            syn::UseTree::Glob(_) => return self.names().globs.push(prefix.to_vec()),
            syn::UseTree::Name(name) => (path(&name.ident).last().cloned(), path(&name.ident)),
            syn::UseTree::Rename(name) => (Some(name.rename.to_string()), path(&name.ident)),
        };
        let name = name.expect("a use names something");
        self.names().imports.insert(name, path.clone());
        if !public {
            self.names_path(path);
        }
    }

    /// Paths in what a macro or an attribute is given, as code or as a string.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path = Segments::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.names_whole(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let inner = text.trim_matches('"');
                    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                    if inner.contains("::") && inner.chars().all(plain) {
                        self.names_path(inner.split("::").map(str::to_owned).collect());
                    }
                }
                TokenTree::Punct(_) => {}
            }
            self.names_whole(&mut path);
            colons = 0;
        }
        self.names_whole(&mut path);
    }

    fn names_whole(&mut self, path: &mut Segments) {
        if !path.is_empty() {
            self.names_path(std::mem::take(path));
        }
    }
}

fn only_in_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<&syn::Ident> {
    match item {
        syn::Item::Const(item) => Some(&item.ident),
        syn::Item::Enum(item) => Some(&item.ident),
        syn::Item::Fn(item) => Some(&item.sig.ident),
        syn::Item::Macro(item) => item.ident.as_ref(),
        syn::Item::Static(item) => Some(&item.ident),
        syn::Item::Struct(item) => Some(&item.ident),
        syn::Item::Trait(item) => Some(&item.ident),
        syn::Item::Type(item) => Some(&item.ident),
        syn::Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for SourceReader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if only_in_tests(attributes_of(item)) {
            return;
        }
        if let Some(name) = name_of(item) {
            let name = name.to_string();
            self.names().items.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !only_in_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.names().children.insert(name.clone());
        let file = self.names().file.clone();
        let folder = self.folder.clone();
        self.module.push(name.clone());
        self.folder.push(&name);
        if let Some((_, items)) = &item.content {
            let names = ModuleNames {
                file,
                ..ModuleNames::default()
            };
            self.tree.modules.insert(self.module.clone(), names);
            for item in items {
                self.visit_item(item);
            }
        } else {
            let flat = folder.join(format!("{name}.rs"));
            let exists = self.crates.join(&flat).exists();
            self.read_file(if exists {
                flat
            } else {
                self.folder.join("mod.rs")
            });
        }
        self.module.pop();
        self.folder = folder;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &[], public);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.names_path(segments.map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if !attribute.path().is_ident("doc")
            && let Ok(list) = attribute.meta.require_list()
        {
            self.scan(list.tokens.clone());
        }
    }
}

/// The files that use each other in circles: the strongly connected components of more than two.
fn circles<'a>(uses: &Uses<'a>) -> Vec<BTreeSet<&'a Path>> {
    let mut reached: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for (from, to) in uses.keys() {
        reached.entry(from).or_default().insert(to);
    }
    // Warshall: what reaches `middle` also reaches all that `middle` reaches.
    for middle in reached.keys().copied().collect::<Vec<_>>() {
        let beyond = reached[middle].clone();
        for ends in reached.values_mut().filter(|ends| ends.contains(middle)) {
            ends.extend(&beyond);
        }
    }
    let mutual = |a: &Path, b: &Path| reached[a].contains(b) && reached[b].contains(a);
    let mut found = BTreeSet::new();
    for file in reached.keys().filter(|file| mutual(file, file)) {
        let with = reached[file].iter().copied();
        let circle: BTreeSet<&Path> = with
            .filter(|other| reached.contains_key(other) && mutual(file, other))
            .collect();
        if circle.len() > 2 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn describe(circle: &BTreeSet<&Path>, uses: &Uses<'_>) -> String {
    let inside = uses
        .iter()
        .filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    let lines = inside.map(|((from, to), path)| {
        format!("\n  {} names {path} of {}", from.display(), to.display())
    });
    let lines: String = lines.collect();
    format!("\na circle of {} files:{lines}", circle.len())
}

/// All circles of more than two files, without the files of exempt areas.
fn circles_without(exempt: &[&str], crates: &[Uses<'_>]) -> Vec<String> {
    let is_exempt = |file: &Path| exempt.iter().any(|area| in_area(file, area));
    let mut found = Vec::new();
    for uses in crates {
        let mut uses = uses.clone();
        uses.retain(|(from, to), _| !is_exempt(from) && !is_exempt(to));
        let circles = circles(&uses);
        found.extend(circles.iter().map(|circle| describe(circle, &uses)));
    }
    found
}

/// `command/run` includes `command/run.rs` and the folder `command/run`.
fn in_area(file: &Path, area: &str) -> bool {
    file.with_extension("").starts_with(area)
}

/// The modules of every library and program below `crates`.
fn read_all(crates: &Path) -> Vec<ModuleTree> {
    let mut trees = Vec::new();
    for entry in fs::read_dir(crates).expect("there are crates").flatten() {
        for root in ["lib.rs", "main.rs"] {
            let root = Path::new(&entry.file_name()).join("src").join(root);
            if crates.join(&root).exists() {
                trees.push(SourceReader::read_crate(crates, &root));
            }
        }
    }
    trees
}

#[test]
fn no_circle_of_more_than_two_files() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/pgassay lies in crates");
    let trees = read_all(crates);
    let files: usize = trees.iter().map(|tree| tree.modules.len()).sum();
    assert!(files > 300, "{files}");
    let uses: Vec<Uses<'_>> = trees.iter().map(ModuleTree::uses).collect();
    let found = circles_without(&BEING_REBUILT, &uses);
    assert!(found.is_empty(), "{}", found.concat());
    for area in BEING_REBUILT {
        let others: Vec<&str> = BEING_REBUILT.into_iter().filter(|it| *it != area).collect();
        let found = circles_without(&others, &uses);
        assert!(!found.is_empty(), "remove {area} from BEING_REBUILT");
    }
}

#[test]
fn circles_are_found_through_re_exports_and_macros_but_not_through_tests() {
    let crates = tempfile::tempdir().expect("a temporary directory");
    let write = |file: &str, text: &str| {
        let file = crates.path().join("some/src").join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    };
    let circles_with = |last: &str| {
        write(
            "lib.rs",
            "mod a; mod b; mod c; pub use a::A; pub use c::name;",
        );
        write("a.rs", "pub struct A(crate::b::B);");
        write(
            "b/mod.rs",
            "pub struct B; impl B { fn f() { print!(\"{}\", crate::name()) } }",
        );
        write("c.rs", last);
        let trees = read_all(crates.path());
        let uses: Vec<Uses<'_>> = trees.iter().map(ModuleTree::uses).collect();
        circles_without(&[], &uses)
    };
    let text = "pub fn name() -> &'static str { let _: Option<crate::A>; \"\" }";
    let found = circles_with(text);
    assert_eq!(
        found,
        ["\na circle of 3 files:\
          \n  some/src/a.rs names crate::b::B of some/src/b/mod.rs\
          \n  some/src/b/mod.rs names crate::name of some/src/c.rs\
          \n  some/src/c.rs names crate::A of some/src/a.rs"]
    );
    let only_in_tests = format!(
        "#[cfg(test)] mod tests {{ use crate::A; }} {}",
        text.replace("crate::A", "u8")
    );
    assert_eq!(circles_with(&only_in_tests), [""; 0]);
    // Two files may use each other.
    let of_two = text.replace("crate::A", "crate::b::B");
    assert_eq!(circles_with(&of_two), [""; 0]);
}
