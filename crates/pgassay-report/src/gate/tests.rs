use super::*;

fn result(verdict: GateVerdict, cost_ratio: f64) -> GateResult {
    GateResult {
        names: names(),
        verdict,
        figures: "throughput ×0.912 [0.893, 0.931] (8 pairs)".to_owned(),
        cost_ratio: Some(cost_ratio),
        is_better: false,
        early_end: None,
    }
}

fn names() -> GateNames {
    GateNames {
        variant: "new|build".to_owned(),
        baseline: "old".to_owned(),
        condition: "8 clients".to_owned(),
    }
}

/// Regression: a comment on a pull request notified people, referred to issues and linked to elsewhere.
#[test]
fn a_name_in_markdown_is_no_mention_reference_link_or_entity() {
    for (name, expected) in [
        ("@octocat", "@\u{2060}octocat"),
        ("#12, GH-1", "#\u{2060}12, GH\u{2060}-1"),
        ("high-load", "high-load"),
        (
            "https://e.example/ www.e.example",
            "https:\u{2060}//e.example/ www\u{2060}.e.example",
        ),
        ("&lt; ~~a~~ $x$", "&amp;lt; \\~\\~a\\~\\~ \\$x\\$"),
        ("gh-", "gh\u{2060}-"),
        ("ä|b", "ä\\|b"),
    ] {
        assert_eq!(in_markdown(name), expected);
    }
}

#[test]
fn one_regression_fails_and_one_doubt_is_no_pass() {
    use GateVerdict::{Inconclusive, NotComparable, Pass, Regression};
    let of = |verdicts: &[GateVerdict]| {
        let all: Vec<GateResult> = verdicts.iter().map(|it| result(*it, 1.0)).collect();
        GateVerdict::of(&all)
    };
    assert_eq!(of(&[Pass, Pass]), Pass);
    assert_eq!(of(&[Pass, Inconclusive]), Inconclusive);
    assert_eq!(of(&[Inconclusive, NotComparable, Pass]), NotComparable);
    assert_eq!(of(&[Inconclusive, Regression, NotComparable]), Regression);
    assert_eq!(of(&[]), Inconclusive);
}

#[test]
fn the_sentence_is_about_the_worst_comparison() {
    let mut all = [
        result(GateVerdict::Pass, 1.0),
        result(GateVerdict::Regression, 1.1),
        result(GateVerdict::Regression, 1.2),
    ];
    all[2].names.variant = "worst".to_owned();
    let sentence = deciding_sentence(&all, GateLimit::Slower(5.0));
    assert_eq!(
        sentence,
        "regression: worst is slower than old by more than 5% with 8 clients: throughput ×0.912 [0.893, 0.931] \
         (8 pairs). 2 of 3 comparisons have this verdict."
    );
    all[0].is_better = true;
    let passed = [all[0].clone(), result(GateVerdict::Pass, 1.02)];
    let sentence = deciding_sentence(&passed, GateLimit::Slower(5.0));
    assert!(
        sentence.starts_with("pass: new|build is not slower than old by more than 5%")
            && sentence.ends_with("1 of 2 improved."),
        "{sentence}"
    );
    let better = deciding_sentence(&passed[..1], GateLimit::Slower(5.0));
    assert!(
        better.starts_with("pass: new|build is faster than old with 8 clients: "),
        "{better}"
    );
}

#[test]
fn instructions_fail_beyond_the_limit_by_more_than_the_margin() {
    let of = |now: f64, margin: Result<f64, &str>| {
        GateResult::of_instructions(names(), [10_000.0, now], margin, 2.0)
    };
    assert_eq!(of(10_199.0, Ok(1.0)).verdict, GateVerdict::Pass);
    assert_eq!(of(10_201.5, Ok(1.0)).verdict, GateVerdict::Regression);
    assert_eq!(of(10_200.5, Ok(1.0)).verdict, GateVerdict::Inconclusive);
    assert_eq!(
        of(20_000.0, Err("not linear")).verdict,
        GateVerdict::Inconclusive
    );
    assert!(of(9_990.0, Ok(1.0)).is_better && !of(9_999.5, Ok(1.0)).is_better);
    let sentence = deciding_sentence(&[of(10_300.0, Ok(5.0))], GateLimit::Instructions(2.0));
    assert_eq!(
        sentence,
        "regression: new|build executes over 2% more instructions than old with 8 clients: 10,000.0 → 10,300.0 \
         instructions per transaction (+3.000% ± 0.050%)."
    );
}

/// Regression: an inconclusive gate on 5% suggested a limit of 2% for instructions.
#[test]
fn an_inconclusive_gate_suggests_instructions_with_its_own_limit() {
    let doubtful = [result(GateVerdict::Inconclusive, 1.04)];
    let sentence = deciding_sentence(&doubtful, GateLimit::Slower(5.0));
    assert!(
        sentence.contains("--fail-if 'instructions > 5%'"),
        "{sentence}"
    );
}

#[test]
fn a_negative_limit_reads_as_a_wanted_improvement() {
    let sentence = |verdict, limit| deciding_sentence(&[result(verdict, 0.99)], limit);
    let slower = GateLimit::Slower(-3.0);
    for (verdict, expected) in [
        (
            GateVerdict::Pass,
            "pass: new|build is faster than old by 3% or more with",
        ),
        (
            GateVerdict::Regression,
            "regression: new|build is not faster than old by 3% with",
        ),
        (
            GateVerdict::Inconclusive,
            "inconclusive: new|build may not be faster than old by 3% with",
        ),
    ] {
        let found = sentence(verdict, slower);
        assert!(found.starts_with(expected), "{found}");
    }
    let found = sentence(GateVerdict::Regression, GateLimit::Instructions(-1.0));
    let expected = "regression: new|build does not execute 1% fewer instructions than old with";
    assert!(found.starts_with(expected), "{found}");
}

