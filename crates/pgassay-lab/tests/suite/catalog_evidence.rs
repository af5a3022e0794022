//! What keeps a suggested fix from doing harm, and what is no evidence.

use pgassay_lab::connector::limit_statements;
use pgassay_lab::local_server;
use pgassay_lab::watch::catalog::{CatalogOptions, CatalogWatch};
use pgassay_test_support::{BareServer, wait_until};

use crate::catalog_common::{
    Waiter, bare_exchange_with, exchange, execute, on_each, open, pid, start,
};

/// Regression: the only index of a foreign key was to be dropped; and while an index for one was being built, a second
/// one was to be created.
#[test]
fn the_only_index_of_a_foreign_key_is_known_and_one_that_is_being_built_serves_it() {
    on_each(&["9.6", "12", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "create table parent (id int primary key); insert into parent values (1); \
             create table child (alone int references parent, twice int references parent, \
               failed int references parent, note text); \
             create index child_alone on child (alone, note); \
             create index child_note on child (note, alone); \
             create index child_twice on child (twice, note); \
             create index child_twice_again on child (twice, failed); \
             insert into child values (1, 1, 1), (1, 1, 1)",
        );
        let build = "create unique index concurrently child_failed on child (failed)";
        connection.execute(build).expect_err("there are duplicates");
        let catalog = open(server).finish().catalog.expect("a catalog");
        assert_eq!(catalog.uncovered_foreign_keys, [], "{version}");
        let indexes = catalog.indexes.iter();
        let keys = indexes.filter_map(|it| Some((&*it.relation.name, it.foreign_key.as_deref()?)));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        // Of two that were never used, one is needed.
        let needed = [
            ("child_alone", "child_alone_fkey"),
            ("child_twice", "child_twice_fkey"),
        ];
        assert_eq!(keys, needed, "{version}");
    });
}

/// Regression: a table with a policy for its rows was never analyzed, because its statistics are hidden.
#[test]
fn statistics_that_a_policy_hides_are_not_missing() {
    on_each(&["9.6", "12", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "create role watcher login password 'secret'; \
             create table t as select generate_series(1, 1000) as n; grant select on t to watcher; \
             alter table t enable row level security; create policy p on t using (n > 5)",
        );
        execute(&mut connection, "analyze t");
        // As a crash does.
        execute(&mut connection, "select pg_stat_reset()");
        let watcher = exchange(server, "user=watcher password=secret");
        let options = CatalogOptions { keeps_text: true };
        let watch = CatalogWatch::open(watcher, &options).expect("the watch opens");
        let catalog = watch.finish().catalog.expect("a catalog");
        let mut tables = catalog.tables.iter();
        let table = tables
            .find(|it| it.relation.name == "t")
            .expect("the table");
        assert!(table.analyzed_ago_us.is_none(), "{version}");
        assert!(table.has_statistics, "{version}");
        // Nor are its states those of all sessions.
        let connections = catalog.connections.expect("connections");
        assert_eq!(connections.idle, None, "{version}");
        assert!(connections.used >= 2, "{version}");
        let catalog = open(server).finish().catalog.expect("a catalog");
        let idle = catalog.connections.and_then(|it| it.idle);
        assert!(idle >= Some(1), "{version}: {idle:?}");
    });
}

/// Regression: a session that waited for a row waited "in" the table of a row that it had only read.
#[test]
fn a_row_that_a_serializable_transaction_has_read_is_not_locked() {
    on_each(&["9.6", "12", "18"], start, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(
            &mut root,
            "create table a_read (id int primary key); insert into a_read select generate_series(1, 1000); \
             create table changed (id int primary key, n int); insert into changed values (1, 1)",
        );
        execute(&mut root, "analyze a_read; begin; update changed set n = 2");
        let before = "set enable_seqscan = off; begin isolation level serializable; \
                      select * from a_read where id in (1, 2, 3)";
        let waiter = Waiter::start(server, before, "update changed set n = 3 where id = 1");
        let mut asker = server.connect().expect("a connection");
        let reads =
            "select count(*) > 0 from pg_locks where mode = 'SIReadLock' and locktype = 'tuple'";
        wait_until("rows are read", || {
            asker.value(reads).expect("the query succeeds").as_deref() == Some("t")
        });
        let mut watch = open(server);
        watch.tick(0.0, &[waiter.pid]).expect("a tick");
        let found = watch.finish().blocking;
        assert_eq!(found[0].root.pid, Some(pid(&root)), "{version}");
        let relation = found[0].blocked[0].waits_for.relation.as_ref();
        let name = relation.map(|it| it.name.as_str());
        assert_eq!(name, Some("changed"), "{version}");
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
    });
}

/// Regression: with serializable transactions by default, nothing of a standby could be read.
#[test]
fn a_standby_is_read_whatever_the_default_isolation_level_is() {
    let Some((_primary, standby)) = BareServer::pair("18") else {
        return;
    };
    let serializable = "options='-c default_transaction_isolation=serializable'";
    let mut exchange = bare_exchange_with(&standby, serializable);
    exchange
        .value("select 1")
        .expect_err("no transaction is serializable on a standby");
    let (_, own_pid) = local_server::find(&mut exchange).expect("it is found");
    assert!(own_pid > 0);
    limit_statements(&mut exchange).expect("limits are set");
    let one = exchange.value("select 1").expect("a value");
    assert_eq!(one.as_deref(), Some("1"));
}
