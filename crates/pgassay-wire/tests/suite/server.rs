//! The session and the exchange against a real server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use pgassay_test_support::{BareServer, wait_until};
use pgassay_wire::{
    Event, Exchange, ExchangeError, Execution, Login, Password, ServerMessage, Session,
    TransactionStatus,
};

fn login(user: &str, password: Option<&str>) -> Login {
    Login {
        user: user.into(),
        database: "postgres".into(),
        password: password.map(Password::new),
        settings: vec![("application_name".into(), "wire test".into())],
        ..Login::default()
    }
}

/// Writes the output, reads `piece` bytes at a time, and records events until `until` returns true.
fn converse(
    stream: &mut std::os::unix::net::UnixStream,
    session: &mut Session,
    piece: usize,
    mut until: impl FnMut(&str) -> bool,
) -> Vec<String> {
    let mut noted = Vec::new();
    let mut buffer = vec![0; piece];
    loop {
        let count = stream.write(session.output()).unwrap();
        session.sent(count);
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "closed after {noted:?}");
        let mut input = &buffer[..count];
        let mut done = false;
        while let Some(event) = session.next(&mut input).unwrap() {
            let note = match event {
                Event::Parameter { .. } => continue,
                Event::DataRow { token, row } => {
                    let values: Vec<_> = row
                        .values()
                        .map(|value| {
                            value
                                .unwrap()
                                .map(|v| String::from_utf8_lossy(v).into_owned())
                        })
                        .collect();
                    format!("row {token} {values:?}")
                }
                Event::Complete { token, tag } => {
                    format!("complete {token} {}", String::from_utf8_lossy(tag))
                }
                Event::Ready { token, status } => format!("ready {token:?} {status:?}"),
                Event::Error {
                    token,
                    skipped,
                    error,
                } => {
                    format!("error {token:?} {} skipped {skipped}", error.sqlstate)
                }
                other => format!("{other:?}"),
            };
            done |= until(&note);
            noted.push(note);
        }
        if done {
            return noted;
        }
    }
}

#[test]
fn every_authentication_method() {
    let hba = "local all tester trust\nlocal all clear password\nlocal all digest md5\n\
               local all salted scram-sha-256\nlocal all peered peer map=any\nlocal all shut reject\n";
    let Some(server) = BareServer::start(hba) else {
        return;
    };
    let mut admin = Exchange::open(server.connect(), &login("tester", None)).unwrap();
    admin
        .query(
            "set password_encryption = 'md5'; create role digest login password 'secret';
             set password_encryption = 'scram-sha-256';
             create role clear login password 'secret'; create role salted login password 'secret';
             create role shut login; create role peered login",
        )
        .unwrap();
    for user in ["clear", "digest", "salted"] {
        let mut good = Exchange::open(server.connect(), &login(user, Some("secret"))).unwrap();
        assert_eq!(
            good.value("select current_user").unwrap().as_deref(),
            Some(user)
        );
        let bad = Exchange::open(server.connect(), &login(user, Some("wrong")))
            .err()
            .unwrap();
        assert!(
            matches!(&bad, ExchangeError::Server(e) if e.sqlstate == "28P01"),
            "{bad}"
        );
        let none = Exchange::open(server.connect(), &login(user, None))
            .err()
            .unwrap();
        assert!(none.to_string().contains("PGPASSWORD"), "{none}");
    }
    let shut = Exchange::open(server.connect(), &login("shut", None))
        .err()
        .unwrap();
    assert!(
        matches!(&shut, ExchangeError::Server(e) if e.sqlstate == "28000"),
        "{shut}"
    );
}

