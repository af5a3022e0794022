//! How client pools connect: requesting TLS, what follows a refusal, the next host, connections
//! that break meanwhile, and real TLS.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgassay_load::{
    ClientOptions, ClientPool, ClientPoolConfig, Limits, LoadError, Measurement, OnAbort, RunLength,
};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_test_support::{BareServer, Certificates};
use pgassay_wire::conninfo::{Environment, FileText, Request, Target};
use pgassay_wire::{TlsError, WireError};

use crate::peer::message;

/// An environment with files only.
struct Files;

impl Environment for Files {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }
    fn user(&self) -> Option<String> {
        None
    }
    fn home(&self) -> Option<PathBuf> {
        None
    }
    fn read(&self, path: &Path, _: u64) -> io::Result<Option<FileText>> {
        Ok(std::fs::read_to_string(path).ok().map(|text| FileText {
            text,
            mode: 0o600,
            is_owned_by_root: false,
        }))
    }
}

fn target(text: &str) -> Target {
    Request::new()
        .conninfo(text)
        .unwrap()
        .resolve(&Files)
        .unwrap()
}

fn config(text: &str, clients: u32, options: ClientOptions) -> ClientPoolConfig {
    let mut names = VariableNames::new();
    let parse_options = ParseOptions {
        protocol: QueryProtocol::Extended,
        ..ParseOptions::default()
    };
    let script = ParsedScript::parse("test", "select 1;", &parse_options, &mut names).unwrap();
    ClientPoolConfig {
        clients,
        protocol: QueryProtocol::Extended,
        limits: Limits {
            connect: Duration::from_secs(20),
            reply: Duration::from_secs(20),
            stop: Duration::from_millis(300),
        },
        io: crate::io(module_path!()),
        options,
        ..ClientPoolConfig::new(target(text), Arc::new(script), Arc::new(names))
    }
}

/// Connects and runs briefly.
fn run(config: &ClientPoolConfig) -> Result<Measurement, LoadError> {
    run_for(
        config,
        &RunLength::Timed {
            settle: Duration::ZERO,
            measure: Duration::from_millis(100),
        },
    )
}

/// Connects and runs for longer and longer, until there are more transactions than this: a busy machine
/// may run nothing in a tenth of a second.
fn run_until_more_than(transactions: u64, config: &ClientPoolConfig) -> Measurement {
    let mut measure = Duration::from_millis(100);
    loop {
        let settle = Duration::ZERO;
        let measured = run_for(config, &RunLength::Timed { settle, measure }).unwrap();
        if measured.transactions > transactions {
            return measured;
        }
        measure *= 4;
        assert!(measure < Duration::from_mins(1), "{measured:?}");
    }
}

fn run_counted(config: &ClientPoolConfig, transactions_per_client: u64) -> Measurement {
    let length = RunLength::Counted {
        transactions_per_client,
    };
    run_for(config, &length).unwrap()
}

fn run_for(config: &ClientPoolConfig, window: &RunLength) -> Result<Measurement, LoadError> {
    let begin = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let ran = ClientPool::connect(config, &stop).and_then(|mut pool| pool.run(window));
    assert!(begin.elapsed() < Duration::from_mins(1), "{ran:?}");
    ran
}

fn fatal(sqlstate: &str) -> Vec<u8> {
    let body = format!("SFATAL\0VFATAL\0C{sqlstate}\0Mgo away\0\0");
    message(b'E', body.as_bytes())
}

/// What the server sends when it accepts a client.
fn welcome(settings: &[(&str, &str)]) -> Vec<u8> {
    let known = settings
        .iter()
        .map(|(name, value)| message(b'S', format!("{name}\0{value}\0").as_bytes()));
    [
        message(b'R', &[0; 4]),
        known.collect::<Vec<_>>().concat(),
        message(b'K', &[0, 0, 0, 77, 0, 0, 0, 1]),
        message(b'Z', b"I"),
    ]
    .concat()
}

/// Reads a start-up message, or a request for TLS (`true`).
fn is_asking_for_tls(stream: &mut TcpStream) -> io::Result<bool> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok(body == [0x04, 0xd2, 0x16, 0x2f])
}

