//! Plans of real servers.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use pgassay_explain::{
    ExplainOptions, ExplainRequest, PlanChangeKind, PlanDifference, PlanKind, PreparedPlans,
    QueryPlan, StatementEffect, node_shares, plan_kind, plan_text,
};
use support::{Session, said};

/// Everything that holds for each version since 12.
fn all_since_12(session: &mut Session) {
    an_index(session);
    sort_memory(session);
    hash_memory(session);
    parallel_workers(session);
    many_partitions(session);
    writing_statements_are_rolled_back(session);
    generic_and_custom_plans(session);
    subplans_are_charged_once(session);
    the_same_query_twice(session);
}

#[test]
fn plans_of_12() {
    if let Some(mut session) = Session::of_version("12") {
        all_since_12(&mut session);
    }
}

#[test]
fn plans_of_18() {
    if let Some(mut session) = Session::of_version("18") {
        all_since_12(&mut session);
    }
}

#[test]
fn plans_of_an_installed_server() {
    if let Some(mut session) = Session::of_installed() {
        if session.version >= 120_000 {
            all_since_12(&mut session);
        } else {
            an_index(&mut session);
        }
    }
}

fn kinds(a: &QueryPlan, b: &QueryPlan) -> Vec<PlanChangeKind> {
    let changes = PlanDifference::between(a, b).changes;
    changes.iter().map(|it| it.kind).collect()
}

fn has(said: &[String], beginning: &str, end: &str) -> bool {
    said.iter()
        .any(|it| it.starts_with(beginning) && it.ends_with(end))
}

fn an_index(session: &mut Session) {
    let sql = "select info from t where k = 5";
    let without = session.analyzed("select 1", sql);
    let connection = &mut session.connection;
    connection.execute("create index t_k on t (k)").unwrap();
    let with = session.analyzed("select 1", sql);
    session.connection.execute("drop index t_k").unwrap();
    let all = said(&without, &with);
    assert!(
        has(&all[..1], "Method: Seq Scan on t → ", "Scan using t_k on t"),
        "{all:?}"
    );
    assert!(has(
        &all,
        "Condition moved: Filter of Seq Scan on t → Index Cond of ",
        ": (t.k = 5)"
    ));
    assert!(has(&all, "Buffers of ", " blocks"), "{all:?}");
    assert_eq!(
        kinds(&without, &with),
        [
            PlanChangeKind::Method,
            PlanChangeKind::Condition,
            PlanChangeKind::Buffers
        ]
    );
    let buffers = PlanDifference::between(&without, &with);
    let [before, after] = [&buffers.a, &buffers.b].map(|it| it.buffers.unwrap().accessed());
    assert!(before > 150.0 && after < 40.0, "{before} {after}");
}

fn sort_memory(session: &mut Session) {
    let sql = "select id, info from t order by info";
    let in_memory = session.analyzed("set work_mem = '64MB'", sql);
    let on_disk = session.analyzed("set work_mem = '64kB'", sql);
    let all = said(&in_memory, &on_disk);
    assert!(
        has(&all, "Memory of Sort (t): quicksort, ", " disk"),
        "{all:?}"
    );
    assert!(all[0].contains("→ external merge, "), "{all:?}");
    assert!(has(&all, "Buffers of Sort (t): ", " temporary"), "{all:?}");
    assert!(!PlanDifference::between(&in_memory, &on_disk).is_of_shape());
    let settings = PlanDifference::between(&in_memory, &on_disk).settings;
    let setting = settings.iter().find(|it| it.name == "work_mem").unwrap();
    assert_eq!(
        (setting.before.as_deref(), setting.after.as_deref()),
        (Some("64MB"), Some("64kB"))
    );
}

fn hash_memory(session: &mut Session) {
    let sql = "select count(s.name) from t join s on t.id = s.id";
    let methods = "set enable_mergejoin = off; set enable_nestloop = off; set work_mem = ";
    let one = session.analyzed(&format!("{methods}'64MB'"), sql);
    let many = session.analyzed(&format!("{methods}'64kB'"), sql);
    let all = said(&one, &many);
    assert!(
        has(&all, "Memory of Hash (s): 1 batch, ", "memory"),
        "{all:?}"
    );
    assert!(all.iter().any(|it| it.contains(" batches, ")), "{all:?}");
    // And in the other direction.
    let back = said(&many, &one);
    assert!(back.iter().any(|it| it.contains("→ 1 batch, ")), "{back:?}");
}

