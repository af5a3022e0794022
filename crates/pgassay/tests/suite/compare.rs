//! `pgassay compare`: questions in one line.

use pgassay_account::comparison::Verdict;
use pgassay_profile::AwakeCpus;
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_test_support::{BareServer, Scratch, collapse_whitespace, servers};

const TABLE: &str = "create table t (a int); \
                     insert into t select i from generate_series(1, 20000) i; vacuum analyze t";
const LOOKUP: &str = "select * from t where a = 42";
/// Short trials: the effects here are large.
const SHORT: [&str; 5] = ["--length", "2s", "--pairs", "4", "--no-profile"];

#[test]
fn an_index_answers_faster_without_a_study_file() {
    let scratch = Scratch::new(crate::PROGRAM);
    let index = "create index on t (a)";
    let mut args = vec![
        "compare",
        "--setup",
        TABLE,
        "--vs-setup",
        index,
        LOOKUP,
        "--json",
    ];
    args.extend(SHORT);
    let output = scratch.ok(&args);
    let run: Run = serde_json::from_str(&output).expect("the result is JSON");
    assert_eq!(run.plan.variants, ["setup only", index]);
    assert_eq!(
        run.comparisons[0].verdict,
        Verdict::Faster,
        "{:?}",
        run.comparisons[0].tps
    );
    assert!(run.study.question.contains(index), "{}", run.study.question);
}

/// Regression: a script whose `\if` skipped its only statement was thousands of times faster, without a word; its
/// statements were planned at every execution, and parallel workers used 0 µs, "which used much".
#[test]
fn a_script_that_sends_no_statement_is_not_faster_without_a_word() {
    let scratch = Scratch::new(crate::PROGRAM);
    let nothing = "\\if 1 > 2\nselect 1;\n\\endif";
    let mut args = vec!["compare", "--setup", "", "select 1", nothing];
    args.extend(SHORT);
    let output = collapse_whitespace(&scratch.ok(&args));
    assert!(
        output.contains("! no statement reached the server: \\if 1 > 2"),
        "{output}"
    );
    assert!(!output.contains("planned at every execution"), "{output}");
    assert!(!output.contains("Parallel workers"), "{output}");
}

/// Regression: of a build that crashes, the error said only that the server closed the connection, and the server
/// could take a minute to stop.
#[test]
fn the_crash_of_a_backend_is_named() {
    let scratch = Scratch::new(crate::PROGRAM);
    let crash = "copy (select 1) to program 'kill -SEGV $PPID'";
    let mut args = vec!["compare", "--setup", "", "select 1", crash];
    args.extend(SHORT);
    let error = scratch.finished(&args).stderr;
    assert!(error.contains("PostgreSQL 18"), "{error}");
    assert!(error.contains(" was terminated by signal 11"), "{error}");
    assert!(error.contains("connection lost"), "{error}");
    assert!(!error.contains("fast shutdown took"), "{error}");
}

#[test]
fn every_further_choice_is_a_variant_of_the_first() {
    let scratch = Scratch::new(crate::PROGRAM);
    let saved = scratch.path().join("study.toml");
    let saved = saved.to_str().expect("a plain path");
    let output = scratch.ok(&[
        "compare",
        "-S",
        "-M",
        "simple,prepared",
        "--servers",
        "17,18",
        "--vs",
        "work_mem=64MB",
        "--vs",
        "extended",
        "--vs",
        "jit=off, work_mem=1MB",
        "-c",
        "1,4",
        "--stepwise",
        "--save",
        saved,
    ]);
    assert!(output.contains("pgassay run"), "{output}");
    let plan = scratch.ok(&["study", "plan", saved, "--json"]);
    let plan: pgassay_model::plan::Plan = serde_json::from_str(&plan).expect("the plan is JSON");
    let expected = [
        "baseline",
        "prepared",
        "18",
        "work_mem=64MB",
        "extended",
        "jit=off, work_mem=1MB",
    ];
    assert_eq!(plan.variants, expected);
    assert!(plan.stepwise && plan.baseline_of(3) == 2);
    assert_eq!(plan.conditions.len(), 2);
    let versions: Vec<_> = plan
        .servers
        .iter()
        .map(|it| it.version.as_deref())
        .collect();
    assert_eq!(
        versions.iter().filter(|it| **it == Some("18")).count(),
        1,
        "{versions:?}"
    );
}