#[test]
fn simple_queries() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut exchange = Exchange::open(server.connect(), &login("tester", None)).unwrap();
    let pid: i32 = exchange
        .value("select pg_backend_pid()")
        .unwrap()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(exchange.backend().unwrap().pid, pid);
    assert!(exchange.parameter("server_version").is_some());
    let name = exchange.value("show application_name").unwrap();
    assert_eq!(name.as_deref(), Some("wire test"));

    let answers = exchange
        .query("select 1 as a, null as b, 'ü' as \"c d\"; create temp table t()")
        .unwrap();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].columns, ["a", "b", "c d"]);
    assert_eq!(
        answers[0].rows,
        [[Some("1".into()), None, Some("ü".into())]]
    );
    assert_eq!(
        (answers[0].tag.as_str(), answers[1].tag.as_str()),
        ("SELECT 1", "CREATE TABLE")
    );
    assert_eq!(exchange.query("").unwrap()[0].tag, "");

    let Err(ExchangeError::Server(error)) = exchange.query("select 1; select nonsense; select 2")
    else {
        panic!("nonsense is accepted")
    };
    assert_eq!(
        (error.sqlstate.as_str(), error.position),
        ("42703", Some(18))
    );
    assert_eq!(exchange.value("select 3").unwrap().as_deref(), Some("3"));

    exchange
        .query("do $$ begin raise warning 'mind the gap'; end $$")
        .unwrap();
    assert_eq!(exchange.take_notices()[0].message, "mind the gap");

    let answer = exchange
        .execute("select $1::int + 1, $2", &[Some("41"), None])
        .unwrap();
    assert_eq!(answer.rows, [[Some("42".into()), None]]);
    assert!(exchange.execute("select $1::int", &[Some("x")]).is_err());
    let large = exchange
        .value("select repeat('x', 300000)")
        .unwrap()
        .unwrap();
    assert_eq!(large.len(), 300_000);

    for copy in [
        "copy pg_class(relname) from stdin",
        "copy (select 1) from stdin; select 1",
    ] {
        assert!(exchange.query(copy).is_err());
        assert!(exchange.execute("copy t from stdin", &[]).is_err());
    }
    assert_eq!(
        exchange.query("copy (select 1) to stdout").unwrap()[0].tag,
        "COPY 1"
    );
    assert_eq!(
        exchange
            .execute("copy (select 1) to stdout", &[])
            .unwrap()
            .tag,
        "COPY 1"
    );
    assert_eq!(exchange.value("select 4").unwrap().as_deref(), Some("4"));
    exchange.close().unwrap();
}

#[test]
fn errors_in_pipelines() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    for piece in [1, 7, 4096] {
        let mut stream = server.connect();
        let mut session = Session::start(&login("tester", None)).unwrap();
        assert!(!session.is_started());
        converse(&mut stream, &mut session, piece, |note| {
            note.starts_with("ready")
        });
        assert!(session.is_started());

        session.parse("p", "select $1::int as value", 1).unwrap();
        session
            .execute(Execution::Prepared(b"p"), &[Some(b"7")], 2, true)
            .unwrap();
        session
            .execute(Execution::Prepared(b"p"), &[Some(b"8")], 3, false)
            .unwrap();
        session.sync(4);
        session
            .execute(Execution::Text(b"begin"), &[], 5, false)
            .unwrap();
        session
            .execute(Execution::Text(b"select 1/0"), &[], 6, false)
            .unwrap();
        session
            .execute(Execution::Text(b"select 2"), &[], 7, true)
            .unwrap();
        session.close_statement("p", 8).unwrap();
        session.sync(9);
        session.sync(10);
        session
            .execute(Execution::Text(b"rollback"), &[], 11, false)
            .unwrap();
        session.close_statement("p", 12).unwrap();
        session.sync(13);
        let notes = converse(&mut stream, &mut session, piece, |note| {
            note.contains("ready Some(13)")
        });
        let notes: Vec<_> = notes
            .iter()
            .filter(|note| !note.starts_with("Described"))
            .collect();
        assert_eq!(
            notes,
            [
                "Prepared { token: 1 }",
                "row 2 [Some(\"7\")]",
                "complete 2 SELECT 1",
                "complete 3 SELECT 1",
                "ready Some(4) Idle",
                "complete 5 BEGIN",
                "error Some(6) 22012 skipped 2",
                "ready Some(9) Failed",
                "ready Some(10) Failed",
                "complete 11 ROLLBACK",
                "Closed { token: 12 }",
                "ready Some(13) Idle",
            ]
        );
        assert_eq!(session.pending(), 0);
        assert_eq!(session.status(), TransactionStatus::Idle);

        // Requests made while the server skips to the next Sync cause no events.
        session
            .execute(Execution::Text(b"select 1/0"), &[], 20, false)
            .unwrap();
        session.flush();
        converse(&mut stream, &mut session, piece, |note| {
            note.starts_with("error")
        });
        session
            .execute(Execution::Text(b"select 1"), &[], 21, false)
            .unwrap();
        session.sync(22);
        let notes = converse(&mut stream, &mut session, piece, |note| {
            note.starts_with("ready")
        });
        assert_eq!(notes, ["ready Some(22) Idle"]);
    }
}

