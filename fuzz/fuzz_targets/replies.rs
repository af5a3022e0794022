//! Any bytes from a server, however they are cut, yield events or an error, never a panic, and the
//! same events for the same bytes.
//!
//! The first byte chooses the size of the pieces, the kind of server that is wanted, and at its
//! highest whether TLS is asked for; the second which requests wait for an answer; the rest is
//! what the server sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pgassay_wire::conninfo::{
    Attempts, Endpoint, Environment, FileText, Request, SessionAttributes,
};
use pgassay_wire::{Event, Execution, Login, Password, SaltCache, Session, WireError};

struct Nothing;

impl Environment for Nothing {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }
    fn user(&self) -> Option<String> {
        Some("me".into())
    }
    fn home(&self) -> Option<std::path::PathBuf> {
        None
    }
    fn read(&self, _: &std::path::Path, _: u64) -> std::io::Result<Option<FileText>> {
        Ok(None)
    }
}

/// Who signs in at a server that is asked for TLS first.
fn login_with_tls() -> Login {
    let text = "host=a hostaddr=127.0.0.1 password=secret";
    let request = Request::new().database(text).expect("proper");
    let target = request.resolve(&Nothing).expect("proper");
    let endpoint = Endpoint {
        address: target.hosts[0].address.clone(),
        host: 0,
        tcp: Some(([127, 0, 0, 1], 5432).into()),
    };
    let attempts = Attempts::new(&target, std::slice::from_ref(&endpoint), 0);
    target.login_for(attempts.current(), &endpoint, &SaltCache::default())
}

fn session(choice: u8, requests: u8) -> Session {
    let plain = || Login {
        user: "me".into(),
        password: Some(Password::new("secret")),
        wanted: match choice / 24 {
            1 => SessionAttributes::ReadWrite,
            2 => SessionAttributes::ReadOnly,
            3 => SessionAttributes::Primary,
            4 => SessionAttributes::Standby,
            _ => SessionAttributes::Any,
        },
        ..Login::default()
    };
    let login = if choice >= 250 {
        login_with_tls()
    } else {
        plain()
    };
    let mut session = Session::start(&login).expect("the login is proper");
    session.accept_copy(requests & 1 != 0);
    session
        .query("select 1;;", 1, requests & 2 != 0)
        .expect("proper");
    for place in 0..u32::from(requests >> 4) {
        let token = 10 * place;
        session.parse("s", "select 1", token).expect("proper");
        let text = Execution::Text(b"select 1");
        session
            .execute(text, &[None], token + 1, requests & 4 != 0)
            .expect("proper");
        let prepared = Execution::Prepared(b"s");
        session
            .execute(prepared, &[], token + 2, requests & 8 != 0)
            .expect("proper");
        session.close_statement("s", token + 3).expect("proper");
        if place % 2 == 0 {
            session.sync(token + 4);
        }
    }
    session
}

/// The events, up to an error if there is one.
fn events(
    choice: u8,
    requests: u8,
    pieces: impl Iterator<Item = impl AsRef<[u8]>>,
) -> (Vec<String>, bool) {
    let mut session = session(choice, requests);
    let mut seen = Vec::new();
    let mut read = |piece: &[u8]| -> Result<(), WireError> {
        let mut input = piece;
        while let Some(event) = session.next(&mut input)? {
            seen.push(match event {
                Event::DataRow { token, row } => {
                    let values: Result<Vec<_>, _> = row.values().collect();
                    format!("row {token} {:?}", values.ok())
                }
                Event::Described { columns, .. } => format!("{:?}", columns.names().ok()),
                Event::Notice(notice) => {
                    format!("{:?} {:?}", notice.sqlstate(), notice.read().ok())
                }
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
    let [choice, requests, bytes @ ..] = data else {
        return;
    };
    let whole = events(*choice, *requests, std::iter::once(bytes));
    let size = usize::from(*choice % 24) + 1;
    let cut = events(*choice, *requests, bytes.chunks(size));
    assert_eq!(whole, cut, "pieces of {size}");
});
