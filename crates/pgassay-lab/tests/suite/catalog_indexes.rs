//! Indexes that are unused, redundant or invalid, and foreign keys without one.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use pgassay_lab::watch::catalog::{CatalogOptions, CatalogWatch};
use pgassay_record::activity::{CatalogActivity, IndexActivity};
use pgassay_server::Server;
use pgassay_test_support::wait_until;

use crate::catalog_common::{VERSIONS, Waiter, exchange, execute, on_each, open, start};

const SETUP: &str = r#"
create schema "we,ird ""s";
set search_path = "we,ird ""s", public;
create table parent (id int primary key, "col,""x" int);
create table child (
    id int primary key,
    covered int references parent,
    partly int references parent,
    bare int constraint bare_key references parent,
    note text,
    n int
);
create index child_covered on child (covered, n);
create index child_partly on child (partly) where partly is not null;
create index child_bare_where on child (bare) where n > 5;
create index child_n on child (n);
create index child_n_id on child (n, id);
create index child_n_again on child (n);
create index child_n_desc on child (n desc);
create index child_id on child (id);
create index child_lower on child (lower(note));
create index child_lower_n on child (lower(note), n);
create index child_upper on child (upper(note));
create unique index child_note on child (note, id);
create index parent_col on parent ("col,""x") where id > 3;
create index parent_gin on parent using gin ((array[id]));
insert into parent select g, g from generate_series(1, 100) g;
insert into child select g, g, g, g, 'n', g from generate_series(1, 100) g;
"#;

fn by_name(catalog: &CatalogActivity) -> BTreeMap<&str, &IndexActivity> {
    let indexes = catalog.indexes.iter();
    indexes.map(|it| (it.relation.name.as_str(), it)).collect()
}

#[test]
fn redundant_unused_and_invalid_indexes_and_uncovered_keys_are_named() {
    on_each(&VERSIONS, start, |version, server| {
        check(server, version);
    });
}

fn check(server: &Server, version: &str) {
    let mut connection = server.connect().expect("a connection");
    execute(&mut connection, SETUP);
    execute(
        &mut connection,
        "begin isolation level repeatable read; select * from parent",
    );
    // It waits for the transaction, and is invalid until then, and afterwards if it is ended.
    let build = "create index concurrently building on \"we,ird \"\"s\".child (id, n)";
    let building = Waiter::start(server, "", build);
    let watch = open(server);
    write_parent(server);
    let catalog = watch.finish().catalog.expect("a catalog");
    let indexes = by_name(&catalog);
    let building_now = indexes["building"];
    assert!(
        !building_now.is_valid && building_now.is_being_built,
        "{version}"
    );
    check_indexes(&indexes, version);

    let keys = &catalog.uncovered_foreign_keys;
    assert_eq!(keys.len(), 1, "{version}: {keys:?}");
    assert_eq!(
        (keys[0].constraint.as_str(), &keys[0].columns[..]),
        ("bare_key", &["bare".to_owned()][..])
    );
    assert_eq!(keys[0].table.schema, "we,ird \"s");
    assert_eq!(keys[0].referenced.name, "parent");
    assert_eq!(keys[0].referenced_columns, ["id"], "{version}");
    let written = (keys[0].referenced_writes, keys[0].referenced_deleted);
    assert_eq!(
        (written, keys[0].referenced_moved),
        ((2, 1), 1),
        "{version}"
    );

    let mut other = server.connect().expect("a connection");
    execute(
        &mut other,
        &format!("select pg_terminate_backend({})", building.pid),
    );
    building.finish().expect_err("it was terminated");
    let catalog = open(server).finish().catalog.expect("a catalog");
    let left = by_name(&catalog)["building"];
    assert!(!left.is_valid && !left.is_being_built, "{version}");
    assert_eq!(left.columns, ["id", "n"]);
}

