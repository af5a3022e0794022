//! Scalability curves, in the terminal and as a page.

use insta::assert_snapshot;
use pgassay_account::scalability::{
    CurveFigure, CurvePoint, FittedLaw, LimitKind, ScalabilityCurve, ScalingLimit,
};
use pgassay_report::{Style, scalability_html, scalability_json, scalability_text};

use crate::html::parsed;

const PLAIN: Style = Style {
    color: false,
    width: 100,
};

fn figure(estimate: f64, low: f64, high: f64) -> CurveFigure {
    let finite = |value: f64| value.is_finite().then_some(value);
    CurveFigure {
        estimate: finite(estimate),
        low: finite(low),
        high: finite(high),
    }
}

/// A peak at 22 clients, with noise that alternates.
fn law() -> FittedLaw {
    FittedLaw {
        per_client: figure(5_012.0, 4_900.0, 5_130.0),
        contention: figure(0.03, 0.026, 0.035),
        crosstalk: figure(0.002, 0.0018, 0.0022),
        knee: figure(10.6, 9.7, 11.4),
        peak: figure(22.0, 20.4, 23.9),
        greatest: figure(44_000.0, 43_100.0, 44_900.0),
        noise: 0.021,
        misfit: 0.0,
    }
}

fn limit(kind: LimitKind, row: &str) -> ScalingLimit {
    ScalingLimit {
        kind,
        row: row.to_owned(),
        us: 180.0,
        growth_us: 240.0,
    }
}

fn point(clients: u32, tps: f64, limit: Option<ScalingLimit>) -> CurvePoint {
    let mean_us = f64::from(clients) / tps * 1e6;
    CurvePoint {
        clients,
        rate: None,
        rounds: 3,
        seconds: 12.0,
        throughput: figure(tps, tps * 0.98, tps * 1.02),
        fitted: Some(law().throughput(f64::from(clients))),
        latency_mean_us: mean_us,
        latency_p50_us: mean_us * 0.9,
        latency_p95_us: mean_us * 2.0,
        latency_p99_us: mean_us * 4.0,
        limit,
    }
}

pub fn curve() -> ScalabilityCurve {
    let clients = [1, 2, 4, 8, 10, 16, 20, 24, 32, 64];
    let points = clients.iter().enumerate().map(|(at, clients)| {
        let noise = if at % 2 == 0 { 1.02 } else { 0.985 };
        let tps = law().throughput(f64::from(*clients)) * noise;
        let limit = match clients {
            1 => None,
            2 | 4 => Some(limit(LimitKind::Nothing, "")),
            8 | 10 => Some(limit(LimitKind::LightweightLocks, "LWLock WALWrite")),
            _ => Some(limit(LimitKind::Processors, "run queue")),
        };
        point(*clients, tps, limit)
    });
    ScalabilityCurve {
        schema: "pgassay.curve/1".to_owned(),
        pgassay_version: "0.0.0".to_owned(),
        run: "20261123-040611-curve".to_owned(),
        load: "select-only, prepared protocol, PostgreSQL 18".to_owned(),
        points: points.collect(),
        measured_s: 42.0,
        law: Some(law()),
        no_law: None,
        sustained_rate: None,
        warnings: Vec::new(),
    }
}

/// Latency against the rate, up to a rate that is too high.
fn rate_curve() -> ScalabilityCurve {
    let rates = [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0, 9_000.0];
    let points = rates.map(|rate: f64| {
        let latency_us = 200.0 + 300.0 / (1.0 - rate / 9_500.0);
        CurvePoint {
            rate: Some(rate),
            throughput: CurveFigure {
                estimate: Some(rate.min(8_400.0)),
                low: None,
                high: None,
            },
            fitted: None,
            latency_mean_us: latency_us,
            latency_p95_us: latency_us * 3.0,
            latency_p99_us: latency_us * 5.0,
            ..point(
                16,
                rate,
                Some(limit(LimitKind::Locks, "Lock transactionid")),
            )
        }
    });
    ScalabilityCurve {
        points: points.to_vec(),
        law: None,
        sustained_rate: Some(8_000.0),
        ..curve()
    }
}

/// A plateau, and a name that tries to send commands.
fn hostile_curve() -> ScalabilityCurve {
    let mut curve = curve();
    let law = curve.law.as_mut().unwrap();
    law.peak = figure(f64::INFINITY, 70.0, f64::INFINITY);
    law.knee = figure(f64::INFINITY, 66.0, f64::INFINITY);
    "<script>alert(1)</script>\u{1b}[2J".clone_into(&mut curve.load);
    curve.points[3].limit = Some(limit(LimitKind::OtherWaits, "</td>\u{7}IPC x"));
    curve
}

