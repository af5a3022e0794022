//! The statement that ends a root blocker, for roots on which a cancel has no effect, or a false one.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pgassay_lab::connector::TimedStream;
use pgassay_lab::watch::catalog::CatalogWatch;
use pgassay_record::activity::{BlockingEpisode, EndingSignal, HorizonHolder, HorizonKind};
use pgassay_server::{Connection, Server};
use pgassay_test_support::wait_until;
use pgassay_wire::Exchange;

use crate::catalog_common::{Waiter, exchange, execute, lock_waiters, on_each, open, pid, start};

/// From 10 on, the server shows these waits.
const VERSIONS: [&str; 5] = ["10", "12", "13", "15", "18"];
const UPDATE: &str = "update t set n = n + 1 where id = 1";

fn with_table(version: &str) -> Option<Server> {
    let server = start(version)?;
    let setup = "create table t (id int primary key, n int); insert into t values (1, 0); \
                 create table loaded (n int)";
    execute(&mut server.connect().expect("a connection"), setup);
    Some(server)
}

/// Sends a query and leaves its results unread.
fn send(exchange: Exchange<TimedStream>, sql: &str) -> Exchange<TimedStream> {
    let length = (sql.len() + 5) as u32;
    let mut message = vec![b'Q'];
    message.extend(length.to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    exchange.map(|mut stream| {
        stream.write_all(&message).expect("the server reads");
        stream
    })
}

fn wait_for(asker: &mut Connection, pid: u32, event: &str) {
    let sql =
        format!("select 1 from pg_stat_activity where pid = {pid} and wait_event = '{event}'");
    wait_until(&format!("{pid} waits for {event}"), || {
        asker.value(&sql).expect("the query succeeds").is_some()
    });
}

fn only_episode(watch: &mut CatalogWatch, asker: &mut Connection) -> BlockingEpisode {
    watch.tick(0.0, &lock_waiters(asker)).expect("a tick");
    let mut episodes = watch.blocking();
    assert_eq!(episodes.len(), 1, "{episodes:#?}");
    episodes.remove(0)
}

fn holder(watch: CatalogWatch, pid: u32) -> HorizonHolder {
    let catalog = watch.finish().catalog.expect("a catalog");
    let name = pid.to_string();
    let mut holders = catalog.horizon.into_iter();
    let found = holders.find(|it| it.kind == HorizonKind::Session && it.name == name);
    found.expect("it holds the horizon")
}

/// The server shows neither its state nor that it is idle in a transaction.
#[test]
fn a_root_without_a_known_state_may_not_heed_the_cancel() {
    on_each(&["9.6", "12", "18"], with_table, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "set track_activities = off");
        execute(&mut root, "begin");
        execute(&mut root, UPDATE);
        let mut asker = server.connect().expect("a connection");
        let waiter = Waiter::start(server, "", UPDATE);
        let episode = only_episode(&mut open(server), &mut asker);
        let ended_by = &episode.ended_by;
        let root_pid = pid(&root);
        // From 14 on the server shows waits also of such sessions.
        let expected = if version == "18" {
            format!("select pg_terminate_backend({root_pid});")
        } else {
            format!("select pg_cancel_backend({root_pid}); -- without effect if it is idle")
        };
        assert!(ended_by.starts_with(&expected), "{version}: {ended_by}");
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
    });
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// The commit waits for a standby that does not exist, with the locks of its transaction. A cancel would not
    /// roll it back.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_root_that_waits_for_a_synchronous_standby_is_not_canceled() {
        on_each(&VERSIONS, with_table, |version, server| {
            let mut asker = server.connect().expect("a connection");
            execute(&mut asker, "set synchronous_commit = local");
            execute(
                &mut asker,
                "alter system set synchronous_standby_names = 'missing'",
            );
            execute(&mut asker, "select pg_reload_conf()");
            let mut root = server.connect().expect("a connection");
            let root_pid = pid(&root);
            // Commits wait from the moment on at which the server has read its files.
            let is_over = Arc::new(AtomicBool::new(false));
            let ends = Arc::clone(&is_over);
            let commits = thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) && root.execute(UPDATE).is_ok() {}
            });
            wait_for(&mut asker, root_pid, "SyncRep");
            let waiter = Waiter::start(server, "set synchronous_commit = local", UPDATE);
            let mut watch = open(server);
            let episode = only_episode(&mut watch, &mut asker);
            let root = &episode.root;
            assert_eq!(root.pid, Some(root_pid), "{version}");
            assert_eq!(root.ending_signal(), EndingSignal::Committed, "{version}");
            let ended_by = &episode.ended_by;
            assert!(
                ended_by.starts_with("-- ") && !ended_by.contains("_backend"),
                "{version}: {ended_by}"
            );
            let holder = holder(watch, root_pid);
            assert_eq!(holder.ending_signal(), EndingSignal::Committed, "{version}");

            // A cancel only ends the wait: its change stays, and the waiter adds its own.
            let changes = "select n from t";
            let before = asker.value(changes).expect("the query").expect("a row");
            is_over.store(true, Ordering::Relaxed);
            execute(&mut asker, &format!("select pg_cancel_backend({root_pid})"));
            commits.join().expect("no panic");
            waiter.finish().expect("it goes on");
            let both = format!("select n >= {before} + 2 from t");
            let stays = asker.value(&both).expect("the query");
            assert_eq!(stays.as_deref(), Some("t"), "{version}");
            execute(&mut asker, "alter system reset synchronous_standby_names");
            execute(&mut asker, "select pg_reload_conf()");
        });
    }

    /// One does not read its result, another does not send its data.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_root_that_waits_for_its_client_is_terminated_since_a_cancel_has_no_effect() {
        let stuck = [
            (
                "ClientWrite",
                "select repeat('x', 100000) from generate_series(1, 1000)",
            ),
            ("ClientRead", "copy loaded from stdin"),
        ];
        on_each(&VERSIONS, with_table, |version, server| {
            let mut asker = server.connect().expect("a connection");
            for (event, sql) in stuck {
                let mut root = exchange(server, "");
                root.run("begin; update t set n = n + 1").expect("a lock");
                let root_pid = root.backend().expect("a key").pid as u32;
                let root = send(root, sql);
                wait_for(&mut asker, root_pid, event);
                let waiter = Waiter::start(server, "", UPDATE);
                execute(&mut asker, &format!("select pg_cancel_backend({root_pid})"));
                let mut watch = open(server);
                let episode = only_episode(&mut watch, &mut asker);
                let its = &episode.root;
                assert_eq!(
                    (its.pid, &*its.state),
                    (Some(root_pid), "active"),
                    "{version}"
                );
                let wait = its.wait.as_ref().expect("it waits");
                assert_eq!((&*wait.kind, &*wait.name), ("Client", event), "{version}");
                let holder = holder(watch, root_pid);
                let at_client = EndingSignal::TerminateAtClient;
                assert_eq!(holder.ending_signal(), at_client, "{version}");
                let terminate = format!("select pg_terminate_backend({root_pid});");
                assert_eq!(episode.ended_by, terminate, "{version}");
                // What it says works.
                execute(&mut asker, &episode.ended_by);
                waiter.finish().expect("it goes on");
                drop(root);
            }
        });
    }
}
