//! Known causes of lost time, provoked on real servers: each is found, and no other beside it.

mod support;

use pgassay_core::comparison::Verdict;
use pgassay_core::finding::Confidence;
use pgassay_core::ledger::Row;
use pgassay_core::run::{Run, Warning, WarningKind};
use std::collections::BTreeSet;
use support::Place;

support::timing_tests! {
    fifteen_causes_are_found_each_where_it_was_provoked,
    what_ten_suffered_from_is_found_on_ten,
    a_server_that_is_set_badly_is_told_by_its_reads_writes_and_log,
    healthy_loads_are_not_taken_for_what_they_resemble,
    a_remedy_is_tried_as_another_variant_of_the_same_study,
    where_no_remedy_can_be_tried_it_says_so,
}

/// States of the machine, which other programs bring about as well: one that is full takes the
/// processor from whoever holds a spinlock, too.
const OF_THE_MACHINE: [&str; 5] = [
    "cpu-saturation",
    "client-limited",
    "throttled",
    "page-faults",
    "spinlocks",
];

/// A variant, what must be found under it, and what may be.
type Expected = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// `None` where there is no server or stacks may not be sampled.
fn run(version: &str, study: &str, arguments: &[&str]) -> Option<Run> {
    pgassay_server::testing::installation(version)?;
    let place = Place::new();
    let finished = place.run(study, &[&["--json"], arguments].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    place.assert_nothing_left();
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    if run.profiles.is_empty() {
        pgassay_server::testing::skip("findings", "sampling is not permitted here");
        return None;
    }
    Some(run)
}

fn found(run: &Run, variant: usize) -> BTreeSet<&str> {
    run.findings
        .iter()
        .filter(|it| it.variant == Some(variant) && it.difference_us.is_none())
        .map(|it| it.id.as_str())
        .collect()
}

/// A machine that others fill lengthens the response time, of which a cause is then a smaller share:
/// what is missed in one run is looked for in another.
const TRIES: u32 = 3;

/// What must be found is, in one of a few runs, and nothing else in any.
fn check(version: &str, study: &str, expected: &[Expected]) -> Option<Run> {
    let mut missed: BTreeSet<(&str, &str)> = expected
        .iter()
        .flat_map(|(name, must, _)| must.iter().map(move |id| (*name, *id)))
        .collect();
    let mut wrong = BTreeSet::new();
    let mut had_the_machine = false;
    for _ in 0..TRIES {
        let run = run(version, study, &[])?;
        let is_foreign = |it: &Warning| it.kind == WarningKind::ForeignLoad;
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
    pgassay_server::testing::skip_unless_ci("findings", &reason);
    None
}

/// What parallel workers use is no time of the backend that waits for them: it stands beside.
fn workers_stand_beside_their_leaders(run: &Run) {
    let variant = run.plan.variants.iter().position(|it| it == "parallel");
    let variant = variant.expect("it is in the study");
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
            // What of a hundred versions finds no room goes to pages that others write, too.
            ("nested", &["subtransactions"], &["pruning", "hot-page"]),
            (
                "sequence",
                &["sequence-page"],
                &["hot-page", "wal-insertion"],
            ),
            // Four sessions lock the same parents, so these have several lockers at once.
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
    workers_stand_beside_their_leaders(&run);
    // A comparison proves what a point alone can only suggest.
    let simple = run.plan.variants.iter().position(|it| it == "simple");
    let between = run
        .findings
        .iter()
        .find(|it| it.id == "parse-and-plan" && it.variant == simple && it.difference_us.is_some());
    let between = between.expect("the baseline is prepared");
    assert!(between.difference_us > Some(0.0), "{between:?}");
}

fn what_ten_suffered_from_is_found_on_ten() {
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
    // What a comparison found has been tried by it, and advises nothing more to try.
    let mut findings = run.findings.iter();
    let routing = findings.find(|it| it.id == "partition-routing" && it.difference_us.is_none());
    let routing = routing.expect("it was found");
    assert_eq!(
        routing.variants[0].version.as_deref(),
        Some("18"),
        "{routing:?}"
    );
}

fn a_server_that_is_set_badly_is_told_by_its_reads_writes_and_log() {
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

/// What each healthy load resembles. It must not be found there, whatever else the machine does.
const RESEMBLES: [(&str, &[&str]); 5] = [
    ("keys", &["hot-row"]),
    ("parallel", &["parallel-start"]),
    ("sort", &["temporary-files"]),
    ("asynchronous", &["commit-sync"]),
    ("pruned", &["cached-plan-locks", "partition-routing"]),
];

fn healthy_loads_are_not_taken_for_what_they_resemble() {
    let study = include_str!("findings/healthy.toml");
    let Some(run) = run("18", study, &[]) else {
        return;
    };
    // The inserts do wait for each other, or the first of these would prove nothing.
    let keys = run.ledgers.iter().find(|it| it.variant == 0);
    let waited = |it: &&Row| it.mechanism == "Lock transactionid";
    let rows = &keys.expect("its backends are ours").rows;
    assert!(rows.iter().any(|it| waited(&it)), "{rows:?}");
    for (name, ids) in RESEMBLES {
        let variant = run.plan.variants.iter().position(|it| it == name);
        let found = found(&run, variant.expect("it is in the study"));
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

fn a_remedy_is_tried_as_another_variant_of_the_same_study() {
    let study = SIMPLE.replace("PROTOCOL", "simple");
    let Some(run) = run("18", &study, &["--try-remedies"]) else {
        return;
    };
    let tried = run.remedies.as_ref().expect("the protocol can be tried");
    assert_eq!(tried.plan.variants, ["simple", "simple, protocol=prepared"]);
    let [comparison] = &tried.comparisons[..] else {
        panic!("one remedy, one comparison: {:?}", tried.comparisons)
    };
    // Neither parsed nor planned again: that much less CPU is seen on the busiest machine.
    let [simple, prepared] = &tried.points[..] else {
        panic!("one remedy, two points: {:?}", tried.points)
    };
    assert!(
        prepared.server_cpu_us < simple.server_cpu_us,
        "{comparison:?}"
    );
    let finding = run.findings.iter().find(|it| it.id == "parse-and-plan");
    let finding = finding.expect("it was found");
    let fix = finding.tried.as_ref().expect("its fix was run");
    assert_eq!(fix.name, "protocol=prepared");
    // In the second stage a comparison shows what moved; only the finding whose fix was run is
    // confirmed by it.
    let in_stage = tried.findings.iter();
    let surest = in_stage.map(|it| it.confidence).max();
    assert!(surest <= Some(Confidence::Moved), "{:?}", tried.findings);
    let moved = tried.findings.iter().any(|it| {
        it.id == finding.id && it.confidence == Confidence::Moved && it.difference_us < Some(0.0)
    });
    let proved = moved && comparison.verdict == Verdict::Faster;
    assert_eq!(finding.confidence == Confidence::Confirmed, proved);
}

fn where_no_remedy_can_be_tried_it_says_so() {
    let study = SIMPLE.replace("PROTOCOL", "prepared");
    let Some(run) = run("18", &study, &["--try-remedies"]) else {
        return;
    };
    assert!(run.remedies.is_none());
    let told = run
        .warnings
        .iter()
        .find(|it| it.kind == WarningKind::Remedies);
    assert!(
        told.expect("it says so")
            .message
            .starts_with("no remedy was tried")
    );
}