/// Writes bytes in pieces that arrive one by one.
fn write(stream: &mut TcpStream, bytes: &[u8], piece: usize) -> io::Result<()> {
    for piece in bytes.chunks(piece) {
        stream.write_all(piece)?;
        if piece.len() < bytes.len() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// Answers this many executions of `select 1`, cutting the replies at every byte in turn.
fn serve(stream: &mut TcpStream, count: usize) -> io::Result<()> {
    let reply = [
        message(b'1', b""),
        message(b'2', b""),
        message(
            b'T',
            b"\0\x01a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0",
        ),
        message(b'D', &[0, 1, 0, 0, 0, 1, b'1']),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ]
    .concat();
    let mut buffer = [0; 4096];
    for turn in 0..count {
        // A Sync ends each request.
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 || buffer[..count].starts_with(b"X") {
                return Ok(());
            }
            if buffer[..count].ends_with(b"S\0\0\0\x04") {
                break;
            }
        }
        let cut = turn % reply.len();
        for piece in [&reply[..cut], &reply[cut..]] {
            stream.write_all(piece)?;
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

/// Starts a server that calls `handle` for each connection, numbered from 0; returns its port.
fn server(handle: impl Fn(&mut TcpStream, usize) -> io::Result<()> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let handle = Arc::new(handle);
    // The threads end with the test process, or when their clients disconnect.
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let handle = Arc::clone(&handle);
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                // A client may have given up.
                handle(&mut stream, index).ok();
            });
        }
    });
    port
}

fn text(port: u16, more: &str) -> String {
    format!("host=127.0.0.1 port={port} user=me dbname=me {more}")
}

#[test]
fn a_server_without_tls() {
    let port = server(|stream, _| {
        if is_asking_for_tls(stream)? {
            stream.write_all(b"N")?;
            is_asking_for_tls(stream)?;
        }
        write(stream, &welcome(&[]), 1)?;
        serve(stream, usize::MAX)
    });
    for mode in ["disable", "allow", "prefer"] {
        let config = config(
            &text(port, &format!("sslmode={mode}")),
            2,
            ClientOptions::default(),
        );
        run_until_more_than(10, &config);
    }
    let error = run(&config(
        &text(port, "sslmode=require"),
        2,
        ClientOptions::default(),
    ))
    .unwrap_err();
    let LoadError::Wire { error, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        matches!(error, WireError::Tls(TlsError::Refused)),
        "{error}"
    );
}

#[test]
fn extra_bytes_after_tls_response_are_rejected() {
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        stream.write_all(&[b"S", &welcome(&[])[..]].concat())?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    let error = run(&config(
        &text(port, "sslmode=require"),
        1,
        ClientOptions::default(),
    ))
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("unencrypted data after SSL response"),
        "{error}"
    );
}

#[test]
fn sslmode_prefer_falls_back_after_tls_failure() {
    // An error, an invalid answer, and a failed handshake; afterwards clients continue without TLS.
    for answer in [&fatal("XX000")[..], b"?", b"S"] {
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, counter) = (answer.to_owned(), Arc::clone(&asked));
        let port = server(move |stream, _| {
            if is_asking_for_tls(stream)? {
                counter.fetch_add(1, Ordering::Relaxed);
                stream.write_all(&answer)?;
                if answer == b"S" {
                    stream.read_exact(&mut [0; 5])?;
                    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
                }
                return Ok(());
            }
            write(stream, &welcome(&[]), 64)?;
            serve(stream, usize::MAX)
        });
        for reconnects in [false, true] {
            let options = ClientOptions {
                reconnects,
                ..ClientOptions::default()
            };
            run_until_more_than(0, &config(&text(port, "sslmode=prefer"), 3, options));
            assert!(asked.load(Ordering::Relaxed) >= 3);
        }
        let error = run(&config(
            &text(port, "sslmode=require"),
            1,
            ClientOptions::default(),
        ));
        assert!(matches!(error, Err(LoadError::Wire { .. })), "{error:?}");
    }
}

#[test]
fn starting_and_unsuitable_hosts_are_skipped() {
    let starting = server(|stream, _| {
        is_asking_for_tls(stream)?;
        write(stream, &fatal("57P03"), 3)
    });
    let kind = |standby: &'static str| {
        server(move |stream, _| {
            is_asking_for_tls(stream)?;
            let known = [
                ("in_hot_standby", standby),
                ("default_transaction_read_only", "off"),
            ];
            write(stream, &welcome(&known), 7)?;
            serve(stream, usize::MAX)
        })
    };
    let (standby, primary) = (kind("on"), kind("off"));
    let text = format!(
        "host=127.0.0.1,127.0.0.1,127.0.0.1 port={starting},{standby},{primary} user=me \
         dbname=me sslmode=disable"
    );
    for (kind, works) in [("any", true), ("primary", true), ("prefer-standby", true)] {
        for reconnects in [false, true] {
            let options = ClientOptions {
                reconnects,
                ..ClientOptions::default()
            };
            let text = format!("{text} target_session_attrs={kind}");
            let ran = run(&config(&text, 4, options));
            assert_eq!(ran.is_ok(), works, "{kind}: {ran:?}");
        }
    }
    // A wrong password is wrong on the other host too.
    let refusing = server(|stream, _| {
        is_asking_for_tls(stream)?;
        write(stream, &fatal("28P01"), 100)
    });
    let text = format!(
        "host=127.0.0.1,127.0.0.1 port={refusing},{primary} user=me dbname=me sslmode=disable"
    );
    let error = run(&config(&text, 2, ClientOptions::default())).unwrap_err();
    assert!(
        matches!(&error, LoadError::Refused { error, .. } if error.sqlstate == "28P01"),
        "{error}"
    );
}

