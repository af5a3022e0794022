//! Ledgers of real servers: they add up to what the clients measured, and known causes have the
//! largest rows.
//!
//! The loads are those for which sums are hardest to get right: many round trips, pipelines, a
//! contended row, a log that is read too slowly. Trials are short, because identities need no
//! precision; other programs on the machine lengthen times but do not break sums.

use pgassay_account::ledger::{
    CheckName, Divider, Ledger, LedgerDifference, Nature, Part, PointMeasurements, Row,
    SAMPLES_ERROR_MAX, difference,
};
use pgassay_model::plan::PointId;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_model::waits::WaitSource;
use pgassay_record::run::Run;
use pgassay_test_support::{Finished, Scratch, os::refuse, servers, timing_tests};

use crate::PROGRAM;

timing_tests! {
    ledgers_close_over_round_trips_and_pipelines,
    a_contended_row_leads,
    a_slow_log_reader_leads,
    waits_for_the_log_on_disk_lead,
    sleep_and_computation_of_the_client_are_attributed_to_it,
    the_run_queue_leads_where_processors_are_short,
    wait_events_of_pg_stat_activity_apportion_blocked_time,
    a_wrong_input_fails_its_consistency_check,
}

/// Tolerance of the rows' sum against the clients' clock.
const CLOSURE: f64 = 0.02;
const UNRESOLVED: f64 = 0.05;

/// If other programs or CPU steal take this share of the machine …
const OTHERS: f64 = 0.05;
/// … this share of samples is attributed to the wrong program: see `pgassay_profile`'s `samples`.
const LATE_TIMERS: f64 = 0.25;
/// Tolerance of all processes against the machine's idle time, which has a resolution of one tick.
const MACHINE: f64 = 0.05;

/// Runs a study; `None` if there is no such server.
fn run(study: &str) -> Option<Run> {
    servers::installation("18")?;
    let finished = Scratch::on_disk(PROGRAM).run(study, &["--json"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    Some(serde_json::from_str(&finished.stdout).expect("JSON on stdout alone"))
}

/// The ledger of a variant's point whose condition title contains these words.
fn ledger<'a>(run: &'a Run, variant: &str, words: &str) -> &'a Ledger {
    let named = |it: &&Ledger| {
        run.plan.variants[it.variant] == variant
            && run.plan.conditions[it.condition].title().contains(words)
    };
    let mut found = run.ledgers.iter().filter(named);
    found
        .next()
        .unwrap_or_else(|| panic!("no ledger of {variant}, {words}"))
}

fn closes(run: &Run) {
    assert_eq!(
        run.ledgers.len(),
        run.plan.points.len(),
        "every point has one"
    );
    for ledger in &run.ledgers {
        let name = format!(
            "{}, {}",
            run.plan.variants[ledger.variant],
            run.plan.conditions[ledger.condition].title()
        );
        let sum: f64 = ledger.rows.iter().map(|row| row.us).sum();
        let whole = ledger.response_us + ledger.between_transactions_us;
        assert!(
            (sum / whole - 1.0).abs() < 1e-9,
            "{name}: {sum} is not {whole}"
        );
        let checks = ledger.checks;
        // `edge` does not cover transactions longer than the rest of a window.
        let closure = CLOSURE + 2.0 * checks.edge;
        assert!(
            (checks.coverage - 1.0).abs() < closure,
            "{name}: {checks:?}"
        );
        assert!(checks.little_error < closure, "{name}: {checks:?}");
        let unresolved = ledger.part_us(Part::Unexplained) / ledger.response_us;
        assert!(
            unresolved < UNRESOLVED,
            "{name}: {unresolved} {:#?}",
            ledger.rows
        );
        samples_agree(&name, run, ledger);
        let machine_error = checks.machine_error.expect("the check exists");
        // CPU steal is also reported in ticks, by the hypervisor's own clock.
        // Idle time is reported in ticks of 10 ms; each end of a trial may be off by one.
        let timed = 2.0 * f64::from(run.plan.schedule.blocks);
        let ticks = 2.0 * 10_000.0 / run.plan.schedule.trial_us as f64 / timed.sqrt();
        let limit = MACHINE + checks.cpu_steal + ticks;
        assert!(machine_error.abs() < limit, "{name}: {checks:?}");
        let reasons = ledger.blocked_by;
        assert_ne!(reasons, Divider::Nothing, "{name}");
    }
    for comparison in &run.comparisons {
        let ledger = comparison.ledger.as_ref().expect("both sides have one");
        for rows in [&ledger.groups, &ledger.rows] {
            let sum: f64 = rows.iter().map(|row| row.cost.difference_us).sum();
            let whole = ledger.response.difference_us;
            assert!((sum - whole).abs() < 1e-6, "{sum} is not {whole}");
        }
    }
}