/// One row of the referenced table is updated and deleted.
fn write_parent(server: &Server) {
    let mut writer = server.connect().expect("a connection");
    execute(
        &mut writer,
        "set search_path = \"we,ird \"\"s\"; insert into parent values (500, 1)",
    );
    execute(&mut writer, "update parent set id = 501 where id = 500");
    execute(&mut writer, "delete from parent where id = 501");
    writer.close().expect("it closes");
    let mut asker = server.connect().expect("a connection");
    wait_until("the writes are counted", || {
        let sql = "select n_tup_del = 1 from pg_stat_user_tables where relname = 'parent'";
        asker.value(sql).expect("the query succeeds").as_deref() == Some("t")
    });
}

fn check_indexes(indexes: &BTreeMap<&str, &IndexActivity>, version: &str) {
    let redundant: BTreeMap<&str, &str> = indexes
        .iter()
        .filter_map(|(name, it)| Some((*name, it.redundant_with.as_ref()?.name.as_str())))
        .collect();
    assert_eq!(redundant.get("child_id"), Some(&"child_pkey"), "{version}");
    assert_eq!(
        redundant.get("child_lower"),
        Some(&"child_lower_n"),
        "{version}"
    );
    assert!(
        ["child_n_id", "child_n"].contains(&redundant["child_n_again"]),
        "{version}"
    );
    assert_eq!(redundant.get("child_n"), Some(&"child_n_id"), "{version}");
    assert_eq!(redundant.len(), 4, "{version}: {redundant:?}");
    let required: Vec<&str> = indexes
        .iter()
        .filter(|(_, it)| it.is_required)
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(
        required,
        ["child_note", "child_pkey", "parent_pkey"],
        "{version}"
    );
    let unused = indexes["child_upper"];
    assert_eq!(
        (unused.scans, unused.scans_ever, unused.is_valid),
        (0, 0, true)
    );
    assert_eq!(unused.columns, ["expression"]);
    assert_eq!(
        indexes["parent_col"].columns,
        ["col,\"x", "where expression"]
    );
    assert_eq!(indexes["child_lower_n"].columns, ["expression", "n"]);
    assert_eq!(indexes["child_n"].table.name, "child");
    let pending = |name: &str| indexes[name].pending_list_limit_bytes;
    assert_eq!(
        (pending("parent_gin"), pending("child_n")),
        (Some(4 << 20), None)
    );
}

/// The scans are those of the window, and those ever.
#[test]
fn scans_of_an_index_are_counted_in_the_window() {
    let Some(server) = start("18") else {
        return;
    };
    let mut connection = server.connect().expect("a connection");
    execute(
        &mut connection,
        "create table t (id int primary key); insert into t select generate_series(1, 100); \
         set enable_seqscan = off; set enable_bitmapscan = off",
    );
    let mut read = |times: usize| {
        for _ in 0..times {
            execute(&mut connection, "select * from t where id = 7");
        }
        execute(&mut connection, "select pg_stat_force_next_flush()");
        execute(&mut connection, "select 1");
    };
    read(2);
    let watch = open(&server);
    read(3);
    let catalog = watch.finish().catalog.expect("a catalog");
    let index = by_name(&catalog)["t_pkey"];
    assert_eq!((index.scans, index.scans_ever), (3, 5));
    server.stop().expect("the server stops");
}

/// Transactions for which such a command waits: to write to its new indexes, to see all rows in them, and
/// to use no old one.
const HELD: [&str; 3] = [
    "begin; insert into held values (nextval('id'), 1)",
    "begin isolation level repeatable read; select * from held",
    "begin; select * from held",
];

#[test]
fn an_index_is_not_invalid_while_it_is_rebuilt_or_dropped_concurrently() {
    on_each(&VERSIONS, start, |version, server| {
        let mut holder = server.connect().expect("a connection");
        execute(
            &mut holder,
            "create table held (id int primary key, n int); create sequence id",
        );
        for held in HELD {
            execute(&mut holder, "create index held_n on held (n)");
            let mut commands = vec!["drop index concurrently held_n"];
            if version != "9.6" {
                commands.insert(0, "reindex table concurrently held");
            }
            for command in commands {
                execute(&mut holder, held);
                let waiter = Waiter::start(server, "", command);
                let invalid = invalid(&mut open(server));
                assert!(!invalid.is_empty(), "{version}: {command} and {held}");
                assert!(
                    invalid.iter().all(|it| it.is_being_built),
                    "{version}: {command} and {held}: {invalid:?}"
                );
                execute(&mut holder, "rollback");
                waiter.finish().expect("it succeeds");
            }
        }
    });
}

