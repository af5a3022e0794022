//! Whatever a server sends, and however it is cut: an event or an error, never a panic, and the
//! same events for the same bytes.
//!
//! The first byte chooses the size of the pieces, the second which requests wait for an answer;
//! the rest is what the server sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pgassay_wire::{Event, Execution, Login, Password, Session, WireError};

fn session(requests: u8) -> Session {
    let login = Login {
        user: "me".into(),
        password: Some(Password::new("secret")),
        ..Login::default()
    };
    let mut session = Session::start(&login).expect("the login is proper");
    session.accept_copy(requests & 1 != 0);
    session.query("select 1;;", 1, requests & 2 != 0).expect("proper");
    for place in 0..u32::from(requests >> 4) {
        let token = 10 * place;
        session.parse("s", "select 1", token).expect("proper");
        let text = Execution::Text(b"select 1");
        session.execute(text, &[None], token + 1, requests & 4 != 0).expect("proper");
        let prepared = Execution::Prepared(b"s");
        session.execute(prepared, &[], token + 2, requests & 8 != 0).expect("proper");
        session.close_statement("s", token + 3).expect("proper");
        if place % 2 == 0 {
            session.sync(token + 4);
        }
    }
    session
}

/// The events, up to an error if there is one.
fn events(requests: u8, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> (Vec<String>, bool) {
    let mut session = session(requests);
    let mut seen = Vec::new();
    let mut read = |piece: &[u8]| -> Result<(), WireError> {
        let mut input = piece;
        while let Some(event) = session.next(&mut input)? {
            seen.push(match event {
                Event::Row { token, row } => {
                    let values: Result<Vec<_>, _> = row.values().collect();
                    format!("row {token} {:?}", values.ok())
                }
                Event::Described { columns, .. } => format!("{:?}", columns.names().ok()),
                Event::Notice(notice) => format!("{:?} {:?}", notice.sqlstate(), notice.read().ok()),
                other => format!("{other:?}"),
            });
        }
        assert!(input.is_empty(), "input is left over");
        Ok(())
    };
    for piece in pieces {
        if read(piece.as_ref()).is_err() {
            return (seen, false);
        }
    }
    (seen, true)
}

fuzz_target!(|data: &[u8]| {
    let [size, requests, bytes @ ..] = data else {
        return;
    };
    let whole = events(*requests, std::iter::once(bytes));
    let size = usize::from(*size % 24) + 1;
    let cut = events(*requests, bytes.chunks(size));
    assert_eq!(whole, cut, "pieces of {size}");
});
