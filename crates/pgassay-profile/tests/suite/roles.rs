//! Exact CPU time of server processes by role, on old and new versions.

use pgassay_profile::{CpuLog, LiveServer, Role};
use pgassay_server::ServerConfig;
use pgassay_test_support::servers;

fn background_work_is_attributed_to_its_processes(version: &str) {
    let mut config: ServerConfig = servers::config();
    for (name, value) in [
        ("logging_collector", "on"),
        ("log_statement", "all"),
        ("autovacuum_naptime", "1s"),
    ] {
        config.settings.insert(name.to_owned(), value.to_owned());
    }
    let Some(server) = servers::start_with(version, &config) else {
        return;
    };
    let live = LiveServer::of_process(server.postmaster_pid().cast_unsigned()).unwrap();
    let mut connection = server.connect().unwrap();
    let own_pid = connection.backend_pid().unwrap().cast_unsigned();
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
            .any(|it| it.pid == Some(own_pid) && it.role == Role::Backend)
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
