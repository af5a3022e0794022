//! The terminal's report as a reader sees it; the expected texts are in `snapshots`.

use insta::assert_snapshot;
use pgassay_account::comparison::{Inconclusive, Verdict};
use pgassay_account::cost_row::Change;
use pgassay_account::counters::CounterDifference;
use pgassay_account::ledger::Divider;
use pgassay_explain::PlanChangeKind;
use pgassay_model::check::Check;
use pgassay_record::expectation::{CheckOutcome, Reading};
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_report::{Style, comparisons_markdown, html, terminal};

const PLAIN: Style = Style {
    color: false,
    width: 100,
};

/// Characters in the widest line.
fn widest(text: &str) -> usize {
    text.lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0)
}

fn all_runs() -> Vec<Run> {
    vec![
        crate::fixture::run(),
        crate::fixture::small_run(),
        crate::fixture::doubtful_run(),
        crate::fixture::descriptive_run(),
        crate::fixture::run_without_profiles(),
        crate::fixture::hostile_run(),
        crate::fixture::counted_run(),
        crate::fixture::expectations::run_with_expectations(),
        crate::fixture::plans::run_with_plans(),
    ]
}

#[test]
fn study_report_matches_its_snapshot() {
    assert_snapshot!("study", &terminal(&crate::fixture::run(), &PLAIN));
}

#[test]
fn single_comparison_shows_its_interval() {
    assert_snapshot!("small", &terminal(&crate::fixture::small_run(), &PLAIN));
}

#[test]
fn instruction_counts_are_shown_with_timings() {
    assert_snapshot!(
        "instruction-counts",
        &terminal(&crate::fixture::counted_run(), &PLAIN),
    );
}

#[test]
fn a_plan_that_differs_is_shown_with_its_price() {
    let text = terminal(&crate::fixture::plans::run_with_plans(), &PLAIN);
    let (_, shown) = text.split_once("\nPRICE").unwrap();
    let (shown, _) = shown.split_once("\nCOST").unwrap();
    assert_snapshot!("plans", format!("PRICE{shown}"));
}

/// Regression: PRICE of "18 vs 17" had the memory of 15, the first variant.
#[test]
fn a_stepwise_price_is_relative_to_the_variant_before() {
    let mut run = crate::fixture::run();
    assert!(run.plan.variants.len() > 2);
    for point in &mut run.points {
        point.backend_memory_bytes = Some([11_000_000, 22_000_000, 44_000_000][point.variant]);
    }
    let price = |run: &Run| -> String {
        let text = terminal(run, &PLAIN);
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    };
    assert!(price(&run).contains("peak memory per backend 11.0 MB → 44.0 MB"));
    run.plan.stepwise = true;
    let text = price(&run);
    assert!(
        text.contains("peak memory per backend 22.0 MB → 44.0 MB"),
        "{text}"
    );
    assert!(!text.contains("11.0 MB → 44.0 MB"), "{text}");
}

/// Regression: PRICE said that `synchronous_commit=off` writes a quarter of the WAL: a faster variant runs more
/// transactions after a checkpoint, so fewer of them write a full-page image.
#[test]
fn less_wal_because_of_full_page_images_is_said_to_be_so() {
    let mut run = crate::fixture::small_run();
    let counter = |name: &str, baseline: f64, variant: f64| CounterDifference {
        name: name.to_owned(),
        baseline,
        variant,
        difference: variant - baseline,
        differs: true,
        ..run.comparisons[0].counters[0].clone()
    };
    let counters = vec![
        counter("wal.insert_bytes", 3509.0, 794.0),
        counter("pg_stat_wal.wal_fpi", 0.4, 0.065),
    ];
    run.comparisons[0].counters = counters;
    let images = "WAL 3,509 B → 794 B; full-page images (much of that difference: the more transactions after a \
                  checkpoint, the fewer) 0.400 → 0.065";
    let text = crate::fixture::words(&run).replace('\u{a0}', " ");
    assert!(text.contains(images), "{text}");
    run.comparisons[0].counters[1].variant = 0.265;
    let text = crate::fixture::words(&run);
    assert!(!text.contains("much of that difference"), "{text}");
}

