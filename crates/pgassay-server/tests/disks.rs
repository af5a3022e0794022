//! Disks that are too small for a server, or that become full.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{eventually, is_root};
use pgassay_server::{Server, ServerConfig, ServerError, testing};

/// A small file system for a test, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=755");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "pgassay-test"])
            .arg(directory.path());
        let mounted = is_root() && mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            testing::skip("a full disk", "only root can mount a small disk");
        }
        mounted.then_some(Self(directory))
    }

    fn config(&self) -> ServerConfig {
        ServerConfig {
            parent_dir: Some(self.0.path().to_owned()),
            ..testing::config()
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn a_disk_too_small_for_the_data_is_reported_as_full() {
    let Some(disk) = SmallDisk::mount("20m") else {
        return;
    };
    for version in ["9.6", "18"] {
        let Some(installation) = testing::installation(version) else {
            continue;
        };
        let error = Server::start(&installation, &disk.config()).unwrap_err();
        assert!(matches!(error, ServerError::DiskFull { .. }), "{error}");
        assert!(
            error.to_string().contains(disk.0.path().to_str().unwrap()),
            "{error}"
        );
        assert_eq!(common::places(disk.0.path()), [] as [PathBuf; 0]);
    }
}

#[test]
fn a_disk_that_becomes_full_is_reported_and_the_server_removed() {
    let Some(disk) = SmallDisk::mount("64m") else {
        return;
    };
    let Some(installation) = testing::installation("18") else {
        return;
    };
    let server = Server::start(&installation, &disk.config()).unwrap();
    let fill = "create table big as select repeat('x', 1000) from generate_series(1, 100000)";
    let error = server.connect().unwrap().execute(fill).unwrap_err();
    // Either the table or WAL does not fit; in the latter case the server panics.
    if error.sql().is_some_and(|sql| sql.sqlstate == "53100") {
        server.stop().unwrap();
    } else {
        let bound = Duration::from_secs(20);
        eventually("the server has died", bound, || server.is_alive().is_err());
        let error = server.stop().unwrap_err();
        assert!(matches!(error, ServerError::DiskFull { .. }), "{error}");
    }
    assert_eq!(common::places(disk.0.path()), [] as [PathBuf; 0]);
}
