//! Tail ledgers on a real server: a cause that affects few transactions leads the tail's ledger but
//! not the overall one, and the rows add up to what the clients measured.

use pgassay_account::ledger::{Ledger, Nature, Part, Tail};
use pgassay_model::trial::TrialKind;
use pgassay_record::run::Run;
use pgassay_test_support::{Scratch, servers, timing_tests};

use crate::PROGRAM;

timing_tests! {
    a_rare_sleep_leads_the_tail_and_not_the_mean,
    a_rarely_contended_row_leads_the_tail,
    rare_work_is_attributed_by_phase,
}

const SETUP: &str = "
create table t (id int primary key, n int);
insert into t select g, 0 from generate_series(1, 1000) g;
vacuum analyze t;
";

/// One transaction in 150 sleeps: longer than any other transaction takes even on a busy machine, but
/// so short that other waits have a larger mean even on an idle one.
const SLEEPER: &str = r"
\set rare random(1, 150)
\if :rare = 1
select pg_sleep(0.01);
\else
\set id random(1, 1000)
select n from t where id = :id;
\endif
";

/// One transaction in 80 updates a row and holds its lock for a while.
const LOCKER: &str = r"
\set rare random(1, 80)
\if :rare = 1
begin;
update t set n = n + 1 where id = 1;
select pg_sleep(0.01);
commit;
\else
\set id random(1, 1000)
select n from t where id = :id;
\endif
";

/// One transaction in 150 computes for a long time.
const COMPUTER: &str = r"
\set rare random(1, 150)
\if :rare = 1
select sum(i) from generate_series(1, 200000) i;
\else
\set id random(1, 1000)
select n from t where id = :id;
\endif
";

/// Runs a study of this script with 16 clients and returns its ledger and run; `None` without a server.
fn ledger(script: &str) -> Option<(Run, Ledger)> {
    servers::installation("18")?;
    let study = format!(
        "question = \"?\"\n[server]\nversion = \"18\"\nsettings = {{ fsync = false }}\n\
         [data]\nsetup = '''{SETUP}'''\n[[script]]\nname = \"mixed\"\ntext = '''{script}'''\n\
         [[variant]]\nname = \"simple\"\n[conditions]\nclients = [16]\n\
         [length]\nfull = \"12s\"\npairs = 2\n"
    );
    let finished = Scratch::on_disk(PROGRAM).run(&study, &["--json"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    let ledger = run.ledgers.first().expect("the point has one").clone();
    Some((run, ledger))
}

/// The tail of a ledger, checked against all data of the run about the same transactions.
fn tail<'a>(run: &Run, ledger: &'a Ledger) -> &'a Tail {
    let tail = ledger.tail.as_ref().expect("context switches were traced");
    let sum =
        |of: fn(&pgassay_account::ledger::TailRow) -> f64| tail.rows.iter().map(of).sum::<f64>();
    let (all_us, tail_us) = (sum(|row| row.all_us), sum(|row| row.tail_us));
    assert!((tail_us / tail.tail_us - 1.0).abs() < 1e-9, "{tail:#?}");
    assert!((all_us / tail.all_us - 1.0).abs() < 1e-9, "{tail:#?}");
    // The histograms of the same trials are independent of the transactions kept for the ledger.
    let profiled = run
        .trials
        .iter()
        .filter(|it| it.kind == TrialKind::Profiled);
    let (mut sum_ns, mut beyond_ns, mut all, mut beyond) = (0.0, 0.0, 0, 0);
    for trial in profiled {
        let latency = trial.latency.histogram().expect("a complete histogram");
        let p99_ns = latency.value_at_percentile(99.0);
        for step in latency.iter_recorded() {
            let count = step.count_since_last_iteration();
            let ns = latency.median_equivalent(step.value_iterated_to()) as f64 * count as f64;
            sum_ns += ns;
            all += count;
            if step.value_iterated_to() > p99_ns {
                beyond_ns += ns;
                beyond += count;
            }
        }
    }
    let within = |ours_us: f64, ns: f64, count: u64| {
        let theirs_us = ns / 1e3 / count as f64;
        assert!(
            (ours_us / theirs_us - 1.0).abs() < 0.02,
            "{ours_us} {theirs_us} {tail:#?}"
        );
    };
    assert_eq!((tail.transactions, tail.dropped), (beyond, 0));
    within(tail.tail_us, beyond_ns, beyond);
    within(tail.all_us, sum_ns, all);
    assert!(tail.transactions * 100 <= all, "at most 1% are above p99");
    assert!(tail.covered >= 20 && tail.covered <= tail.transactions);
    let unresolved = tail.rows.iter().filter(|row| row.part == Part::Unexplained);
    let unexplained_us: f64 = unresolved.map(|row| row.tail_us).sum();
    assert!(unexplained_us < 0.05 * tail.tail_us, "{tail:#?}");
    tail
}

fn a_rare_sleep_leads_the_tail_and_not_the_mean() {
    let Some((run, ledger)) = ledger(SLEEPER) else {
        return;
    };
    let tail = tail(&run, &ledger);
    let lead = &tail.rows[0];
    assert_eq!(lead.mechanism, "sleep", "{tail:#?}");
    assert_eq!(lead.nature, Nature::Think);
    assert!(lead.tail_us > 0.5 * tail.tail_us, "{tail:#?}");
    let of_all = |row: &&pgassay_account::ledger::TailRow| row.all_us > lead.all_us;
    assert!(tail.rows.iter().any(|row| of_all(&row)), "{tail:#?}");
    assert_ne!(
        ledger.groups()[0].mechanism,
        "sleep",
        "{:#?}",
        ledger.groups()
    );
}

fn a_rarely_contended_row_leads_the_tail() {
    let Some((run, ledger)) = ledger(LOCKER) else {
        return;
    };
    let tail = tail(&run, &ledger);
    let lead = &tail.rows[0];
    assert!(lead.mechanism.starts_with("Lock "), "{tail:#?}");
    assert_eq!(lead.nature, Nature::Queueing);
}

fn rare_work_is_attributed_by_phase() {
    let Some((run, ledger)) = ledger(COMPUTER) else {
        return;
    };
    let tail = tail(&run, &ledger);
    let mut on_cpu = tail.rows.iter().filter(|row| row.part == Part::OnCpu);
    let lead = on_cpu.next().expect("the query succeeds");
    assert_eq!(lead.mechanism, "execute", "{tail:#?}");
    assert!(lead.tail_us > 20.0 * lead.all_us, "{tail:#?}");
    assert!(on_cpu.next().is_some(), "there are other phases");
}
