//! Exact CPU time of server processes by role, on old and new versions.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use pgassay_profile::{CpuLog, LiveServer, Role};
use pgassay_server::{ServerConfig, testing};
use support::{alone, connect, postmaster};

fn background_work_is_attributed_to_its_processes(version: &str) {
    let _alone = alone();
    let mut config: ServerConfig = testing::config();
    for (name, value) in [
        ("logging_collector", "on"),
        ("log_statement", "all"),
        ("autovacuum_naptime", "1s"),
    ] {
        config.settings.insert(name.to_owned(), value.to_owned());
    }
    let Some(server) = testing::server_with(version, &config) else {
        return;
    };
    let live = LiveServer::of_process(postmaster(&server)).unwrap();
    let (mut connection, own_pid) = connect(&server);
    let mut log = CpuLog::default();
    log.read(&live.processes());
    connection
        .execute(
            "create table t as select i, repeat('x', 500) as x from generate_series(1, 20000) i",
        )
        .unwrap();
    for _ in 0..300 {
        connection.query("select count(*) from pg_class").unwrap();
    }
    connection.execute("checkpoint").unwrap();
    log.read(&live.processes());
    let roles = log.by_role();
    for role in [
        Role::Backend,
        Role::Checkpointer,
        Role::BackgroundWriter,
        Role::WalWriter,
        Role::Logger,
        Role::AutovacuumLauncher,
    ] {
        assert!(
            roles.contains_key(&role),
            "{version}: no {role} in {roles:?}"
        );
    }
    for role in [Role::Backend, Role::Checkpointer, Role::Logger] {
        let used = roles[&role].used;
        assert!(
            used.on_cpu_ns > 0 && used.slices > 0,
            "{version}: {role} {used:?}"
        );
    }
    assert_eq!(roles.contains_key(&Role::IoWorker), version == "18");
    // The sum over roles equals the sum over processes.
    let by_role: u64 = roles.values().map(|it| it.used.on_cpu_ns).sum();
    let by_process: u64 = log.processes().iter().map(|it| it.used.on_cpu_ns).sum();
    assert_eq!(by_role, by_process);
    assert!(
        log.processes()
            .iter()
            .any(|it| it.pid == own_pid && it.role == Role::Backend)
    );
    server.stop().unwrap();
}

#[test]
fn background_work_is_attributed_to_its_processes_on_18() {
    background_work_is_attributed_to_its_processes("18");
}

#[test]
fn background_work_is_attributed_to_its_processes_on_9_6() {
    background_work_is_attributed_to_its_processes("9.6");
}
