//! Plans of statements on real servers: their differences, and the price of a setting.

use pgassay_explain::PlanKind;
use pgassay_record::plans::{MissingPlanReason, RunPlans, StatementPlans};
use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::{Finished, Scratch, collapse_whitespace, servers};

use crate::PROGRAM;

/// One transaction with a sort, a hash join, a look-up and a write; variants with more memory, an index, and
/// prepared statements.
const STUDY: &str = r#"question = "What do memory and an index change?"
[server]
version = "VERSION"
settings = { fsync = false, jit = false, enable_mergejoin = false, enable_nestloop = false, max_parallel_workers_per_gather = 0 }
[data]
setup = """
create table t as select g as id, g % 1000 as k, md5(g::text) as info from generate_series(1, 40000) g;
create table s as select g as id, repeat('x', 50) as name from generate_series(1, 3000) g;
create table u as select 1 as n;
create function f(x int) returns int language plpgsql as $$ begin return x + 1; end $$;
vacuum analyze t;
vacuum analyze s;
vacuum analyze u;
"""
[[script]]
name = "all"
text = '''
\set k random(1, 1000)
begin;
select count(*) from (select info from t order by info offset 0) x;
select count(s.name) from t join s on t.id = s.id;
select :k - 1 as before \gset
select count(*) from t where k = :before;
update u set n = n + 1;
select f(:k);
end;
'''
[[variant]]
name = "little memory"
session = { work_mem = "64kB" }
[[variant]]
name = "memory"
session = { work_mem = "64MB" }
[[variant]]
name = "index"
session = { work_mem = "64kB" }
setup = "create index t_k on t (k)"
[[variant]]
name = "prepared"
session = { work_mem = "64kB" }
protocol = "prepared"
[conditions]
clients = [1]
[length]
full = "1s"
pairs = 2
"#;

const NOT_EXPLAINABLE: [&str; 2] = ["begin;", "end;"];

fn run_of(finished: &Finished, scratch: &Scratch) -> (Run, String) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let kept = scratch.kept();
    let json = std::fs::read_to_string(kept[0].join("run.json")).expect("run.json");
    let page = std::fs::read_to_string(kept[0].join("report.html")).expect("report.html");
    (serde_json::from_str(&json).expect("run.json is JSON"), page)
}

/// What differs in the plan of the statement that contains `text`, in words.
fn said(plans: &RunPlans, variant: usize, text: &str) -> Vec<String> {
    let mut differences = plans.differences.iter();
    let of_variant = differences
        .find(|it| it.variant == variant)
        .expect("the variant");
    let statements = &plans.points[of_variant.variant_plans].statements;
    let mut differing = of_variant.statements.iter();
    let found = differing.find(|it| statements[it.variant].text.contains(text));
    let changes = found.map(|it| &it.difference.changes).into_iter().flatten();
    changes.map(ToString::to_string).collect()
}

fn statement<'a>(plans: &'a RunPlans, variant: usize, text: &str) -> &'a StatementPlans {
    let mut points = plans.points.iter();
    let point = points
        .find(|it| it.variant == variant)
        .expect("the variant");
    let mut statements = point.statements.iter();
    statements
        .find(|it| it.text.contains(text))
        .expect("the statement")
}

#[test]
fn plans_and_prices_of_18() {
    memory_and_index("18");
}