/// On a virtual CPU timers fire late. In trials as short as these, the samples stood for 0.67 to 1.16
/// of the exact time on an idle machine; over seconds they agree within 5%.
fn is_virtual() -> bool {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.contains(" hypervisor"))
}

/// Samples of profiled trials stand for the CPU time that the kernel reports for them.
fn samples_agree(name: &str, run: &Run, ledger: &Ledger) {
    let checks = ledger.checks;
    let Some(error) = checks.samples_error else {
        return;
    };
    let is_its = |it: &&Trial| (it.variant, it.condition) == (ledger.variant, ledger.condition);
    let profiled = |it: &&Trial| it.kind == TrialKind::Profiled && is_its(it);
    let of_others: Vec<f64> = run
        .trials
        .iter()
        .filter(profiled)
        .map(|it| it.other_programs + it.cpu_steal)
        .collect();
    let is_shared = of_others.iter().sum::<f64>() > OTHERS * of_others.len() as f64;
    let limit = if is_shared || is_virtual() {
        LATE_TIMERS
    } else {
        SAMPLES_ERROR_MAX
    };
    assert!(
        error.abs() <= limit + 1.5 * checks.samples_chance,
        "{name}: {checks:?}"
    );
}

/// The largest group among those that `of_interest` selects.
fn lead(ledger: &Ledger, of_interest: impl Fn(&Row) -> bool) -> Row {
    let mut groups = ledger.groups();
    groups.retain(of_interest);
    groups
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no such row in {:#?}", ledger.groups()))
}

const TABLES: &str = "
create table pgbench_branches (bid int primary key, bbalance int, filler char(88));
create table pgbench_tellers (tid int primary key, bid int, tbalance int, filler char(84));
create table pgbench_accounts (aid int primary key, bid int, abalance int, filler char(84));
create table pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
insert into pgbench_branches values (1, 0, '');
insert into pgbench_tellers select g, 1, 0, '' from generate_series(1, 10) g;
insert into pgbench_accounts select g, 1, 0, '' from generate_series(1, 100000) g;
create table t (i int);
vacuum analyze;
";

const SIMPLE: &str = "[[variant]]\nname = \"simple\"\n";
const BOTH: &str =
    "[[variant]]\nname = \"simple\"\n[[variant]]\nname = \"prepared\"\nprotocol = \"prepared\"\n";
const EXTENDED: &str = "[[variant]]\nname = \"extended\"\nprotocol = \"extended\"\n";

/// A study of these scripts, as `name = text`, on a server with these settings. Its trials must be
/// much longer than its transactions, or those cut off by a window's ends have too much weight.
fn study(
    settings: &str,
    scripts: &[(&str, &str)],
    variants: &str,
    clients: u32,
    length: &str,
) -> String {
    let names: Vec<String> = scripts
        .iter()
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    let texts: Vec<String> = scripts
        .iter()
        .map(|(name, text)| format!("[[script]]\nname = {name:?}\n{text}\n"))
        .collect();
    let texts = texts.concat();
    format!(
        "question = \"?\"\n[server]\nversion = \"18\"\nsettings = {{ {settings} }}\n\
         [data]\nsetup = '''{TABLES}'''\nreset = \"truncate pgbench_history, t\"\n{texts}\
         {variants}\
         [conditions]\nscript = [{}]\nclients = [{clients}]\n\
         [length]\nfull = \"{length}\"\npairs = 2\n",
        names.join(", ")
    )
}

const HOT_ROW: (&str, &str) = (
    "hot row",
    "text = 'update pgbench_branches set bbalance = bbalance + 1 where bid = 1;'",
);

fn ledgers_close_over_round_trips_and_pipelines() {
    let insert = "insert into t values (1);\n".repeat(50);
    let inserts = format!("text = '''\n{insert}'''");
    let select = ("select-only", "builtin = \"select-only\"");
    let scripts = [select, ("inserts", inserts.as_str())];
    let Some(both) = run(&study("fsync = false", &scripts, BOTH, 4, "6s")) else {
        return;
    };
    closes(&both);
    let pipelined = format!("text = '''\n\\startpipeline\n{insert}\\endpipeline\n'''");
    let pipelined = study(
        "fsync = false",
        &[("pipelined", &pipelined)],
        EXTENDED,
        4,
        "2s",
    );
    closes(&run(&pipelined).expect("the server is available"));
}

/// All sessions update the same row and wait for each other.
fn a_contended_row_leads() {
    let scripts = [("tpcb-like", "builtin = \"tpcb-like\""), HOT_ROW];
    let Some(run) = run(&study("fsync = false", &scripts, SIMPLE, 16, "8s")) else {
        return;
    };
    closes(&run);
    let hot = ledger(&run, "simple", "hot row");
    let waits = lead(hot, |row| row.part == Part::Blocked);
    assert!(waits.mechanism.starts_with("Lock "), "{:#?}", hot.groups());
    assert_eq!(waits.nature, Nature::Queueing);
}

fn a_slow_log_reader_leads() {
    let settings = "fsync = false, logging_collector = true, log_destination = \"csvlog\", \
                    log_statement = \"all\", log_duration = true";
    // Long statements, so that the logger has more to copy than its CPU share allows.
    let long = format!("text = \"select length('{}');\"", "x".repeat(1500));
    let select = ("select", long.as_str());
    let Some(run) = run(&study(settings, &[select], SIMPLE, 64, "8s")) else {
        return;
    };
    closes(&run);
    let ledger = ledger(&run, "simple", "64");
    let waits = lead(ledger, |row| row.part == Part::Blocked);
    assert_eq!(waits.mechanism, "logging pipe", "{:#?}", ledger.groups());
    let logger = ledger.background.iter().find(|row| row.role == "logger");
    assert!(
        logger.is_some_and(|row| row.us > 0.0),
        "{:?}",
        ledger.background
    );
}

/// The mean length of a point's row as a share of its response time.
fn share(ledger: &Ledger, of_interest: impl Fn(&Row) -> bool) -> f64 {
    let rows = ledger.rows.iter().filter(|row| of_interest(row));
    rows.map(|row| row.us).sum::<f64>() / ledger.response_us
}

/// With one client, each commit syncs WAL; several clients share a sync.
fn waits_for_the_log_on_disk_lead() {
    let script = [("insert", "text = 'insert into t values (1);'")];
    let settings = "fsync = true, synchronous_commit = true";
    let Some(alone) = run(&study(settings, &script, SIMPLE, 1, "2s")) else {
        return;
    };
    closes(&alone);
    let alone = ledger(&alone, "simple", "1 client");
    let synced = lead(alone, |row| row.part == Part::Blocked);
    assert!(
        ["WAL sync", "WAL write"].contains(&synced.mechanism.as_str()),
        "{:#?}",
        alone.groups()
    );
    assert_eq!(synced.nature, Nature::Service, "service time of the device");
    // While one syncs, the others wait for its lock or for the shared sync.
    let many = run(&study(settings, &script, SIMPLE, 16, "3s")).expect("the server is available");
    let many = ledger(&many, "simple", "16");
    let lock = share(many, |row| row.mechanism.starts_with("LWLock WALWrite"));
    let all = share(many, |row| row.part == Part::Blocked);
    assert!(lock > 0.5 * all, "{lock} of {all} {:#?}", many.groups());
}

/// A script's sleep is client sleep; a long computation in the client keeps the server waiting.
fn sleep_and_computation_of_the_client_are_attributed_to_it() {
    let script = [(
        "thinks",
        "text = '''\nselect 1;\n\\sleep 2 ms\nselect 1;\n'''",
    )];
    let Some(run) = run(&study("fsync = false", &script, SIMPLE, 2, "2s")) else {
        return;
    };
    closes(&run);
    let ledger = ledger(&run, "simple", "2 clients");
    let asleep = lead(ledger, |_| true);
    assert_eq!(asleep.mechanism, "client sleep", "{:#?}", ledger.groups());
    assert_eq!(asleep.nature, Nature::Think);
    assert!(asleep.us >= 2000.0, "{asleep:?}");
}

/// More CPU-bound backends than CPUs: they wait for a CPU most of the time.
fn the_run_queue_leads_where_processors_are_short() {
    let script = [(
        "computes",
        "text = 'select sum(i) from generate_series(1, 3000) i;'",
    )];
    let Some(run) = run(&study("fsync = false", &script, SIMPLE, 32, "4s")) else {
        return;
    };
    closes(&run);
    let ledger = ledger(&run, "simple", "32");
    let within = lead(ledger, |row| row.part != Part::Client);
    assert_eq!(within.part, Part::RunQueue, "{:#?}", ledger.groups());
    let computes = lead(ledger, |row| row.part == Part::OnCpu);
    assert_eq!(computes.mechanism, "execute", "{:#?}", ledger.groups());
}

/// In a container that forbids both stack sampling and reading memory, as Docker's default profile did.
fn wait_events_of_pg_stat_activity_apportion_blocked_time() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::on_disk(PROGRAM);
    // Four clients update a row and sleep while holding its lock, so three wait.
    let update = "update pgbench_branches set bbalance = bbalance + 1 where bid = 1;";
    let script = format!("text = 'begin; {update} select pg_sleep(.003); commit;'");
    let study = study("fsync = false", &[("asleep", &script)], BOTH, 4, "4s");
    let mut command = scratch.command();
    command.arg("run").arg(scratch.study(&study)).arg("--json");
    let refused = [libc::SYS_perf_event_open, libc::SYS_process_vm_readv];
    refuse(&mut command, &refused, libc::EPERM);
    let finished = Finished::of(&command.output().expect("the program runs"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    for ledger in &run.ledgers {
        let unresolved = ledger.part_us(Part::Unexplained) / ledger.response_us;
        assert!(unresolved < UNRESOLVED, "{:#?}", ledger.rows);
        assert_eq!(ledger.blocked_by, Divider::ActivityWaitEvents);
        let lock = share(ledger, |row| row.mechanism.starts_with("Lock "));
        assert!((0.3..0.9).contains(&lock), "{lock} {:#?}", ledger.rows);
    }
    let of_profiled = run.trials.iter().filter_map(|trial| trial.waits.as_ref());
    let sources: Vec<_> = of_profiled.map(|waits| waits.source).collect();
    assert!(!sources.is_empty());
    assert!(sources.iter().all(|it| *it == WaitSource::PgStatActivity));
    let says = |text: &str| run.warnings.iter().any(|it| it.message.contains(text));
    assert!(
        says("pgassay samples pg_stat_activity"),
        "{:?}",
        run.warnings
    );
    let page = std::fs::read_to_string(scratch.kept()[0].join("report.html")).expect("a page");
    let tier = "CPU in one row (not broken down), blocked time by wait events of pg_stat_activity;";
    assert!(page.contains(tier), "{page}");
}

/// The two sides of a run's first comparison, computed from its trials after `mutate`.
fn compared(run: &Run, mutate: &dyn Fn(&mut Trial)) -> LedgerDifference {
    let comparison = run.comparisons.first().expect("there are two variants");
    let mut trials = run.trials.clone();
    trials.iter_mut().for_each(mutate);
    let side = |variant: usize| PointMeasurements {
        condition: comparison.condition,
        variant,
        trials: trials
            .iter()
            .filter(|it| (it.condition, it.variant) == (comparison.condition, variant))
            .collect(),
        profile: run.profiles.get(
            run.plan
                .index_of(PointId::new(comparison.condition, variant)),
        ),
        major: "18",
    };
    let difference = difference(&side(0), &side(comparison.variant));
    difference
        .expect("complete histograms")
        .expect("there are totals")
}

/// Scales an input of a trial.
type Mutation = fn(&mut Trial, f64);

/// Inputs that a real run measures twice, and the check that compares both.
fn a_wrong_input_fails_its_consistency_check() {
    let select = ("select-only", "builtin = \"select-only\"");
    let Some(run) = run(&study("fsync = false", &[select], BOTH, 8, "4s")) else {
        return;
    };
    let inputs: [(CheckName, Mutation); 7] = [
        (CheckName::CpuClock, |it, by| {
            it.server.iter_mut().for_each(|it| it.on_cpu_us *= by);
        }),
        (CheckName::ClientClock, |it, by| it.window_us *= by),
        (CheckName::Coverage, |it, by| {
            it.credited_transactions = it.credited_transactions.map(|credit| credit * by);
        }),
        (CheckName::Count, |it, by| {
            it.transactions = (it.transactions as f64 * by) as u64;
        }),
        (CheckName::Rate, |it, by| {
            it.transactions_total = (it.transactions_total as f64 * by) as u64;
        }),
        (CheckName::ClientCpu, |it, by| it.client.cpu_us *= by),
        (CheckName::ClientClock, |it, by| {
            it.client.in_transaction_us *= by;
        }),
    ];
    let sound = compared(&run, &|_| ());
    for (name, mutate) in inputs {
        let of_name = |difference: &LedgerDifference| -> Vec<bool> {
            let checks = difference.checks.iter().filter(|it| it.name == name);
            checks.map(|it| it.passed).collect()
        };
        // If other programs load the machine, these two checks may fail on their own.
        if !matches!(name, CheckName::Coverage | CheckName::Rate) {
            assert_eq!(of_name(&sound), [true; 2], "{name:?} {:#?}", sound.checks);
        }
        for factor in [0.5, 2.0, 0.02, 3.0] {
            let mutated = compared(&run, &|it| mutate(it, factor));
            assert_eq!(of_name(&mutated), [false; 2], "{name:?} × {factor}");
            assert!(!mutated.explained);
        }
    }
}
