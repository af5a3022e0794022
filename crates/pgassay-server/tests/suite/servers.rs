//! Servers of old and new versions: start, queries, restart, stop.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgassay_server::{
    BuildFacts, Finder, Installation, InstallationSource, ProcessRole, Server, ServerConfig,
    ServerError, VersionRequest,
};
use pgassay_test_support::{os, servers, skip, skip_comparison, wait_until};

use crate::common;

/// The versions whose `initdb`, titles and settings differ most.
const VERSIONS: [&str; 3] = ["9.6", "10", "18"];

fn with_settings<const N: usize>(pairs: [(&str, &str); N]) -> ServerConfig {
    let mut config = servers::config();
    let pairs = pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(pairs);
    config
}

#[test]
fn old_and_new_versions_start_run_restart_and_stop() {
    for version in VERSIONS {
        let Some(mut server) = servers::start(version) else {
            continue;
        };
        let mut connection = server.connect().unwrap();
        let number = connection.value("show server_version_num").unwrap();
        assert_eq!(
            number,
            Some(server.installation().version.number().to_string())
        );
        connection
            .execute("create table kept(id int); insert into kept values (7)")
            .unwrap();
        let first = server.postmaster_pid();
        server.restart().unwrap();
        assert_ne!(server.postmaster_pid(), first);
        let kept = server
            .connect()
            .unwrap()
            .value("select id from kept")
            .unwrap();
        assert_eq!(kept.as_deref(), Some("7"));
        let (data, socket) = (server.data_dir(), server.socket_dir());
        assert!(data.exists() && socket.exists());
        server.stop().unwrap();
        assert!(!data.exists() && !socket.exists());
        assert!(os::processes_in(&data).is_empty());
    }
}

#[test]
fn dropping_a_server_removes_it() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let base = server.data_dir().parent().unwrap().to_owned();
    let postmaster = server.postmaster_pid();
    drop(server);
    assert!(!base.exists() && !os::is_running(postmaster));
}

#[test]
fn the_build_facts_in_the_executable_match_the_running_server() {
    let debian = Path::new("/usr/lib/postgresql");
    let mut installations: Vec<_> = VERSIONS
        .into_iter()
        .filter_map(servers::installation)
        .collect();
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = Some(debian.to_owned());
    match finder.find(&VersionRequest::Latest, &mut |_| ()) {
        Ok(installation) => installations.push(installation),
        Err(error) => skip_comparison("the build of an installed PostgreSQL", &error.to_string()),
    }
    for installation in installations {
        let server = Server::start(&installation, &servers::config()).unwrap();
        let mut connection = server.connect().unwrap();
        let mut fact = |sql: &str| {
            connection
                .value(sql)
                .unwrap()
                .map(|text| text.trim().to_owned())
        };
        let known = BuildFacts {
            banner: fact("select version()"),
            configure: fact("select setting from pg_config where name = 'CONFIGURE'"),
            cflags: fact("select setting from pg_config where name = 'CFLAGS'"),
            compiler: fact("select substring(version() from 'compiled by (.*), \\d+-bit')"),
            executable: installation.build.executable.clone(),
        };
        assert!(known.compiler.is_some());
        assert_eq!(
            installation.build, known,
            "PostgreSQL {}",
            installation.version
        );
    }
}

#[test]
fn a_server_that_was_rebuilt_is_not_started_again() {
    let Some(found) = servers::installation("18") else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = scratch.path().join("build");
    let root = found.bin_dir.parent().unwrap();
    let copied = Command::new("cp").arg("-a").arg(root).arg(&copy).status();
    assert!(copied.unwrap().success());
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = Some(copy.clone());
    let build = finder.find(&VersionRequest::Latest, &mut |_| ()).unwrap();
    let mut server = Server::start(&build, &servers::config()).unwrap();
    server.restart().unwrap();
    let program = copy.join("bin/postgres");
    let rebuilt = copy.join("bin/rebuilt");
    std::fs::copy(&program, &rebuilt).unwrap();
    std::fs::rename(&rebuilt, &program).unwrap();
    let error = server.restart().unwrap_err();
    assert!(matches!(error, ServerError::Rebuilt { .. }), "{error}");
    server.is_alive().unwrap();
}

#[test]
fn settings_arrive_as_written() {
    let config = with_settings([
        ("work_mem", "7MB"),
        ("log_line_prefix", r"it's \t%m "),
        ("study.name", "custom"),
    ]);
    for version in ["9.6", "18"] {
        let Some(server) = servers::start_with(version, &config) else {
            continue;
        };
        for (name, value) in &config.settings {
            assert_eq!(&server.setting(name).unwrap(), value, "{name}");
        }
        assert!(matches!(
            server.setting("no_such"),
            Err(ServerError::Connection(_))
        ));
    }
}

