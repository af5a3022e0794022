//! The page: what it must contain, and what it must never do.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use html5gum::emitters::default::DefaultEmitter;
use html5gum::{Token, Tokenizer};
use insta::assert_snapshot;
use pgassay_account::comparison::{Inconclusive, Verdict};
use pgassay_account::ledger::{Part, TailRow};
use pgassay_record::run::Run;
use pgassay_report::{ExportFormat, html, observation_html, scalability_html};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn all_runs() -> Vec<(&'static str, Run)> {
    vec![
        ("study", crate::fixture::run()),
        ("small", crate::fixture::small_run()),
        ("doubtful", crate::fixture::doubtful_run()),
        ("descriptive", crate::fixture::descriptive_run()),
        ("no-profile", crate::fixture::run_without_profiles()),
        ("hostile", crate::fixture::hostile_run()),
        ("counted", crate::fixture::counted_run()),
        ("plans", crate::fixture::plans::run_with_plans()),
        (
            "hostile plans",
            crate::fixture::plans::with_plans(crate::fixture::EVIL, r"<b>\u001b[31m&"),
        ),
    ]
}

/// A tag's name, and the names and values of its attributes.
pub type Tag = (String, Vec<(String, String)>);

/// Every tag with its attributes, and all text outside tags. Panics on anything that the HTML standard
/// calls a parse error, and on tags that do not match.
pub fn parsed(page: &str) -> (Vec<Tag>, String) {
    const VOID: [&str; 3] = ["meta", "input", "br"];
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (mut tags, mut texts) = (Vec::new(), String::new());
    let mut open: Vec<String> = Vec::new();
    for token in Tokenizer::new_with_emitter(page, emitter) {
        match token.unwrap() {
            Token::StartTag(tag) => {
                let name = text(&tag.name);
                let attributes = tag.attributes.iter();
                let attributes = attributes
                    .map(|(name, value)| (text(name), text(value)))
                    .collect();
                if !VOID.contains(&name.as_str()) {
                    open.push(name.clone());
                }
                tags.push((name, attributes));
            }
            Token::EndTag(tag) => {
                assert_eq!(open.pop(), Some(text(&tag.name)), "misplaced end tag");
            }
            Token::String(string) => texts.push_str(&text(&string)),
            Token::Error(error) => panic!("{error:?}"),
            Token::Comment(_) | Token::Doctype(_) => {}
        }
    }
    assert_eq!(open, Vec::<String>::new(), "never closed");
    (tags, texts)
}

/// Without styles, scripts and the data of flame graphs.
#[test]
fn the_main_part_of_a_small_page_matches_its_snapshot() {
    let page = html(&crate::fixture::small_run());
    let (_, main) = page.split_once("<main>").unwrap();
    let (main, _) = main.split_once("</main>").unwrap();
    assert_snapshot!("small", main.replace("><", ">\n<"));
}

/// Regression: three pairs in disorder had whiskers from ×4e-12 to ×4e11, and a shaded area as high as their chart.
#[test]
fn an_interval_is_not_drawn_before_the_first_analysis() {
    let mut run = crate::fixture::run();
    let has = |run: &Run, section: &str, drawn: &str| {
        let page = html(run);
        let (_, rest) = page
            .split_once(&format!("<section id=\"{section}\">"))
            .unwrap();
        let (shown, _) = rest.split_once("</section>").unwrap();
        shown.contains(drawn)
    };
    let [whiskers, area] = [("verdicts", "class=\"ci\""), ("pairs", "class=\"shade\"")];
    assert!(has(&run, whiskers.0, whiskers.1) && has(&run, area.0, area.1));
    for comparison in &mut run.comparisons {
        comparison.verdict = Verdict::Inconclusive;
        comparison.inconclusive_reason = Some(Inconclusive::TooFewPairs);
        (comparison.tps.low, comparison.tps.high) = (4e-12, 4e11);
    }
    assert!(!has(&run, whiskers.0, whiskers.1) && !has(&run, area.0, area.1));
    let csv = pgassay_report::comparisons_csv(&run);
    assert!(!csv.contains("400000000000"), "{csv}");
}