#[test]
fn the_text_of_a_curve_matches_its_snapshot() {
    assert_snapshot!("clients", scalability_text(&curve(), &PLAIN));
    assert_snapshot!("rates", scalability_text(&rate_curve(), &PLAIN));
}

#[test]
fn the_text_fits_80_columns_and_sends_no_commands() {
    for curve in [curve(), rate_curve(), hostile_curve()] {
        let text = scalability_text(&curve, &PLAIN);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text}");
    }
    let text = scalability_text(&hostile_curve(), &PLAIN);
    assert!(text.contains("no peak up to 64 clients"), "{text}");
    assert!(text.contains("no knee up to 64 clients"), "{text}");
}

/// Regression: "Throughput has no peak up to 64 clients" although the interval contained 50.
#[test]
fn a_peak_that_may_have_been_measured_was_denied() {
    let mut curve = curve();
    let law = curve.law.as_mut().unwrap();
    law.peak = figure(80.0, 50.0, f64::INFINITY);
    law.knee = figure(70.0, 40.0, 90.0);
    let text = scalability_text(&curve, &PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Throughput probably peaks beyond 64 clients [50.0, more than 64]. With 64,",
        "The knee is probably beyond 64 clients [40.0, more than 64]: with more,",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_curve_without_a_law_says_why_and_one_point_is_no_plot() {
    let mut curve = curve();
    curve.law = None;
    curve.no_law = Some("too few".to_owned());
    let text = scalability_text(&curve, &PLAIN);
    assert!(text.contains("No law was fitted: too few."), "{text}");
    curve.points.truncate(1);
    let text = scalability_text(&curve, &PLAIN);
    assert!(!text.contains('│') && text.contains("1 point"), "{text}");
    curve.points.clear();
    assert!(!scalability_text(&curve, &PLAIN).is_empty());
    parsed(&scalability_html(&curve));
}

/// Regression: locks limited a hot row from 2 clients on, but the answer had only the limit of the last number.
#[test]
fn the_limit_at_the_knee_was_not_in_the_answer() {
    let text = |curve: &ScalabilityCurve| {
        let text = scalability_text(curve, &PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut curve = curve();
    let before = "From 8 to 10 clients, it is lightweight locks (LWLock WALWrite).";
    assert!(text(&curve).contains(before), "{}", text(&curve));
    // A single number of clients may differ by chance.
    curve.points[3].limit = Some(limit(LimitKind::Nothing, ""));
    let lone = text(&curve);
    assert!(
        lone.contains("From 16 clients on, the limit is the CPUs"),
        "{lone}"
    );
    assert!(!lone.contains("it is lightweight locks"), "{lone}");
}

/// Regression: the answer was "waits have no names without profiling", also if the trials were profiled.
#[test]
fn unexplained_time_is_not_always_due_to_a_missing_profile() {
    let mut curve = curve();
    for point in &mut curve.points[5..] {
        point.limit = Some(limit(LimitKind::Unexplained, "blocked, reason unknown"));
    }
    let expected = "From 16 clients on, the limit is time without an explanation (blocked, reason unknown): at 64";
    let text = scalability_text(&curve, &PLAIN);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(expected), "{text}");
    assert!(!text.contains("profil"), "{text}");
}

/// Regression: after a sentence with the peak, the next one read "Nor do they determine the knee."
#[test]
fn an_unknown_knee_is_a_sentence_of_its_own_after_a_known_peak() {
    let law = FittedLaw {
        knee: figure(10.6, 1.0, f64::INFINITY),
        ..law()
    };
    let curve = ScalabilityCurve {
        law: Some(law),
        ..curve()
    };
    let text = scalability_text(&curve, &PLAIN);
    assert!(
        text.contains("Throughput peaks at about 22.0 clients"),
        "{text}"
    );
    assert!(
        text.contains("→ These measurements do not determine the knee."),
        "{text}"
    );
    // Regression: the chart marked it nevertheless.
    assert!(text.contains("↑peak") && !text.contains("↑knee"), "{text}");
    let page = scalability_html(&curve);
    assert!(
        page.contains(">peak</text>") && !page.contains(">knee</text>"),
        "{page}"
    );
}

/// Regression: with `-c 8..64`, the answer was "The knee is at about 3.1 clients [2.2, 4.0]", and the chart marked it.
#[test]
fn a_knee_below_the_fewest_measured_clients_is_not_stated_as_found() {
    let mut curve = curve();
    curve.points.drain(..3);
    let law = curve.law.as_mut().unwrap();
    law.knee = figure(3.1, 2.2, 4.0);
    law.peak = figure(7.0, 5.0, 12.0);
    let joined = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = joined(scalability_text(&curve, &PLAIN));
    for expected in [
        "The knee is at or below 8 clients, the fewest measured: with more,",
        "Throughput peaks at or below 8 clients, the fewest measured [less than 8, 12.0]. With 8, the fitted curve",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(!text.contains("↑peak") && !text.contains("↑knee"), "{text}");
    let page = scalability_html(&curve);
    assert!(!page.contains(">peak</text>") && !page.contains(">knee</text>"));
}

/// Regression: "The intervals include this" was said of a misfit that was not estimated.
#[test]
fn a_misfit_beyond_the_intervals_is_not_said_to_be_in_them() {
    for (misfit, expected) in [
        (0.0, "The intervals are too narrow for this."),
        (0.08, "The intervals include this."),
    ] {
        let mut curve = curve();
        curve.law.as_mut().unwrap().misfit = misfit;
        let tps = curve.points[1].tps() * 1.15;
        curve.points[1].throughput = figure(tps, tps * 0.99, tps * 1.01);
        let text = scalability_text(&curve, &PLAIN);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let start =
            "The law does not hold exactly: it misses the throughput of 2 clients by 11.7%. ";
        assert!(text.contains(&format!("{start}{expected}")), "{text}");
    }
}

/// Regression: "at 64 clients, NaN% of the growth of the response time".
#[test]
fn a_busy_load_generator_without_growth_has_no_share_of_it() {
    let mut curve = curve();
    let busy = ScalingLimit {
        us: 0.0,
        growth_us: 0.0,
        ..limit(LimitKind::LoadGenerator, "client CPU")
    };
    for point in &mut curve.points[5..] {
        point.limit = Some(busy.clone());
    }
    let text = scalability_text(&curve, &PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "the limit is the load generator (client CPU), not the server. From 8 to 10";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_page_is_well_formed_and_has_a_picture() {
    for (name, curve) in [
        ("curve", curve()),
        ("curve-by-rate", rate_curve()),
        ("hostile-curve", hostile_curve()),
    ] {
        let page = scalability_html(&curve);
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"));
        std::fs::write(path, &page).unwrap();
        let (tags, texts) = parsed(&page);
        let count = |wanted: &str| tags.iter().filter(|tag| tag.0 == wanted).count();
        assert_eq!(count("figure"), 2, "{name}");
        assert_eq!(count("script"), 1, "{name}");
        // Each point in the chart of throughput, and twice in that of latency.
        assert_eq!(count("circle"), 3 * curve.points.len(), "{name}");
        assert!(texts.contains("tps"), "{name}");
        assert!(!page.contains("NaN") && !page.contains("inf,"), "{name}");
    }
}

#[test]
fn a_curve_survives_json() {
    for curve in [curve(), rate_curve(), hostile_curve()] {
        let text = scalability_json(&curve);
        let read: ScalabilityCurve = serde_json::from_str(&text).unwrap();
        assert_eq!(read, curve);
    }
}

/// Regression: the page of a curve did not say that other programs used 63% of the machine's CPU time, as the terminal did.
#[test]
fn the_page_of_a_curve_has_its_warnings() {
    let warning = "other programs used about 63% of the CPU time";
    let disturbed = ScalabilityCurve {
        warnings: vec![warning.to_owned()],
        ..curve()
    };
    assert!(scalability_html(&disturbed).contains(warning));
    let stored = scalability_json(&disturbed);
    let stored: ScalabilityCurve = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored, disturbed);
}

/// Regression: the page drew the knee at 1.8 clients with an interval to 3.5, and the sentence was "2 clients [1, 4]".
#[test]
fn the_knee_has_the_same_figures_in_the_sentence_as_on_the_page() {
    let mut early = curve();
    early.law.as_mut().unwrap().knee = figure(1.8, 1.04, 3.46);
    for text in [scalability_text(&early, &PLAIN), scalability_html(&early)] {
        assert!(
            text.contains("The knee is at about 1.8 clients [1.0, 3.5]"),
            "{text}"
        );
    }
}

/// Regression: a point with 12,061 tps was drawn on the line that was labeled 10,875.
#[test]
fn the_label_in_the_middle_of_a_plot_is_the_value_of_its_line() {
    let text = scalability_text(&curve(), &PLAIN);
    let labels: Vec<(usize, f64)> = text
        .lines()
        .filter(|line| line.contains('│'))
        .enumerate()
        .filter_map(|(row, line)| {
            let label = line.split('│').next()?.replace(',', "");
            Some((row, label.trim().parse().ok()?))
        })
        .collect();
    let [(0, highest), (middle, value), (last, 0.0)] = labels[..] else {
        panic!("{labels:?}");
    };
    let expected = highest * (last - middle) as f64 / last as f64;
    assert!((value - expected).abs() <= 1.0, "{labels:?}");
}
