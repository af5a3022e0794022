//! A scripted server on a Unix socket, for behavior that a real server rarely shows: replies in
//! pieces, messages out of order, COPY, lost connections, and silence.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pgassay_load::{
    AbortCause, ClientPool, ClientPoolConfig, Limits, LoadError, Measurement, RunLength,
};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, Refusal, VariableNames};
use pgassay_test_support::skip;
use pgassay_wire::conninfo::Target;

use crate::peer::{Peer, message, row};

/// Runs a script for a moment on clients of a server that serves each connection with `serve`.
fn run(
    clients: u32,
    protocol: QueryProtocol,
    script: &str,
    stop: &Arc<AtomicBool>,
    serve: impl Fn(Peer, usize) + Send + Sync + 'static,
) -> Result<Measurement, LoadError> {
    let length = RunLength::Timed {
        settle: Duration::from_millis(10),
        measure: Duration::from_millis(100),
    };
    run_for(&length, clients, protocol, script, stop, serve)
}

fn run_for(
    length: &RunLength,
    clients: u32,
    protocol: QueryProtocol,
    script: &str,
    stop: &Arc<AtomicBool>,
    serve: impl Fn(Peer, usize) + Send + Sync + 'static,
) -> Result<Measurement, LoadError> {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(".s.PGSQL.1")).unwrap();
    let serve = Arc::new(serve);
    // The thread ends with the test process, or when its clients disconnect.
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().take(clients as usize).enumerate() {
            let serve = Arc::clone(&serve);
            let mut peer = Peer::new(stream.unwrap());
            std::thread::spawn(move || {
                peer.sign_in();
                serve(peer, index);
            });
        }
    });
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol,
        ..ParseOptions::default()
    };
    let script = Arc::new(ParsedScript::parse("test", script, &options, &mut names).unwrap());
    let target = Target::unix(directory.path().to_str().unwrap(), 1, "me", "me");
    let config = ClientPoolConfig {
        clients,
        protocol,
        limits: Limits {
            connect: Duration::from_mins(1),
            reply: Duration::from_secs(if clients > 100 { 60 } else { 8 }),
            stop: Duration::from_millis(300),
        },
        io: crate::io(module_path!()),
        ..ClientPoolConfig::new(target, script, Arc::new(names))
    };
    let mut pool = ClientPool::connect(&config, stop)?;
    assert_eq!(pool.backend_pids(), vec![77; clients as usize]);
    pool.run(length)
}

fn counted(transactions_per_client: u64) -> RunLength {
    RunLength::Counted {
        transactions_per_client,
    }
}

fn never_stop() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