#[test]
fn a_page_has_both_plans_their_difference_and_all_others() {
    let page = html(&crate::fixture::plans::run_with_plans());
    let (_, section) = page.split_once("<section id=\"plans\">").unwrap();
    let (section, _) = section.split_once("</section>").unwrap();
    for shown in [
        "Plan of &quot;prepared&quot; differs from that of &quot;simple&quot;",
        "<li>Method: Seq Scan on test → Index Scan using test_k on test</li>",
        "<li>Total blocks: 935 → 103</li>",
        "~ Seq Scan on test → Index Scan using test_k on test",
        "The generic plan differs from the custom plan; the server uses the generic plan",
        "No plan: BEGIN has no plan",
        "generic plan, used under load",
        "&quot;Node Type&quot;: &quot;Seq Scan&quot;",
    ] {
        assert!(section.contains(shown), "{shown}\n{section}");
    }
    let (_, price) = page.split_once("<section id=\"price\">").unwrap();
    assert!(price.contains("12.3\u{a0}MB") && price.contains("71.3\u{a0}MB"));
}

/// `.ci/page` opens the pages in a browser.
#[test]
fn every_page_is_well_formed() {
    use crate::fixture::activity::{hostile, observation, outage, with_stacks};

    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&directory).unwrap();
    let mut pages: Vec<_> = all_runs()
        .iter()
        .map(|(name, run)| (*name, html(run)))
        .collect();
    pages.extend([
        ("outage", observation_html(&observation(outage()))),
        ("stacks", observation_html(&with_stacks())),
        (
            "hostile server",
            observation_html(&observation(hostile(crate::fixture::EVIL))),
        ),
        ("curve", scalability_html(&crate::scalability::curve())),
    ]);
    for (name, page) in pages {
        std::fs::write(directory.join(format!("{name}.html")), &page).unwrap();
        let (tags, _) = parsed(&page);
        assert!(tags.len() > 50, "{name}: {}", tags.len());
    }
}

/// The texts of the page's scripts, without data.
fn scripts(page: &str) -> Vec<&str> {
    let parts = page.split("<script>").skip(1);
    parts
        .map(|part| part.split("</script>").next().unwrap())
        .collect()
}