#[test]
fn a_rejected_setting_is_reported_with_the_servers_message() {
    let cases = [
        (
            "no_such_setting",
            "1",
            "unrecognized configuration parameter",
        ),
        ("work_mem", "much", "invalid value for parameter"),
        ("max_connections", "0", "outside the valid range"),
        ("default_toast_compression", "lz4", "--binaries"),
        ("default_toast_compression", "zstd", "invalid value"),
        (
            "wal_level",
            "most",
            "Available values: minimal, replica, logical.",
        ),
    ];
    for (version, count) in [("9.6", 2), ("18", cases.len())] {
        let Some(installation) = servers::installation(version) else {
            continue;
        };
        for (name, value, words) in cases.into_iter().take(count) {
            let parent = common::open_directory();
            let mut config = with_settings([(name, value)]);
            config.parent_dir = Some(parent.path().to_owned());
            let error = Server::start(&installation, &config).unwrap_err();
            assert!(
                matches!(&error, ServerError::SettingRefused { name: n, .. } if n == name),
                "{error}"
            );
            assert!(error.to_string().contains(words), "{error}");
            // No build knows another value.
            let is_of_build = error.to_string().contains("--binaries");
            assert_eq!(is_of_build, value == "lz4", "{error}");
            assert_eq!(common::places(parent.path()), [] as [PathBuf; 0]);
        }
    }
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let config = with_settings([("shared_preload_libraries", "no_such_library")]);
    let error = Server::start(&installation, &config).unwrap_err();
    assert!(matches!(error, ServerError::NotStarted { .. }));
    assert!(
        error
            .to_string()
            .contains("could not access file \"no_such_library\""),
        "{error}"
    );
    let config = ServerConfig {
        initdb_options: vec!["--no-such".into()],
        ..servers::config()
    };
    let error = Server::start(&installation, &config).unwrap_err();
    assert!(matches!(error, ServerError::Initdb { .. }));
    assert!(
        error.to_string().contains("--no-such") || error.to_string().contains("no-such"),
        "{error}"
    );
}

#[test]
fn sql_errors_come_with_state_position_and_hint() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let mut connection = server.connect().unwrap();
    let error = connection.query("select lenght('x')").unwrap_err();
    let sql = error.sql().unwrap();
    assert_eq!((sql.sqlstate.as_str(), sql.position), ("42883", Some(8)));
    assert!(sql.hint.is_some());
    let rows = connection
        .query("select 1, null; select 'a', 2 union all select 'b', 3")
        .unwrap();
    let row = |a: &str, b: &str| vec![Some(a.to_owned()), Some(b.to_owned())];
    assert_eq!(rows, [row("a", "2"), row("b", "3")]);
    assert!(
        server
            .backend_pids()
            .contains(&connection.backend_pid().unwrap())
    );
}

#[test]
fn roles_are_recognized_in_every_version() {
    for version in VERSIONS {
        let config = with_settings([("cluster_name", "study 1"), ("logging_collector", "on")]);
        let Some(server) = servers::start_with(version, &config) else {
            continue;
        };
        let connection = server.connect().unwrap();
        let expected = [
            ProcessRole::Postmaster,
            ProcessRole::Checkpointer,
            ProcessRole::BackgroundWriter,
            ProcessRole::WalWriter,
            ProcessRole::AutovacuumLauncher,
            ProcessRole::Logger,
        ];
        for role in expected {
            let of_role = || {
                server
                    .processes()
                    .iter()
                    .filter(|process| process.role == role)
                    .count()
            };
            wait_until(&format!("{version} has one {role:?}"), || of_role() == 1);
        }
        wait_until("the backend is listed", || {
            server.backend_pids() == [connection.backend_pid().unwrap()]
        });
        let others: Vec<_> = server
            .processes()
            .into_iter()
            .filter(|process| process.role == ProcessRole::Other)
            .collect();
        assert_eq!(others, [], "{version}");
    }
}

#[test]
fn checksums_are_as_configured_or_the_versions_default() {
    let cases = [
        ("18", None, "on"),
        ("18", Some(false), "off"),
        ("10", None, "off"),
        ("10", Some(true), "on"),
        ("10", Some(false), "off"),
    ];
    for (version, data_checksums, expected) in cases {
        let config = ServerConfig {
            data_checksums,
            ..servers::config()
        };
        let Some(server) = servers::start_with(version, &config) else {
            continue;
        };
        assert_eq!(
            server.setting("data_checksums").unwrap(),
            expected,
            "{version} {data_checksums:?}"
        );
    }
}

#[test]
fn a_server_that_dies_is_an_error_with_its_log() {
    let Some(server) = servers::start("18") else {
        return;
    };
    server.is_alive().unwrap();
    let base = server.data_dir().parent().unwrap().to_owned();
    let mut connection = server.connect().unwrap();
    let pid_file = std::fs::read_to_string(server.data_dir().join("postmaster.pid")).unwrap();
    let segment = common::segment(&pid_file);
    let control = common::control_segment(server.postmaster_pid());
    assert!(common::segment_exists(segment) && control.exists());
    os::kill(server.postmaster_pid(), libc::SIGKILL);
    wait_until("the death is detected", || server.is_alive().is_err());
    let error = server.is_alive().unwrap_err();
    assert!(matches!(&error, ServerError::Died { .. }));
    let text = error.to_string();
    assert!(
        text.contains("signal: 9") && text.contains("ready to accept connections"),
        "{text}"
    );
    wait_until("the backend ends too", || {
        connection.value("select 1").is_err()
    });
    assert!(matches!(server.stop(), Err(ServerError::Died { .. })));
    assert!(!base.exists());
    assert!(
        !common::segment_exists(segment) && !control.exists(),
        "shared memory is released"
    );
}

