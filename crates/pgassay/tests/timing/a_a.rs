//! A/A: the measurements in a pair must not depend on the variant or its position in the block.

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::Run;
use pgassay_test_support::{Scratch, servers, timing_tests};

use crate::PROGRAM;

timing_tests! {
    blocks_read_do_not_depend_on_variant_or_position,
}

/// Two identical variants, and a table four times as large as the cache.
const LARGER_THAN_CACHE: &str = r#"question = "Does a setting that does nothing make a difference?"
[server]
version = "15"
settings = { shared_buffers = "16MB" }
[data]
setup = """
create table t (id int primary key, filler text);
insert into t select g, repeat('x', 900) from generate_series(1, 60000) g;
vacuum analyze t;
"""
[[script]]
name = "s"
text = '''
\set id random(1, 60000)
select filler from t where id = :id;
'''
[[variant]]
name = "a"
[[variant]]
name = "b"
session = { application_name = "b" }
[conditions]
clients = [4]
[length]
full = "3s"
pairs = 6
"#;

fn blocks_read(trial: &Trial) -> f64 {
    let blocks = trial.counters.get("pg_stat_database.blks_read");
    blocks.expect("the server counts them") / trial.transactions_total as f64
}

/// With equal random numbers, the second trial would find the first one's pages in the cache, and
/// trials would read less than half as much, depending on their position in the block.
fn blocks_read_do_not_depend_on_variant_or_position() {
    if !servers::is_available("15") {
        return;
    }
    let scratch = Scratch::on_disk(PROGRAM);
    let finished = scratch.run(LARGER_THAN_CACHE, &["--json", "--seed", "7"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    scratch.assert_nothing_left();
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    let counted = run.trials.iter().filter(|it| !it.counters.is_empty());
    let trials: Vec<&Trial> = counted
        .filter(|it| it.kind != TrialKind::HardwareCounters && it.transactions_total >= 100)
        .collect();
    assert!(trials.len() >= 12, "only {} trials", trials.len());
    let read = trials.iter().map(|trial| blocks_read(trial));
    let (low, high) = read.fold((f64::MAX, 0.0f64), |(low, high), each| {
        (low.min(each), high.max(each))
    });
    // Three of four lookups miss; with 100 transactions the share has a standard deviation of 0.04.
    assert!(
        low > 0.55 && high < 0.95,
        "{low} to {high} blocks read per transaction"
    );
    let boots: Vec<u32> = run.trials.iter().map(|trial| trial.server_start).collect();
    assert_eq!(boots.last(), Some(&5), "a restart after every block");
    assert!(boots.is_sorted());
    assert!(run.trials.iter().all(|it| it.server_start == it.block));
}
