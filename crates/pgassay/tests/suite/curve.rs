//! `pgassay curve`: on real servers.

use pgassay_account::scalability::ScalabilityCurve;
use pgassay_record::run::Run;
use pgassay_test_support::Scratch;

#[test]
fn a_curve_has_a_law_and_a_limit_and_is_stored_as_a_run() {
    let scratch = Scratch::new(crate::PROGRAM);
    let page = scratch.path().join("curve.html");
    let page = page.to_str().expect("a plain path");
    let args = [
        "curve", "-S", "-c", "1..6", "--length", "2s", "--json", "-o", page,
    ];
    let output = scratch.ok(&args);
    let curve: ScalabilityCurve = serde_json::from_str(&output).expect("the curve is JSON");
    let clients: Vec<u32> = curve.points.iter().map(|it| it.clients).collect();
    // The coarse grid, whatever the search adds.
    assert!(
        clients.is_sorted() && [1, 2, 4, 6].iter().all(|it| clients.contains(it)),
        "{clients:?}"
    );
    assert!(
        curve
            .points
            .iter()
            .all(|it| it.rounds > 0 && it.tps() > 0.0)
    );
    assert!(
        curve.points[1..].iter().all(|it| it.limit.is_some()),
        "{:?}",
        curve.points
    );
    let law = curve.law.as_ref().expect("three blocks determine the law");
    let knee = law
        .knee
        .low
        .expect("a knee is never certainly infinite on 6 clients");
    assert!(knee >= 1.0);
    let text = std::fs::read_to_string(page).expect("the page was written");
    assert!(text.contains("<svg") && text.contains("Universal Scalability Law"));
    let run: Run = serde_json::from_str(&scratch.ok(&["show", "--json"])).expect("a run");
    assert!(run.complete && run.id == curve.run, "{}", run.id);
    assert!(scratch.ok(&["show"]).contains("FIGURES"));
    let stored = scratch.results().join(&run.id);
    assert!(stored.join("curve.json").is_file() && stored.join("curve.html").is_file());
}

#[test]
fn impossible_curves_say_what_is_missing() {
    let scratch = Scratch::new(crate::PROGRAM);
    for (args, expected) in [
        (vec!["curve"], "nothing to run"),
        (
            vec!["curve", "-S", "-c", "1,2"],
            "at least 3 numbers of clients",
        ),
        (vec!["curve", "-S", "-c", "8..2"], "expected MIN..MAX"),
        (
            vec!["curve", "-S", "--rate", "100", "-c", "1,2"],
            "with --rate, -c takes one number",
        ),
    ] {
        let output = scratch.finished(&args);
        let error = output.stderr;
        assert_eq!(output.code, Some(1), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_curve_by_rate_counts_latency_from_the_schedule() {
        let scratch = Scratch::new(crate::PROGRAM);
        // With 4 clients of 50 ms, about 80 transactions per second are possible: of 320, the backlog grows, and
        // so does the latency from the schedule; the statement itself takes no longer. Every rate of a list is
        // measured, whatever the machine sustains.
        let statement = "select pg_sleep(0.05)";
        let mut args = vec![
            "curve", "--setup", "select 1", "--rate", "40,320", "-c", "4",
        ];
        args.extend(["--length", "12s", "--no-profile", "--json", statement]);
        let curve: ScalabilityCurve = serde_json::from_str(&scratch.ok(&args)).expect("JSON");
        assert_eq!(curve.law, None);
        let [low, high] = &curve.points[..] else {
            panic!("two rates: {:?}", curve.points);
        };
        assert_eq!((low.rate, high.rate), (Some(40.0), Some(320.0)));
        assert!(high.tps() < 100.0, "{high:?}");
        assert!(curve.sustained_points() < 2);
        assert_eq!(low.rounds, high.rounds);
        assert!(low.latency_p50_us >= 50_000.0, "{low:?}");
        assert!(high.latency_mean_us > 2.0 * 50_000.0, "{high:?}");
        assert!(curve.sustained_rate.is_none_or(|it| it < 100.0));
    }
}
