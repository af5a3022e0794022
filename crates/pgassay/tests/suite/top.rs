//! `pgassay top` in a pseudo-terminal, on real servers.

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use pgassay_server::Server;
use pgassay_test_support::{PseudoTerminal, Scratch, collapse_whitespace, os, servers, wait_until};

use crate::PROGRAM;

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

fn start(scratch: &Scratch, server: &Server, arguments: &[&str]) -> PseudoTerminal {
    let mut command = scratch.command();
    command
        .arg("top")
        .arg(server.conninfo())
        .args(arguments)
        .env("TERM", "xterm-256color")
        .current_dir(scratch.path());
    PseudoTerminal::start(&mut command, 80, 24)
}

fn assert_restored(terminal: &PseudoTerminal) {
    assert!(!terminal.is_alternate(), "{}", terminal.screen());
    assert!(!terminal.hides_cursor());
    assert!(terminal.is_cooked());
}

/// A session that is idle in a transaction, and one that waits for its row.
struct BlockedRow {
    holder: pgassay_server::Connection,
    holder_pid: String,
    waiting: thread::JoinHandle<()>,
}

impl BlockedRow {
    fn make(server: &Server) -> Self {
        let mut holder = server.connect().unwrap();
        let holder_pid = holder.value("select pg_backend_pid()").unwrap().unwrap();
        for sql in [
            "create table accounts (id int primary key, balance int)",
            "insert into accounts values (1, 0)",
            "begin",
            "update accounts set balance = balance + 1 where id = 1",
        ] {
            holder.query(sql).unwrap();
        }
        let mut waiter = server.connect().unwrap();
        let waiting = thread::spawn(move || {
            waiter
                .query("update accounts set balance = balance + 2 where id = 1")
                .unwrap();
        });
        let mut asking = server.connect().unwrap();
        wait_until("a session waits", || {
            let sql = "select count(*) from pg_locks where not granted";
            asking.value(sql).unwrap().as_deref() == Some("1")
        });
        Self {
            holder,
            holder_pid,
            waiting,
        }
    }

    fn end(mut self) {
        self.holder.query("commit").unwrap();
        self.waiting.join().unwrap();
    }
}

#[test]
fn a_blocking_session_is_seen_and_q_leaves_a_clean_terminal() {
    for version in ["10", "18"] {
        let Some(server) = servers::start(version) else {
            continue;
        };
        let row = BlockedRow::make(&server);
        let scratch = Scratch::new(PROGRAM);
        let mut terminal = start(&scratch, &server, &["--interval", "500ms"]);
        terminal.wait_for("the statement that waits", LIMIT, |screen| {
            screen.contains("UPDATE accounts") || screen.contains("update accounts")
        });
        assert!(terminal.is_alternate() && !terminal.is_cooked());
        // Regression: Ctrl-L ended it on a terminal that does not say where its cursor is.
        terminal.send("\u{c}3");
        let headline = format!("Session {}, idle in transaction", row.holder_pid);
        terminal.wait_for("the headline", LIMIT, |screen| {
            collapse_whitespace(screen).contains(&headline)
        });
        let end = format!("select pg_terminate_backend({});", row.holder_pid);
        terminal.wait_for("the tree", LIMIT, |screen| {
            let tree = screen.find("└ ").is_some();
            tree && screen.contains("idle in transaction") && screen.contains(&end)
        });
        let screen = terminal.screen();
        assert!(screen.contains("waits: transactionid"), "{screen}");
        assert!(screen.contains("pgassay does not run it"), "{screen}");
        terminal.send("4");
        terminal.wait_for("the sessions", LIMIT, |screen| {
            screen.contains("idle in tx") && screen.contains("Lock: transactionid")
        });
        terminal.send("f");
        let session = format!("session {}", row.holder_pid);
        terminal.wait_for("the finding", LIMIT, |screen| {
            screen.contains(&session) && screen.contains(&end)
        });
        terminal.send("\r");
        terminal.wait_for("the fix", LIMIT, |screen| {
            screen.contains("Suggested fix: ")
        });
        terminal.send("\u{1b}t");
        let asking = RefCell::new(server.connect().unwrap());
        terminal.wait_for("the table", LIMIT, |screen| {
            let mut asking = asking.borrow_mut();
            asking.query("select count(*) from accounts").unwrap();
            // Before 15, the first rate follows after ten seconds.
            let has_rate = version == "10" || screen.contains(" transactions/s");
            has_rate && screen.contains("SCANS/s") && screen.contains("accounts  ")
        });
        terminal.send("3w");
        terminal.wait_for("a snapshot", LIMIT, |screen| {
            screen.contains("saved; to print it")
        });
        terminal.send("q");
        assert_eq!(terminal.wait(LIMIT), Some(0));
        assert_restored(&terminal);
        let snapshot = scratch.path().join("pgassay-top-1.json");
        let shown = scratch.ok(&["show", snapshot.to_str().unwrap()]);
        assert!(shown.contains(&end), "{shown}");
        scratch.ok(&["report", snapshot.to_str().unwrap()]);
        let page = snapshot.with_extension("html");
        // Regression: others could read the page of a snapshot that they could not read.
        let mode = page.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(&end));
        row.end();
        server.stop().unwrap();
    }
}