#[test]
fn replies_cut_everywhere() {
    // Enough for each client to receive a reply cut at every byte.
    let measured = run_for(
        &counted(100),
        2,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        |mut peer, _| {
            let mut cut = 0;
            while peer.request().is_some() {
                let reply = row().concat();
                cut = (cut + 1) % reply.len();
                for piece in [&reply[..cut], &reply[cut..]] {
                    peer.stream.write_all(piece).ok();
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        },
    );
    let measured = measured.unwrap();
    assert_eq!(measured.transactions, 200);
}

#[test]
fn replies_of_more_than_one_buffer() {
    let large = message(
        b'D',
        &[&[0, 1, 0, 2, 0, 0][..], &vec![b'x'; 2 << 16]].concat(),
    );
    let measured = run_for(
        &counted(5),
        2,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        move |mut peer, _| {
            while peer.request().is_some() {
                let mut reply = row();
                reply.insert(1, large.clone());
                peer.send(&reply);
            }
        },
    );
    let measured = measured.unwrap();
    assert_eq!(measured.transactions, 10);
}

#[test]
fn notices_and_parameters_in_between() {
    let measured = run_for(
        &counted(20),
        2,
        QueryProtocol::Prepared,
        "select 1;",
        &never_stop(),
        |mut peer, _| {
            while let Some(request) = peer.request() {
                let aside = [
                    message(b'N', b"SWARNING\0C01000\0Mcareful\0\0"),
                    message(b'S', b"TimeZone\0UTC\0"),
                    message(b'A', &[0, 0, 0, 1, b'c', 0, 0]),
                ]
                .concat();
                if request == "PS" {
                    peer.send(&[
                        aside.clone(),
                        message(b'1', b""),
                        aside,
                        message(b'Z', b"I"),
                    ]);
                    continue;
                }
                assert_eq!(request, "BDES");
                peer.send(&[aside.clone(), message(b'2', b""), aside.clone()]);
                let reply: Vec<_> = row()
                    .into_iter()
                    .flat_map(|part| [aside.clone(), part])
                    .collect();
                peer.send(&reply);
                peer.send(&[aside]);
            }
        },
    );
    assert_eq!(measured.unwrap().transactions, 40);
}

#[test]
fn what_libpq_sends_is_sent() {
    for (protocol, script, expected) in [
        (QueryProtocol::Simple, "select :client_id;", "Q"),
        (QueryProtocol::Extended, "select :client_id;", "PBDES"),
        (QueryProtocol::Prepared, "select :client_id;", "BDES"),
        (
            QueryProtocol::Prepared,
            "\\startpipeline\nselect 1;\nselect 2;\n\\endpipeline",
            "BDEBDES",
        ),
    ] {
        let stop = never_stop();
        let measured = run_for(
            &counted(20),
            1,
            protocol,
            script,
            &stop,
            move |mut peer, _| {
                while let Some(request) = peer.request() {
                    if request == "PS" {
                        peer.send(&[message(b'1', b""), message(b'Z', b"I")]);
                        continue;
                    }
                    assert_eq!(request, expected);
                    let answers = request.chars().map(|tag| match tag {
                        'Q' => row().concat(),
                        'P' => message(b'1', b""),
                        'B' => message(b'2', b""),
                        'D' => message(b'n', b""),
                        'E' => message(b'C', b"SELECT 0\0"),
                        _ => message(b'Z', b"I"),
                    });
                    let answers: Vec<_> = answers.collect();
                    peer.send(&answers);
                }
            },
        );
        assert_eq!(measured.unwrap().transactions, 20, "{protocol:?}");
    }
}

#[test]
fn an_error_in_the_middle_of_a_pipeline() {
    let script = "\\startpipeline\nselect 1;\nselect 2;\nselect 3;\n\\endpipeline";
    let failed = |sqlstate: &'static str, milliseconds| {
        let length = RunLength::Timed {
            settle: Duration::from_millis(10),
            measure: Duration::from_millis(milliseconds),
        };
        run_for(
            &length,
            1,
            QueryProtocol::Extended,
            script,
            &never_stop(),
            move |mut peer, _| {
                while peer.request().is_some() {
                    let text = [b"SERROR\0C", sqlstate.as_bytes(), b"\0Mno\0\0"].concat();
                    peer.send(&[
                        message(b'1', b""),
                        message(b'2', b""),
                        message(b'n', b""),
                        message(b'C', b"SELECT 0\0"),
                        message(b'1', b""),
                        message(b'E', &text),
                        message(b'Z', b"I"),
                    ]);
                }
            },
        )
    };
    let is_enough = [100, 1_000, 10_000].into_iter().any(|milliseconds| {
        let retriable = failed("40P01", milliseconds).unwrap();
        assert_eq!(
            (retriable.transactions, retriable.transactions_total),
            (0, 0)
        );
        retriable.failed > 10 && retriable.failed_total > retriable.failed
    });
    assert!(is_enough);

    let error = failed("22012", 1_000).unwrap_err();
    let LoadError::Aborted {
        place,
        cause: AbortCause::Sql(sql),
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((place.client, place.command, place.line), (0, 2, 3));
    // Regression: it was the number of statements of the pipeline before this one.
    assert_eq!(place.query, 0);
    assert_eq!(
        (place.text.as_str(), place.script.as_str()),
        ("select 2;", "test")
    );
    assert_eq!(sql.sqlstate, "22012");
}

fn refusal(sqlstate: &str) -> Vec<u8> {
    let text = format!("SERROR\0C{sqlstate}\0Mrefused\0\0");
    message(b'E', text.as_bytes())
}

/// Regression: the error was dropped, and the clients executed the statement that an earlier run had left on a
/// pooler's connection.
#[test]
fn a_statement_whose_name_is_taken_is_not_executed() {
    let taken = |mut peer: Peer, _: usize| {
        while let Some(request) = peer.request() {
            assert_eq!(request, "PS", "nothing is executed");
            peer.send(&[refusal("42P05"), message(b'Z', b"I")]);
        }
    };
    let (script, protocol) = ("insert into t values (1);", QueryProtocol::Prepared);
    let error = run(1, protocol, script, &never_stop(), taken).unwrap_err();
    assert!(
        matches!(&error, LoadError::StatementExists { client: 0, error } if error.sqlstate == "42P05"),
        "{error}"
    );
    assert!(error.to_string().contains("pooler"), "{error}");
}

/// As before: a server skips what follows a failed Parse up to the next Sync.
#[test]
fn a_statement_that_cannot_be_prepared_later_either_is_not_executed() {
    for sqlstate in ["42P05", "42601"] {
        let refuses = move |mut peer: Peer, _: usize| {
            for expected in ["PS", "PBDES"] {
                let Some(request) = peer.request() else {
                    return;
                };
                assert_eq!(request, expected, "no Sync before Bind");
                // At first, its table does not exist.
                let later = expected == "PBDES";
                let sqlstate = if later { sqlstate } else { "42P01" };
                peer.send(&[refusal(sqlstate), message(b'Z', b"I")]);
            }
            peer.request();
        };
        let (script, protocol) = ("insert into t values (1);", QueryProtocol::Prepared);
        let error = run(1, protocol, script, &never_stop(), refuses).unwrap_err();
        let LoadError::Aborted { place, cause } = &error else {
            panic!("{error}")
        };
        assert_eq!((place.command, place.query), (0, 0));
        match cause {
            AbortCause::Sql(error) => assert_eq!((&*error.sqlstate, sqlstate), ("42P05", "42P05")),
            AbortCause::Unprepared { error, name } => {
                assert_eq!((&*error.sqlstate, &**name), ("42601", "P_0"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_copy_is_refused() {
    for protocol in [QueryProtocol::Simple, QueryProtocol::Extended] {
        let error = run(
            2,
            protocol,
            "copy t from stdin;",
            &never_stop(),
            |mut peer, _| {
                if peer.request().is_some_and(|request| request != "Q") {
                    peer.send(&[message(b'1', b""), message(b'2', b""), message(b'n', b"")]);
                }
                peer.send(&[message(b'G', &[0, 0, 0])]);
                // Stay silent: the client must not wait for more.
                peer.request();
            },
        )
        .unwrap_err();
        assert!(
            matches!(
                &error,
                LoadError::Aborted {
                    cause: AbortCause::Refusal(Refusal::Copy),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn lost_connection_reports_last_server_message() {
    let error = run(
        3,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        |mut peer, index| {
            let mut left = 20;
            while peer.request().is_some() {
                left -= 1;
                if index == 1 && left == 0 {
                    peer.send(&[message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mgoing home\0\0")]);
                    return;
                }
                peer.send(&row());
            }
        },
    )
    .unwrap_err();
    let LoadError::Lost {
        client: 1,
        last: Some(last),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(last.sqlstate, "57P01");
    assert!(error.to_string().contains("going home"), "{error}");

    let error = run(
        3,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        |mut peer, index| {
            while peer.request().is_some() {
                if index == 2 {
                    peer.send(&[row().concat()[..20].to_vec()]);
                    return;
                }
                peer.send(&row());
            }
        },
    )
    .unwrap_err();
    assert!(
        matches!(
            &error,
            LoadError::Lost {
                client: 2,
                last: None,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("select 1;"), "{error}");
}

#[test]
fn invalid_reply_is_an_error() {
    let error = run(
        1,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        |mut peer, _| {
            peer.request();
            peer.send(&[b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]);
            peer.request();
        },
    )
    .unwrap_err();
    assert!(
        matches!(error, LoadError::Wire { client: 0, .. }),
        "{error}"
    );
}

#[test]
fn missing_reply_times_out() {
    let begin = Instant::now();
    let error = run(
        2,
        QueryProtocol::Simple,
        "select 1;",
        &never_stop(),
        |mut peer, index| {
            while peer.request().is_some() {
                if index == 0 {
                    peer.send(&row());
                }
            }
        },
    )
    .unwrap_err();
    let LoadError::Unanswered { client: 1, .. } = &error else {
        panic!("{error}")
    };
    assert!(begin.elapsed() < Duration::from_mins(1));
}

#[test]
fn the_stop_flag_ends_a_run_that_hangs() {
    let stop = never_stop();
    let setter = Arc::clone(&stop);
    let length = RunLength::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_secs(20),
    };
    let answered = AtomicUsize::new(0);
    let measured = run_for(
        &length,
        2,
        QueryProtocol::Simple,
        "select 1;",
        &stop,
        move |mut peer, index| {
            while peer.request().is_some() {
                if index == 0 {
                    peer.send(&row());
                    answered.fetch_add(1, Ordering::Relaxed);
                } else {
                    while answered.load(Ordering::Relaxed) < 10 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    setter.store(true, Ordering::Relaxed);
                }
            }
        },
    )
    .unwrap();
    // Without the flag, the silent client would be an error.
    assert!(measured.interrupted);
    assert_eq!(measured.unfinished, 1);
    assert!(measured.clients[0] > 0);
}

#[test]
fn the_stop_flag_ends_connecting() {
    let stop = Arc::new(AtomicBool::new(true));
    let directory = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(directory.path().join(".s.PGSQL.1")).unwrap();
    let mut names = VariableNames::new();
    let script =
        ParsedScript::parse("test", "select 1;", &ParseOptions::default(), &mut names).unwrap();
    let target = |directory: &str| Target::unix(directory, 1, "me", "me");
    let here = target(directory.path().to_str().unwrap());
    let mut config = ClientPoolConfig::new(here, Arc::new(script), Arc::new(names));
    let begin = Instant::now();
    let error = ClientPool::connect(&config, &stop).err().unwrap();
    assert!(matches!(error, LoadError::Stopped), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20));

    stop.store(false, Ordering::Relaxed);
    config.limits.connect = Duration::from_millis(200);
    let error = ClientPool::connect(&config, &stop).err().unwrap();
    assert!(
        matches!(&error, LoadError::Unanswered { client: 0, .. }),
        "{error}"
    );

    config.target = target("/nowhere at all");
    let error = ClientPool::connect(&config, &stop).err().unwrap();
    assert!(matches!(&error, LoadError::Connect { .. }), "{error}");
    assert!(
        error.to_string().contains("/nowhere at all/.s.PGSQL.1"),
        "{error}"
    );
}

/// Both ends of the connections are in this process.
#[test]
fn two_thousand_clients_on_one_thread() {
    const CLIENTS: u32 = 2000;
    // SAFETY: all zeroes is a valid rlimit, and the pointers are to our own.
    let files = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(10_000);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        limit.rlim_cur
    };
    if files < u64::from(2 * CLIENTS + 200) {
        skip(
            "many clients",
            &format!("the limit on open files is {files}"),
        );
        return;
    }
    let measured = run_for(
        &counted(2),
        CLIENTS,
        QueryProtocol::Prepared,
        "select 1;",
        &never_stop(),
        |mut peer, _| {
            while let Some(types) = peer.request() {
                if types.contains('P') {
                    peer.send(&[message(b'1', b""), message(b'Z', b"I")]);
                } else {
                    peer.send(&[
                        message(b'2', b""),
                        message(b'n', b""),
                        message(b'C', b"SELECT 1\0"),
                        message(b'Z', b"I"),
                    ]);
                }
            }
        },
    );
    let measured = measured.unwrap();
    assert_eq!(measured.clients.len(), CLIENTS as usize);
    assert_eq!(measured.threads.len(), 1);
    assert_eq!(measured.transactions, 2 * u64::from(CLIENTS));
}
