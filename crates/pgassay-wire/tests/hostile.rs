//! Servers that send more than any server should: memory stays bounded, and the error names the
//! cause.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read, Write};

use pgassay_test_support::memory::{CountingAllocator, peak_bytes, turn};
use pgassay_wire::{Event, Exchange, ExchangeError, Login, Session, WireError};

const MIB: usize = 1 << 20;
/// What a server may make us allocate.
const ALLOWED_BYTES: usize = 64 * MIB;
/// What each of these servers sends.
const SENT_BYTES: usize = 192 * MIB;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// The beginning of a message that is longer than what follows.
fn header(tag: u8, length_bytes: u32) -> Vec<u8> {
    [&[tag][..], &length_bytes.to_be_bytes()].concat()
}

fn accepted() -> Vec<u8> {
    message(b'R', &[0; 4])
}

fn signed_in() -> Vec<u8> {
    [accepted(), message(b'Z', b"I")].concat()
}

fn report(tag: u8, text: &[u8]) -> Vec<u8> {
    message(tag, &[b"SERROR\0VERROR\0C22012\0M", text, b"\0\0"].concat())
}

/// A server that sends a beginning, then a piece again and again, then an end. It reads nothing.
struct Flood {
    begin: Vec<u8>,
    piece: Vec<u8>,
    end: Vec<u8>,
    total: usize,
    position: usize,
}

impl Flood {
    fn new(begin: Vec<u8>, piece: Vec<u8>, end: Vec<u8>) -> Self {
        let middle = SENT_BYTES / piece.len() * piece.len();
        Self {
            total: begin.len() + middle + end.len(),
            begin,
            piece,
            end,
            position: 0,
        }
    }

    /// The bytes at the current position, up to the end of the part.
    fn rest(&self) -> &[u8] {
        let end_at = self.total - self.end.len();
        if self.position < self.begin.len() {
            &self.begin[self.position..]
        } else if self.position < end_at {
            &self.piece[(self.position - self.begin.len()) % self.piece.len()..]
        } else {
            &self.end[self.position - end_at..]
        }
    }
}

impl Read for Flood {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() && self.position < self.total {
            let rest = self.rest();
            let count = rest.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&rest[..count]);
            filled += count;
            self.position += count;
            if self.position == self.begin.len() {
                // The rest answers the next request.
                break;
            }
        }
        Ok(filled)
    }
}

impl Write for Flood {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a piece of work and checks how much memory it took at most.
fn bounded<T>(work: impl FnOnce() -> T) -> T {
    let (result, taken) = peak_bytes(work);
    assert!(taken > 0, "the allocator counts");
    assert!(taken < ALLOWED_BYTES, "{} MiB", taken / MIB);
    result
}

fn sign_in(flood: Flood) -> Result<(), ExchangeError> {
    bounded(|| Exchange::open(flood, &Login::default()).map(drop))
}

fn query(piece: Vec<u8>, end: Vec<u8>) -> Result<Exchange<Flood>, ExchangeError> {
    bounded(|| {
        let flood = Flood::new(signed_in(), piece, end);
        let mut exchange = Exchange::open(flood, &Login::default())?;
        exchange.query("select 1")?;
        Ok(exchange)
    })
}

#[test]
fn an_error_of_a_gigabyte_before_authentication_is_refused() {
    let _turn = turn();
    let error = sign_in(Flood::new(
        header(b'E', 1 << 29),
        vec![b'x'; 999],
        Vec::new(),
    ));
    assert!(
        matches!(
            error,
            Err(ExchangeError::Wire(WireError::Length { tag: 'E', .. }))
        ),
        "{error:?}"
    );
    // libpq's limit: 30,000 bytes.
    let text = vec![b'x'; 29_900];
    let refusal = [report(b'E', &text), message(b'Z', b"I")].concat();
    let mut session = Session::start(&Login::default()).unwrap();
    let mut input = refusal.as_slice();
    let event = session.next(&mut input).unwrap();
    assert!(matches!(event, Some(Event::Error { .. })), "{event:?}");
}

#[test]
fn a_refusal_ends_the_attempt_though_the_server_does_not_close_the_connection() {
    let _turn = turn();
    let error = sign_in(Flood::new(
        report(b'E', b"no"),
        report(b'N', b"x"),
        Vec::new(),
    ));
    let Err(ExchangeError::Server(error)) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.message, "no");
}

#[test]
fn notices_before_authentication_are_refused() {
    let _turn = turn();
    let error = sign_in(Flood::new(Vec::new(), report(b'N', b"x"), Vec::new()));
    assert!(
        matches!(
            error,
            Err(ExchangeError::Wire(WireError::Unexpected { tag: 'N', .. }))
        ),
        "{error:?}"
    );
    let error = sign_in(Flood::new(header(b'R', 20_000), vec![b'x'; 99], Vec::new()));
    assert!(
        matches!(
            error,
            Err(ExchangeError::Wire(WireError::Length { tag: 'R', .. }))
        ),
        "{error:?}"
    );
}

