//! Logs of real servers: what is written where, and that a large one begins anew.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::eventually;
use pgassay_server::{Server, ServerConfig, testing};

/// Well above what a server says while it starts.
const BYTES: u64 = 16 << 10;

fn logging(settings: &[(&str, &str)]) -> ServerConfig {
    let mut config = testing::config();
    let all = [("log_statement", "all")];
    let settings = settings.iter().chain(&all);
    config
        .settings
        .extend(settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    config
}

fn sizes(server: &Server) -> BTreeMap<std::path::PathBuf, u64> {
    let files = server.log_files().into_iter();
    files
        .map(|path| {
            let size = std::fs::metadata(&path).unwrap().len();
            (path, size)
        })
        .collect()
}

fn said(server: &Server, word: &str) {
    let sql = format!("select '{word}'");
    server.connect().unwrap().execute(&sql).unwrap();
    eventually(
        "the statement is in the log",
        Duration::from_secs(10),
        || server.log_tail(50).contains(word),
    );
}

#[test]
fn a_large_log_begins_anew_and_goes_on() {
    let collector = [("logging_collector", "on"), ("log_destination", "csvlog")];
    for settings in [&[][..], &collector] {
        let Some(server) = testing::server_with("18", &logging(settings)) else {
            return;
        };
        said(&server, "before");
        server.empty_log_beyond(BYTES).unwrap();
        assert!(
            server.log_tail(50).contains("before"),
            "a small log is kept"
        );

        said(&server, &"x".repeat(2 * BYTES as usize));
        let before = sizes(&server);
        assert!(before.values().sum::<u64>() > BYTES, "{before:?}");
        server.empty_log_beyond(BYTES).unwrap();
        let after = sizes(&server);
        assert_eq!(after.values().sum::<u64>(), 0, "{after:?}");
        assert_eq!(before.len(), after.len());

        said(&server, "after");
        let sum: u64 = sizes(&server).values().sum();
        assert!(
            (1..BYTES).contains(&sum),
            "it went on at the old end: {sum}"
        );
        server.stop().unwrap();
    }
}

/// Its user owns the directory, and may be misled by a study's SQL.
#[test]
fn a_link_among_the_logs_leads_nowhere_that_the_servers_user_may_not_go() {
    if !common::is_root() {
        testing::skip("links among the logs", "only root can be led astray");
        return;
    }
    let config = logging(&[("logging_collector", "on")]);
    let Some(server) = testing::server_with("18", &config) else {
        return;
    };
    let ours = common::open_directory();
    let precious = ours.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let link = server.data_dir().join("log/link.log");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    said(&server, &"x".repeat(2 * BYTES as usize));
    let refused = server.empty_log_beyond(BYTES).unwrap_err().to_string();
    assert!(refused.contains("empty the log"), "{refused}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    server.stop().unwrap();
}