fn memory_and_index(version: &str) {
    if !servers::is_available(version) {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let study = STUDY.replace("VERSION", version);
    let finished = scratch.run(&study, &["--no-profile"]);
    let (run, page) = run_of(&finished, &scratch);
    let page = page.replace("&quot;", "\"");
    scratch.assert_nothing_left();
    let plans = run.plans.as_ref().expect("plans were taken");
    assert_eq!(plans.points.len(), 4);
    let warned = run
        .warnings
        .iter()
        .find(|it| it.kind == WarningKind::NoPlan);
    assert_eq!(warned, None);

    let sort = said(plans, 1, "order by info");
    assert!(
        sort.iter()
            .any(|it| it.starts_with("Memory of Sort (t): external merge, ")
                && it.contains(" → quicksort, ")),
        "{sort:?}"
    );
    let hash = said(plans, 1, "join s");
    assert!(
        hash.iter().any(|it| it.starts_with("Memory of Hash (")
            && it.contains(" batches, ")
            && it.contains(" → 1 batch, ")),
        "{hash:?}"
    );
    let index = said(plans, 2, "where k = ");
    let (before, after) = ("Method: Seq Scan on t → ", " Scan using t_k on t");
    assert!(
        index[0].starts_with(before) && index[0].ends_with(after),
        "{index:?}"
    );
    assert!(
        index.iter().any(|it| it.starts_with("Buffers of ")),
        "{index:?}"
    );
    assert_eq!(
        said(plans, 2, "order by info"),
        Vec::<String>::new(),
        "the same sort"
    );

    every_statement_is_recorded(plans);
    let text = collapse_whitespace(&finished.stdout);
    for shown in [
        "Plans of \"memory\" differ from those of \"little memory\":",
        "Memory of Sort (t): external merge, ",
        "Plan of \"index\" differs from that of \"little memory\":",
        "Method: Seq Scan on t → ",
        "Total blocks: ",
    ] {
        assert!(text.contains(shown), "{shown}: {}", finished.stdout);
        assert!(
            page.contains(shown.trim_end_matches(':')),
            "{shown} on the page"
        );
    }
    assert!(page.contains("~   Seq Scan on t → "), "both trees as one");
    memory_has_a_price(&run, &text, &page);
}

fn every_statement_is_recorded(plans: &RunPlans) {
    let first = &plans.points[0].statements;
    for text in NOT_EXPLAINABLE {
        let missing = statement(plans, 0, text)
            .missing
            .as_ref()
            .expect("a reason");
        assert_eq!(missing.reason, MissingPlanReason::NotExplainable);
    }
    assert_eq!(first.len(), 8);
    let executed = first.iter().flat_map(|it| &it.plans);
    assert!(executed.clone().count() == 6 && executed.clone().all(|it| it.is_executed));
    assert!(
        statement(plans, 0, "update u").plans[0]
            .json
            .contains("ModifyTable")
    );
    // Regression: 130 blocks of catalogs that the session read once, to compile the function.
    let call = statement(plans, 0, "select f(").plans[0].tree();
    let buffers = call.and_then(|it| it.nodes[0].buffers).expect("blocks");
    assert!(buffers.accessed() < 5.0, "{buffers:?}");
    // The value comes from the query before it, and from the same seed for all variants.
    let values = [0, 1, 2, 3].map(|variant| {
        let values = &statement(plans, variant, "where k = ").values;
        (
            values[0].name.clone(),
            values[0].value.clone().expect("a value"),
        )
    });
    assert_eq!(values[0].0, "before");
    assert!((0..1000).contains(&values[0].1.parse::<u32>().expect("a number")));
    assert!(values.iter().all(|it| *it == values[0]), "{values:?}");
    let prepared = &statement(plans, 3, "where k = ").plans;
    let kinds: Vec<_> = prepared.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Some(PlanKind::Custom), Some(PlanKind::Generic)]);
    let used: Vec<bool> = prepared.iter().map(|it| it.is_used).collect();
    assert_eq!(
        used,
        [false, true],
        "the generic plan is not more expensive"
    );
    assert!(prepared[1].json.contains("$1") && !prepared[0].json.contains("$1"));
}

fn memory_has_a_price(run: &Run, text: &str, page: &str) {
    let memory = |variant: usize| {
        let mut points = run.points.iter();
        let point = points.find(|it| it.variant == variant && it.condition == 0);
        let bytes = point.and_then(|it| it.backend_memory_bytes);
        bytes.expect("the memory of an own server's backends is readable")
    };
    // The sort alone takes more than 2 MB.
    assert!(
        memory(1) > memory(0) + 1_000_000,
        "{} {}",
        memory(0),
        memory(1)
    );
    assert!(
        run.trials.iter().any(|it| it.backend_memory.is_none()),
        "once per round"
    );
    let contexts = &run.points[0].memory_contexts;
    let cache = contexts.iter().find(|it| it.name == "CacheMemoryContext");
    let has_view = run.servers[0].version.starts_with("18");
    let is_cache_read = cache.is_some_and(|it| it.bytes > 100_000 && it.contexts == 1);
    assert_eq!(is_cache_read, has_view, "{contexts:?}");
    assert_eq!(contexts.is_empty(), !has_view);
    assert!(text.contains("peak memory per backend "), "{text}");
    assert!(page.contains("peak memory per backend"));
    let temporary = |variant: usize| {
        let mut points = run.points.iter();
        let point = points.find(|it| it.variant == variant && it.condition == 0);
        let mut counters = point.expect("the point").counters.iter();
        let bytes = counters.find(|it| it.name == "pg_stat_database.temp_bytes");
        bytes.expect("statistics were read").per_transaction
    };
    assert!(temporary(0) > 500_000.0 && temporary(1) < 1000.0);
}

