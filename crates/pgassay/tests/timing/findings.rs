//! Known causes of lost time, provoked on real servers: pgassay finds each and no other.

use pgassay_account::comparison::Verdict;
use pgassay_account::ledger::Row;
use pgassay_record::finding::Confidence;
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_test_support::{Scratch, sampling_is_permitted, servers, skip, timing_tests};
use std::collections::BTreeSet;

use crate::PROGRAM;

timing_tests! {
    fifteen_causes_are_found_each_where_it_was_provoked,
    problems_of_version_10_are_found_on_10,
    badly_configured_servers_are_found_by_reads_writes_and_log,
    healthy_loads_have_no_findings,
    a_suggested_fix_is_benchmarked_as_a_variant,
    a_warning_reports_that_no_fix_can_be_tried,
}

/// Findings about the machine, which other programs can cause: on a saturated machine, for example,
/// the holder of a spinlock may lose its CPU.
const OF_THE_MACHINE: [&str; 5] = [
    "cpu-saturation",
    "client-limited",
    "throttled",
    "page-faults",
    "spinlocks",
];

/// A variant, its required findings, and its permitted findings.
type Expected = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// `None` if there is no server or sampling stacks is not permitted.
fn run(version: &str, study: &str, arguments: &[&str]) -> Option<Run> {
    servers::installation(version)?;
    let scratch = Scratch::on_disk(PROGRAM);
    let finished = scratch.run(study, &[&["--json"], arguments].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    scratch.assert_nothing_left();
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    if !sampling_is_permitted() {
        return None;
    }
    assert!(!run.profiles.is_empty());
    Some(run)
}

fn found(run: &Run, variant: usize) -> BTreeSet<&str> {
    run.findings
        .iter()
        .filter(|it| it.variant == Some(variant) && it.difference_us.is_none())
        .map(|it| it.id.as_str())
        .collect()
}

/// On a machine saturated by others, response times are longer and a cause has a smaller share. What
/// is missed in one run may be found in another.
const TRIES: u32 = 3;

/// Checks that the required findings appear in one of a few runs, and no others in any.
fn check(version: &str, study: &str, expected: &[Expected]) -> Option<Run> {
    let mut missed: BTreeSet<(&str, &str)> = expected
        .iter()
        .flat_map(|(name, must, _)| must.iter().map(move |id| (*name, *id)))
        .collect();
    let mut wrong = BTreeSet::new();
    let mut had_the_machine = false;
    for _ in 0..TRIES {
        let run = run(version, study, &[])?;
        let is_foreign = |it: &Warning| it.kind == WarningKind::OtherLoad;
        had_the_machine |= !run.warnings.iter().any(is_foreign);
        for (name, must, may) in expected {
            let variant = run.plan.variants.iter().position(|it| it == name);
            let found = found(&run, variant.expect("the variant is in the study"));
            missed.retain(|(of, id)| of != name || !found.contains(id));
            let allowed = [*must, *may, &OF_THE_MACHINE[..]].concat();
            for id in found.iter().filter(|id| !allowed.contains(id)) {
                wrong.insert(format!("{name}: {id} is not there"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}: {:?}", run.findings);
        if missed.is_empty() {
            return Some(run);
        }
    }
    assert!(!had_the_machine, "not found in {TRIES} runs: {missed:?}");
    let reason = format!("other programs filled the machine: {missed:?} not found");
    skip("findings", &reason);
    None
}

/// Parallel workers are background processes; their time is not part of the backend's.
fn parallel_workers_are_background_processes(run: &Run) {
    let variant = run.plan.variants.iter().position(|it| it == "parallel");
    let variant = variant.expect("the variant is in the study");
    let of_workers = |name: &Option<String>| name.as_deref() == Some("ParallelWorkerMain");
    let frames = &run.profiles[variant].frames;
    assert!(!frames.is_empty() && !frames.iter().any(|it| of_workers(&it.symbol)));
    let background = run
        .trials
        .iter()
        .filter(|trial| trial.variant == variant)
        .flat_map(|trial| &trial.background);
    let ended = background.filter(|it| it.role == "ended processes");
    assert!(ended.map(|it| it.cpu.on_cpu_us).sum::<f64>() > 0.0);
}

fn fifteen_causes_are_found_each_where_it_was_provoked() {
    let study = include_str!("findings/many.toml");
    let checked = check(
        "18",
        study,
        &[
            ("quiet", &[], &[]),
            ("simple", &["parse-and-plan"], &[]),
            ("custom", &["custom-plans"], &[]),
            ("logged", &["logging"], &[]),
            ("rounds", &["round-trips"], &[]),
            (
                "hot",
                &["hot-row"],
                &["pruning", "lock-manager", "round-trips"],
            ),
            ("sort", &["temporary-files"], &[]),
            ("temporary", &["catalog-churn"], &["buffer-pin", "hot-page"]),
            // Row versions that do not fit go to pages that other sessions also write.
            ("nested", &["subtransactions"], &["pruning", "hot-page"]),
            (
                "sequence",
                &["sequence-page"],
                &["hot-page", "wal-insertion"],
            ),
            // Four sessions lock the same parent rows, so these have several lockers at once.
            (
                "children",
                &["foreign-key-checks"],
                &["multixacts", "hot-page", "relation-extension"],
            ),
            ("parts", &["cached-plan-locks"], &["lock-manager"]),
            (
                "parallel",
                &["parallel-start"],
                &["lock-manager", "round-trips"],
            ),
            (
                "locking",
                &["relation-lock"],
                &["strong-lock", "round-trips", "lock-manager"],
            ),
            ("commit", &["commit-sync"], &["pruning"]),
            ("pages", &["full-page-images"], &["pruning", "data-reads"]),
        ],
    );
    let Some(run) = checked else {
        return;
    };
    parallel_workers_are_background_processes(&run);
    // A comparison confirms what a single point can only suggest.
    let simple = run.plan.variants.iter().position(|it| it == "simple");
    let between = run
        .findings
        .iter()
        .find(|it| it.id == "parse-and-plan" && it.variant == simple && it.difference_us.is_some());
    let between = between.expect("the baseline is prepared");
    assert!(between.difference_us > Some(0.0), "{between:?}");
}

fn problems_of_version_10_are_found_on_10() {
    let study = include_str!("findings/old.toml");
    let checked = check(
        "10",
        study,
        &[
            ("plain", &[], &["relation-extension", "snapshots"]),
            (
                "parts",
                &["partition-routing"],
                &["lock-manager", "relation-extension"],
            ),
            ("function", &["sql-function-planned-inside"], &["snapshots"]),
        ],
    );
    let Some(run) = checked else {
        return;
    };
    // A comparison has already tried its suggested fix, so it suggests nothing more.
    let mut findings = run.findings.iter();
    let routing = findings.find(|it| it.id == "partition-routing" && it.difference_us.is_none());
    let routing = routing.expect("the finding exists");
    assert_eq!(
        routing.fix_variants[0].version.as_deref(),
        Some("18"),
        "{routing:?}"
    );
}

fn badly_configured_servers_are_found_by_reads_writes_and_log() {
    let study = include_str!("findings/small.toml");
    let _ = check(
        "18",
        study,
        &[
            ("enough", &[], &[]),
            ("reads", &["data-reads"], &["checksums", "buffer-mapping"]),
            (
                "writes",
                &["backend-writes"],
                &[
                    "data-reads",
                    "checksums",
                    "full-page-images",
                    "pruning",
                    "buffer-mapping",
                    "relation-extension",
                    "hot-page",
                    "wal-buffers",
                ],
            ),
            ("logged", &["logging"], &[]),
        ],
    );
}

/// The finding that each healthy load resembles, and that must not appear for it.
const RESEMBLES: [(&str, &[&str]); 5] = [
    ("keys", &["hot-row"]),
    ("parallel", &["parallel-start"]),
    ("sort", &["temporary-files"]),
    ("asynchronous", &["commit-sync"]),
    ("pruned", &["cached-plan-locks", "partition-routing"]),
];

fn healthy_loads_have_no_findings() {
    let study = include_str!("findings/healthy.toml");
    let Some(run) = run("18", study, &[]) else {
        return;
    };
    // Check that inserts do wait for each other; otherwise the first load would be no test.
    let keys = run.ledgers.iter().find(|it| it.variant == 0);
    let waited = |it: &&Row| it.mechanism == "Lock transactionid";
    let rows = &keys.expect("the ledger exists").rows;
    assert!(rows.iter().any(|it| waited(&it)), "{rows:?}");
    for (name, ids) in RESEMBLES {
        let variant = run.plan.variants.iter().position(|it| it == name);
        let found = found(&run, variant.expect("the variant is in the study"));
        let wrong: Vec<&&str> = ids.iter().filter(|id| found.contains(*id)).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?} in {:?}", run.findings);
    }
}

const SIMPLE: &str = r#"question = "How fast is a look-up?"
[server]
version = "18"
[data]
setup = "create table t (id int primary key, n int); insert into t select g, g from generate_series(1, 1000) g; vacuum analyze t"
[[script]]
name = "s"
text = '''
\set id random(1, 1000)
select n from t where id = :id;
'''
[[variant]]
name = "PROTOCOL"
protocol = "PROTOCOL"
[conditions]
clients = [2]
[length]
full = "2s"
pairs = 3
"#;

fn a_suggested_fix_is_benchmarked_as_a_variant() {
    let study = SIMPLE.replace("PROTOCOL", "simple");
    let Some(run) = run("18", &study, &["--try-fixes"]) else {
        return;
    };
    let tried = run.fix_trials.as_ref().expect("the protocol can be tried");
    assert_eq!(tried.plan.variants, ["simple", "simple, protocol=prepared"]);
    let [comparison] = &tried.comparisons[..] else {
        panic!("one remedy, one comparison: {:?}", tried.comparisons)
    };
    // No parsing and planning: the saving is visible even on a busy machine.
    let [simple, prepared] = &tried.points[..] else {
        panic!("one remedy, two points: {:?}", tried.points)
    };
    assert!(
        prepared.server_cpu_us < simple.server_cpu_us,
        "{comparison:?}"
    );
    let finding = run.findings.iter().find(|it| it.id == "parse-and-plan");
    let finding = finding.expect("the finding exists");
    let fix = finding.fix_result.as_ref().expect("its fix was run");
    assert_eq!(fix.name, "protocol=prepared");
    // The second stage's comparison confirms only the finding whose fix it tried.
    let mut others = tried.findings.iter().filter(|it| it.id != finding.id);
    assert!(
        others.all(|it| it.confidence <= Confidence::Correlated),
        "{:?}",
        tried.findings
    );
    let moved = tried.findings.iter().any(|it| {
        it.id == finding.id
            && it.confidence == Confidence::Correlated
            && it.difference_us < Some(0.0)
    });
    let proved = moved && comparison.verdict == Verdict::Faster;
    assert_eq!(finding.confidence == Confidence::Confirmed, proved);
}

fn a_warning_reports_that_no_fix_can_be_tried() {
    let study = SIMPLE.replace("PROTOCOL", "prepared");
    let Some(run) = run("18", &study, &["--try-fixes"]) else {
        return;
    };
    assert!(run.fix_trials.is_none());
    let warning = run.warnings.iter().find(|it| it.kind == WarningKind::Fixes);
    assert!(
        warning
            .expect("there is a warning")
            .message
            .starts_with("no suggested fix was tried")
    );
}