fn invalid(watch: &mut CatalogWatch) -> Vec<IndexActivity> {
    let mut indexes = watch.refresh().expect("a catalog").indexes;
    indexes.retain(|it| !it.is_valid);
    indexes
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// More indexes than are reported for their problems alone.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_index_of_a_table_in_use_is_listed_although_a_thousand_others_come_first() {
        on_each(&["9.6", "18"], start, |version, server| {
            let mut connection = server.connect().expect("a connection");
            let setup = "do $$ begin for t in 1..11 loop \
             execute format('create table many_%s as select 1 as n', t); \
             for i in 1..100 loop execute format('create index on many_%s (n)', t); end loop; \
           end loop; end $$; \
           create table small as select 1 as n; create index small_n on small (n); \
           analyze small";
            execute(&mut connection, setup);
            let catalog = open(server).finish().catalog.expect("a catalog");
            let is_listed = by_name(&catalog).contains_key("small_n");
            assert!(is_listed, "{version}: {} indexes", catalog.indexes.len());
            assert!(!catalog.indexes_are_cut, "{version}");
        });
    }

    /// The rest of a build that failed is one until it is dropped; a command that waits to begin counts, and
    /// one that cannot be seen.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_invalid_index_that_is_about_to_be_dropped_or_may_be_is_not_reported() {
        on_each(&VERSIONS, start, |version, server| {
            let mut holder = server.connect().expect("a connection");
            execute(
                &mut holder,
                "create table held (n int); insert into held values (1), (1); \
                 create role unprivileged login password 'secret'",
            );
            let build = "create unique index concurrently failed on held (n)";
            holder.execute(build).expect_err("there are duplicates");
            // As VACUUM does.
            execute(
                &mut holder,
                "begin; lock table held in share update exclusive mode",
            );
            let found = |watch: &mut CatalogWatch| {
                let found = invalid(watch);
                assert_eq!(found.len(), 1, "{version}: {found:?}");
                found[0].is_being_built
            };
            assert!(!found(&mut open(server)), "{version}: a lock of another");
            let hidden = exchange(server, "user=unprivileged password=secret");
            let options = CatalogOptions { keeps_text: true };
            let mut hidden = CatalogWatch::open(hidden, &options).expect("the watch opens");
            assert!(found(&mut hidden), "{version}: a hidden command");
            let waiter = Waiter::start(server, "", "drop index concurrently failed");
            assert!(found(&mut open(server)), "{version}: it waits to begin");
            execute(&mut holder, "rollback");
            waiter.finish().expect("it succeeds");
        });
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn statistics_are_not_older_than_the_crash_that_discarded_them() {
        on_each(&VERSIONS, start, |version, server| {
            let mut connection = server.connect().expect("a connection");
            execute(&mut connection, "create table written (id int)");
            let mut victim = server.connect().expect("a connection");
            let pid = victim.value("select pg_backend_pid()").expect("a PID");
            let pid = pid.expect("a PID");
            let before = Instant::now();
            let killed = Command::new("kill").args(["-9", &pid]).status();
            assert!(killed.expect("kill runs").success());
            wait_until("the server has restarted its processes", || {
                let alive = connection.execute("select 1").is_ok();
                !alive && server.connect().is_ok()
            });
            let catalog = open(server).finish().catalog.expect("a catalog");
            let age_us = catalog.statistics_age_us.expect("a known age");
            let limit_us = before.elapsed().as_secs_f64() * 1e6 + 1e6;
            assert!(age_us <= limit_us, "{version}: {age_us} > {limit_us}");
        });
    }
}