#[test]
fn the_collectors_log_is_part_of_the_log() {
    let config = with_settings([
        ("logging_collector", "on"),
        ("log_destination", "csvlog"),
        ("log_statement", "all"),
    ]);
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    server
        .connect()
        .unwrap()
        .execute("select 'found in the log'")
        .unwrap();
    wait_until("the statement is in the log", || {
        server.log_tail(50).contains("found in the log")
    });
    assert!(
        !std::fs::read_to_string(server.log_path())
            .unwrap()
            .contains("found in the log")
    );
}

#[test]
fn a_restart_can_change_settings_and_the_launcher() {
    let Some(mut server) = servers::start("18") else {
        return;
    };
    let mut connection = server.connect().unwrap();
    connection
        .execute("create table t as select 7 as i")
        .unwrap();
    drop(connection);
    let words = ["/usr/bin/env", "PGTZ=Asia/Tokyo"].map(Into::into);
    server
        .restart_with(|config| {
            config.launcher = words.to_vec();
            config
                .settings
                .insert("work_mem".to_owned(), "9MB".to_owned());
        })
        .unwrap();
    assert_eq!(server.setting("work_mem").unwrap(), "9MB");
    let environment = std::fs::read(format!("/proc/{}/environ", server.postmaster_pid())).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("PGTZ=Asia/Tokyo"), "{environment}");
    let kept = server
        .connect()
        .unwrap()
        .value("select i::text from t")
        .unwrap();
    assert_eq!(kept.as_deref(), Some("7"));
    assert!(server.read_own_file("data/PG_VERSION").is_ok());
    server.stop().unwrap();
}

#[test]
fn a_fresh_restart_restores_the_data_of_the_first_one() {
    let Some(mut server) = servers::start("18") else {
        return;
    };
    let execute = |server: &pgassay_server::Server, sql: &str| {
        server.connect().unwrap().execute(sql).unwrap();
    };
    let rows = |server: &pgassay_server::Server| {
        let mut connection = server.connect().unwrap();
        connection.value("select count(*)::text from t").unwrap()
    };
    execute(&server, "create table t as select 7 as i");
    for _ in 0..2 {
        server.restart_with_initial_data(|_| {}).unwrap();
        assert_eq!(rows(&server).as_deref(), Some("1"));
        execute(&server, "insert into t values (8)");
        assert_eq!(rows(&server).as_deref(), Some("2"));
    }
    let directory = server.own_dir().to_owned();
    server.stop().unwrap();
    assert!(!directory.exists());
}

#[test]
fn a_server_under_valgrind_ends_when_dropped() {
    let valgrind = std::path::Path::new("/usr/bin/valgrind");
    if !valgrind.exists() {
        skip(
            "a server under valgrind",
            "/usr/bin/valgrind does not exist",
        );
        return;
    }
    let Some(mut server) = servers::start("18") else {
        return;
    };
    let mut file = std::ffi::OsString::from("--callgrind-out-file=");
    file.push(server.own_dir().join("%p"));
    let mut words = vec![valgrind.as_os_str().to_owned()];
    words.extend(["--tool=callgrind", "--vgdb=no", "--trace-children=yes"].map(Into::into));
    words.push(file);
    server
        .restart_with(|config| config.launcher = words)
        .unwrap();
    let pid = server.postmaster_pid();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert!(!program.ends_with("postgres"), "{}", program.display());
    // It starts slowly, and clients rejected in the meantime would change the cost of later ones.
    let log = server.log_tail(usize::MAX);
    assert!(!log.contains("is starting up"), "{log}");
    let directory = server.own_dir().to_owned();
    drop(server);
    assert!(!directory.exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

/// A server with TCP asks for a password, which must not be that of another server.
#[test]
fn servers_share_a_data_directory_of_initdb_but_no_password_that_is_asked_for() {
    for version in ["9.6", "18"] {
        let identity_of = |config: &ServerConfig| {
            let server = servers::start_with(version, config)?;
            let number = "select system_identifier from pg_control_system()";
            let seen = server.connect().unwrap().value(number).unwrap();
            server.stop().unwrap();
            seen
        };
        let Some(first) = identity_of(&servers::config()) else {
            continue;
        };
        if servers::installation(version).is_some_and(|it| !is_from_cache(&it)) {
            continue;
        }
        assert_eq!(identity_of(&servers::config()), Some(first.clone()));
        let tcp = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        assert_ne!(identity_of(&tcp), Some(first));
    }
}

fn is_from_cache(installation: &Installation) -> bool {
    matches!(
        installation.source,
        InstallationSource::Cache | InstallationSource::Fetched
    )
}
