//! `pgassay bench` and Ctrl-C: nothing goes on on the server.

use std::process::{Child, Stdio};

use pgassay_test_support::os::kill;
use pgassay_test_support::{BareServer, wait_until};

use crate::pgbench::{Finished, Scratch};

fn start(scratch: &Scratch, server: &BareServer, arguments: &str) -> Child {
    scratch
        .command(&scratch.path().join("pgbench"), "18", Some(server))
        .args(arguments.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// How many sessions execute a statement that begins with this.
fn running(server: &BareServer, begin: &str) -> String {
    let sql = format!(
        "select count(*) from pg_stat_activity where state = 'active' and query like '{begin}%'"
    );
    server.value(&sql).unwrap()
}

fn interrupt(child: Child) -> Finished {
    kill(i32::try_from(child.id()).unwrap(), libc::SIGINT);
    Finished::from(&child.wait_with_output().unwrap())
}

/// Regression: pgassay died of the signal, and the server went on.
#[test]
fn ctrl_c_left_a_statement_of_the_initialization_on_the_server() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    for (steps, statement) in [
        ("dtG", "insert into pgbench_accounts"),
        ("dtg", "copy pgbench_accounts"),
    ] {
        let child = start(&scratch, &server, &format!("-i -q -s 500 -I {steps}"));
        wait_until("accounts are filled", || running(&server, statement) == "1");
        interrupt(child).has(
            1,
            &[],
            &[
                "Cancel request sent\n",
                "ERROR:  canceling statement due to user request\n",
            ],
        );
        wait_until("the statement has ended", || {
            running(&server, statement) == "0"
        });
        let rows = server.value("select count(*) from pgbench_accounts");
        assert_eq!(rows.as_deref(), Some("0"));
    }
}

/// Regression: the run waited for up to 7 s, and the server went on for as long as it took.
#[test]
fn ctrl_c_left_statements_of_a_run_on_the_server() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("long.sql", "select pg_sleep(600);\n");
    for options in ["-T 600", "-T 600 -C", "-t 9 -M prepared", "-T 600 --json"] {
        let child = start(
            &scratch,
            &server,
            &format!("-n -f long.sql -c 5 -j 2 {options}"),
        );
        wait_until("all clients wait", || {
            running(&server, "select pg_sleep") == "5"
        });
        let finished = interrupt(child);
        let result = if options.contains("json") {
            "\"interrupted\": true"
        } else {
            "transactions actually processed: 0"
        };
        finished.has(130, &[result], &["Run was interrupted"]);
        assert_eq!(running(&server, "select pg_sleep"), "0", "{options}");
    }
}

/// Regression: the exit code was 0 if the last transaction ended before the signal was noticed, as after `\shell`.
#[test]
fn a_run_that_was_complete_when_it_was_interrupted_had_the_exit_code_of_success() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("shell.sql", "\\shell touch begun; sleep 1\n");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let child = start(&scratch, &server, "-n -f shell.sql -t 1");
        let begun = scratch.path().join("begun");
        wait_until("the command has begun", || begun.exists());
        kill(i32::try_from(child.id()).unwrap(), signal);
        Finished::from(&child.wait_with_output().unwrap()).has(
            130,
            &["actually processed: 1/1\n"],
            &["Run was interrupted; the above results are complete.\n"],
        );
        std::fs::remove_file(begun).unwrap();
    }
}
