//! How soon `pgassay top` and `pgassay profile` show an outage.

use std::cell::RefCell;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pgassay_record::observation::Observation;
use pgassay_server::{Connection, Server};
use pgassay_test_support::{
    Finished, PseudoTerminal, Scratch, collapse_whitespace, servers, timing, wait_until,
};

use crate::PROGRAM;

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_blocking_session_is_shown_within_one_second() {
    timing(watch_an_outage);
}

#[test]
fn a_profile_of_one_second_names_the_session_that_blocks() {
    timing(profile_an_outage);
}

/// A session that is idle in a transaction, and another that waits for it.
struct Outage {
    server: Server,
    holder: Connection,
    waiting: JoinHandle<()>,
}

impl Outage {
    fn start() -> Option<Self> {
        let server = servers::start_on_disk("18")?;
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
        Some(Self {
            server,
            holder,
            waiting,
        })
    }

    fn end(mut self) {
        self.holder.query("commit").unwrap();
        self.waiting.join().unwrap();
        self.server.stop().unwrap();
    }
}

fn watch_an_outage() {
    let Some(outage) = Outage::start() else {
        return;
    };
    let scratch = Scratch::on_disk(PROGRAM);
    let mut command = scratch.command();
    command
        .args(["top", &outage.server.conninfo()])
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
    outage.end();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

fn profile_an_outage() {
    let Some(outage) = Outage::start() else {
        return;
    };
    let pid = outage.holder.backend_pid().unwrap().cast_unsigned();
    let scratch = Scratch::on_disk(PROGRAM);
    let page = scratch.path().join("page.html");
    let profile = |more: &[&str]| {
        let mut command = scratch.command();
        command
            .args(["profile", &outage.server.conninfo(), "--duration", "1s"])
            .args(more);
        let finished = Finished::of(&command.output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        finished.stdout
    };
    let text = profile(&["--html", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(&page).unwrap().replace("</b>", "");
    let observation: Observation = serde_json::from_str(&profile(&["--json"])).unwrap();
    outage.end();
    let words = collapse_whitespace(&text.replace('\u{a0}', " "));
    let blocker = format!("session {pid} blocks 1 session");
    for expected in [
        &*blocker,
        "idle in transaction for ",
        "holds RowExclusiveLock on accounts",
        "update accounts set balance = $1",
        "a row of accounts",
    ] {
        assert!(words.contains(expected), "{expected} in\n{text}");
        let on_page = collapse_whitespace(&page.replace('\u{a0}', " "));
        assert!(on_page.contains(expected), "{expected} on the page");
    }
    let activity = observation.activity.unwrap();
    let [episode] = &*activity.blocking else {
        panic!("{:?}", activity.blocking);
    };
    let root = &episode.root;
    let statement = "update accounts set balance = $1";
    assert_eq!((root.pid, &*root.state), (Some(pid), "idle in transaction"));
    assert!(root.state_age_us > 0.0 && root.transaction_age_us.is_some());
    assert_eq!(root.statement.as_deref(), Some(statement));
    let relation = root.holds.as_ref().map(|it| &*it.relation.name);
    assert_eq!((relation, episode.blocked.len()), (Some("accounts"), 1));
    // Most of the second, although the locks are read once.
    let of_table = activity.load_of(|it| it.relation.is_some());
    assert!(of_table > 0.9, "{of_table}");
}
