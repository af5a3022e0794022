//! `pgassay study new`: on a terminal, with a pipe, and without questions.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use pgassay_model::plan::Plan;
use pgassay_test_support::{Finished, PseudoTerminal, Scratch};

use crate::PROGRAM;

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Answers the questions with these lines, through a pipe.
fn answered(scratch: &Scratch, arguments: &[&str], lines: &str) -> Finished {
    let mut command = scratch.command();
    command.args(["study", "new"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that has an error does not read the rest.
    _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    Finished::of(&child.wait_with_output().expect("it ends"))
}

/// The plan of a file, which must be a valid study.
fn plan(scratch: &Scratch, file: &str) -> Plan {
    let checked = scratch.ok(&["study", "check", file]);
    assert!(checked.contains(": ok, "), "{checked}");
    let plan = scratch.ok(&["study", "plan", file, "--json"]);
    serde_json::from_str(&plan).expect("the plan is JSON")
}

fn text(scratch: &Scratch, file: &str) -> String {
    std::fs::read_to_string(scratch.path().join(file)).expect("the file was written")
}

#[test]
fn without_questions_every_answer_is_its_default() {
    let scratch = Scratch::new(PROGRAM);
    let said = scratch.ok(&["study", "new", "--yes"]);
    assert!(said.contains("pgassay run study.toml"), "{said}");
    let found = plan(&scratch, "study.toml");
    assert_eq!(found.variants, ["default", "work_mem=64MB"]);
    let clients: Vec<u32> = found.conditions.iter().map(|it| it.clients).collect();
    assert_eq!(clients, [1, 8]);
    let written = text(&scratch, "study.toml");
    assert!(written.contains("# The choices to compare."), "{written}");
    // Stdin without a line is the same.
    assert_eq!(answered(&scratch, &["other.toml"], "").code, Some(0));
    assert_eq!(
        text(&scratch, "other.toml").replace("other.toml", "study.toml"),
        written
    );
    // And stdout instead of a file.
    let printed = scratch.ok(&["study", "new", "--yes", "-"]);
    assert_eq!(printed, written);
    let refused = scratch.finished(&["study", "new", "--yes"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("study.toml exists"), "{refused:?}");
    assert_eq!(text(&scratch, "study.toml"), written);
}

#[test]
fn lines_of_a_pipe_are_answers_in_the_order_of_the_questions() {
    let scratch = Scratch::new(PROGRAM);
    let fill = "create table t (a int);\ninsert into t values (1);\n";
    std::fs::write(scratch.path().join("fill.sql"), fill).expect("a file");
    for (lines, variants, clients) in [
        (
            "versions\n16, 17,18\nsimple-update\n\n2\n4\n",
            &["16", "17", "18"][..],
            4,
        ),
        (
            "protocols\nprepared,simple\n\nfill.sql\n16",
            &["prepared", "simple"][..],
            16,
        ),
        (
            "settings\njit=off, work_mem=1MB\njit=on\n\nselect a from t -- it's one\nfill.sql\n3\n17\n",
            &["default", "jit=off, work_mem=1MB", "jit=on"][..],
            3,
        ),
        (
            "sql\nselect 1 -- 'a'\nselect 2\nfill.sql\n1\n",
            &["select 1 -- 'a'", "select 2"][..],
            1,
        ),
    ] {
        _ = std::fs::remove_file(scratch.path().join("s.toml"));
        let finished = answered(&scratch, &["s.toml"], lines);
        assert_eq!(finished.code, Some(0), "{lines}: {finished:?}");
        // The questions are not shown.
        assert_eq!(finished.stderr, "", "{lines}");
        let found = plan(&scratch, "s.toml");
        assert_eq!(found.variants, variants, "{lines}");
        assert_eq!(found.conditions[0].clients, clients, "{lines}");
        let uses_file = lines.contains("fill.sql");
        let setup = &found.servers[0].databases[0].setup[0].text;
        assert_eq!(setup == fill, uses_file, "{setup}");
    }
}

#[test]
fn the_line_that_is_printed_asks_the_same_question() {
    let scratch = Scratch::new(PROGRAM);
    let lines =
        "settings\nwork_mem=64MB\n\nselect 'it''s', count(*) from pgbench_accounts\n\n3\n1,2\n17\n";
    let finished = answered(&scratch, &["a.toml"], lines);
    let (_, line) = finished
        .stdout
        .split_once("the same in one line: ")
        .expect("there is a line");
    let program = line.trim().replacen("pgassay", PROGRAM, 1);
    let program = program.replacen(" compare ", " compare --save b.toml ", 1);
    let mut shell = scratch.command_of(std::path::Path::new("sh"));
    let saved = shell.arg("-c").arg(&program).output().expect("a shell");
    assert!(saved.status.success(), "{program}: {saved:?}");
    let plans = ["a.toml", "b.toml"].map(|it| {
        let mut plan = plan(&scratch, it);
        plan.schedule.seed = 0;
        plan
    });
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn a_line_that_is_no_answer_is_an_error_and_writes_nothing() {
    let scratch = Scratch::new(PROGRAM);
    for (lines, words) in [
        ("colors\n", "expected settings, versions, protocols or sql"),
        ("versions\n18\n", "at least two different ones"),
        ("settings\nwork_mem\n", "expected NAME=VALUE"),
        (
            "settings\n\n\nmissing.sql\n",
            "cannot read the file missing.sql",
        ),
        ("settings\n\n\n\n\n0\n", "expected a number from 1 to 10000"),
        ("settings\n\n\n\n\n\nmany\n", "expected numbers such as 1,8"),
        ("sql\nselect 1\nselect 1\n", "both statements are the same"),
        // A script error, which only planning finds.
        (
            "sql\n\\nothing\nselect 1\n",
            "no study was written: s.toml:",
        ),
    ] {
        let refused = answered(&scratch, &["s.toml"], lines);
        assert_eq!(refused.code, Some(1), "{lines}: {refused:?}");
        assert!(refused.stderr.contains(words), "{lines}: {refused:?}");
        assert!(!scratch.path().join("s.toml").exists(), "{lines}");
    }
}

fn in_terminal(scratch: &Scratch, arguments: &[&str]) -> PseudoTerminal {
    let mut command = scratch.command();
    command
        .args(["study", "new"])
        .args(arguments)
        .env("TERM", "xterm-256color");
    PseudoTerminal::start(&mut command, 100, 40)
}

fn answer(terminal: &mut PseudoTerminal, question: &str, keys: &str) {
    terminal.wait_for(question, LIMIT, |screen| screen.contains(question));
    terminal.send(keys);
    terminal.send("\r");
}

#[test]
fn on_a_terminal_a_person_is_asked_again_and_nothing_is_replaced_without_consent() {
    let scratch = Scratch::new(PROGRAM);
    let path = scratch.path().join("mine.toml");
    std::fs::write(&path, "precious").expect("a file");
    let mut terminal = in_terminal(&scratch, &["mine.toml"]);
    answer(
        &mut terminal,
        "mine.toml exists. Replace it (yes, no)? [no]",
        "",
    );
    answer(&mut terminal, "File to write [study.toml]", "new.toml");
    answer(&mut terminal, "What do you compare", "colour");
    answer(&mut terminal, "expected settings, versions", "protocols");
    answer(&mut terminal, "Protocols, separated by commas", "");
    answer(&mut terminal, "Load (select-only", "");
    answer(&mut terminal, "Data (pgbench", "");
    answer(&mut terminal, "Scale of pgbench's tables [1]", "2");
    answer(&mut terminal, "Concurrent clients", "4");
    answer(&mut terminal, "PostgreSQL version of all variants [18]", "");
    assert_eq!(terminal.wait(LIMIT), Some(0), "{}", terminal.screen());
    assert!(
        terminal.screen().contains("new.toml written"),
        "{}",
        terminal.screen()
    );
    assert_eq!(plan(&scratch, "new.toml").variants, ["simple", "prepared"]);
    assert_eq!(text(&scratch, "mine.toml"), "precious");

    // With consent it is replaced, at the end.
    let mut terminal = in_terminal(&scratch, &["mine.toml"]);
    answer(&mut terminal, "Replace it (yes, no)? [no]", "yes");
    terminal.wait_for("the next question", LIMIT, |it| {
        it.contains("What do you compare")
    });
    assert_eq!(text(&scratch, "mine.toml"), "precious");
    // Ctrl-D ends the input: nothing is written.
    terminal.send("\u{4}");
    assert_eq!(terminal.wait(LIMIT), Some(1), "{}", terminal.screen());
    assert_eq!(text(&scratch, "mine.toml"), "precious");
    let mut terminal = in_terminal(&scratch, &["mine.toml", "--yes"]);
    // Nothing may be asked.
    assert_eq!(terminal.wait(LIMIT), Some(1), "{}", terminal.screen());
}