/// Regression: with 86% of serializable transactions failed, "long transactions were cut off at the ends of trials".
/// Regression: that the statements returned different numbers of rows would have been read last, after a verdict.
#[test]
fn a_doubt_about_the_question_is_next_to_the_answer_and_only_there() {
    let mut run = crate::fixture::small_run();
    run.warnings.push(Warning {
        kind: WarningKind::RowsDiffer,
        variant: None,
        message: "different results".to_owned(),
    });
    let text = terminal(&run, &PLAIN);
    let [at, answer] = ["! different results", "ANSWER"].map(|it| text.find(it));
    assert!(at.is_some() && at < answer, "{text}");
    assert_eq!(text.matches("different results").count(), 1);
    let text = comparisons_markdown(&run);
    let [at, table] = ["different results", "| condition"].map(|it| text.find(it));
    assert!(at.is_some() && at < table, "{text}");
}

#[test]
fn failed_transactions_are_not_said_to_be_cut_off() {
    let mut run = crate::fixture::small_run();
    for ledger in &mut run.ledgers {
        (ledger.checks.little_error, ledger.checks.edge) = (0.8, 0.1);
    }
    let cut_off =
        "At 2 of 2 points (a variant under a condition), many long transactions were cut off";
    let text = crate::fixture::words(&run);
    assert!(text.contains(cut_off), "{text}");
    for trial in &mut run.trials {
        trial.failed = 6 * trial.transactions;
    }
    for text in [crate::fixture::words(&run), pgassay_report::html(&run)] {
        assert!(!text.contains("cut off"), "{text}");
    }
}

