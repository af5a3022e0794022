//! A server that the test runs and a study uses as an external one.

use pgassay_record::run::Run;
use pgassay_server::{Server, ServerConfig};
use pgassay_test_support::{Finished, Scratch, servers, wait_until};

/// Each script divides by zero, and so fails the run, unless it runs in one of the run's databases.
const STUDY: &str = r#"question = "Does a session's setting matter?"
[server]
dsn = "DSN"
[data]
setup = '''
create table mine (id int primary key, note text);
insert into mine select i, 'of the run' from generate_series(1, 100) i;
'''
reset = "update mine set note = 'reset' where id = 1"
[[script]]
name = "look"
text = '''
\set id random(1, 100)
select note, 1 / (current_database() like 'pgassay\_%')::int from mine where id = :id;
'''
[[variant]]
name = "as it is"
[[variant]]
name = "no index"
session = { enable_indexscan = "off", enable_bitmapscan = "off" }
[conditions]
clients = [2]
[length]
full = "2s"
pairs = 2
"#;

/// What most studies here need: the test's server is reached as a superuser.
pub const ALLOWED: [&str; 2] = ["--allow-writes", "--allow-superuser"];

pub fn of_dsn(dsn: &str) -> String {
    STUDY.replace("DSN", dsn)
}

/// An external server with its own data.
pub struct Theirs {
    pub server: Server,
    postmaster_pid: i32,
}

impl Theirs {
    /// `None` if this version is not available here.
    pub fn start() -> Option<Self> {
        Self::start_version("18")
    }

    pub fn start_version(version: &str) -> Option<Self> {
        Self::start_with(version, false)
    }

    pub fn start_with(version: &str, tls: bool) -> Option<Self> {
        let config = ServerConfig {
            tcp: true,
            tls,
            ..servers::config()
        };
        let server = servers::start_with(version, &config)?;
        let sql = "create table mine (note text); insert into mine values ('theirs'); \
                   create role maker login createdb password 's3cret'; \
                   create role guest login password 's3cret'";
        let mut connection = server.connect().expect("connect");
        connection.execute(sql).expect("the statement succeeds");
        let postmaster_pid = server.postmaster_pid();
        Some(Self {
            server,
            postmaster_pid,
        })
    }

    /// A superuser's connection string with a password.
    pub fn superuser(&self) -> String {
        let server = &self.server;
        let address = server.tcp_address().expect("the server listens on TCP");
        format!(
            "host={} port={} user={} dbname=postgres password={}",
            address.ip(),
            address.port(),
            server.superuser(),
            server.password().reveal()
        )
    }

    pub fn port(&self) -> u16 {
        self.server
            .tcp_address()
            .expect("the server listens")
            .port()
    }

    /// A URI over TCP, for one of the roles that need a password.
    pub fn uri(&self, role: &str) -> String {
        format!("postgresql://{role}@127.0.0.1:{}/postgres", self.port())
    }

    pub fn ask(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let mut connection = self.server.connect().expect("connect");
        connection.query(sql).expect("the query succeeds")
    }

    pub fn databases(&self) -> Vec<String> {
        let sql = "select datname from pg_database where datname like 'pgassay%'";
        let rows = self.ask(sql).into_iter();
        rows.flatten().flatten().collect()
    }

    /// Checks that data and processes are unchanged and no database of pgassay is left.
    pub fn assert_untouched(&self) {
        assert_eq!(self.databases(), Vec::<String>::new());
        let theirs = self.ask("select * from mine");
        assert_eq!(theirs, [[Some("theirs".to_owned())]]);
        assert_eq!(self.server.postmaster_pid(), self.postmaster_pid);
        assert!(self.server.is_alive().is_ok());
    }
}