/// Regression: without its terminal, `top` used a CPU until it was killed, and ignored SIGTERM.
#[test]
fn a_terminal_that_is_closed_ends_it() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let terminal = start(&scratch, &server, &[]);
    terminal.wait_for("a reading", LIMIT, |screen| {
        screen.contains("over the last")
    });
    assert!(terminal.hang_up(LIMIT).is_some());
    server.stop().unwrap();
}

#[test]
fn a_server_that_does_not_answer_leaves_the_keys_alive() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let mut terminal = start(&scratch, &server, &["--interval", "500ms"]);
    terminal.wait_for("a reading", LIMIT, |screen| {
        screen.contains("over the last")
    });
    let mut asking = server.connect().unwrap();
    let sql = "select pid from pg_stat_activity where application_name like 'pgassay%'";
    let rows = asking.query(sql).unwrap();
    let pids: Vec<i32> = rows
        .iter()
        .map(|row| row[0].as_deref().unwrap().parse().unwrap())
        .collect();
    assert!(!pids.is_empty());
    for pid in &pids {
        os::kill(*pid, libc::SIGSTOP);
    }
    terminal.send("h");
    terminal.wait_for("help", LIMIT, |screen| {
        screen.contains("pause and continue")
    });
    terminal.send("hq");
    let code = terminal.wait(LIMIT);
    for pid in &pids {
        os::kill(*pid, libc::SIGCONT);
    }
    assert_eq!(code, Some(0));
    assert_restored(&terminal);
    server.stop().unwrap();
}

#[test]
fn without_a_terminal_top_names_profile() {
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.finished(&["top", "postgres"]);
    assert!(
        finished.error_message().contains("use pgassay profile"),
        "{finished:?}"
    );
    let mut command = scratch.command();
    command.args(["top", "postgres"]).env("TERM", "dumb");
    let mut terminal = PseudoTerminal::start(&mut command, 80, 24);
    assert_eq!(terminal.wait(LIMIT), Some(1));
    assert!(
        terminal
            .screen()
            .contains("pgassay top requires a terminal")
    );
    // Errors of connecting are printed on the usual screen.
    let mut command = scratch.command();
    command
        .args(["top", "host=/nonexistent"])
        .env("TERM", "xterm");
    let mut terminal = PseudoTerminal::start(&mut command, 80, 24);
    assert_eq!(terminal.wait(LIMIT), Some(1));
    assert!(
        terminal.screen().contains("/nonexistent"),
        "{}",
        terminal.screen()
    );
    assert_restored(&terminal);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn signals_and_a_dead_server_leave_a_clean_terminal() {
        let Some(server) = servers::start("18") else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        // Regression: after the others, the terminal stayed in raw mode.
        let others = [libc::SIGQUIT, libc::SIGUSR1];
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP]
            .into_iter()
            .chain(others)
        {
            let mut terminal = start(&scratch, &server, &[]);
            terminal.wait_for("a reading", LIMIT, |screen| {
                screen.contains("over the last")
            });
            os::kill(terminal.pid(), signal);
            assert_eq!(terminal.wait(LIMIT), Some(0), "{signal}");
            assert_restored(&terminal);
        }
        let mut terminal = start(&scratch, &server, &[]);
        terminal.wait_for("a reading", LIMIT, |screen| {
            screen.contains("over the last")
        });
        terminal.send("\u{3}");
        assert_eq!(terminal.wait(LIMIT), Some(0), "Ctrl-C");
        assert_restored(&terminal);
        let mut terminal = start(&scratch, &server, &["--interval", "500ms"]);
        terminal.wait_for("a reading", LIMIT, |screen| {
            screen.contains("over the last")
        });
        server.stop().unwrap();
        terminal.wait_for("another attempt", LIMIT, |screen| {
            screen.contains("no connection, trying again: ")
        });
        terminal.send("q");
        assert_eq!(terminal.wait(LIMIT), Some(0), "{}", terminal.screen());
        assert_restored(&terminal);
    }
}
