//! Compares our parser with `callgrind_annotate` on the same file.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use pgassay_count::OutFile;
use pgassay_test_support::skip;

fn has_valgrind() -> bool {
    // callgrind_annotate --version exits with an error, so only starting it counts.
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok()
    };
    let has = runs("valgrind") && runs("callgrind_annotate");
    if !has {
        skip("reading callgrind's output", "valgrind is not installed");
    }
    has
}

/// The total and the instructions by function as `callgrind_annotate` prints them.
fn annotated(file: &std::path::Path) -> (u64, BTreeMap<String, u64>) {
    let mut command = Command::new("callgrind_annotate");
    let output = command
        .args(["--threshold=100", "--auto=no"])
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str| {
        let word = line.split_whitespace().next()?;
        word.replace(',', "").parse::<u64>().ok()
    };
    let total = text
        .lines()
        .find(|line| line.ends_with("PROGRAM TOTALS"))
        .and_then(number);
    let mut functions = BTreeMap::new();
    // `1,234 (5.6%)  .  file.c:function [object]`
    for line in text
        .lines()
        .skip_while(|line| !line.contains("file:function"))
        .skip(2)
    {
        let Some(instructions) = number(line) else {
            continue;
        };
        let place = line.rsplit("  ").next().unwrap().trim();
        let name = place
            .split(" [")
            .next()
            .unwrap()
            .rsplit(':')
            .next()
            .unwrap();
        // Without the recursion level.
        let name = name.split('\'').next().unwrap();
        *functions.entry(name.to_owned()).or_insert(0) += instructions;
    }
    (total.unwrap(), functions)
}

#[test]
fn totals_and_functions_agree_with_callgrind_annotate() {
    if !has_valgrind() {
        return;
    }
    let directory = std::env::temp_dir();
    for more in [&[][..], &["--dump-instr=yes", "--collect-jumps=yes"]] {
        let path = directory.join(format!(
            "callgrind-{}-{}.out",
            std::process::id(),
            more.len()
        ));
        let mut command = Command::new("valgrind");
        command.args([
            "--tool=callgrind",
            "--vgdb=no",
            "--quiet",
            "--collect-systime=yes",
        ]);
        command
            .args(more)
            .arg(format!("--callgrind-out-file={}", path.display()));
        let status = command
            .arg("/bin/ls")
            .arg("/")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let file = OutFile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let (total, theirs) = annotated(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.totals.instructions, total);
        assert!(theirs.len() > 50, "callgrind_annotate lists functions");
        let mut ours: BTreeMap<String, u64> = BTreeMap::new();
        for function in &file.functions {
            *ours.entry(function.name.clone()).or_default() += function.own.instructions;
        }
        for (name, instructions) in &theirs {
            assert_eq!(ours.get(name), Some(instructions), "{name}");
        }
        let missing: u64 = ours
            .iter()
            .filter(|(name, _)| !theirs.contains_key(*name))
            .map(|(_, instructions)| instructions)
            .sum();
        assert_eq!(
            missing, 0,
            "functions that callgrind_annotate does not list have no cost"
        );
    }
}