fn parallel_workers(session: &mut Session) {
    let sql = "select count(*), sum(k) from t where info like 'a%'";
    let parallel = "set max_parallel_workers_per_gather = 2; set min_parallel_table_scan_size = 0; \
        set parallel_setup_cost = 0; set parallel_tuple_cost = 0";
    let serial = session.analyzed("select 1", sql);
    let parallel = session.analyzed(parallel, sql);
    let all = said(&serial, &parallel);
    // No change in rows: those of all processes together are compared.
    assert_eq!(
        all,
        [
            "Method: Aggregate (t) → Finalize Aggregate",
            "Method: Seq Scan on t → Parallel Seq Scan on t",
            "Added: Gather",
            "Added: Partial Aggregate",
        ]
    );
    let gather = &parallel.nodes[1];
    let launched = gather.workers_launched.unwrap();
    let shares = node_shares(&parallel);
    let scan = parallel.nodes.len() - 1;
    assert!(shares[scan].processes <= launched + 1.0);
    assert!(parallel.nodes[scan].workers.len() as f64 <= launched);
    let rows = shares[scan].rows.unwrap();
    let expected = node_shares(&serial)[1].rows.unwrap();
    assert!(
        (rows - expected).abs() <= shares[scan].rows_error + 0.5,
        "{rows} {expected}"
    );
}

fn many_partitions(session: &mut Session) {
    let connection = &mut session.connection;
    connection
        .execute("create table p (id int, k int) partition by range (id)")
        .unwrap();
    for number in 0..12 {
        let (from, to) = (number * 100, number * 100 + 100);
        let sql =
            format!("create table p_{number} partition of p for values from ({from}) to ({to})");
        connection.execute(&sql).unwrap();
    }
    connection
        .execute("insert into p select g, g % 10 from generate_series(0, 1199) g; analyze p")
        .unwrap();
    for sql in [
        "select * from p where k = 3",
        "select * from p x where x.k = 3",
    ] {
        let without = session.analyzed("select 1", sql);
        session
            .connection
            .execute("create index p_k on p (k)")
            .unwrap();
        let with = session.analyzed("set enable_seqscan = off; set enable_bitmapscan = off", sql);
        session.connection.execute("drop index p_k").unwrap();
        let all = said(&without, &with);
        let root = if sql.contains('x') { "x" } else { "p" };
        assert_eq!(
            all[0],
            format!(
                "Method: 12 × Seq Scan on partitions of {root} → 12 × Index Scan on partitions of {root}"
            )
        );
        assert!(has(&all, "Condition moved: Filter", ".k = 3)"), "{all:?}");
        let difference = PlanDifference::between(&without, &with);
        assert_eq!(difference.lines.len(), 2, "{:#?}", difference.lines);
        let figures = difference.lines[1].a_figures.as_ref().unwrap();
        assert_eq!(figures.rows, Some(120.0));
    }
    // One partition left: the Append is gone, and the scan is still the same table's.
    let one = session.analyzed("select 1", "select * from p where k = 3 and id = 250");
    let all = session.analyzed("select 1", "select * from p where k = 3");
    let all = said(&all, &one);
    assert!(has(
        &all[..1],
        "Method: 12 × Seq Scan on partitions of p → Seq Scan on p_2",
        ""
    ));
    assert!(all.contains(&"Removed: Append".to_owned()), "{all:?}");
}

fn writing_statements_are_rolled_back(session: &mut Session) {
    let before = session.count("t");
    for sql in [
        "delete from t where k < 500",
        "update t set k = k + 1",
        "insert into t select id, 1, 'new' from s",
        "with gone as (delete from t returning id) select count(*) from gone",
        "create table copied as select * from t",
    ] {
        let version = session.version;
        let request = ExplainRequest::new(sql, version, ExplainOptions::ANALYZED).unwrap();
        assert_eq!(request.effect, StatementEffect::Writes);
        let plan = session.send(&request).unwrap();
        assert!(plan.nodes[0].actual.is_some(), "{sql}");
        assert_eq!(session.count("t"), before, "{sql}");
    }
    let copied = session
        .connection
        .value("select to_regclass('copied')")
        .unwrap();
    assert_eq!(copied, None);
    // A query that writes through a function fails, since its transaction is read only.
    session
        .connection
        .execute(
            "create function remove() returns bigint language sql as \
             'with gone as (delete from t returning id) select count(*) from gone'",
        )
        .unwrap();
    let version = session.version;
    let request = ExplainRequest::new("select remove()", version, ExplainOptions::ANALYZED);
    let error = session.send(&request.unwrap()).unwrap_err();
    assert_eq!(error.sql().unwrap().sqlstate, "25006", "{error}");
    assert_eq!(session.count("t"), before);
}