#[test]
fn endless_settings_are_refused() {
    let _turn = turn();
    let settings: Vec<u8> = (0..2000)
        .flat_map(|index| {
            let value = "x".repeat(25_000);
            message(b'S', format!("setting{index}\0{value}\0").as_bytes())
        })
        .collect();
    let error = sign_in(Flood::new(accepted(), settings, Vec::new()));
    assert!(
        matches!(
            error,
            Err(ExchangeError::Wire(WireError::Malformed { tag: 'S', .. }))
        ),
        "{error:?}"
    );
}

#[test]
fn endless_notices_are_counted_and_not_kept() {
    let _turn = turn();
    let end = [message(b'C', b"SELECT 0\0"), message(b'Z', b"I")].concat();
    let mut exchange = query(report(b'N', &[b'x'; 500]), end.clone()).unwrap();
    let notices = exchange.take_notices();
    assert!(notices.len() < 5000, "{}", notices.len());
    let last = &notices.last().unwrap().message;
    assert!(last.contains("further notices"), "{last}");
    assert_eq!(exchange.take_notices(), []);
    // While signing in, too.
    let flood = Flood::new(accepted(), report(b'N', b"x"), message(b'Z', b"I"));
    sign_in(flood).unwrap();
}

#[test]
fn a_notice_or_error_of_many_megabytes_is_cut() {
    let _turn = turn();
    let end = [message(b'C', b"SELECT 0\0"), message(b'Z', b"I")].concat();
    let mut exchange = query(report(b'N', &vec![b'x'; 40 * MIB]), end.clone()).unwrap();
    for notice in exchange.take_notices().iter().take(2) {
        assert_eq!(notice.sqlstate, "22012");
        assert!(notice.message.len() < 70_000 && notice.message.ends_with('…'));
    }
    let error = query(report(b'E', &vec![b'x'; 40 * MIB]), end)
        .err()
        .unwrap();
    let ExchangeError::Server(error) = error else {
        panic!("{error}")
    };
    assert!(error.message.len() < 70_000 && error.message.ends_with('…'));
}

#[test]
fn a_cut_report_is_the_same_however_it_is_split() {
    let _turn = turn();
    let bytes = [
        accepted(),
        report(b'N', "ü".repeat(40_000).as_bytes()),
        message(b'Z', b"I"),
    ]
    .concat();
    let events = |cut: usize| {
        let mut session = Session::start(&Login::default()).unwrap();
        let mut seen = Vec::new();
        for mut piece in [&bytes[..cut], &bytes[cut..]] {
            while let Some(event) = session.next(&mut piece).unwrap() {
                seen.push(format!("{event:?}"));
            }
        }
        seen
    };
    let whole = events(0);
    assert_eq!(whole.len(), 2);
    for cut in (0..40).chain(65_500..65_600).chain(80_020..80_040) {
        assert_eq!(events(cut), whole, "cut at {cut}");
    }
}

#[test]
fn endless_rows_are_refused() {
    let _turn = turn();
    let long = message(b'D', &[&[0, 1, 0, 0, 3, 232][..], &[b'x'; 1000]].concat());
    let nulls = message(b'D', &[&[0, 250][..], &[0xff; 1000]].concat());
    for row in [long, nulls, message(b'D', &[0, 0])] {
        let error = query(row, Vec::new()).err().unwrap();
        assert!(matches!(error, ExchangeError::TooLarge { .. }), "{error}");
    }
    let statements = message(b'C', b"SELECT 0\0");
    let error = query(statements, Vec::new()).err().unwrap();
    assert!(matches!(error, ExchangeError::TooLarge { .. }), "{error}");
}

#[test]
fn a_row_of_a_gigabyte_is_refused() {
    let _turn = turn();
    for tag in [b'D', b'T'] {
        let piece = [header(tag, 1 << 29), vec![0; MIB]].concat();
        let error = bounded(|| {
            let flood = Flood::new(signed_in(), piece, Vec::new());
            let mut exchange = Exchange::open(flood, &Login::default()).unwrap();
            exchange.query("select 1").unwrap_err()
        });
        assert!(
            matches!(error, ExchangeError::Wire(WireError::TooLong { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("select less data"), "{error}");
    }
}

#[test]
fn discarded_results_have_no_limit() {
    let _turn = turn();
    let row = message(b'D', &[&[0, 1, 0, 0, 3, 232][..], &[b'x'; 1000]].concat());
    let end = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    bounded(|| {
        let flood = Flood::new(signed_in(), row, end);
        let mut exchange = Exchange::open(flood, &Login::default()).unwrap();
        exchange.run("select load()").unwrap();
    });
}

#[test]
fn the_load_reads_a_row_of_a_mebibyte_at_most() {
    let _turn = turn();
    let mut session = Session::start(&Login::default()).unwrap();
    let mut begin = &signed_in()[..];
    while session.next(&mut begin).unwrap().is_some() {}
    session.query("select 1", 0, true).unwrap();
    bounded(|| {
        let row = header(b'D', 1 + (1 << 20));
        let error = session.next(&mut row.as_slice()).unwrap_err();
        assert!(matches!(error, WireError::TooLong { .. }), "{error}");
    });
}