/// Regression: only errors of severity FATAL were refusals; the reason was lost with the connection.
#[test]
fn a_refusal_with_the_severity_of_an_error_names_its_reason() {
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        stream.write_all(&message(b'E', b"SERROR\0VERROR\0C53300\0Mtoo many\0\0"))
    });
    for reconnects in [false, true] {
        let options = ClientOptions {
            reconnects,
            ..ClientOptions::default()
        };
        let error = run(&config(&text(port, "sslmode=disable"), 1, options)).unwrap_err();
        assert!(
            matches!(&error, LoadError::Refused { error, .. } if error.sqlstate == "53300"),
            "{error}"
        );
    }
}

/// Regression: with a connection for each transaction, it was discarded, and the rest of the message violated the
/// protocol.
#[test]
fn what_arrives_with_the_end_of_the_sign_in_is_not_discarded() {
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        let notice = message(b'N', b"SNOTICE\0C00000\0Mhello\0\0");
        stream.write_all(&[&welcome(&[])[..], &notice[..7]].concat())?;
        std::thread::sleep(Duration::from_millis(2));
        stream.write_all(&notice[7..])?;
        serve(stream, usize::MAX)
    });
    let options = ClientOptions {
        reconnects: true,
        ..ClientOptions::default()
    };
    let measured = run_counted(&config(&text(port, "sslmode=disable"), 2, options), 5);
    assert_eq!(measured.transactions, 10);
}

#[test]
fn silent_host_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        write(stream, &welcome(&[]), 64)?;
        serve(stream, usize::MAX)
    });
    let text = format!(
        "host=127.0.0.1,127.0.0.1 port={},{port} user=me dbname=me sslmode=disable \
         connect_timeout=2",
        silent.local_addr().unwrap().port()
    );
    assert!(
        run(&config(&text, 3, ClientOptions::default()))
            .unwrap()
            .transactions
            > 0
    );
}

#[test]
fn connections_that_break_while_they_are_opened() {
    for cut in [0, 1, 5, 9, 12, 20] {
        let port = server(move |stream, _| {
            is_asking_for_tls(stream)?;
            stream.write_all(&welcome(&[])[..cut])
        });
        for reconnects in [false, true] {
            let options = ClientOptions {
                reconnects,
                ..ClientOptions::default()
            };
            let error = run(&config(&text(port, "sslmode=disable"), 2, options)).unwrap_err();
            assert!(matches!(error, LoadError::Lost { .. }), "{cut}: {error}");
        }
    }
}

#[test]
fn one_connection_of_several_drops() {
    let port = server(|stream, index| {
        is_asking_for_tls(stream)?;
        write(stream, &welcome(&[]), 64)?;
        serve(stream, if index == 1 { 5 } else { usize::MAX })
    });
    let options = ClientOptions {
        on_abort: OnAbort::EndClient,
        ..ClientOptions::default()
    };
    let config = config(&text(port, "sslmode=disable"), 4, options);
    let measured = run_counted(&config, 50);
    assert_eq!(measured.aborted, 1);
    assert!(measured.transactions >= 3 * 50, "{measured:?}");
}

/// A rate over time in which nothing ran would be too low: by a factor of 100 if a server crashes
/// after 6 s of 600.
#[test]
fn a_run_whose_clients_were_all_aborted_ends_with_them() {
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        write(stream, &welcome(&[]), 64)?;
        serve(stream, 5)
    });
    let options = ClientOptions {
        on_abort: OnAbort::EndClient,
        rate_per_s: Some(1000.0),
        ..ClientOptions::default()
    };
    let config = ClientPoolConfig {
        threads: 2,
        ..config(&text(port, "sslmode=disable"), 4, options)
    };
    let length = RunLength::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_hours(1),
    };
    // This checks that it takes less than a minute.
    let measured = run_for(&config, &length).unwrap();
    assert_eq!((measured.aborted, measured.transactions), (4, 20));
    let instants = measured.instants;
    assert_eq!(instants.window_end_ns, instants.idle_ns);
    assert!(measured.window_us < 60_000_000, "{}", measured.window_us);
    assert!(measured.unserved < 100_000, "{}", measured.unserved);
    let time = measured.time;
    let sum_us = time.in_transaction_us + time.asleep_us + time.between_us;
    assert!(sum_us.abs_diff(4 * measured.window_us) < 10, "{time:?}");
}