#[test]
fn every_page_allows_its_own_script_and_nothing_else() {
    for (name, run) in all_runs() {
        let page = html(&run);
        let (tags, _) = parsed(&page);
        let value = |tag: &Tag, wanted: &str| {
            let found = tag.1.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let first = |wanted: fn(&str) -> bool| tags.iter().position(|tag| wanted(&tag.0)).unwrap();
        let is_policy =
            |tag: &&Tag| value(tag, "http-equiv").as_deref() == Some("Content-Security-Policy");
        let policies: Vec<&Tag> = tags.iter().filter(is_policy).collect();
        assert_eq!(policies.len(), 1, "{name}");
        // It holds for what follows it.
        let at = tags.iter().position(|tag| is_policy(&tag)).unwrap();
        assert!(at < first(|tag| matches!(tag, "style" | "script" | "title")));
        let policy = value(policies[0], "content").unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        let directives = policy
            .split("; ")
            .filter(|it| it.starts_with("script-src "));
        let directives: Vec<&str> = directives.collect();
        let [own] = scripts(&page)[..] else {
            panic!("{name}: more than one script")
        };
        let hash = BASE64.encode(Sha256::digest(own));
        assert_eq!(
            directives,
            [format!("script-src 'sha256-{hash}'")],
            "{name}"
        );
        // What the policy would block.
        for (tag, attributes) in &tags {
            for (attribute, value) in attributes {
                assert!(!attribute.starts_with("on"), "{name}: {tag} {attribute}");
                assert!(!value.starts_with("javascript:"), "{name}: {tag} {value}");
            }
        }
    }
}

#[test]
fn no_page_refers_to_anything_outside_itself() {
    for (name, run) in all_runs() {
        let page = html(&run);
        for forbidden in [
            "http:", "https:", "//www", "@import", "url(", "<link", "<img", "<iframe", "fetch(",
        ] {
            assert!(!page.contains(forbidden), "{name} contains {forbidden}");
        }
        let (tags, _) = parsed(&page);
        for (tag, attributes) in tags {
            for (attribute, value) in attributes {
                assert_ne!(attribute, "src", "{name}: {tag}");
                assert!(
                    attribute != "href" || value.starts_with('#'),
                    "{name}: {tag} {value}"
                );
                assert!(!attribute.starts_with("on"), "{name}: {tag} {attribute}");
            }
        }
    }
}

#[test]
fn user_text_is_escaped() {
    let page = html(&crate::fixture::hostile_run());
    let (tags, texts) = parsed(&page);
    let scripts = tags.iter().filter(|(name, _)| name == "script").count();
    assert_eq!(scripts, 2, "the data and our own");
    assert!(texts.contains("</script><script>alert(\"1\")</script>'&\u{fffd}"));
    assert!(
        !page
            .chars()
            .any(|c| c.is_control() && c != '\n' && c != '\t')
    );
}

/// Regression: a condition that a run does not have ended the report with a panic, and so did sums beyond 64 bits in a
/// debug build.
#[test]
fn a_forged_run_does_not_end_the_report_with_a_panic() {
    let mut forged = crate::fixture::run();
    forged.started_us = i64::MIN;
    forged.plan.schedule.repeats = u32::MAX;
    for comparison in &mut forged.comparisons {
        comparison.condition = usize::MAX;
    }
    for trial in &mut forged.trials {
        (trial.started_us, trial.window_us) = (i64::MAX, f64::MAX);
        (trial.transactions, trial.failed) = (u64::MAX, u64::MAX);
    }
    for profile in &mut forged.profiles {
        profile.quality.samples = u64::MAX;
        profile.quality.observed_ns = u64::MAX;
    }
    html(&forged);
    pgassay_report::terminal(&forged, &pgassay_report::Style::default());
}

#[test]
fn answer_comes_before_details() {
    let page = html(&crate::fixture::run());
    let (_, texts) = parsed(&page);
    let place = |text: &str| texts.find(text).unwrap_or_else(|| panic!("no {text:?}"));
    let order = [
        "Do prepared statements pay off",
        "prepared is faster than simple in all 6 conditions: throughput ×1.245 to ×1.284.",
        "Verdicts",
        "×1.245 [1.236, 1.253]",
        "Where CPU time differs",
        "−12.61 ±0.22 µs/tx",
        "base_yyparse",
        "by number of clients",
        "Flame graphs",
        "in the order they ran",
        "Figures",
        "How to reproduce this run",
        "42 (the same seed",
        "-fwrapv -Os",
        "select f1(:id);",
    ];
    for pair in order.windows(2) {
        let (first, then) = (place(pair[0]), texts.rfind(pair[1]).unwrap());
        assert!(
            first < then,
            "{:?} should come before {:?}",
            pair[0],
            pair[1]
        );
    }
}

#[test]
fn every_flame_graph_adds_up_to_its_points_cost() {
    for run in [
        crate::fixture::run(),
        crate::fixture::small_run(),
        crate::fixture::hostile_run(),
    ] {
        let page = html(&run);
        let (_, after) = page.split_once("type=\"application/json\">").unwrap();
        let (data, _) = after.split_once("</script>").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        let mut sums = 0;
        for (at, condition) in data["conditions"].as_array().unwrap().iter().enumerate() {
            let parents = condition["parents"].as_array().unwrap();
            for (child, parent) in parents.iter().enumerate() {
                assert!(
                    parent.as_i64().unwrap() < i64::try_from(child).unwrap(),
                    "callers come before callees"
                );
            }
            for (variant, costs) in condition["self"].as_array().unwrap().iter().enumerate() {
                let sum_ns: f64 = costs
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|it| it.as_f64().unwrap())
                    .sum();
                let point = run
                    .points
                    .iter()
                    .find(|it| (it.condition, it.variant) == (at, variant));
                let exact_ns = point.unwrap().server_cpu_us.unwrap() * 1000.0;
                // Every node is rounded to a tenth of a nanosecond.
                let tolerance_ns = 0.05 * parents.len() as f64 + 1e-6;
                assert!(
                    (sum_ns - exact_ns).abs() < tolerance_ns,
                    "{sum_ns} is not {exact_ns}"
                );
                sums += 1;
            }
        }
        assert_eq!(sums, run.points.len());
    }
}

