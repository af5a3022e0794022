//! Disks that are too small for a server, or that become full.

use std::path::PathBuf;

use pgassay_server::{Server, ServerConfig, ServerError};
use pgassay_test_support::{SmallDisk, servers, wait_until};

use crate::common;

fn config(disk: &SmallDisk) -> ServerConfig {
    ServerConfig {
        parent_dir: Some(disk.path().to_owned()),
        ..servers::config()
    }
}

#[test]
fn a_disk_too_small_for_the_data_is_reported_as_full() {
    let Some(disk) = SmallDisk::mount("20m") else {
        return;
    };
    for version in ["9.6", "18"] {
        let Some(installation) = servers::installation(version) else {
            continue;
        };
        let error = Server::start(&installation, &config(&disk)).unwrap_err();
        assert!(matches!(error, ServerError::DiskFull { .. }), "{error}");
        assert!(
            error.to_string().contains(disk.path().to_str().unwrap()),
            "{error}"
        );
        assert_eq!(common::places(disk.path()), [] as [PathBuf; 0]);
    }
}

#[test]
fn a_disk_that_becomes_full_is_reported_and_the_server_removed() {
    let Some(disk) = SmallDisk::mount("64m") else {
        return;
    };
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let server = Server::start(&installation, &config(&disk)).unwrap();
    let fill = "create table big as select repeat('x', 1000) from generate_series(1, 100000)";
    let error = server.connect().unwrap().execute(fill).unwrap_err();
    // Either the table or WAL does not fit; in the latter case the server panics.
    if error.sql().is_some_and(|sql| sql.sqlstate == "53100") {
        server.stop().unwrap();
    } else {
        wait_until("the server has died", || server.is_alive().is_err());
        let error = server.stop().unwrap_err();
        assert!(matches!(error, ServerError::DiskFull { .. }), "{error}");
    }
    assert_eq!(common::places(disk.path()), [] as [PathBuf; 0]);
}

/// Regression: where `/tmp` is in memory (Debian 13, Fedora), a commit waited for no disk, and no word was said.
#[test]
fn a_server_knows_whether_its_data_are_in_memory() {
    let Some(disk) = SmallDisk::mount("200m") else {
        return;
    };
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let server = Server::start(&installation, &config(&disk)).unwrap();
    assert!(server.is_in_memory());
    server.stop().unwrap();
}
