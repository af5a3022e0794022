//! Who can access a server's directories, its socket and its port.

use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use pgassay_server::{Password, Server, ServerConfig, ServerError};
use pgassay_test_support::{
    os::{NOBODY, is_root},
    servers, skip,
};
use pgassay_wire::{Exchange, ExchangeError, Login};

use crate::common;

#[test]
fn other_users_cannot_access_the_data_or_the_socket() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let base = server.data_dir().parent().unwrap().to_owned();
    for directory in [&base, &server.data_dir(), &server.socket_dir()] {
        let metadata = directory.metadata().unwrap();
        assert_eq!(
            metadata.permissions().mode() & 0o777,
            0o700,
            "{}",
            directory.display()
        );
        assert_ne!(metadata.uid(), 0, "{}", directory.display());
    }
    assert_eq!(server.tcp_address(), None);
    assert_eq!(server.setting("listen_addresses").unwrap(), "");
    let error = server.connect_as("postgres", "nodb", None).unwrap_err();
    assert_eq!(error.sql().unwrap().sqlstate, "3D000");
    server
        .connect()
        .unwrap()
        .execute("create role app login password 'secret'")
        .unwrap();
    assert!(server.connect_as("app", "postgres", None).is_err());
    assert!(
        server
            .connect_as("app", "postgres", Some(Password::new("secret")))
            .is_ok()
    );
    if !is_root() {
        skip(
            "another user at the socket",
            "only root can become another user",
        );
        return;
    }
    // The directory belongs to `nobody`, so a process of that user can reach the socket.
    let directory = common::open_directory();
    let mut stranger = common::helper(
        "access::a_stranger_at_the_socket",
        directory.path(),
        Some(NOBODY),
    );
    stranger.env("PGASSAY_TEST_SOCKET", server.socket_path());
    assert!(stranger.status().unwrap().success());
}

#[test]
#[ignore = "run by another test as another user"]
fn a_stranger_at_the_socket() {
    let socket = std::env::var("PGASSAY_TEST_SOCKET").unwrap();
    let login = Login {
        user: "postgres".into(),
        database: "postgres".into(),
        ..Login::default()
    };
    let stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    match Exchange::open(stream, &login).map(|_| ()) {
        Err(ExchangeError::Server(error)) => assert_eq!(error.sqlstate, "28000", "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tcp_requires_the_password() {
    for version in ["9.6", "18"] {
        let config = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        let Some(server) = servers::start_with(version, &config) else {
            continue;
        };
        let sign_in = |password: Password| {
            let login = Login {
                user: server.superuser().into(),
                database: server.database().into(),
                password: Some(password),
                ..Login::default()
            };
            Exchange::open(
                TcpStream::connect(server.tcp_address().unwrap()).unwrap(),
                &login,
            )
        };
        let answer = sign_in(server.password().clone())
            .unwrap()
            .value("select 1")
            .unwrap();
        assert_eq!(answer.as_deref(), Some("1"));
        match sign_in(Password::new("wrong")).map(|_| ()) {
            Err(ExchangeError::Server(error)) => assert_eq!(error.sqlstate, "28P01"),
            other => panic!("{version}: {other:?}"),
        }
    }
}

#[test]
fn data_can_live_in_a_directory_with_a_long_name() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    let long = directory.path().join("a very long 'name' ".repeat(8));
    std::fs::create_dir(&long).unwrap();
    std::fs::set_permissions(&long, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = ServerConfig {
        parent_dir: Some(long.clone()),
        ..servers::config()
    };
    let server = Server::start(&installation, &config).unwrap();
    assert!(server.data_dir().starts_with(&long) && !server.socket_dir().starts_with(&long));
    let socket = server.socket_dir();
    server.connect().unwrap().close().unwrap();
    server.stop().unwrap();
    assert!(!socket.exists() && common::places(&long).is_empty());
}

#[test]
fn the_error_includes_the_directory_that_the_servers_user_cannot_access() {
    if !is_root() {
        skip(
            "programs in an inaccessible directory",
            "only root runs servers as another user",
        );
        return;
    }
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = closed.path().join("pg");
    std::os::unix::fs::symlink(installation.bin_dir.parent().unwrap(), &link).unwrap();
    let mut hidden = installation.clone();
    hidden.bin_dir = link.join("bin");
    let error = Server::start(&hidden, &servers::config()).unwrap_err();
    assert!(
        matches!(
            &error,
            ServerError::Program {
                barrier: Some(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains(closed.path().to_str().unwrap()),
        "{error}"
    );
}