#[test]
fn a_copy_in_a_pipeline_leaves_the_session_usable() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut stream = server.connect();
    let mut session = Session::start(&login("tester", None)).unwrap();
    converse(&mut stream, &mut session, 512, |note| {
        note.starts_with("ready")
    });
    session
        .query("create temp table t (a int)", 0, false)
        .unwrap();
    converse(&mut stream, &mut session, 512, |note| {
        note.starts_with("ready")
    });
    // The server discards Syncs after the COPY.
    for syncs in 0..3 {
        session
            .execute(Execution::Text(b"copy t from stdin"), &[], 1, false)
            .unwrap();
        (0..syncs).for_each(|_| session.sync(2));
        if syncs == 0 {
            session.flush();
        }
        let notes = converse(&mut stream, &mut session, 512, |note| {
            note.starts_with("error")
        });
        assert!(notes[0].contains("direction: In"), "{notes:?}");
        assert_eq!(notes[1], "error Some(1) 57014 skipped 0");
        session.sync(3);
        converse(&mut stream, &mut session, 512, |note| {
            note.contains("ready Some(3)")
        });
        session.query("select 5", 9, true).unwrap();
        let notes = converse(&mut stream, &mut session, 512, |note| {
            note.contains("ready Some(9)")
        });
        assert!(
            notes.contains(&"row 9 [Some(\"5\")]".to_owned()),
            "{syncs}: {notes:?}"
        );
    }
    // A statement after it makes the server close the connection and state the reason.
    session
        .execute(Execution::Text(b"copy t from stdin"), &[], 1, false)
        .unwrap();
    session
        .execute(Execution::Text(b"select 1"), &[], 2, false)
        .unwrap();
    session.sync(3);
    let notes = converse(&mut stream, &mut session, 512, |note| {
        note.starts_with("error")
    });
    assert!(notes.last().unwrap().contains("08P01"), "{notes:?}");
}

/// Runs a query that sleeps, and does something once another connection sees it sleep; returns its
/// error.
fn error_while_sleeping(
    server: &BareServer,
    exchange: &mut Exchange<UnixStream>,
    act: impl FnOnce() + Send,
) -> Box<ServerMessage> {
    let asleep = "select count(*) from pg_stat_activity where query = 'select pg_sleep(9)'";
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut other = Exchange::open(server.connect(), &login("tester", None)).unwrap();
            wait_until("the query runs", || {
                other.value(asleep).unwrap().as_deref() == Some("1")
            });
            act();
        });
        exchange.query("select pg_sleep(9)")
    });
    match result {
        Err(ExchangeError::Server(error)) => error,
        other => panic!("not interrupted: {other:?}"),
    }
}

#[test]
fn query_is_canceled() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut exchange = Exchange::open(server.connect(), &login("tester", None)).unwrap();
    let cancel = exchange.backend().unwrap().cancel_request();
    let mut other = server.connect();
    let error = error_while_sleeping(&server, &mut exchange, move || {
        other.write_all(&cancel).unwrap();
        other.read_to_end(&mut Vec::new()).unwrap();
    });
    assert_eq!(error.sqlstate, "57014");
}

#[test]
fn stopping_server_reports_shutdown() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut exchange = Exchange::open(server.connect(), &login("tester", None)).unwrap();
    let error = error_while_sleeping(&server, &mut exchange, || server.signal(libc::SIGINT));
    assert!(error.is_fatal());
    assert_eq!(error.sqlstate, "57P01");
}
