//! Scripted replies, split at every boundary, and invalid bytes.

use pgassay_wire::{Event, Execution, Login, Session, WireError};

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// Sign-in with everything that may occur during it, then a pipeline of each kind of request.
fn transcript() -> Vec<u8> {
    let row = [0, 1, 0, 0, 0, 3, b'a', b'b', b'c'];
    let columns = b"\0\x01name\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
    let error = b"SFEHLER\0VERROR\0C22012\0Mdivision by zero\0\0";
    [
        message(b'R', &[0; 4]),
        message(b'S', b"server_version\x0015.18\0"),
        message(b'N', b"SNOTICE\0C00000\0Mhello\0\0"),
        message(b'K', &[0, 0, 0x12, 0x34, 1, 2, 3, 4]),
        message(b'Z', b"I"),
        // A simple query with two statements.
        message(b'T', columns),
        message(b'D', &row),
        message(b'S', b"TimeZone\0UTC\0"),
        message(b'C', b"SELECT 1\0"),
        message(b'A', &[0, 0, 0, 1, b'c', 0, 0]),
        message(b'I', b""),
        message(b'Z', b"T"),
        // Parse; then two executions, with rows wanted only from the second.
        message(b'1', b""),
        message(b'2', b""),
        message(b'T', columns),
        message(b'D', &row),
        message(b'D', &row),
        message(b'C', b"SELECT 2\0"),
        message(b'2', b""),
        message(b'T', columns),
        message(b'N', b"SNOTICE\0C00000\0Min between\0\0"),
        message(b'D', &row),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"T"),
        // The third fails, and the requests after it are skipped.
        message(b'1', b""),
        message(b'E', error),
        message(b'Z', b"E"),
        // COPY out.
        message(b'2', b""),
        message(b'n', b""),
        message(b'H', &[0, 0, 1, 0, 0]),
        message(b'd', b"1\n"),
        message(b'c', b""),
        message(b'C', b"COPY 1\0"),
        message(b'3', b""),
        message(b'Z', b"I"),
        message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mgoodbye\0\0"),
    ]
    .concat()
}

fn started() -> Session {
    let login = Login {
        user: "me".into(),
        ..Login::default()
    };
    let mut session = Session::start(&login).unwrap();
    session.query("select 1;;", 1, true).unwrap();
    session.parse("s", "select 1", 2).unwrap();
    session
        .execute(Execution::Prepared(b"s"), &[], 3, false)
        .unwrap();
    session
        .execute(Execution::Prepared(b"s"), &[None], 4, true)
        .unwrap();
    session.sync(5);
    session
        .execute(Execution::Text(b"select 1/0"), &[], 6, false)
        .unwrap();
    session
        .execute(Execution::Text(b"select 2"), &[], 7, false)
        .unwrap();
    session.sync(8);
    session
        .execute(Execution::Prepared(b"s"), &[], 9, true)
        .unwrap();
    session.close_statement("s", 10).unwrap();
    session.sync(11);
    session
}

fn events(pieces: &[&[u8]]) -> Result<Vec<String>, WireError> {
    let mut session = started();
    let mut seen = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        while let Some(event) = session.next(&mut input)? {
            seen.push(match event {
                Event::DataRow { token, row } => {
                    format!(
                        "row {token} {:?}",
                        row.values().collect::<Result<Vec<_>, _>>()?
                    )
                }
                Event::Described { token, columns } => format!("{token} {:?}", columns.names()?),
                other => format!("{other:?}"),
            });
        }
        assert!(input.is_empty(), "input is left over");
    }
    Ok(seen)
}

#[test]
fn transcript_yields_expected_events() {
    let seen = events(&[&transcript()]).unwrap();
    let expect = [
        "server_version",
        "hello",
        "Ready { token: None, status: Idle }",
        "1 [\"name\"]",
        "row 1 [Some([97, 98, 99])]",
        "TimeZone",
        "Complete { token: 1",
        "Notification",
        "Complete { token: 1, tag: [] }",
        "Ready { token: Some(1), status: Open }",
        "Prepared { token: 2 }",
        "Complete { token: 3",
        "4 [\"name\"]",
        "in between",
        "row 4",
        "Complete { token: 4",
        "Ready { token: Some(5), status: Open }",
        "Error { token: Some(6), skipped: 1, error: ServerMessage { severity: \"ERROR\"",
        "Ready { token: Some(8), status: Failed }",
        "Copy { token: 9, direction: Out }",
        "Complete { token: 9",
        "Closed { token: 10 }",
        "Ready { token: Some(11), status: Idle }",
        "Error { token: None, skipped: 0, error: ServerMessage { severity: \"FATAL\"",
    ];
    assert_eq!(seen.len(), expect.len(), "{seen:#?}");
    for (seen, expect) in seen.iter().zip(expect) {
        assert!(seen.contains(expect), "{seen} for {expect}");
    }
}