/// Regression: as in pgbench, the rate of a paced run is that of the time until its last client has finished. The rest
/// of the time, in which no transaction is due, lowered it.
#[test]
fn a_paced_run_in_which_nothing_more_is_due_ends_before_its_time() {
    let port = server(|stream, _| {
        is_asking_for_tls(stream)?;
        write(stream, &welcome(&[]), 64)?;
        serve(stream, usize::MAX)
    });
    let options = ClientOptions {
        rate_per_s: Some(1e-6),
        ..ClientOptions::default()
    };
    let duration = Duration::from_mins(1);
    let config = config(&text(port, "sslmode=disable"), 2, options);
    let instants = run_for(&config, &RunLength::Whole { duration });
    let instants = instants.unwrap().instants;
    assert_eq!(instants.window_end_ns - instants.begin_ns, 60_000_000_000);
    assert!(instants.idle_ns < instants.window_end_ns, "{instants:?}");
}

#[test]
fn reconnecting_clients_survive_a_server_restart() {
    // The first server ends in the middle of a reply and closes all connections.
    let lives = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
    let shared = Arc::clone(&lives);
    let port = server(move |stream, index| {
        is_asking_for_tls(stream)?;
        shared.lock().unwrap().push(stream.try_clone()?);
        write(stream, &welcome(&[]), 64)?;
        if index == 12 {
            for stream in shared.lock().unwrap().drain(..) {
                stream.shutdown(std::net::Shutdown::Both).ok();
            }
        }
        serve(stream, usize::MAX)
    });
    let options = ClientOptions {
        reconnects: true,
        on_abort: OnAbort::EndClient,
        ..ClientOptions::default()
    };
    let config = config(&text(port, "sslmode=disable"), 3, options);
    let first = run_counted(&config, 10);
    assert!(first.aborted >= 1, "{first:?}");
    let second = run_counted(&config, 10);
    assert_eq!((second.aborted, second.transactions), (0, 30));
}

#[test]
fn real_tls() {
    let files = tempfile::tempdir().unwrap();
    let made = Certificates::make(files.path());
    let given = ["server.crt", "server.key", "root.crt"].map(|name| made.path(name));
    let hba = "local all all trust\nhostssl all secretive 127.0.0.1/32 scram-sha-256\n\
               hostnossl all plain 127.0.0.1/32 trust\n";
    let Some(server) = BareServer::start_with(hba, &given) else {
        return;
    };
    let login = pgassay_wire::Login {
        user: "tester".into(),
        database: "postgres".into(),
        ..pgassay_wire::Login::default()
    };
    let mut admin = pgassay_wire::Exchange::open(server.connect(), &login).unwrap();
    let roles = "create role secretive login password 'open'; create role plain login";
    admin.query(roles).unwrap();
    let text = |more: &str| {
        let roots = made.path("root.crt");
        format!(
            "host=localhost hostaddr=127.0.0.1 port={} dbname=postgres sslrootcert={} {more}",
            server.port(),
            roots.display()
        )
    };
    let secretive = "user=secretive password=open";
    for (more, reconnects) in [
        (
            format!("{secretive} sslmode=verify-full channel_binding=require"),
            false,
        ),
        (format!("{secretive} sslmode=verify-full"), true),
        (format!("{secretive} sslmode=allow"), false),
        ("user=plain sslmode=prefer".into(), false),
        ("user=plain sslmode=prefer".into(), true),
    ] {
        let options = ClientOptions {
            reconnects,
            ..ClientOptions::default()
        };
        let window = RunLength::Counted {
            transactions_per_client: 10,
        };
        let measured = run_for(&config(&text(&more), 4, options), &window).unwrap();
        assert_eq!(measured.clients, [10; 4], "{more}");
        let time = measured.time;
        let sum = time.in_transaction_us + time.asleep_us + time.between_us;
        assert!(
            sum.abs_diff(4 * measured.window_us) * 100 <= 4 * measured.window_us,
            "{time:?}"
        );
    }
    // More than a buffer, both ways.
    let mut names = VariableNames::new();
    let long = format!("select repeat('x', 300000), '{}';", "y".repeat(400_000));
    let script = ParsedScript::parse("long", &long, &ParseOptions::default(), &mut names).unwrap();
    let target = target(&text(&format!("{secretive} sslmode=require")));
    let config = ClientPoolConfig {
        clients: 2,
        io: crate::io(module_path!()),
        ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
    };
    assert_eq!(run_counted(&config, 5).transactions, 10);
}