/// Regression: with `force_generic_plan`, "the generic plan from the sixth execution on" was false.
#[test]
fn a_generic_plan_that_is_forced_is_used_from_the_first_execution() {
    let mut run = crate::fixture::plans::run_with_plans();
    let sixth = "uses the generic plan from the sixth execution on";
    let words = |run: &Run| {
        let text = terminal(run, &PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(words(&run).contains(sixth));
    for point in &mut run.plan.points {
        let mode = "force_generic_plan".to_owned();
        point.session.insert("plan_cache_mode".to_owned(), mode);
    }
    let text = words(&run);
    assert!(!text.contains(sixth), "{text}");
    assert!(
        text.contains("use the generic plan for every execution"),
        "{text}"
    );
}

/// Regression: two plans whose steps read different numbers of blocks were headed "Plan of … differs".
#[test]
fn plans_that_differ_in_figures_only_are_the_same_plan() {
    let mut run = crate::fixture::plans::run_with_plans();
    let differences = &mut run.plans.as_mut().unwrap().differences;
    for statement in differences.iter_mut().flat_map(|it| &mut it.statements) {
        let changes = &mut statement.difference.changes;
        changes.retain(|it| it.kind == PlanChangeKind::Buffers);
        assert!(!changes.is_empty());
    }
    let text = crate::fixture::words(&run);
    let title = "Same plan for \"prepared\" as for \"simple\", with different figures:";
    assert!(
        text.contains(title) && !text.contains("differs from that"),
        "{text}"
    );
}

/// Regression: the blocks of a cursor's whole query were those of a transaction that fetched 100 rows.
#[test]
fn a_cursor_that_was_only_planned_has_no_blocks_and_a_reason() {
    let mut run = crate::fixture::plans::run_with_plans();
    let plans = run.plans.as_mut().unwrap();
    let statement = &mut plans.points[0].statements[1];
    let note = "No numbers of rows and blocks: FETCH decides how much of a cursor's query runs.";
    "declare c cursor for select 1".clone_into(&mut statement.text);
    assert!(!crate::fixture::words(&run).contains(note), "executed");
    let plans = run.plans.as_mut().unwrap();
    plans.points[0].statements[1].plans[0].is_executed = false;
    assert!(crate::fixture::words(&run).contains(note));
    assert!(html(&run).contains(note));
}

/// Regression: PLANS was missing if the scripts had different numbers of statements.
#[test]
fn plans_without_a_counterpart_are_counted() {
    let mut run = crate::fixture::plans::run_with_equal_plans();
    let plans = run.plans.as_mut().unwrap();
    let more = plans.points[1].statements.clone();
    plans.points[1].statements.extend(more);
    let of = |run: &Run| {
        let text = terminal(run, &PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let sentence = "\"prepared\" has 2 query plans and \"simple\" 1: those without a counterpart are not compared.";
    let text = of(&run);
    assert!(text.contains(sentence), "{text}");
    run.plans.as_mut().unwrap().differences[0].same = 0;
    let text = of(&run);
    assert!(text.contains("PLANS") && text.contains(sentence), "{text}");
}

#[test]
fn equal_plans_take_one_line_and_plans_not_taken_none() {
    let text = terminal(&crate::fixture::plans::run_with_equal_plans(), &PLAIN);
    let lines = text
        .lines()
        .filter(|it| it.to_lowercase().contains("plans"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(
        lines,
        ["PLANS  The statements have the same plans in all variants."]
    );
    assert!(!terminal(&crate::fixture::small_run(), &PLAIN).contains("PLANS"));
}

#[test]
fn expectations_source_and_unit_are_shown() {
    assert_snapshot!(
        "expectations",
        &terminal(
            &crate::fixture::expectations::run_with_expectations(),
            &PLAIN
        ),
    );
}

#[test]
fn the_sources_figures_fit_the_terminal_whatever_their_names() {
    let mut run = crate::fixture::expectations::run_with_expectations();
    let rows = &mut run.reference.as_mut().expect("a source").rows;
    "12 many of 64, cache, 64 clients, prepared".clone_into(&mut rows[1].name);
    rows[1].published = Some(3_931_633_987_200.0);
    for (width, ratios) in [(100, true), (80, false)] {
        let text = terminal(&run, &Style { width, ..PLAIN });
        let (_, source) = text.split_once("\nSOURCE").expect("the section");
        let (source, _) = source.split_once("\n\n").expect("its end");
        assert!(widest(source) <= width, "{width}: {source}");
        assert_eq!(source.contains("of the same column"), ratios, "{source}");
    }
}

#[test]
fn a_reason_that_all_conditions_share_is_not_counted() {
    let mut run = crate::fixture::run();
    for comparison in &mut run.comparisons {
        comparison.verdict = Verdict::Inconclusive;
        comparison.inconclusive_reason = Some(Inconclusive::TooFewPairs);
    }
    let text = terminal(&run, &PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains(" Reason: the run ended before the first analysis."),
        "{text}"
    );
    assert!(!text.contains("Inconclusive in"), "{text}");
    // Regression: three pairs in disorder had intervals such as [4e-12, 4e11].
    assert!(text.contains(" (no interval yet) "), "{text}");
}

/// It said "plan, plan vs plan (…, no interval)".
#[test]
fn a_largest_difference_within_noise_is_told_in_a_sentence() {
    let mut run = crate::fixture::expectations::run_with_expectations();
    let of_figures = run.expectations[0].readings[0].clone();
    run.expectations[0].outcome = Some(CheckOutcome::Inconclusive);
    run.expectations[0].readings = vec![Reading {
        left: "plan (phase) and memory (subsystem)".to_owned(),
        right: "plan".to_owned(),
        left_interval: None,
        outcome: Some(CheckOutcome::Inconclusive),
        ..of_figures
    }];
    let text = terminal(&run, &PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "largest CPU difference: plan (phase) and memory (subsystem); expected: plan (";
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains(", its lead over the next row within noise)"),
        "{text}"
    );
}

#[test]
fn inconclusive_comparisons_show_what_they_need() {
    assert_snapshot!(
        "doubtful",
        &terminal(&crate::fixture::doubtful_run(), &PLAIN)
    );
}

#[test]
fn a_ledger_without_its_tail_says_why() {
    let mut run = crate::fixture::small_run();
    for ledger in &mut run.ledgers {
        ledger.tail = None;
        ledger.checks.profiled_tps_ratio = Some(0.9);
    }
    let flat = |run: &Run| {
        let text = terminal(run, &PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let reason = "No breakdown of the slowest 1%: context switches were recorded during fewer than 20 of them";
    // Once, not for each variant.
    assert_eq!(flat(&run).matches(reason).count(), 1);
    // Regression: `pgassay doctor` was to enable what the other trials of the run had.
    run.ledgers[0].blocked_by = Divider::Nothing;
    assert!(flat(&run).contains("slowest 1%: no context switches were recorded in these short"));
    assert!(!flat(&run).contains("`pgassay doctor` shows how to enable them"));
    for ledger in &mut run.ledgers {
        ledger.blocked_by = Divider::MemoryWaitEvents;
    }
    assert!(flat(&run).contains("slowest 1%: context switches were not recorded"));
}

/// Regression: an interrupted run printed the heading of a group of conditions without any figures.
#[test]
fn a_group_that_was_not_measured_has_no_heading() {
    let mut run = crate::fixture::run();
    let figures = |run: &Run| {
        let text = terminal(run, &PLAIN);
        let from = text.find("FIGURES").expect("there are figures");
        let figures = &text[from..];
        figures[..figures.find("\n\n").unwrap_or(figures.len())].to_owned()
    };
    let headings = |text: &str| {
        let lines = text.lines().skip(1);
        lines.filter(|it| !it.starts_with(' ')).count()
    };
    let all = headings(&figures(&run));
    let second_group = run.points.iter_mut().filter(|it| it.condition >= 3);
    second_group.for_each(|it| it.trials = 0);
    assert_eq!(headings(&figures(&run)), all - 1, "{}", figures(&run));
}

#[test]
fn missing_profiles_show_how_to_enable_them() {
    assert_snapshot!(
        "no-profile",
        &terminal(&crate::fixture::run_without_profiles(), &PLAIN),
    );
}

/// Regression: without the right to sample stacks, three notes said so, each with the same command.
#[test]
fn a_refusal_that_several_probes_meet_is_said_once() {
    let mut run = crate::fixture::small_run();
    let sysctl = "sudo sysctl kernel.perf_event_paranoid=0";
    let reason = "CPU stacks cannot be sampled: kernel.perf_event_paranoid is 2";
    let check = |name: &str, limitation: String, fix: String| Check {
        name: name.to_owned(),
        value: "2".to_owned(),
        limitation: Some(limitation),
        fix: Some(fix),
    };
    let tier = format!("{sysctl}  or  sudo setcap cap_perfmon+ep pgassay");
    run.checks = vec![
        check(
            "tier",
            format!("T2 is not permitted: {reason}"),
            tier.clone(),
        ),
        check(
            "perf_event_paranoid",
            "no stacks".to_owned(),
            sysctl.to_owned(),
        ),
        check(
            "kptr_restrict",
            "no names".to_owned(),
            "sudo sysctl kernel.kptr_restrict=0".to_owned(),
        ),
    ];
    let warning = |message: &str| Warning {
        kind: WarningKind::NoProfile,
        variant: None,
        message: message.to_owned(),
    };
    run.warnings = vec![
        warning(&format!("no CPU profile: {reason}; to permit it: {tier}")),
        warning("no CPU profile: the server is not on this machine"),
    ];
    let text = terminal(&run, &PLAIN);
    let text: Vec<&str> = text.split_whitespace().collect();
    let text = text.join(" ");
    assert_eq!(text.matches(sysctl).count(), 1, "{text}");
    assert!(text.contains("T2 is not permitted"), "{text}");
    assert!(
        text.contains("is not on this machine") && text.contains("no names"),
        "{text}"
    );
    let page = html(&run);
    let (_, notes) = page.split_once("Warnings and limitations").unwrap();
    let (notes, _) = notes.split_once("</section>").unwrap();
    assert_eq!(notes.matches(sysctl).count(), 1, "{notes}");
    assert!(notes.contains("no names"), "{notes}");
}

#[test]
fn single_variant_gets_no_verdict() {
    assert_snapshot!(
        "descriptive",
        &terminal(&crate::fixture::descriptive_run(), &PLAIN),
    );
}

#[test]
fn narrow_terminal_drops_columns_but_no_answer() {
    assert_snapshot!(
        "narrow",
        &terminal(
            &crate::fixture::run(),
            &Style {
                color: false,
                width: 72,
            },
        ),
    );
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for run in all_runs() {
        for width in [72, 80, 100, 200] {
            let text = terminal(
                &run,
                &Style {
                    color: false,
                    width,
                },
            );
            assert!(widest(&text) <= width.min(100), "{width}:\n{text}");
        }
    }
}

#[test]
fn colors_add_only_escape_sequences() {
    let run = crate::fixture::small_run();
    let colored = terminal(
        &run,
        &Style {
            color: true,
            width: 100,
        },
    );
    assert!(colored.contains("\u{1b}[1;32mfaster\u{1b}[0m"));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_eq!(plain, terminal(&run, &PLAIN));
}

#[test]
fn names_cannot_send_terminal_commands() {
    let hostile_plans = crate::fixture::plans::with_plans(crate::fixture::EVIL, r"<b>\u001b[31m&");
    for run in [crate::fixture::hostile_run(), hostile_plans] {
        let text = terminal(&run, &PLAIN);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
    }
}

#[test]
fn invalid_indices_do_not_panic() {
    let mut run = crate::fixture::small_run();
    run.plan.conditions.clear();
    run.comparisons[0].variant = 7;
    assert!(terminal(&run, &PLAIN).contains(&run.study.question));
}

#[test]
fn a_contradicted_and_a_rounded_verdict_are_visible_everywhere() {
    let mut run = crate::fixture::run();
    for (comparison, reason) in run
        .comparisons
        .iter_mut()
        .zip([Inconclusive::RanksDisagree, Inconclusive::BelowResolution])
    {
        comparison.verdict = Verdict::Inconclusive;
        comparison.inconclusive_reason = Some(reason);
        comparison.tps.ranks_disagree = reason == Inconclusive::RanksDisagree;
        comparison.tps.widened = 0.025;
    }
    let text = terminal(&run, &PLAIN);
    let page = pgassay_report::html(&run);
    for shown in [&text, &page] {
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("* The rank test contradicts the mean"));
        assert!(shown.contains("† The pairs vary by less than the resolution"));
        assert!(shown.contains("because the rank test contradicts the interval"));
        assert!(shown.contains("because the pairs vary by less than the resolution"));
    }
    assert!(text.contains(" †\n") && text.contains(" *\n"));
    let json = pgassay_report::json(&run);
    for kept in ["\"ranks_disagree\"", "\"below_resolution\"", "\"widened\""] {
        assert!(json.contains(kept), "{kept}");
    }
}

#[test]
fn a_run_that_kept_cpus_awake_says_so_unless_it_was_not_permitted() {
    let mut run = crate::fixture::small_run();
    let says_so = |run: &Run| terminal(run, &PLAIN).contains("Idle CPUs were kept awake");
    assert!(!says_so(&run));
    run.plan.schedule.keep_cpus_awake = true;
    assert!(says_so(&run));
    run.warnings.push(Warning {
        kind: WarningKind::CpusAsleep,
        variant: None,
        message: "CPUs could not be kept awake".to_owned(),
    });
    assert!(!says_so(&run));
}

/// Regression: a report of a single pair said that differences were "within noise (below 0.00 µs)" and "±? µs".
#[test]
fn the_noise_of_a_single_pair_is_unknown() {
    let mut run = crate::fixture::run();
    let costs = run.comparisons.iter_mut().filter_map(|it| it.cost.as_mut());
    for cost in costs {
        cost.minimum_detectable_us = 0.0;
        let rows = [&mut cost.functions, &mut cost.phases, &mut cost.subsystems];
        let rows = rows.into_iter().flatten();
        for row in rows.chain([&mut cost.total]) {
            (row.low_us, row.high_us) = (row.difference_us, row.difference_us);
            row.change = Change::Inconclusive;
        }
    }
    let ledgers = run
        .comparisons
        .iter_mut()
        .filter_map(|it| it.ledger.as_mut());
    for response in ledgers.map(|it| &mut it.response) {
        (response.low_us, response.high_us) = (response.difference_us, response.difference_us);
    }
    for text in [crate::fixture::words(&run), pgassay_report::html(&run)] {
        let unknown = "The noise of these differences is unknown with a single pair.";
        assert!(text.contains(unknown), "{text}");
        assert!(!text.contains("±?"), "{text}");
    }
    let text = crate::fixture::words(&run);
    assert!(!text.contains("within noise"), "{text}");
}

/// Regression: there was nothing to explain about a verdict "faster".
#[test]
fn a_clear_verdict_with_a_noisy_difference_has_something_to_explain() {
    let mut run = crate::fixture::small_run();
    let response = &mut run.comparisons[0].ledger.as_mut().unwrap().response;
    response.change = Change::Inconclusive;
    for (verdict, sentence) in [
        (Verdict::Faster, "is too noisy to break down."),
        (Verdict::Inconclusive, "is within the noise of these pairs."),
    ] {
        run.comparisons[0].verdict = verdict;
        for text in [crate::fixture::words(&run), pgassay_report::html(&run)] {
            assert!(text.contains(sentence), "{verdict:?}: {text}");
        }
    }
}

/// Regression: "unexplained (blocked) −18.07, …, unexplained 18.07", a row and a total under one name.
#[test]
fn unexplained_time_is_one_figure_in_a_line() {
    let text = crate::fixture::words(&crate::fixture::run_without_profiles());
    let line = "unexplained (blocked) −0.38, rest 0.00";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("rest 0.00, unexplained"), "{text}");
}