pub fn run_of(finished: &Finished) -> Run {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Regression: `compare --dsn dbname=shop 'select … from orders'` wanted to create a database with pgbench's tables, in
/// which there are no orders.
#[test]
fn statements_on_a_running_server_run_on_its_data() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(crate::PROGRAM);
    let dsn = theirs.superuser();
    let server = ["--dsn", &dsn, "--allow-superuser", "--length", "1s"];
    let asked = [
        "compare",
        "select * from mine",
        "--vs",
        "jit=off",
        "--pairs",
        "2",
    ];
    let shown = scratch.ok(&[&asked[..], &server].concat());
    assert!(shown.contains("2 pairs"), "{shown}");
    let curve = ["curve", "select * from mine", "-c", "1,2,3"];
    scratch.ok(&[&curve[..], &server].concat());
    for (args, reason) in [
        (
            ["insert into mine values ('ours')", "--vs", "jit=off"],
            "The load may write",
        ),
        (
            ["-S", "--vs", "jit=off"],
            "they run in the one that --dsn names",
        ),
        (
            [
                "select * from mine",
                "--vs-setup",
                "create index on mine (note)",
            ],
            "pgassay changes only databases that it creates: give --setup",
        ),
    ] {
        let refused = scratch.finished(&[&["compare"], &args[..], &server].concat());
        assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
        let message = pgassay_test_support::collapse_whitespace(&refused.stderr);
        assert!(message.contains(reason), "{args:?}: {message}");
    }
    theirs.assert_untouched();
}

/// Regression: a role's setting, or one of the connection string, let a statement out of a string, and it deleted rows
/// without `--allow-writes`.
#[test]
fn a_load_in_place_is_refused_where_a_string_can_hide_a_statement() {
    for version in ["12", "18"] {
        let Some(theirs) = Theirs::start_version(version) else {
            return;
        };
        theirs.ask("grant all on mine to guest");
        let scratch = Scratch::new(crate::PROGRAM);
        let script = "select '\\', '; set default_transaction_read_only=off; commit; delete from mine; --';\n";
        std::fs::write(scratch.path().join("one.sql"), script).expect("a file");
        let dsn = theirs.uri("guest").replace("guest@", "guest:s3cret@");
        let refuses = |dsn: &str, reason: &str| {
            let asked = ["compare", "-f", "one.sql", "--vs", "jit=off", "--dsn", dsn];
            let refused = scratch.finished(&asked);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            let message = pgassay_test_support::collapse_whitespace(&refused.stderr);
            assert!(message.contains(reason), "{reason}: {message}");
            theirs.assert_untouched();
        };
        let off = format!("{dsn}?options=-c%20standard_conforming_strings%3Doff");
        refuses(&off, "have standard_conforming_strings = off");
        refuses(
            &format!("{dsn}?client_encoding=SJIS"),
            "client_encoding = SJIS",
        );
        theirs.ask("alter role guest set client_encoding = 'GBK'");
        refuses(&dsn, "client_encoding = GBK");
        theirs.ask("alter role guest reset client_encoding");
        theirs.ask("alter database postgres set standard_conforming_strings = off");
        refuses(&dsn, "have standard_conforming_strings = off");
    }
}

/// Regression: after a failure of one client, the statements of others went on for as long as they took.
#[test]
fn a_statement_does_not_outlive_a_failed_run_on_a_server_of_others() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(crate::PROGRAM);
    let script = "\\if :client_id = 0\n\\sleep 500 ms\nselect 1 / 0;\n\\else\nselect pg_sleep(1000);\n\\endif\n";
    std::fs::write(scratch.path().join("one.sql"), script).expect("a file");
    let dsn = theirs.superuser();
    let server = ["--dsn", &dsn, "--allow-superuser"];
    let question = ["compare", "-f", "one.sql", "-c", "2", "--vs", "jit=off"];
    let failed = scratch.finished(&[&question[..], &server].concat());
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("division by zero"), "{failed:?}");
    let sleeping = "select from pg_stat_activity where query like '%pg_sleep(1000)%' and pid <> pg_backend_pid()";
    wait_until("the statement ends", || theirs.ask(sleeping).is_empty());
}