/// Regression: it wrote a file named `-`.
#[test]
fn a_comparison_saved_to_stdout_is_a_study_and_nothing_else() {
    let scratch = Scratch::new(crate::PROGRAM);
    let study = scratch.ok(&["compare", "-S", "--vs", "jit=off", "--save", "-"]);
    let path = scratch.path().join("study.toml");
    std::fs::write(&path, study).expect("the study is written");
    scratch.ok(&["study", "plan", path.to_str().expect("a plain path")]);
}

/// Regression: a study that was there was replaced; a password was dropped without a word; a shell took a file name with
/// a space as two words.
#[test]
fn a_saved_comparison_replaces_no_file_and_says_what_it_lacks() {
    let scratch = Scratch::new(crate::PROGRAM);
    let file = scratch.path().join("my study.toml").display().to_string();
    let dsn = "host=localhost password=s3cret";
    let compare = [
        "compare", "-S", "--dsn", dsn, "--vs", "jit=off", "--save", &file,
    ];
    let saved = scratch.finished(&compare);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    assert!(
        saved.stdout.contains(&format!("pgassay run '{file}'")),
        "{saved:?}"
    );
    let words = collapse_whitespace(&saved.stderr);
    assert!(words.contains("the password is not saved"), "{words}");
    let study = std::fs::read_to_string(&file).expect("the study was written");
    assert!(!study.contains("s3cret"), "{study}");
    let refused = scratch.finished(&["compare", "-S", "--vs", "jit=on", "--save", &file]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let words = collapse_whitespace(&refused.stderr);
    assert!(
        words.contains("exists; remove it, or give another FILE"),
        "{words}"
    );
    assert_eq!(
        std::fs::read_to_string(&file).expect("it is still there"),
        study
    );
}

/// Regression: "15 is slower than prepared" compared 15, unprepared, with 9.6, prepared, without a word.
#[test]
fn a_chain_of_variants_of_several_kinds_has_a_note() {
    let scratch = Scratch::new(crate::PROGRAM);
    let saved = scratch.path().join("study.toml").display().to_string();
    let chain = [
        "compare",
        "-S",
        "--stepwise",
        "--servers",
        "16,17",
        "--vs",
        "18",
    ];
    let save = ["--save", &saved];
    let plain = scratch.finished(&[&chain[..], &save].concat());
    assert!(!plain.stderr.contains("differ in more"), "{plain:?}");
    let plan = scratch.ok(&["study", "plan", &saved, "--json"]);
    let plan: pgassay_model::plan::Plan = serde_json::from_str(&plan).expect("the plan is JSON");
    assert!(plan.stepwise && plan.baseline_of(2) == 1);
    for other in [["-M", "simple,prepared"], ["--vs", "jit=off"]] {
        let noted = scratch.finished(&[&chain[..], &other, &["--save", "-"]].concat());
        assert_eq!(noted.code, Some(0), "{noted:?}");
        let words = collapse_whitespace(&noted.stderr);
        assert!(words.contains("differ in more than one choice"), "{words}");
    }
}

/// Regression: the first server was started before the second was looked for.
#[test]
fn a_release_that_does_not_exist_is_noticed_before_a_server_is_started() {
    let scratch = Scratch::new(crate::PROGRAM);
    let refused = scratch.finished(&["compare", "-S", "--vs", "99", "--offline"]);
    assert_eq!(refused.code, Some(1));
    assert!(!refused.stderr.contains("starting"), "{}", refused.stderr);
}

/// Regression: the study was not run for as long, and with the profile, that the command line excluded.
#[test]
fn a_saved_comparison_names_the_flags_that_are_no_part_of_a_study() {
    let scratch = Scratch::new(crate::PROGRAM);
    let saved = scratch.path().join("study.toml");
    let saved = saved.to_str().expect("a plain path");
    let asked = ["compare", "-S", "--vs", "jit=off", "--save", saved];
    let plain = scratch.ok(&asked);
    assert!(
        plain.ends_with(&format!("pgassay run {saved}\n")),
        "{plain}"
    );
    let flags = [
        "--max-time",
        "2min",
        "--seed",
        "7",
        "--no-profile",
        "--no-plans",
    ];
    std::fs::remove_file(saved).expect("the study was saved");
    let disk = ["--data-parent", "/var/tmp"];
    let output = scratch.ok(&[&asked[..], &flags, &disk].concat());
    let run = format!(
        "pgassay run {saved} {} {}\n",
        flags.join(" "),
        disk.join(" ")
    );
    assert!(output.ends_with(&run), "{output}");
    scratch.ok(&[&["study", "plan", saved], &flags[..]].concat());
}

#[test]
fn statements_that_begin_alike_have_different_names() {
    let scratch = Scratch::new(crate::PROGRAM);
    let saved = scratch.path().join("study.toml");
    let saved = saved.to_str().expect("a plain path");
    let statement =
        |end: &str| format!("select * from pgbench_accounts where aid = 1 and bid = {end}");
    let (first, second) = (statement("1"), statement("2;"));
    scratch.ok(&["compare", &first, &second, "--save", saved]);
    let text = std::fs::read_to_string(saved).expect("the study was saved");
    assert!(text.contains("bid = 2;") && !text.contains(";;"), "{text}");
    let plan = scratch.ok(&["study", "plan", saved]);
    assert!(plan.contains("variants: … 1, … 2 "), "{plan}");
}

/// Regression: equal statements were named `…` and `… (2)`, and a setting of all variants named the baseline.
#[test]
fn variants_are_named_by_what_distinguishes_them() {
    let scratch = Scratch::new(crate::PROGRAM);
    for (args, expected) in [
        (
            &["select 1 as a", "select 1 as a "][..],
            ["select 1 as a", "select 1 as a (2)"],
        ),
        (
            &["-S", "--set", "jit=off", "--vs", "work_mem=64MB"],
            ["default", "work_mem=64MB"],
        ),
        (
            &["-S", "--set", "jit=off", "--vs", "jit=on"],
            ["jit=off", "jit=on"],
        ),
    ] {
        let text = scratch.ok(&[&["compare"], args, &["--save", "-"]].concat());
        let study: toml::Table = text.parse().expect("TOML");
        let variants = study["variant"].as_array().expect("variants");
        let names = variants.iter().map(|it| it["name"].as_str());
        let names: Vec<&str> = names.map(|it| it.expect("a name")).collect();
        assert_eq!(names, expected, "{args:?}");
    }
}

/// The option that holds off sleep applies to the whole machine, which others may use.
#[test]
fn only_servers_that_pgassay_starts_keep_cpus_awake_by_default() {
    let scratch = Scratch::new(crate::PROGRAM);
    let keeps = |args: &[&str]| {
        let asked = ["compare", "select 1", "select 2", "--save", "-"];
        let study = scratch.ok(&[&asked[..], args].concat());
        study.contains("keep_cpus_awake = true")
    };
    assert_eq!(keeps(&[]), AwakeCpus::is_permitted());
    assert!(!keeps(&["--let-cpus-sleep"]));
    let running = ["--setup", "", "--dsn", "host=/tmp"];
    assert!(!keeps(&running));
    assert!(keeps(&[&running[..], &["--keep-cpus-awake"]].concat()));
}

/// Regression: errors named a position in `compare.toml`, a file that nobody had written, and reserved settings
/// were refused after the data of the first server had been set up.
#[test]
fn an_error_in_a_question_names_no_file_and_a_reserved_setting_starts_no_server() {
    let scratch = Scratch::new(crate::PROGRAM);
    for (args, expected) in [
        (
            &["-S", "--vs", "port=5"][..],
            "cannot set port: pgassay sets it itself",
        ),
        (
            &["-S", "--vs", "jit=off", "--pairs", "1"],
            "an interval takes at least 2 pairs of trials",
        ),
        (
            &["-S", "--vs", "jit=off", "-c", "0"],
            "expected a whole number from 1 to 262143",
        ),
        (
            &["\\foo", "--vs", "jit=off"],
            "invalid command in command \"foo\"",
        ),
    ] {
        let output = scratch.finished(&[&["compare"], args].concat());
        let error = output.stderr;
        assert_eq!(output.code, Some(1), "{args:?}: {error}");
        assert!(!error.contains(".toml"), "{args:?}: {error}");
        assert!(!error.contains("starting"), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn a_question_without_a_second_choice_says_what_is_missing() {
    let scratch = Scratch::new(crate::PROGRAM);
    for (args, expected) in [
        (vec!["compare"], "nothing to run"),
        (vec!["compare", "select 1"], "nothing to compare with"),
        (
            vec!["compare", "-S", "--vs", "fast"],
            "--vs fast: expected a setting",
        ),
        (
            vec!["compare", "-S", "--vs", "=1"],
            "--vs =1: expected NAME=VALUE",
        ),
        (
            vec!["compare", "-f", "no.sql", "--vs", "17"],
            "cannot read the script no.sql",
        ),
        (
            vec!["compare", "select 1", "--setup", "no.sql", "--vs", "17"],
            "--setup: cannot read no.sql",
        ),
        (vec!["compare", " ", "select 1"], "a statement is empty"),
    ] {
        let output = scratch.finished(&args);
        let error = output.stderr;
        assert_eq!(output.code, Some(1), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

/// Regression: a gate passed a slower script, because the baseline was another one than the first.
#[test]
fn the_first_script_of_any_kind_is_the_baseline() {
    let scratch = Scratch::new(crate::PROGRAM);
    let file = scratch.path().join("q.sql");
    std::fs::write(&file, "select 3;\n").expect("the script is written");
    let file = file.to_str().expect("a plain path");
    for (args, expected) in [
        (&["-S", "select 1"][..], ["select-only", "select 1"]),
        (&["select 1", "-S"], ["select 1", "select-only"]),
        (&["-N", "-S"], ["simple-update", "select-only"]),
        (&["-b", "select-only", "-f", file], ["select-only", "q"]),
        (&["-f", file, "select 1"], ["q", "select 1"]),
        (
            &["-b", "simple", "-b", "select"],
            ["simple-update", "select-only"],
        ),
    ] {
        let text = scratch.ok(&[&["compare"], args, &["--save", "-"]].concat());
        let study: toml::Table = text.parse().expect("TOML");
        let variants = study["variant"].as_array().expect("variants");
        let scripts = variants.iter().map(|it| it["script"].as_str());
        let scripts: Vec<&str> = scripts.map(|it| it.expect("a name")).collect();
        assert_eq!(scripts, expected, "{args:?}");
    }
}

/// Regression: a gate passed a variant whose setup had made the baseline as slow, and a release was compared with a
/// running server of another release under its name.
#[test]
fn a_question_whose_baseline_would_be_another_one_is_refused_before_a_server_starts() {
    let scratch = Scratch::new(crate::PROGRAM);
    let role = "alter role current_user set work_mem = '64kB'";
    for (args, reason) in [
        (
            &["select 1", "--setup", "", "--vs-setup", role][..],
            "changes a setting that the other variants on the same server would have as well",
        ),
        (
            &[
                "select 1",
                "--setup",
                "",
                "--dsn",
                "host=/nowhere",
                "--vs",
                "17",
            ],
            "use --vs-dsn",
        ),
        (
            &["select 1", "--servers", "17", "--vs-dsn", "host=/nowhere"],
            "--vs-dsn requires --dsn",
        ),
        (&["select 1", " ; "], "a statement is empty"),
        // Regression: only the server refused it, in its words, after the setup.
        (
            &["select * from t where id = $1", "select 1"],
            "$1 has no value: write one in its place, or give a script",
        ),
        // Regression: it was to be written as a parameter of a study, which a command line cannot have.
        (
            &["select :id", "select 1"],
            "define it in the script, as in `\\set id random(1, 100)`",
        ),
    ] {
        let finished = scratch.finished(&[&["compare"], args].concat());
        assert_eq!(finished.code, Some(1), "{args:?}: {finished:?}");
        let message = collapse_whitespace(&finished.stderr);
        let reason = collapse_whitespace(reason);
        assert!(message.contains(&reason), "{args:?}: {message}");
        assert!(!message.contains("parameter of the study"), "{message}");
        assert!(!message.contains("starting"), "{args:?}: {message}");
    }
}

/// Regression: the message named neither the option nor the statement, and a transaction that was left open lost all
/// that it had set up.
#[test]
fn an_error_in_the_setup_names_the_option_and_the_statement() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(crate::PROGRAM);
    let broken = "create table t (a int);\ncreate indx on t (a)";
    let open = "create table t (a int); begin; insert into t values (1)";
    for (args, reasons) in [
        (
            &["--setup", "create table u (a int)", "--vs-setup", broken][..],
            &[
                "--vs-setup of the variant",
                "line 2: ",
                "(in: create indx on t (a))",
            ][..],
        ),
        (
            &["--setup", open, "--vs", "jit=off"],
            &["the setup ends inside a transaction: add COMMIT"],
        ),
    ] {
        let finished = scratch.finished(&[&["compare", "select 1"], args].concat());
        assert_eq!(finished.code, Some(1), "{args:?}: {finished:?}");
        let message = collapse_whitespace(&finished.stderr);
        for reason in reasons {
            assert!(message.contains(reason), "{args:?}: {message}");
        }
    }
    scratch.assert_nothing_left();
}

/// Regression: a weight as in pgbench's `-f` was part of the name of a file that does not exist, without a hint.
#[test]
fn a_script_with_a_weight_is_refused_with_the_reason() {
    let scratch = Scratch::new(crate::PROGRAM);
    let path = scratch.path().join("a.sql");
    std::fs::write(&path, "select 1;\n").expect("the script is written");
    let weighted = format!("{}@3", path.display());
    let output = scratch.finished(&["compare", "-f", &weighted, "--vs", "jit=off"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.stderr.contains("without a weight; a study can mix"),
        "{output:?}"
    );
}

/// Regression: a second `--setup` was refused, and "COPY is not supported in pgbench, aborting" had no way out.
#[test]
fn setups_run_in_order_and_copy_to_the_client_is_refused_with_a_way_out() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(crate::PROGRAM);
    let setups = [
        "--setup",
        "create table t (a int) -- first",
        "--setup",
        "insert into t values (1)",
    ];
    let statements = ["compare", "copy t to stdout", "select 1", "--no-profile"];
    let output = scratch.finished(&[&statements[..], &setups].concat());
    assert_eq!(output.code, Some(1), "{output:?}");
    let error = collapse_whitespace(&output.stderr);
    let way_out = "use a file on the server instead of STDIN and STDOUT, or INSERT … SELECT";
    assert!(error.contains(way_out), "{error}");
    scratch.assert_nothing_left();
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: `--vs work_mem=4MB` on a server whose default is that was "equivalent" without a word, and so was
    /// `--vs jit=off` on a build without a JIT compiler, as the downloaded ones are.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_setting_that_the_server_has_anyway_is_announced_as_an_a_a_comparison() {
        let scratch = Scratch::new(crate::PROGRAM);
        let mut args = vec!["compare", "--setup", "", "select 1", "--json"];
        args.extend(["--vs", "work_mem=4096kB", "--vs", "work_mem=5MB"]);
        args.extend(["--vs", "jit=off", "--vs", "jit=off, work_mem=5MB"]);
        args.extend(SHORT);
        let run: Run = serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON");
        let is_same = |it: &&Warning| it.kind == WarningKind::SameSettings;
        let same: Vec<&Warning> = run.warnings.iter().filter(is_same).collect();
        assert_eq!(same.len(), 2, "{same:?}");
        assert_eq!(same[1].variant.as_deref(), Some("jit=off"));
        assert!(same[1].message.contains("no JIT compiler"), "{same:?}");
        assert_eq!(same[0].variant.as_deref(), Some("work_mem=4096kB"));
        assert!(
            same[0]
                .message
                .contains("work_mem = 4MB in both. This is an A/A comparison"),
            "{same:?}"
        );
    }

    /// Regression: with a build that has a JIT compiler, jit=off was "jit = on in both. This is an A/A comparison", since
    /// looking for the compiler turned jit on.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn jit_on_and_off_differ_where_there_is_a_compiler() {
        let scratch = Scratch::new(crate::PROGRAM);
        // Downloaded builds have none, so this server only says that it has one.
        let says_so = "set allow_system_table_mods = on; create or replace function \
                       pg_catalog.pg_jit_available() returns boolean language sql \
                       as 'select pg_catalog.current_setting(''jit'')::boolean'";
        let mut args = vec!["compare", "--setup", says_so, "select 1", "--json"];
        args.extend(["--vs", "jit=off", "--vs", "jit=on"]);
        args.extend(SHORT);
        let run: Run = serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON");
        let is_same = |it: &&Warning| it.kind == WarningKind::SameSettings;
        let same: Vec<&Warning> = run.warnings.iter().filter(is_same).collect();
        assert_eq!(same.len(), 1, "{same:?}");
        assert_eq!(same[0].variant.as_deref(), Some("jit=on"), "{same:?}");
    }

    /// Regression: "recovery is in progress" ended the run at the standby's first trial.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_standby_is_compared_with_its_primary() {
        let scratch = Scratch::new(crate::PROGRAM);
        for version in ["9.6", "18"] {
            let Some((primary, standby)) = BareServer::streaming_pair(version) else {
                continue;
            };
            let [primary, standby] = [&primary, &standby].map(|it| {
                let (host, port) = (it.socket_directory(), it.port());
                format!(
                    "host={} port={port} user=tester dbname=postgres",
                    host.display()
                )
            });
            let servers = ["--dsn", &primary, "--vs-dsn", &standby];
            let rest = ["--allow-superuser", "--json", "--setup", "", "select 1"];
            let args = [&["compare"], &servers[..], &rest, &SHORT].concat();
            let run: Run = serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON");
            assert_eq!(
                (run.complete, run.comparisons.len()),
                (true, 1),
                "{version}"
            );
        }
    }
}
