//! How soon `pgassay top` shows an outage.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use pgassay_test_support::{PseudoTerminal, Scratch, servers, timing, wait_until};

use crate::PROGRAM;

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_blocking_session_is_shown_within_one_second() {
    timing(watch_an_outage);
}

fn watch_an_outage() {
    let Some(server) = servers::start_on_disk("18") else {
        return;
    };
    let mut holder = server.connect().unwrap();
    for sql in [
        "create table accounts (id int primary key, balance int)",
        "insert into accounts values (1, 0)",
        "begin",
        "update accounts set balance = 1",
    ] {
        holder.query(sql).unwrap();
    }
    let mut waiter = server.connect().unwrap();
    let waiting = thread::spawn(move || drop(waiter.query("update accounts set balance = 2")));
    let asking = RefCell::new(server.connect().unwrap());
    wait_until("a session waits", || {
        let sql = "select count(*) from pg_locks where not granted";
        asking.borrow_mut().value(sql).unwrap().as_deref() == Some("1")
    });
    let scratch = Scratch::on_disk(PROGRAM);
    let mut command = scratch.command();
    command
        .args(["top", &server.conninfo()])
        .env("TERM", "xterm-256color");
    let mut terminal = PseudoTerminal::start(&mut command, 80, 24);
    // The screen opens when the watch begins.
    wait_until("the screen", || terminal.is_alternate());
    let begun = Instant::now();
    terminal.send("3");
    terminal.wait_for("the tree", LIMIT, |screen| screen.contains("└ "));
    let took = begun.elapsed();
    terminal.send("q");
    assert_eq!(terminal.wait(LIMIT), Some(0));
    holder.query("commit").unwrap();
    waiting.join().unwrap();
    server.stop().unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
}
