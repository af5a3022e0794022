//! `pgassay compare`: questions whose answer is about something else than what the user has in mind.

use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_test_support::{Scratch, collapse_whitespace, servers};

const ORDERS: &str = "create table orders (id int primary key, customer int, note text); \
                      insert into orders select i, i / 50, 'x' from generate_series(1, 5000) i; \
                      vacuum analyze orders";
/// Short trials: what is found here does not depend on times.
const SHORT: [&str; 5] = ["--length", "1s", "--pairs", "2", "--no-profile"];

fn compared(scratch: &Scratch, more: &[&str]) -> Run {
    let mut args = vec!["compare", "--setup", ORDERS, "--json"];
    args.extend(SHORT);
    args.extend(more);
    serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON")
}

fn of_kind(run: &Run, kind: WarningKind) -> Vec<&Warning> {
    run.warnings.iter().filter(|it| it.kind == kind).collect()
}

/// Regression: a DELETE whose warm-up removed all its rows was compared as 126 times as slow as `select 1`, without a
/// word; so were other writes that find nothing after their first execution.
#[test]
fn a_write_that_used_itself_up_in_the_warm_up_is_not_measured_without_a_word() {
    let scratch = Scratch::new(crate::PROGRAM);
    let delete = "delete from orders where customer = 1";
    let update = "update orders set note = 'y' where note <> 'y'";
    let run = compared(&scratch, &[delete, update]);
    let found = of_kind(&run, WarningKind::RowsUnchanged);
    assert_eq!(found.len(), 1, "{:?}", run.warnings);
    let message = &found[0].message;
    for expected in [
        "executes DELETE, but changed no rows in 4 of 4 trials",
        "executes UPDATE, but changed no rows in 4 of 4 trials",
        "put BEGIN before and ROLLBACK after it",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let mut args = vec!["compare", "--setup", ORDERS, delete, "select 1"];
    args.extend(SHORT);
    let text = collapse_whitespace(&scratch.ok(&args));
    let [warning, details] = ["executes DELETE, but changed", "ANSWER"].map(|it| text.find(it));
    assert!(
        warning.is_some() && warning < details,
        "next to the verdict: {text}"
    );
}

#[test]
fn a_setting_that_the_script_reads_has_an_effect() {
    let scratch = Scratch::new(crate::PROGRAM);
    let script = "select * from orders where id < current_setting('app.limit', true)::int";
    let run = compared(&scratch, &[script, "--vs", "app.limit=10"]);
    assert!(of_kind(&run, WarningKind::SameSettings).is_empty());
    let undefined = of_kind(&run, WarningKind::SettingUndefined);
    assert_eq!(undefined.len(), 1, "{:?}", run.warnings);
    let expected = "no loaded module defines app.limit, so only current_setting() reads it";
    assert!(undefined[0].message.contains(expected), "{undefined:?}");
}

/// Regression: a variant in whose schemas no table can be created failed in `--setup`, which was not given.
#[test]
fn a_setup_that_fails_names_the_variant_and_what_was_done() {
    let scratch = Scratch::new(crate::PROGRAM);
    let mut args = vec!["compare", "-S", "--vs", "search_path='no, such'"];
    args.extend(SHORT);
    let error = scratch.finished(&args).stderr;
    for expected in [
        "the server of \"search_path='no, such'\": filling pgbench's tables",
        "no schema has been selected to create in",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(!error.contains("--setup: line"), "{error}");
}

mod slow {
    use super::*;

    /// Regression: settings of modules that are not loaded, which PostgreSQL keeps without effect, were compared without
    /// a word.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_setting_that_no_loaded_module_defines_is_announced_as_an_a_a_comparison() {
        let scratch = Scratch::new(crate::PROGRAM);
        let read = "session_preload_libraries=auto_explain, auto_explain.log_min_duration=-1";
        let run = compared(
            &scratch,
            &[
                "select 1",
                "--vs",
                "nosuch.thing=1",
                "--vs",
                "auto_explain.log_min_duration=0",
                "--vs",
                read,
                // Defined by the library of a language, which its first function loads.
                "--vs",
                "plpgsql.variable_conflict=use_column",
                "--vs",
                "nosuch.thing=1, work_mem=5MB",
            ],
        );
        let same = of_kind(&run, WarningKind::SameSettings);
        let variants: Vec<&str> = same.iter().filter_map(|it| it.variant.as_deref()).collect();
        assert_eq!(
            variants,
            ["nosuch.thing=1", "auto_explain.log_min_duration=0"],
            "{same:?}"
        );
        for expected in [
            "nosuch.thing has no effect (no loaded module defines it) in both",
            "session_preload_libraries",
        ] {
            assert!(same[0].message.contains(expected), "{same:?}");
        }
        let undefined = of_kind(&run, WarningKind::SettingUndefined);
        assert_eq!(undefined.len(), 1, "{:?}", run.warnings);
        let of = undefined[0].variant.as_deref();
        assert_eq!(of, Some("nosuch.thing=1, work_mem=5MB"));
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn writes_that_change_rows_have_no_such_warning() {
        let scratch = Scratch::new(crate::PROGRAM);
        let upsert =
            "insert into orders values (1, 1, 'x') on conflict (id) do update set note = 'x'";
        let undone = "begin;\ndelete from orders where customer = 1;\nrollback;";
        let run = compared(&scratch, &[upsert, undone, "select 1"]);
        assert!(
            of_kind(&run, WarningKind::RowsUnchanged).is_empty(),
            "{:?}",
            run.warnings
        );
        let mut args = vec!["compare", "-b", "tpcb-like", "--json", "--vs", "prepared"];
        args.extend(SHORT);
        // Up to 14, statistics are late.
        args.extend(["--servers", "12"]);
        let run: Run = serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON");
        assert!(
            of_kind(&run, WarningKind::RowsUnchanged).is_empty(),
            "{:?}",
            run.warnings
        );
    }

    /// Regression: an UPDATE of 100 rows was compared with one of 50 without a word, and two random samples "returned"
    /// different numbers of rows by chance.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn different_numbers_of_changed_rows_are_noticed_and_random_samples_are_not() {
        let scratch = Scratch::new(crate::PROGRAM);
        let update = "update orders set note = 'x' where customer ";
        let [one, both] = ["= 3", "in (3, 4)"].map(|it| format!("{update}{it}"));
        let run = compared(&scratch, &[&one, &both]);
        let found = of_kind(&run, WarningKind::RowsDiffer);
        assert_eq!(found.len(), 1, "{:?}", run.warnings);
        let expected = "\"… in (3, 4)\" changed 100 rows and \"… = 3\" 50";
        assert!(found[0].message.contains(expected), "{found:?}");
        let sample = "tablesample bernoulli (50)";
        let [one, other] = ["*", "id"].map(|it| format!("select {it} from orders {sample}"));
        let run = compared(&scratch, &[&one, &other]);
        let plans = run.plans.as_ref().expect("statements were explained");
        let of_plans = plans.points.iter().flat_map(|it| &it.statements);
        let vary: Vec<bool> = of_plans
            .filter_map(|it| it.used())
            .map(|it| it.rows_vary)
            .collect();
        assert!(vary.contains(&true), "{vary:?}");
        assert!(of_kind(&run, WarningKind::RowsDiffer).is_empty());
    }
}

/// Regression: `run release-cost --dsn …` never contacted that server, because every variant of the study names a
/// version.
#[test]
fn a_server_that_no_variant_would_use_is_refused() {
    let scratch = Scratch::new(crate::PROGRAM);
    let refused = |arguments: &[&str]| {
        let refused = scratch.finished(&[&["study", "plan"], arguments].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.error_message().to_owned()
    };
    let external = refused(&["release-cost", "--dsn", "host=db.example"]);
    assert!(external.contains("--dsn: variant"), "{external}");
    for flag in [["--server", "15"], ["--binaries", "/opt/pg"]] {
        let text = refused(&[&["release-cost"][..], &flag].concat());
        let expected = format!("{} would have no effect", flag[0]);
        assert!(text.contains(&expected), "{text}");
    }
    scratch.ok(&["study", "plan", "prepared-vs-simple", "--server", "15"]);
}

/// Regression: a comparison of statements that write could restore its tables only after it was saved as a study.
#[test]
fn a_comparison_restores_its_tables_before_each_trial() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(crate::PROGRAM);
    let common = [
        "--setup",
        "create table t (a int)",
        "--vs",
        "jit=off",
        "--pairs",
        "2",
    ];
    let short = [
        "--length",
        "600ms",
        "--no-profile",
        "--no-plans",
        "--seed",
        "1",
    ];
    let script = "\\set a random(1, 2000000000)\ninsert into t values (:a)";
    let arguments = [
        &["compare", "--reset", "truncate t", script][..],
        &common,
        &short,
    ]
    .concat();
    let finished = scratch.finished(&arguments);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = collapse_whitespace(&finished.stdout);
    assert!(!said.contains("do not start from the same state"), "{said}");
    let saved = [
        &["compare", "--prepare", "truncate t", script][..],
        &common,
        &["--save", "-"],
    ]
    .concat();
    let study = scratch.ok(&saved);
    assert!(study.contains("reset = \"truncate t\""), "{study}");
    for (reset, args, reason) in [
        ("", &["--vs", "jit=off"][..], "--reset is empty"),
        (
            "truncate t",
            &["--dsn", "host=/nowhere", "--vs", "work_mem=8MB"],
            "--reset would change tables of the database that --dsn names",
        ),
    ] {
        let refused =
            scratch.finished(&[&["compare", "select 1", "--reset", reset], args].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let said = collapse_whitespace(&refused.stderr);
        assert!(said.contains(reason), "{said}");
    }
}

/// Regression: `run jit` with a build that has no JIT compiler measured its baseline for minutes, and compared nothing.
#[test]
fn a_study_of_which_only_the_baseline_can_run_is_refused_at_once() {
    let scratch = Scratch::new(crate::PROGRAM);
    let study = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                 [[variant]]\nname = \"v\"\n\
                 [[variant]]\nname = \"w\"\nrequires = { program = \"no-such-program\" }\n";
    let path = scratch.study(study).display().to_string();
    let refused = scratch.finished(&["run", &path]);
    let said = refused.error_message();
    assert_eq!(refused.code, Some(1), "{said}");
    let expected = "nothing to compare with \"v\", because no other variant can run here: variant \"w\": \
                    no-such-program is not on PATH";
    assert!(said.contains(expected), "{said}");
    assert!(scratch.kept().is_empty(), "{:?}", scratch.kept());
    let gate = scratch.finished(&["gate", "--study", &path]);
    assert_eq!(gate.code, Some(5), "{gate:?}");
    let printed = collapse_whitespace(&gate.stdout);
    assert!(
        printed.contains("no-such-program is not on PATH"),
        "{gate:?}"
    );
}