#[test]
fn splitting_replies_does_not_change_events() {
    let bytes = transcript();
    let whole = events(&[&bytes]).unwrap();
    for size in 1..40 {
        let pieces: Vec<_> = bytes.chunks(size).collect();
        assert_eq!(events(&pieces).unwrap(), whole, "pieces of {size}");
    }
    for first in 0..=bytes.len() {
        let (left, rest) = bytes.split_at(first);
        assert_eq!(events(&[left, rest]).unwrap(), whole, "cut at {first}");
        for second in [1, 4, 5, 6, 17] {
            let (middle, right) = rest.split_at(second.min(rest.len()));
            assert_eq!(events(&[left, middle, &[], right]).unwrap(), whole);
        }
    }
}

/// A small generator (splitmix64), so that failures are reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}

#[test]
fn invalid_bytes_never_panic() {
    let good = transcript();
    let mut random = Random(7);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"\0\xffDZTEKRS"[random.below(9)]),
            }
        }
        let cut = random.below(bytes.len());
        let (left, right) = bytes.split_at(cut);
        refused += u32::from(events(&[left, right]).is_err());
    }
    assert!(
        refused > 10_000,
        "only {refused} of 20000 broken transcripts were rejected"
    );
    for length in 1..60 {
        for _ in 0..500 {
            let noise: Vec<u8> = (0..length)
                .map(|_| u8::try_from(random.below(256)).unwrap())
                .collect();
            events(&[&noise]).ok();
        }
    }
}

#[test]
fn unexpected_messages_are_errors() {
    let sign_in = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
    for (bytes, expected) in [
        (message(b'D', b""), "signing in"),
        (
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            "PostgreSQL server",
        ),
        (
            [sign_in.clone(), message(b'1', b"")].concat(),
            "simple query",
        ),
        (
            [sign_in.clone(), message(b'K', &[0; 8])].concat(),
            "simple query",
        ),
        (
            [sign_in.clone(), message(b'Z', b"X")].concat(),
            "transaction state",
        ),
        (
            [sign_in.clone(), message(b'E', b"SERROR")].concat(),
            "unterminated",
        ),
        (
            [sign_in.clone(), message(b'W', b"")].concat(),
            "simple query",
        ),
        ([sign_in, b"C\0\0\0\x03".to_vec()].concat(), "3 bytes"),
    ] {
        let error = events(&[&bytes]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

/// Regression: the server takes the last user and database of a start-up message.
#[test]
fn a_setting_cannot_replace_the_user_or_the_database() {
    for name in ["user", "database", "replication"] {
        let login = Login {
            user: "a".into(),
            database: "b".into(),
            settings: vec![(name.into(), "c".into())],
            ..Login::default()
        };
        let error = Session::start(&login).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn zero_bytes_cannot_be_sent() {
    let bad = Login {
        user: "a\0b".into(),
        ..Login::default()
    };
    assert!(matches!(
        Session::start(&bad),
        Err(WireError::Encode { .. })
    ));
    let nameless = Login {
        user: "a".into(),
        settings: vec![(String::new(), "x".into())],
        ..Login::default()
    };
    assert!(matches!(
        Session::start(&nameless),
        Err(WireError::Encode { .. })
    ));
    let mut session = started();
    assert!(session.query("select '\0'", 1, false).is_err());
}

/// Regression: "invalid length of 1668247156 bytes: is this a PostgreSQL server?" of a server without a free process.
#[test]
fn a_refusal_before_protocol_3_is_its_text() {
    let text = "could not fork new process for connection: Resource temporarily unavailable";
    let sent = format!("E{text}\n\0");
    for cut in 0..sent.len() {
        let (first, rest) = sent.as_bytes().split_at(cut);
        let error = events(&[first, rest]).unwrap_err();
        assert_eq!(error.to_string(), text, "{cut}");
    }
    // Not after the sign-in, and not a text without end.
    let late = [&message(b'R', &[0; 4])[..], sent.as_bytes()].concat();
    let endless = format!("E{}", "x".repeat(40_000)).into_bytes();
    for bytes in [late, endless] {
        let error = events(&[&bytes]).unwrap_err();
        assert!(
            matches!(error, WireError::Length { tag: 'E', .. }),
            "{error}"
        );
    }
}