/// A table in which a generic plan must assume few rows, and most rows have one value.
fn skewed(session: &mut Session) {
    session
        .connection
        .execute(
            "create table skewed as select case when g % 2 = 0 then 1 else g end as k, g as id, \
             repeat('x', 40) as name from generate_series(1, 20000) g; \
             create index skewed_k on skewed (k)",
        )
        .unwrap();
    session.connection.execute("vacuum analyze skewed").unwrap();
}

fn generic_and_custom_plans(session: &mut Session) {
    skewed(session);
    let sql = "select sum(id) from skewed where k = $1";
    let frequent = session.prepared(sql, "1", PlanKind::Custom);
    let rare = session.prepared(sql, "77", PlanKind::Custom);
    let generic = session.prepared(sql, "1", PlanKind::Generic);
    let plans = [frequent, rare, generic];
    let sorted = PreparedPlans::of(&plans, 1);
    println!("{sorted}");
    let [custom, generic] = [PlanKind::Custom, PlanKind::Generic].map(Some);
    assert_eq!(sorted.kinds, [custom, custom, generic]);
    assert_eq!(sorted.generic_differs(), Some(false));
    let shapes: Vec<_> = sorted.shapes.iter().map(|it| it.plans.clone()).collect();
    assert_eq!(shapes, [vec![0], vec![1, 2]]);
    let all = said(&plans[0], &plans[2]);
    assert!(
        has(&all[..1], "Method: Seq Scan on skewed → ", " on skewed"),
        "{all:?}"
    );
    // The estimate for the average value is wrong for the frequent one.
    assert!(
        all.iter().any(|it| it.starts_with("Estimate of ")),
        "{all:?}"
    );
    assert!(
        said(&plans[1], &plans[2])
            .iter()
            .all(|it| !it.starts_with("Condition"))
    );
    assert_eq!(session.count("pg_prepared_statements"), "0");
    if session.version >= 160_000 {
        let options = ExplainOptions {
            generic_plan: true,
            ..ExplainOptions::default()
        };
        let request = ExplainRequest::new(sql, session.version, options).unwrap();
        let of_text = session.send(&request).unwrap();
        assert_eq!(plan_kind(&of_text, 1), Some(PlanKind::Generic));
        assert!(!PlanDifference::between(&of_text, &plans[2]).is_of_shape());
    }
}

/// A query with a CTE that two scans read, `InitPlan`s and a `SubPlan`.
const SUBPLANS: &str = "with c as materialized (select k, count(*) as n from t group by k) \
    select s.id, c.n, (select max(id) from t), (select min(info) from t where t.id = s.id) \
    from s join c on c.k = s.t_id where s.id < 20 and exists (select from c c2 where c2.n > 5) \
    order by c.n limit 5";

/// The own shares of all nodes add up to the root's total.
fn subplans_are_charged_once(session: &mut Session) {
    let parallel = "set max_parallel_workers_per_gather = 2; set min_parallel_table_scan_size = 0; \
        set parallel_setup_cost = 0; set parallel_tuple_cost = 0";
    for (settings, sql) in [
        ("select 1", SUBPLANS),
        ("set enable_hashjoin = off", SUBPLANS),
        (
            "set enable_nestloop = off; set enable_hashagg = off",
            SUBPLANS,
        ),
        (
            "select 1",
            "select * from t where id > (select max(id) - 10 from s)",
        ),
        // The first reader of the CTE runs a part of it, the second one the rest.
        (
            "select 1",
            "with c as materialized (select * from t) \
             select * from (select id from c limit 3) a, (select id from c limit 15000) b",
        ),
        (
            "select 1",
            "with recursive r as (select 1 as n union all select n + 1 from r where n < 5) \
             select * from r join t on t.id = r.n",
        ),
        (
            "select 1",
            "with c as materialized (select max(id) as id from s), d as materialized (select * from t, c) \
             select count(*) from d where k > (select id % 1000 from c)",
        ),
        (
            "select 1",
            "with d as (delete from s returning id) select count(*) from d",
        ),
        (
            parallel,
            "select count(*) from t where id > (select min(id) from s)",
        ),
        (
            parallel,
            "select count(*) from t where k not in (select id from s where id < 900)",
        ),
    ] {
        let plan = session.analyzed(settings, sql);
        let shares = node_shares(&plan);
        let total = plan.nodes[0].buffers.unwrap().accessed();
        let own: f64 = shares
            .iter()
            .map(|it| it.own_buffers.unwrap().accessed())
            .sum();
        assert!(
            (own - total).abs() < 0.5,
            "{sql}: {own} of {total}: {}",
            plan_text(&plan, 80)
        );
    }
}

