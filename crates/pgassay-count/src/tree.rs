//! Call paths from callgrind's output with `--separate-callers`.
//!
//! A function's name is then the whole chain of its callers, nearest first, separated by `'`:
//! `palloc'exec_simple_query'PostgresMain'BackendMain'…`. Source: `print_mangled_cxt` in
//! Valgrind's `callgrind/dump.c`. Direct recursion does not extend the chain.

use std::collections::HashMap;

use pgassay_account::instructions::{CallPath, CallTree, PathFunction, base_name};

use crate::outfile::OutFile;

/// The difference of `many` and `few` by call path; `many` executed `transactions` more. Callers of
/// `root` are omitted.
pub fn call_tree(few: &OutFile, many: &OutFile, transactions: u64, root: &str) -> CallTree {
    let mut grower = Grower {
        root,
        objects: objects(&[few, many]),
        tree: CallTree {
            transactions,
            functions: Vec::new(),
            paths: Vec::new(),
        },
        functions: HashMap::new(),
        paths: HashMap::new(),
    };
    grower.add(few, -1);
    grower.add(many, 1);
    pruned(&grower.tree)
}

/// The object of every chain; within a chain, callers have only a name.
fn objects<'a>(files: &[&'a OutFile]) -> HashMap<&'a str, &'a str> {
    let functions = files.iter().flat_map(|file| &file.functions);
    functions
        .map(|function| (function.name.as_str(), base_name(&function.object)))
        .collect()
}

struct Grower<'a> {
    root: &'a str,
    objects: HashMap<&'a str, &'a str>,
    tree: CallTree,
    functions: HashMap<(&'a str, &'a str), u32>,
    paths: HashMap<(Option<u32>, u32), u32>,
}

impl<'a> Grower<'a> {
    fn add(&mut self, file: &'a OutFile, sign: i64) {
        let at: Vec<usize> = file
            .functions
            .iter()
            .map(|function| self.path(&function.name))
            .collect();
        for (function, &at) in file.functions.iter().zip(&at) {
            self.tree.paths[at].instructions += sign * signed(function.own.instructions);
        }
        for call in &file.calls {
            self.tree.paths[at[call.callee]].calls += sign * signed(call.count);
        }
    }

    /// The path of a chain; creates it and those of its callers if they are new.
    fn path(&mut self, chain: &'a str) -> usize {
        let mut starts = vec![0];
        for (position, _) in chain.match_indices('\'') {
            starts.push(position + 1);
        }
        let name = |at: usize| chain[at..].split('\'').next().unwrap_or_default();
        let outermost = starts.iter().rposition(|&at| name(at) == self.root);
        let mut parent = None;
        for &at in starts[..=outermost.unwrap_or(starts.len() - 1)]
            .iter()
            .rev()
        {
            let object = self.objects.get(&chain[at..]).copied().unwrap_or_default();
            let function = self.function(name(at), object);
            parent = Some(self.child(parent, function));
        }
        parent.map_or(0, |path| path as usize)
    }

    fn function(&mut self, name: &'a str, object: &'a str) -> u32 {
        let functions = &mut self.tree.functions;
        *self.functions.entry((name, object)).or_insert_with(|| {
            functions.push(PathFunction {
                name: name.to_owned(),
                object: object.to_owned(),
            });
            functions.len() as u32 - 1
        })
    }

    fn child(&mut self, parent: Option<u32>, function: u32) -> u32 {
        let paths = &mut self.tree.paths;
        *self.paths.entry((parent, function)).or_insert_with(|| {
            paths.push(CallPath {
                parent,
                function,
                calls: 0,
                instructions: 0,
            });
            paths.len() as u32 - 1
        })
    }
}

/// Drops paths below which nothing was executed: those of a backend's start and end.
fn pruned(tree: &CallTree) -> CallTree {
    let mut is_used: Vec<bool> = tree
        .paths
        .iter()
        .map(|path| path.instructions != 0)
        .collect();
    for at in (0..tree.paths.len()).rev() {
        if let (true, Some(parent)) = (is_used[at], tree.paths[at].parent) {
            is_used[parent as usize] = true;
        }
    }
    let mut grown = CallTree {
        transactions: tree.transactions,
        functions: Vec::new(),
        paths: Vec::new(),
    };
    let mut functions = HashMap::new();
    let mut places = vec![None; tree.paths.len()];
    for (at, path) in tree.paths.iter().enumerate().filter(|(at, _)| is_used[*at]) {
        let function = *functions.entry(path.function).or_insert_with(|| {
            let function = &tree.functions[path.function as usize];
            grown.functions.push(function.clone());
            grown.functions.len() as u32 - 1
        });
        places[at] = Some(grown.paths.len() as u32);
        grown.paths.push(CallPath {
            parent: path.parent.and_then(|parent| places[parent as usize]),
            function,
            ..*path
        });
    }
    grown
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).expect("a process does not execute 2^63 instructions")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(loop_count: u64) -> OutFile {
        let text = format!(
            "pid: 1\npositions: line\nevents: Ir\n\
             ob=(1) /bin/postgres\nfn=(1) PostgresMain'main\n1 {}\n\
             cfn=(2) work'PostgresMain'main\ncalls={loop_count} 0\n1 {}\n\
             fn=(2)\n2 {}\nob=(2) /lib/libc.so.6\nfn=(3) memcpy'work'PostgresMain'main\n3 {}\n\
             fn=(4) memcpy'start'PostgresMain'main\n4 50\n\
             ob=(1)\nfn=(5) start'PostgresMain'main\n5 9\ntotals: {}\n",
            100 + loop_count,
            30 * loop_count,
            20 * loop_count,
            10 * loop_count,
            159 + 31 * loop_count
        );
        OutFile::parse(&text).unwrap()
    }

    #[test]
    fn one_time_work_of_a_run_is_on_no_path() {
        let tree = call_tree(&file(2), &file(12), 10, "PostgresMain");
        let shown: Vec<(String, &str, i64, i64)> = tree
            .paths
            .iter()
            .enumerate()
            .map(|(at, path)| {
                let name = |at: u32| tree.functions[at as usize].name.as_str();
                let stack: Vec<&str> = tree.stack(at).into_iter().map(name).collect();
                let object = tree.functions[path.function as usize].object.as_str();
                (stack.join(";"), object, path.calls, path.instructions)
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("PostgresMain".to_owned(), "postgres", 0, 10),
                ("PostgresMain;work".to_owned(), "postgres", 10, 200),
                ("PostgresMain;work;memcpy".to_owned(), "libc.so.6", 0, 100),
            ]
        );
        assert_eq!(tree.instructions(), 310);
        assert!((tree.per_transaction(310) - 31.0).abs() < 1e-9);
    }

    #[test]
    fn a_chain_that_does_not_reach_the_root_is_kept_whole() {
        let text = "pid: 1\npositions: line\nevents: Ir\nfn=(1) a'b'c\n1 5\ntotals: 5\n";
        let none = OutFile::parse(&text.replace('5', "0")).unwrap();
        let tree = call_tree(&none, &OutFile::parse(text).unwrap(), 1, "PostgresMain");
        assert_eq!(tree.stack(tree.paths.len() - 1).len(), 3);
        assert_eq!(tree.instructions(), 5);
    }
}
