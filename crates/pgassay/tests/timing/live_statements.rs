//! Findings about statements on real servers; see `live_findings.rs`.

use pgassay_server::Server;

use crate::live_findings::{expected, server};
use crate::live_loads::{Clients, assert_found, profiled, session};

pub fn statements_that_cost_more_than_they_must_are_named(version: &str) {
    let Some(server) = server(version, &[]) else {
        return;
    };
    check_statements(&server, version);
    server.stop().expect("the server stops");
}

fn check_statements(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table item (id int primary key, note text)",
            "insert into item select i, md5(i::text) from generate_series(1, 100000) i",
            "create table job (id int, state text)",
            "insert into job select i, 'done' from generate_series(1, 30000) i",
            "vacuum analyze",
        ],
    );
    let lookups: Vec<String> = (1..15_000)
        .map(|id| format!("select note from item where id = {id}"))
        .collect();
    let mut in_transaction = vec!["begin"];
    in_transaction.extend(lookups.iter().map(String::as_str));
    in_transaction.push("commit");
    let clients = Clients::none().repeat(server, 1, &in_transaction).repeat(
        server,
        1,
        &[
            "set work_mem = '64kB'",
            "select note from item order by note offset 99999",
        ],
    );
    let found = profiled(server, "4s");
    clients.stop();
    let lookup = "statement select note from item where id = $1";
    let list = [
        ("n-plus-one", lookup),
        (
            "temp-spill",
            "statement select note from item order by note offset $1",
        ),
    ];
    assert_found(&found, &expected(&list), version);
    assert!(
        !found.iter().any(|it| it.id == "missing-index"),
        "{found:#?}"
    );
    // Counters by query ID are joined from version 14 on.
    if version == "18" {
        // Planning a join takes several times as long as finding one row with it.
        let joins: Vec<String> = (1..1000)
            .map(|id| {
                format!(
                    "select 1 from item a natural join item b natural join item c where a.id = {id}"
                )
            })
            .collect();
        let joins: Vec<&str> = joins.iter().map(String::as_str).collect();
        let clients = Clients::none().repeat(server, 1, &joins);
        let found = profiled(server, "3s");
        clients.stop();
        let join = "statement select $1 from item a natural join item b natural join item c where a.id = $2";
        assert_found(&found, &expected(&[("planning-time", join)]), version);
        let clients =
            Clients::none().repeat(server, 1, &["select id from job where state = 'new'"]);
        let found = profiled(server, "2s");
        clients.stop();
        let statement = "statement select id from job where state = $1";
        assert_found(&found, &expected(&[("empty-polling", statement)]), version);
        check_indexes(server, version);
    }
    // From version 15 on, a session that touches no table does not report its transactions.
    let failing = ["begin", "select note from item where id = 7", "rollback"];
    let clients = Clients::none().repeat(server, 1, &failing);
    let found = profiled(server, "2s");
    clients.stop();
    assert_found(
        &found,
        &expected(&[("rollbacks", "database postgres")]),
        version,
    );
}

/// Regression: no finding where an index fits and is not used, and none for keys and elements of JSON.
fn check_indexes(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table document (id int primary key, data jsonb)",
            "insert into document select i, jsonb_build_object('user', i) \
             from generate_series(1, 50000) i",
            "vacuum analyze document",
        ],
    );
    let clients = Clients::none()
        .repeat(
            server,
            1,
            &["select data from document where id = 7::numeric"],
        )
        .repeat(
            server,
            1,
            &["select id from document where data @> '{\"user\": 7}'"],
        )
        .repeat(
            server,
            1,
            &["select id from document where data->>'user' = '7'"],
        );
    let found = profiled(server, "3s");
    clients.stop();
    let table = "table public.document";
    let list = [("index-not-used", table), ("missing-index", table)];
    assert_found(&found, &expected(&list), version);
    let sql = |id: &str| {
        let of_id = found.iter().filter(|it| it.id == id);
        of_id.map(|it| it.fix_sql.as_deref()).collect::<Vec<_>>()
    };
    let gin = "create index concurrently on public.document using gin (data)";
    let missing = sql("missing-index");
    assert_eq!(sql("index-not-used"), [None], "{found:#?}");
    assert_eq!(missing.len(), 2, "{found:#?}");
    assert!(
        missing.contains(&Some(gin)) && missing.contains(&None),
        "{found:#?}"
    );
}