fn the_same_query_twice(session: &mut Session) {
    let first = session.analyzed("select 1", SUBPLANS);
    let second = session.analyzed("select 1", SUBPLANS);
    assert_eq!(said(&first, &second), Vec::<String>::new());
}

#[test]
fn a_cte_is_part_of_the_query_since_12() {
    let sessions = ["11", "12"].map(Session::of_version);
    let [Some(mut old), Some(mut new)] = sessions else {
        return;
    };
    let sql = "with c as (select k, count(*) as n from t group by k) \
        select s.id, c.n from s join c on c.k = s.t_id";
    let [a, b] = [&mut old, &mut new].map(|session| session.analyzed("select 1", sql));
    let all = said(&a, &b);
    assert!(
        all.contains(&"Removed: CTE Scan on c".to_owned()),
        "{all:?}"
    );
    let is_of_others = |it: &String| it.contains("Aggregate") || it.contains("Scan on t");
    assert!(!all.iter().any(is_of_others), "{all:?}");
    // The six executions that a generic plan requires before 12.
    skewed(&mut old);
    let sql = "select sum(id) from skewed where k = $1";
    let generic = old.prepared(sql, "1", PlanKind::Generic);
    assert_eq!(plan_kind(&generic, 1), Some(PlanKind::Generic));
    let custom = old.prepared(sql, "1", PlanKind::Custom);
    assert_eq!(plan_kind(&custom, 1), Some(PlanKind::Custom));
}

#[test]
fn versions_name_partitions_and_subplans_differently_and_the_plans_are_equal() {
    let sessions = ["12", "18"].map(Session::of_version);
    let [Some(mut old), Some(mut new)] = sessions else {
        return;
    };
    let setup = "create table p (id int, k int) partition by range (id); \
        create table p_jan partition of p for values from (0) to (100); \
        create table p_feb partition of p for values from (100) to (200); \
        insert into p select g, g % 10 from generate_series(0, 199) g; analyze p";
    for sql in [
        "select * from p where k > 3",
        "select * from p x where x.k > 3",
        "select * from s where id > (select min(id) + 10 from s)",
        "select * from s where id + 0 not in (select k from t)",
    ] {
        let [a, b] = [&mut old, &mut new].map(|session| {
            if session
                .connection
                .value("select to_regclass('p')")
                .unwrap()
                .is_none()
            {
                session.connection.execute(setup).unwrap();
            }
            session.analyzed("set work_mem = '16MB'", sql)
        });
        let shape: Vec<PlanChangeKind> = kinds(&a, &b)
            .into_iter()
            .filter(|it| *it < PlanChangeKind::Condition)
            .collect();
        assert!(shape.is_empty(), "{sql}: {:?}", said(&a, &b));
    }
}

#[test]
fn every_version_accepts_its_options() {
    for version in ["9.6", "10", "13", "14", "16", "17"] {
        let Some(mut session) = Session::of_version(version) else {
            continue;
        };
        an_index(&mut session);
        let plain = ExplainOptions::default();
        let with_times = ExplainOptions {
            node_times: true,
            ..ExplainOptions::ANALYZED
        };
        let sql = "select k, count(*) from t group by k order by 2";
        let [plain, timed] = [plain, with_times].map(|options| {
            let request = ExplainRequest::new(sql, session.version, options).unwrap();
            session.send(&request).unwrap()
        });
        assert!(plain.nodes[0].actual.is_none() && plain.execution_ms.is_none());
        // Figures that only one plan has are not compared.
        let difference = PlanDifference::between(&plain, &timed);
        assert!(difference.is_none(), "{version}: {:?}", difference.changes);
        let shares = node_shares(&timed);
        let own: f64 = shares.iter().map(|it| it.own_ms.unwrap()).sum();
        let total = shares[0].elapsed_ms.unwrap();
        assert!(
            (own - total).abs() < 0.01 * total + 0.01,
            "{version}: {own} of {total} ms"
        );
        assert_eq!(
            timed.planning_memory_kb.is_some(),
            session.version >= 170_000
        );
        assert_eq!(timed.serialization.is_some(), session.version >= 170_000);
        assert_eq!(timed.nodes[0].wal.is_some(), session.version >= 130_000);
        assert!(timed.planning_ms.is_some() && timed.execution_ms.is_some());
    }
}