/// Regression: where one variant's CPU time was not divided by phase, it had 0 µs in each phase, and the other 0 µs of CPU
/// time.
#[test]
fn cpu_time_that_is_not_divided_is_not_zero_in_each_phase() {
    let mut run = crate::fixture::small_run();
    let with = |run: &mut Run, ledger: usize, mechanism: &str| {
        let tail = run.ledgers[ledger].tail.as_mut().unwrap();
        tail.rows.retain(|it| it.part != Part::OnCpu);
        let row = TailRow {
            part: Part::OnCpu,
            mechanism: mechanism.to_owned(),
            ..tail.rows[0].clone()
        };
        tail.rows.push(row);
    };
    with(&mut run, 0, "CPU");
    with(&mut run, 1, "plan");
    let page = html(&run);
    let (_, table) = page.split_once("<table class=\"tail\"").unwrap();
    let cells = |name: &str| -> Vec<String> {
        let (_, row) = table.split_once(&format!("<td>{name}</td>")).unwrap();
        let (row, _) = row.split_once("</tr>").unwrap();
        row.split("</td>")
            .map(|it| it.rsplit('>').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(cells("CPU: plan")[..2], ["–", "–"]);
    assert_ne!(cells("CPU: plan")[2], "–");
    assert_ne!(cells("CPU")[0], "–");
    assert_eq!(cells("CPU")[2..4], ["–", "–"]);
}

#[test]
fn page_contains_the_tail() {
    let run = crate::fixture::small_run();
    let (_, texts) = parsed(&html(&run));
    for part in [
        "slowest 1%",
        "p99 1,210 to 1,340 µs; ",
        "client and network",
        "139 of 417 transactions observed; context switches recorded for 33.0% of the time",
    ] {
        assert!(texts.contains(part), "no {part:?}");
    }
}

/// The data of the flame graphs.
fn flame_data(page: &str) -> Value {
    let (_, after) = page.split_once("type=\"application/json\">").unwrap();
    let (data, _) = after.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn instruction_counts_are_drawn_like_time() {
    let run = crate::fixture::counted_run();
    let costs = run.instructions.as_ref().unwrap();
    let alone = pgassay_report::instruction_counts_html(costs, "0.1.0");
    for (page, before) in [(html(&run), 1), (alone, 0)] {
        let (_, texts) = parsed(&page);
        for part in [
            "Instructions per transaction",
            "By subsystem, instructions per transaction",
            "By function, instructions per transaction",
            "−8,947.0",
            "23,400.0",
            "base_yyparse",
            "Left out: clients = [1, 8]: one is counted",
        ] {
            assert!(texts.contains(part), "no {part:?}");
        }
        let data = flame_data(&page);
        assert_eq!(data["conditions"].as_array().unwrap().len(), before + 1);
        let counted = &data["conditions"][before];
        assert_eq!(counted["unit"], "instructions/tx");
        let sum = |variant: usize| -> f64 {
            let costs = counted["self"][variant].as_array().unwrap();
            costs.iter().map(|it| it.as_f64().unwrap()).sum()
        };
        assert!((sum(0) - 23_400.0).abs() < 0.1 && (sum(1) - 14_453.0).abs() < 0.1);
        let link = format!("data-condition=\"{before}\" data-variant=\"1\"");
        assert!(page.contains(&link), "the account links to its flame graph");
    }
    let page = html(&run);
    for part in [
        "Timed, under the condition with the fewest clients",
        "tps ratio",
    ] {
        assert!(page.contains(part), "no {part:?}");
    }
}

#[test]
fn the_page_itself_is_small() {
    let page = html(&crate::fixture::descriptive_run());
    assert!(page.len() < 60_000, "{} bytes", page.len());
    let page = html(&crate::fixture::run());
    // Eighteen points, twelve comparisons.
    assert!(page.len() < 360_000, "{} bytes", page.len());
}

#[test]
fn instruction_counts_are_exported_by_call_path() {
    let costs = crate::fixture::instructions::costs("", ["a", "b"]);
    let tree = costs.counts.conditions[0].variants[0]
        .tree
        .as_ref()
        .unwrap();
    let text = |format| {
        let bytes = pgassay_report::export_instruction_counts(tree, "a, PostgreSQL 18.6", format);
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    };
    assert_eq!(
        text(ExportFormat::Folded).unwrap(),
        "PostgresMain 270000\n\
         PostgresMain;PortalRun;ExecScan</script> 3600000\n\
         PostgresMain;PortalRun;palloc 450000\n\
         PostgresMain;exec_simple_query;base_yyparse 2700000\n"
    );
    let perf = text(ExportFormat::Perf).unwrap();
    assert!(perf.contains("# Event count: 7020000\n"), "{perf}");
    assert!(
        perf.contains("\n    57.69%     0.00%  postgres  postgres       [.] PortalRun\n"),
        "{perf}"
    );
    assert!(perf.contains(" --38.46%--exec_simple_query"), "{perf}");
    assert_eq!(text(ExportFormat::Pprof), None);
}

#[test]
fn findings_state_a_difference_once_and_fold_their_many_rows() {
    let run = crate::fixture::run();
    let page = html(&run);
    let (_, section) = page.split_once("<section id=\"findings\">").unwrap();
    let (section, _) = section.split_once("</section>").unwrap();
    assert!(
        !section.contains("µs/tx in"),
        "the column of figures has it"
    );
    let id = &run.findings[0].id;
    let rows = run.findings.iter().filter(|it| it.id == *id).count();
    assert!(rows > 5, "{rows}");
    assert!(section.contains(&format!("<summary>{} more</summary>", rows - 5)));
    assert_eq!(section.matches("<tr><td>").count(), run.findings.len());
}
