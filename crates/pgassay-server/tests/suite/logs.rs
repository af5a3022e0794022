//! Logs of real servers: their files, their entries, and truncation.

use std::collections::BTreeMap;

use pgassay_server::{CounterReader, CounterReading, Server, ServerConfig, ServerProcesses};
use pgassay_test_support::{os::is_root, servers, skip, wait_until};

use crate::common;

/// Well above the log size of a server start.
const BYTES: u64 = 16 << 10;

fn logging(settings: &[(&str, &str)]) -> ServerConfig {
    let mut config = servers::config();
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

fn log_statement(server: &Server, word: &str) {
    let sql = format!("select '{word}'");
    server.connect().unwrap().execute(&sql).unwrap();
    wait_until("the statement is in the log", || {
        server.log_tail(50).contains(word)
    });
}

#[test]
fn a_large_log_is_truncated_and_continues() {
    let collector = [("logging_collector", "on"), ("log_destination", "csvlog")];
    for settings in [&[][..], &collector] {
        let Some(server) = servers::start_with("18", &logging(settings)) else {
            return;
        };
        log_statement(&server, "before");
        server.truncate_log_above(BYTES).unwrap();
        assert!(
            server.log_tail(50).contains("before"),
            "a small log is kept"
        );

        log_statement(&server, &"x".repeat(2 * BYTES as usize));
        let before = sizes(&server);
        assert!(before.values().sum::<u64>() > BYTES, "{before:?}");
        server.truncate_log_above(BYTES).unwrap();
        let after = sizes(&server);
        assert_eq!(after.values().sum::<u64>(), 0, "{after:?}");
        assert_eq!(before.len(), after.len());

        log_statement(&server, "after");
        let sum: u64 = sizes(&server).values().sum();
        assert!(
            (1..BYTES).contains(&sum),
            "it continued at the old offset: {sum}"
        );
        server.stop().unwrap();
    }
}

#[test]
fn an_entry_missing_from_a_numbered_log_is_counted() {
    for form in ["csv", "json"] {
        let destination = format!("{form}log");
        let settings = [
            ("logging_collector", "on"),
            ("log_destination", &destination),
        ];
        let Some(server) = servers::start_with("18", &logging(&settings)) else {
            return;
        };
        let reader = CounterReader::open(&server, &[]).unwrap();
        let read = || {
            let mut reading = CounterReading::default();
            reader.read_kernel_statistics(&ServerProcesses::of_server(&server, &[]), &mut reading);
            reading
        };
        log_statement(&server, "before");
        let before = read();
        let mut connection = server.connect().unwrap();
        for number in 0..50 {
            let sql = format!("select {number}, 'a\n\"b\",,'");
            connection.execute(&sql).unwrap();
        }
        log_statement(&server, "after");
        let counted = read().since(&before);
        assert!(counted["log.entries"] >= 51.0, "{counted:?}");
        assert!(counted["log.entries_lost"].abs() < 0.1, "{counted:?}");

        let files = server.log_files();
        let path = files
            .iter()
            .find(|it| it.extension() == Some(form.as_ref()));
        let path = path.expect("the collector writes it");
        let whole = std::fs::read_to_string(path).unwrap();
        let from = whole.find("select 20,").unwrap();
        let from = whole[..from]
            .rfind("\n20")
            .or_else(|| whole[..from].rfind("\n{"))
            .unwrap();
        let to = whole.find("select 21,").unwrap();
        let to = whole[..to]
            .rfind("\n20")
            .or_else(|| whole[..to].rfind("\n{"))
            .unwrap();
        std::fs::write(path, format!("{}{}", &whole[..from], &whole[to..])).unwrap();
        let counted = read().since(&before);
        assert!(
            (counted["log.entries_lost"] - 1.0).abs() < 0.1,
            "{counted:?}"
        );
        drop(connection);
        server.stop().unwrap();
    }
}

/// The server's user owns the directory, and a study's SQL can create links as that user.
#[test]
fn a_symbolic_link_among_the_logs_gives_no_access_to_files_of_other_users() {
    if !is_root() {
        skip("links among the logs", "requires root");
        return;
    }
    // Names and values may be in any letters.
    let config = logging(&[("Logging_Collector", "ON")]);
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    let ours = common::open_directory();
    let precious = ours.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let link = server.data_dir().join("log/link.log");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    log_statement(&server, &"x".repeat(2 * BYTES as usize));
    let is_listed = |server: &Server| server.log_files().contains(&link);
    assert!(!is_listed(&server));
    server.truncate_log_above(BYTES).unwrap();
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    server.stop().unwrap();
}