#[test]
fn the_json_of_a_gate_has_its_verdict() {
    let all = [
        result(GateVerdict::Pass, 1.0),
        result(GateVerdict::Inconclusive, f64::INFINITY),
    ];
    let value = summary(&all, GateLimit::Slower(5.0), "inconclusive: …");
    assert_eq!(value["verdict"], "inconclusive");
    assert_eq!(value["limit"], "slower > 5%");
    assert_eq!(value["comparisons"][0]["verdict"], "pass");
    assert_eq!(value["comparisons"][0]["cost_ratio"], 1.0);
    assert!(value["comparisons"][1]["cost_ratio"].is_null());
}

#[test]
fn the_first_counts_have_no_difference() {
    let first = GateResult::first_count(names(), 61_872.3, true);
    assert_eq!(
        first.figures,
        "61,872.3 instructions per transaction; nothing to compare with yet"
    );
    assert_eq!(first.verdict, GateVerdict::Pass);
    let bent = GateResult::first_count(names(), 61_872.3, false);
    assert_eq!(bent.verdict, GateVerdict::Inconclusive);
}

#[test]
fn what_is_not_comparable_says_why() {
    let all = [GateResult::not_comparable(
        names(),
        "the kernel is 6, was 5",
    )];
    assert_eq!(
        deciding_sentence(&all, GateLimit::Slower(5.0)),
        "not comparable: new|build with 8 clients: the kernel is 6, was 5."
    );
}

#[test]
fn names_cannot_break_a_table_or_a_workflow_command() {
    let text = markdown(&[result(GateVerdict::Pass, 1.0)], "pass: a|b\n%");
    assert!(text.contains("| new\\|build |"), "{text}");
    assert!(text.contains("**pass: a\\|b %**"), "{text}");
    assert_eq!(
        annotation(AnnotationLevel::Error, "slower by 6%\nsurely"),
        "::error title=pgassay gate::slower by 6%25%0Asurely"
    );
}

#[test]
fn a_comment_of_many_comparisons_is_short_enough_for_github() {
    let all = vec![result(GateVerdict::Pass, 1.0); 5000];
    let text = markdown(&all, "pass");
    assert!(text.chars().count() <= 65_536, "{}", text.len());
    assert!(text.ends_with("more comparisons are not shown.\n"));
}

#[test]
fn a_comparison_without_a_verdict_is_skipped_or_strictly_an_error() {
    let suite = JunitSuite {
        name: "compare".to_owned(),
        hostname: "a&b".to_owned(),
        started_us: 0,
        ended_us: 1_500_000,
        properties: vec![("limit", GateLimit::Slower(5.0).to_string())],
        failure: None,
    };
    let all = [
        result(GateVerdict::Regression, 1.1),
        result(GateVerdict::Inconclusive, 1.0),
        GateResult::not_comparable(names(), "another machine"),
    ];
    let skipped = junit(&suite, &all, false).unwrap();
    assert!(
        skipped.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"2\""),
        "{skipped}"
    );
    assert!(
        skipped.contains("hostname=\"a&amp;b\"") && skipped.contains("value=\"slower &gt; 5%\""),
        "{skipped}"
    );
    // Regression: Jenkins's schema has no such attribute of the outermost element.
    assert_eq!(skipped.matches("skipped=").count(), 1, "{skipped}");
    let strict = junit(&suite, &all, true).unwrap();
    for part in [
        "type=\"regression\"",
        "<error type=\"inconclusive\"",
        "<error type=\"not-comparable\" message=\"another machine\"",
        "errors=\"2\" skipped=\"0\"",
    ] {
        assert!(strict.contains(part), "{part}: {strict}");
    }
}

/// Regression: a crash during the run was `errors="0"`, so a CI that reads this file was green.
#[test]
fn a_run_that_failed_is_an_error_in_junit() {
    let suite = JunitSuite {
        name: "compare".to_owned(),
        hostname: "host".to_owned(),
        started_us: 0,
        ended_us: 1_500_000,
        properties: Vec::new(),
        failure: Some("the server died".to_owned()),
    };
    let xml = junit(&suite, &[], false).unwrap();
    assert!(
        xml.contains("tests=\"1\" failures=\"0\" errors=\"1\""),
        "{xml}"
    );
    assert!(
        xml.contains("<error type=\"failed-run\" message=\"the server died\"/>"),
        "{xml}"
    );
}

/// Regression: a system clock that was set back during the run gave a negative time, which no schema allows.
#[test]
fn a_clock_that_was_set_back_gives_no_negative_time_in_junit() {
    let suite = JunitSuite {
        name: "compare".to_owned(),
        hostname: "host".to_owned(),
        started_us: 7_200_000_000,
        ended_us: 1_500_000,
        properties: Vec::new(),
        failure: None,
    };
    let xml = junit(&suite, &[], false).unwrap();
    assert!(
        xml.contains("time=\"0.000\"") && !xml.contains("time=\"-"),
        "{xml}"
    );
}
