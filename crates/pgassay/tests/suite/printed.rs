//! What commands print, word for word: help, plans of built-in studies, the list of stored runs.
//!
//! After an intended change: `INSTA_UPDATE=always cargo test -p pgassay --test suite printed`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use pgassay_test_support::Scratch;

use crate::PROGRAM;

/// The help of a command, independent of environment variables and of the terminal's width.
fn help(arguments: &[String]) -> String {
    let mut command = Command::new(PROGRAM);
    let output = command
        .args(arguments)
        .arg("--help")
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names listed under "Commands:".
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The arguments of every command and subcommand, and its help.
pub fn helps() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![Vec::new()];
    while let Some(arguments) = left.pop() {
        let text = help(&arguments);
        for name in subcommands(&text) {
            left.push([&arguments[..], &[name]].concat());
        }
        found.push((arguments.join(" "), text));
    }
    assert!(found.len() > 12, "{} commands", found.len());
    found
}

#[test]
fn help_of_every_command() {
    for (command, text) in helps() {
        let name = format!("help {command}").trim_end().replace(' ', "-");
        assert_snapshot!(name, text);
    }
}

fn printed(scratch: &Scratch, arguments: &[&str]) -> String {
    let output = scratch
        .command()
        .args(arguments)
        .env("TZ", "UTC")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn plans_of_two_built_in_studies() {
    let scratch = Scratch::new(PROGRAM);
    for study in ["prepared-vs-simple", "synchronous-commit"] {
        let arguments = ["study", "plan", study, "--quick", "--seed", "7"];
        assert_snapshot!(format!("plan-{study}"), printed(&scratch, &arguments));
    }
}

/// Regression: such errors began with "error:", all others with "pgassay:", and an unknown option was answered with how to
/// pass it as a value.
#[test]
fn errors_of_the_command_line_begin_as_all_others_and_give_no_useless_tip() {
    for (arguments, message) in [
        (
            &["profile", "-w", "shop"][..],
            "pgassay: unexpected argument '-w' found\n",
        ),
        (
            &["compare", "-S", "-c", "many"][..],
            "pgassay: invalid value 'many' for '--clients <N,…>': expected a whole number from 1 to 262143\n",
        ),
    ] {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(message), "{text}");
        assert!(!text.contains("tip:"), "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
}

/// The directory of a stored run.
fn stored_run(scratch: &Scratch) -> PathBuf {
    let directory = scratch.results().join("20261123-040611-prepared-vs-simple");
    fs::create_dir_all(&directory).unwrap();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../pgassay-store/tests/suite/fixture/run-1.json");
    fs::copy(stored, directory.join("run.json")).unwrap();
    directory
}

#[test]
fn the_list_of_stored_runs() {
    let scratch = Scratch::new(PROGRAM);
    stored_run(&scratch);
    let all = printed(&scratch, &["list"]);
    let limited = ["0", "1"].map(|it| printed(&scratch, &["list", "-n", it]));
    assert_eq!([&*limited[0], &*limited[1]], ["", &*all]);
    assert_snapshot!("list", all);
}

/// Regression: warnings began with the path of a module: `WARN pgassay_store::repair: the index is damaged`.
#[test]
fn a_warning_does_not_name_modules_of_the_program() {
    let scratch = Scratch::new(PROGRAM);
    stored_run(&scratch);
    fs::write(scratch.results().join("index.sqlite"), [0; 4096]).unwrap();
    let output = scratch.command().arg("list").output().unwrap();
    let warned = String::from_utf8(output.stderr).unwrap();
    let expected = "WARN the index is damaged and will be rebuilt";
    assert!(warned.trim_start().starts_with(expected), "{warned}");
}

/// Regression: `show DIR/run.json` was refused, as if every JSON file were a profile of a live server.
#[test]
fn a_stored_run_is_found_by_its_file_too() {
    let scratch = Scratch::new(PROGRAM);
    let directory = stored_run(&scratch);
    let last = printed(&scratch, &["show", "last"]);
    let file = directory.join("run.json");
    let file = file.to_str().unwrap();
    assert_eq!(printed(&scratch, &["show", file]), last);
    let report = directory.join("report.html");
    let expected = format!("{}\n", report.display());
    assert_eq!(printed(&scratch, &["report", file]), expected);
    let mut inside = scratch.command();
    let output = inside
        .current_dir(&directory)
        .args(["show", "run.json"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), last);
}

/// Regression: `curve --help` showed a command for a running server that pgassay refuses.
#[test]
fn examples_for_running_servers_allow_the_writes_that_they_need() {
    let mut examples = 0;
    for (command, text) in helps() {
        if ["profile", "top"].contains(&&*command) {
            continue;
        }
        let text = text.replace("\\\n", " ");
        let lines = text.lines().filter(|line| line.contains("pgassay "));
        for line in lines.filter(|line| line.contains("--dsn ")) {
            // Statements of the user's read the data of that server.
            let creates_tables = [" -S", " -N", " -b ", "setup "]
                .iter()
                .any(|it| line.contains(it));
            assert_eq!(
                line.contains("--allow-writes"),
                creates_tables,
                "{command}: {line}"
            );
            examples += 1;
        }
    }
    assert!(examples >= 3, "{examples}");
}

/// Regression: on a terminal of 80 columns, clap broke the examples of `compare`, `gate` and `curve` in the
/// middle of a command, so that a copied line did something else.
#[test]
fn examples_fit_into_80_columns() {
    let mut examples = 0;
    for (command, text) in helps() {
        let Some((_, after)) = text.split_once("\nExamples:\n") else {
            continue;
        };
        for line in after.lines().take_while(|line| !line.is_empty()) {
            assert!(line.chars().count() <= 80, "{command}: {line}");
            examples += 1;
        }
    }
    assert!(examples >= 20, "{examples}");
}