/// Regression: "Total blocks: 368 → 2" of a transaction that fetched 100 rows, which took one block.
#[test]
fn a_cursor_has_a_plan_for_its_first_rows_and_no_blocks_of_all() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let setup =
        "create table t as select g as a, repeat('x', 100) as b from generate_series(1, 20000) g;
                 create index on t (a); vacuum analyze t";
    let cursor =
        "begin; declare c cursor for select * from t order by a; fetch 100 from c; close c; end";
    let all = "select * from t where a > 0 and b <> ''";
    let statements = ["compare", "--setup", setup, cursor, all];
    let short = ["--length", "1s", "--pairs", "2", "--no-profile"];
    let finished = scratch.finished(&[&statements[..], &short].concat());
    let (run, page) = run_of(&finished, &scratch);
    let plans = run.plans.as_ref().expect("plans were taken");
    let declared = &statement(plans, 0, "declare").plans[0];
    assert!(!declared.is_executed && declared.execution_error.is_none());
    assert!(declared.json.contains("Index Scan"), "the first rows");
    assert!(statement(plans, 1, "select").plans[0].is_executed);
    let text = collapse_whitespace(&finished.stdout);
    let note = "No numbers of rows and blocks: FETCH decides how much of a cursor's query runs.";
    assert!(text.contains(note) && page.contains(note), "{text}");
    assert!(!text.contains("Total blocks") && !text.contains("Rows returned"));
}

/// Regression: "The statements have the same plans in all variants" of scripts with another SET LOCAL.
#[test]
fn settings_of_a_script_apply_to_the_plans_of_its_statements() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let setup = "create table t as select g as a from generate_series(1, 20000) g;
                 create index on t (a); vacuum analyze t";
    let script = |settings: &str| format!("begin; {settings}; select a from t where a = 5; end");
    let by_index = script("set local enable_seqscan = off");
    let by_table = script(
        "set local enable_seqscan = on; set enable_indexscan = off; \
                           set local enable_indexonlyscan = off; set local enable_bitmapscan = off",
    );
    let statements = ["compare", "--setup", setup, &by_index, &by_table];
    let short = ["--length", "1s", "--pairs", "2", "--no-profile"];
    let finished = scratch.finished(&[&statements[..], &short].concat());
    let (run, _) = run_of(&finished, &scratch);
    let plans = run.plans.as_ref().expect("plans were taken");
    let changes = said(plans, 1, "select a");
    assert_eq!(
        changes[0],
        "Method: Index Only Scan using t_a_idx on t → Seq Scan on t"
    );
    assert!(!run.warnings.iter().any(|it| it.kind == WarningKind::NoPlan));
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_statement_that_cannot_be_explained_is_a_warning_and_plans_can_be_left_out() {
        if !servers::is_available("18") {
            return;
        }
        let study = r#"question = "Is a statement that cannot be explained harmless?"
[server]
version = "18"
[data]
setup = "create table seen (a int)"
[[script]]
name = "temporary"
text = """
    begin;
    insert into seen values (1);
    select 1 / count(*) from seen;
    create temp table x (a int);
    insert into x values (1);
    rollback;
    """
[[variant]]
name = "one"
[[variant]]
name = "other"
session = { work_mem = "1MB" }
[conditions]
clients = [1]
[length]
full = "1s"
pairs = 2
"#;
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(study, &["--no-profile"]);
        let (run, _) = run_of(&finished, &scratch);
        assert!(run.complete);
        let plans = run.plans.as_ref().expect("plans were taken");
        let missing = statement(plans, 0, "insert into x")
            .missing
            .as_ref()
            .expect("a reason");
        assert_eq!(missing.reason, MissingPlanReason::Failed);
        let divided = &statement(plans, 0, "1 / count").plans[0];
        assert!(!divided.is_executed && divided.json.contains("Aggregate"));
        let error = divided.execution_error.as_deref();
        assert_eq!(
            error,
            Some("ERROR: division by zero"),
            "only its transaction has a row"
        );
        let said = run
            .warnings
            .iter()
            .find(|it| it.kind == WarningKind::NoPlan);
        let said = &said.expect("a warning").message;
        let expected = "no plan of \"one\": script \"temporary\", line 5: ERROR: relation \"x\" does not exist";
        assert_eq!(said, expected);
        let line = "PLANS  The statements have the same plans in all variants.";
        assert!(finished.stdout.contains(line), "{}", finished.stdout);

        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(study, &["--no-profile", "--no-plans"]);
        let (run, _) = run_of(&finished, &scratch);
        assert_eq!(run.plans, None);
        assert!(!run.plan.schedule.plans);
        assert!(!run.warnings.iter().any(|it| it.kind == WarningKind::NoPlan));
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn plans_and_prices_of_12() {
        memory_and_index("12");
    }
}
