//! Servers that send without end: the load ends within its time limits, and memory stays bounded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgassay_load::{ClientPool, ClientPoolConfig, IoChoice, Limits, LoadError, RunLength};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_test_support::memory::{CountingAllocator, peak_bytes, turn};
use pgassay_wire::WireError;
use pgassay_wire::conninfo::Target;

/// What a server may make us allocate.
const ALLOWED_BYTES: usize = 64 << 20;
/// A limit of the load, and what a busy machine may add to it.
const LIMIT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

fn notice() -> Vec<u8> {
    message(b'N', b"SNOTICE\0C00000\0Mstill here\0\0")
}

fn accepted() -> Vec<u8> {
    message(b'R', &[0; 4])
}

fn signed_in() -> Vec<u8> {
    [accepted(), message(b'Z', b"I")].concat()
}

/// What a server sends: `begin` after the start-up message, and then a piece at intervals.
#[derive(Clone)]
struct Behavior {
    begin: Vec<u8>,
    /// Whether it waits for a request before the pieces.
    waits: bool,
    piece: Vec<u8>,
    interval: Duration,
}

/// Serves until the client closes the connection, or for a minute.
fn serve(mut stream: UnixStream, behavior: &Behavior) {
    let mut buffer = [0; 4096];
    if stream.read(&mut buffer).is_err() || stream.write_all(&behavior.begin).is_err() {
        return;
    }
    if behavior.waits && stream.read(&mut buffer).is_err() {
        return;
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_mins(1) && stream.write_all(&behavior.piece).is_ok() {
        std::thread::sleep(behavior.interval);
    }
}

/// Runs a script against such a server with each driver. Returns the last result; if the kernel refuses
/// `io_uring`, both are epoll's.
fn run(
    behavior: &Behavior,
    protocol: QueryProtocol,
    script: &str,
    stop: &Arc<AtomicBool>,
) -> Result<bool, LoadError> {
    let first = run_on(IoChoice::Epoll, behavior, protocol, script, stop);
    let second = run_on(IoChoice::Auto, behavior, protocol, script, stop);
    let kind = |result: &Result<bool, LoadError>| match result {
        Ok(_) | Err(LoadError::Stopped) => None,
        Err(error) => Some(std::mem::discriminant(error)),
    };
    assert_eq!(kind(&first), kind(&second), "{first:?} {second:?}");
    second
}

/// Runs a script against such a server, and checks time and memory.
fn run_on(
    io: IoChoice,
    behavior: &Behavior,
    protocol: QueryProtocol,
    script: &str,
    stop: &Arc<AtomicBool>,
) -> Result<bool, LoadError> {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(".s.PGSQL.1")).unwrap();
    let of_server = behavior.clone();
    let server = std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            serve(stream, &of_server);
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
        protocol,
        limits: Limits {
            connect: LIMIT,
            reply: LIMIT,
            stop: LIMIT,
        },
        io,
        ..ClientPoolConfig::new(target, script, Arc::new(names))
    };
    let begin = Instant::now();
    let length = RunLength::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_millis(100),
    };
    let run = || ClientPool::connect(&config, stop).and_then(|mut pool| pool.run(&length));
    let (ended, taken) = peak_bytes(run);
    assert!(taken > 0, "the allocator counts");
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(taken < ALLOWED_BYTES, "{} MiB", taken >> 20);
    // What it frees later would be missing in what the next run takes.
    server.join().unwrap();
    ended.map(|measured| measured.interrupted)
}

fn run_simple(behavior: &Behavior) -> LoadError {
    let stop = Arc::new(AtomicBool::new(false));
    run(behavior, QueryProtocol::Simple, "select 1;", &stop).unwrap_err()
}

fn dribble() -> Duration {
    LIMIT / 10
}

#[test]
fn notices_now_and_then_do_not_extend_the_time_to_sign_in() {
    let _turn = turn();
    for interval in [dribble(), Duration::ZERO] {
        let error = run_simple(&Behavior {
            begin: accepted(),
            waits: false,
            piece: notice(),
            interval,
        });
        assert!(
            matches!(&error, LoadError::Unanswered { what, .. } if what.contains("signing in")),
            "{error}"
        );
    }
}

#[test]
fn notices_now_and_then_do_not_extend_the_time_to_prepare_statements() {
    let _turn = turn();
    for interval in [dribble(), Duration::ZERO] {
        let behavior = Behavior {
            begin: signed_in(),
            waits: true,
            piece: notice(),
            interval,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let error = run(&behavior, QueryProtocol::Prepared, "select 1;", &stop).unwrap_err();
        assert!(
            matches!(&error, LoadError::Unanswered { what, .. } if what.contains("preparing")),
            "{error}"
        );
    }
}

#[test]
fn a_reply_without_end_ends_at_the_time_limit() {
    let _turn = turn();
    let row = message(b'D', &[&[0, 1, 0, 0, 0, 3][..], b"abc"].concat()).repeat(10_000);
    for (piece, interval) in [
        (notice(), dribble()),
        (notice().repeat(10_000), Duration::ZERO),
        (row, Duration::ZERO),
    ] {
        let error = run_simple(&Behavior {
            begin: signed_in(),
            waits: true,
            piece,
            interval,
        });
        assert!(matches!(&error, LoadError::Unanswered { .. }), "{error}");
    }
}

#[test]
fn a_reply_without_end_does_not_keep_the_load_from_the_stop_flag() {
    let _turn = turn();
    let behavior = Behavior {
        begin: signed_in(),
        waits: true,
        piece: notice().repeat(10_000),
        interval: Duration::ZERO,
    };
    for io in [IoChoice::Epoll, IoChoice::Auto] {
        let stop = Arc::new(AtomicBool::new(false));
        let setter = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            setter.store(true, Ordering::Relaxed);
        });
        // A slow machine may meet the reply's limit first, or the flag before the load begins.
        match run_on(io, &behavior, QueryProtocol::Simple, "select 1;", &stop) {
            Ok(interrupted) => assert!(interrupted),
            Err(error) => assert!(
                matches!(error, LoadError::Stopped | LoadError::Unanswered { .. }),
                "{error}"
            ),
        }
    }
}

#[test]
fn a_refusal_of_half_a_gigabyte_is_not_read() {
    let _turn = turn();
    let begin = [&b"E"[..], &(1_u32 << 29).to_be_bytes()].concat();
    let error = run_simple(&Behavior {
        begin,
        waits: false,
        piece: vec![b'x'; 1 << 20],
        interval: Duration::ZERO,
    });
    assert!(
        matches!(
            &error,
            LoadError::Wire {
                error: WireError::Length { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_captured_row_of_half_a_gigabyte_is_not_read() {
    let _turn = turn();
    let behavior = Behavior {
        begin: signed_in(),
        waits: true,
        piece: [
            &b"D"[..],
            &(1_u32 << 29).to_be_bytes(),
            &vec![b'x'; 1 << 20],
        ]
        .concat(),
        interval: Duration::ZERO,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let script = "select 1 as one \\gset";
    let error = run(&behavior, QueryProtocol::Simple, script, &stop).unwrap_err();
    assert!(
        matches!(
            &error,
            LoadError::Wire {
                error: WireError::TooLong { .. },
                ..
            }
        ),
        "{error}"
    );
}
