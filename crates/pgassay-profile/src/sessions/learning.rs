//! Learns the layout of status entries on two connections of our own.
//!
//! One connection (the subject) is left idle in a transaction, so its entry does not change. The other
//! (the observer) asks the server what the entry contains. An offset is trusted only if it is the only
//! one that holds the field's value. The layout must then reproduce what the server says of the
//! observer's entry.

use std::io::{Read, Write};
use std::ops::Range;

use pgassay_wire::Exchange;

use super::entries::{KnownSlot, StatusArray};
use super::error::SessionsError;
use super::layout::{ENTRY_BYTES_MAX, EPOCH_US, EntryLayout, i64_at, u32_at, u64_at, until_zero};
use super::shared::mapping_around;
use crate::proc::live::LiveServer;
use crate::proc::memory;
use crate::waits::reader::{find_variable, read_pointer};

/// Bytes read before and after the start of the subject's entry.
const BEFORE: usize = ENTRY_BYTES_MAX;
const AFTER: usize = 2 * ENTRY_BYTES_MAX;
/// How far behind a `PGPROC` the array is searched before 14.
const SCAN_BYTES_MAX: u64 = 1 << 30;
const SCAN_STEP: usize = 4 << 20;

/// What the server says of a session.
#[derive(Debug)]
struct KnownFields {
    pid: u32,
    backend_start: i64,
    transaction_start: i64,
    activity_start: i64,
    state_change: i64,
    database: u32,
    user: u32,
    query_id: Option<i64>,
    state: String,
    application: String,
    text: String,
}

/// Bytes around the start of an entry.
struct EntryWindow(Vec<u8>);

impl EntryWindow {
    fn read(pid: u32, entry: u64) -> Result<Self, SessionsError> {
        let mut bytes = vec![0; BEFORE + AFTER];
        memory::read(pid, entry - BEFORE as u64, &mut bytes)
            .map_err(SessionsError::unreadable(pid))?;
        Ok(Self(bytes))
    }

    /// From the start of the entry.
    fn entry(&self) -> &[u8] {
        &self.0[BEFORE..]
    }
}

/// Learns where the entries are. Afterward the subject has no transaction.
pub(super) fn learn<S: Read + Write>(
    server: &LiveServer,
    subject: &mut Exchange<S>,
    observer: &mut Exchange<S>,
) -> Result<StatusArray, SessionsError> {
    let pid = backend_pid(subject);
    let postmaster = server.postmaster_pid;
    prepare(subject, pid)?;
    let known = ask(observer, pid)?;
    let text_bytes = number(observer, "track_activity_query_size")?;
    let (entry, mapping) = locate(server, &known)?;
    let window = EntryWindow::read(postmaster, entry)?;
    let pointers = Pointers::find(postmaster, &window, &known, &mapping, text_bytes)?;
    subject.query("rollback")?;
    let idle = EntryWindow::read(postmaster, entry)?;
    let layout = fields(&known, &window, &idle, &pointers)?;
    let slot = KnownSlot {
        entry,
        application: u64_at(window.entry(), pointers.application),
        text: u64_at(window.entry(), pointers.text),
        application_bytes: pointers.application_bytes,
        text_bytes,
    };
    let array = StatusArray::around(postmaster, layout, &slot)
        .map_err(SessionsError::unreadable(postmaster))?;
    confirm(&array, &ask(subject, backend_pid(observer))?)?;
    Ok(array)
}

/// Leaves the subject idle in a transaction, with values that no other session has.
fn prepare<S: Read + Write>(subject: &mut Exchange<S>, pid: u32) -> Result<(), SessionsError> {
    subject.query(&format!("set application_name = 'pgassay {pid}'"))?;
    // Only superusers may; the others learn it if the server computes it anyway.
    if subject.parameter("is_superuser") == Some("on") && major(subject) >= 14 {
        subject.query("set compute_query_id = on")?;
    }
    subject.query("begin read only")?;
    subject.query(&format!("select 'pgassay {pid}'"))?;
    Ok(())
}

fn backend_pid<S: Read + Write>(exchange: &Exchange<S>) -> u32 {
    exchange.backend().map_or(0, |key| key.pid.unsigned_abs())
}

/// The first number of the server's version; 9 before 10, 0 if unknown.
pub(super) fn major<S: Read + Write>(exchange: &Exchange<S>) -> u32 {
    let version = exchange.parameter("server_version").unwrap_or_default();
    let digits = version.split(|it: char| !it.is_ascii_digit()).next();
    digits.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Microseconds since 1970 of a column.
pub(super) fn micros(column: &str) -> String {
    format!("(extract(epoch from {column}) * 1000000)::bigint")
}

fn number<S: Read + Write>(
    exchange: &mut Exchange<S>,
    setting: &'static str,
) -> Result<usize, SessionsError> {
    let sql = format!("select setting from pg_settings where name = '{setting}'");
    let value = exchange.value(&sql)?.and_then(|it| it.parse().ok());
    value.ok_or(SessionsError::Unknown { field: setting })
}

fn ask<S: Read + Write>(
    exchange: &mut Exchange<S>,
    pid: u32,
) -> Result<KnownFields, SessionsError> {
    let query_id = if major(exchange) >= 14 {
        "query_id"
    } else {
        "null"
    };
    let times = ["backend_start", "xact_start", "query_start", "state_change"].map(micros);
    let sql = format!(
        "select {}, datid, usesysid, {query_id}, state, application_name, query \
         from pg_stat_get_activity({pid})",
        times.join(", ")
    );
    let mut answer = exchange.query(&sql)?.pop().unwrap_or_default();
    let row = answer.rows.pop().unwrap_or_default();
    let text = |at: usize| row.get(at).cloned().flatten();
    let number = |at: usize| text(at).and_then(|it| it.parse::<i64>().ok());
    let needed = |at: usize, field| number(at).ok_or(SessionsError::Unknown { field });
    let oid = |at: usize| {
        number(at)
            .and_then(|it| u32::try_from(it).ok())
            .unwrap_or(0)
    };
    if text(7).as_deref() == Some("disabled") {
        return Err(SessionsError::TrackingOff);
    }
    Ok(KnownFields {
        pid,
        backend_start: needed(0, "backend_start")? - EPOCH_US,
        // Only the subject is in a transaction.
        transaction_start: number(1).map_or(0, |it| it - EPOCH_US),
        activity_start: needed(2, "query_start")? - EPOCH_US,
        state_change: needed(3, "state_change")? - EPOCH_US,
        database: oid(4),
        user: oid(5),
        query_id: number(6),
        state: text(7).unwrap_or_default(),
        application: text(8).unwrap_or_default(),
        text: text(9).unwrap_or_default(),
    })
}

/// The address of the entry, and the mapping that contains it.
fn locate(server: &LiveServer, known: &KnownFields) -> Result<(u64, Range<u64>), SessionsError> {
    let unreadable = SessionsError::unreadable(known.pid);
    let of_variable = |name| -> Result<Option<u64>, SessionsError> {
        let variable = find_variable(server.postmaster_pid, name)?;
        let read = |address| read_pointer(known.pid, address).map_err(&unreadable);
        variable.map(read).transpose()
    };
    let mapping = |address| {
        let found = mapping_around(server.postmaster_pid, address).map_err(&unreadable)?;
        found.ok_or(SessionsError::NoEntry)
    };
    // Exported from 14.
    if let Some(entry) = of_variable("MyBEEntry")? {
        return Ok((entry, mapping(entry)?));
    }
    // Before, `CreateSharedBackendStatus` comes soon after `InitProcGlobal` (ipci.c), so the array lies
    // behind the process's `PGPROC`.
    let process = of_variable("MyProc")?.ok_or(SessionsError::NoEntry)?;
    let mapping = mapping(process)?;
    let end = mapping.end.min(process + SCAN_BYTES_MAX);
    let entry = scan(server.postmaster_pid, process..end, known)?;
    Ok((entry.ok_or(SessionsError::NoEntry)?, mapping))
}

/// Searches an entry by PID and start time. The PID is followed by the start time, from 10 after the
/// backend's type.
fn scan(
    postmaster: u32,
    range: Range<u64>,
    known: &KnownFields,
) -> Result<Option<u64>, SessionsError> {
    let mut bytes = vec![0; SCAN_STEP + ENTRY_BYTES_MAX];
    let mut at = range.start & !7;
    while at < range.end {
        let length = memory::read_some(postmaster, at, &mut bytes)
            .map_err(SessionsError::unreadable(postmaster))?;
        let last = length.saturating_sub(24).min(SCAN_STEP);
        for offset in (0..last).step_by(8) {
            let is_entry = u32_at(&bytes, offset + 4) == known.pid
                && [8, 16]
                    .iter()
                    .any(|start| i64_at(&bytes, offset + start) == known.backend_start);
            if is_entry {
                return Ok(Some(at + offset as u64));
            }
        }
        if length < bytes.len() {
            return Ok(None);
        }
        at += SCAN_STEP as u64;
    }
    Ok(None)
}

/// The entry's two pointers, and what they tell of the arrays.
struct Pointers {
    application: usize,
    text: usize,
    application_bytes: usize,
    stride: usize,
}

impl Pointers {
    fn find(
        postmaster: u32,
        window: &EntryWindow,
        known: &KnownFields,
        mapping: &Range<u64>,
        text_bytes: usize,
    ) -> Result<Self, SessionsError> {
        let entry = &window.entry()[..ENTRY_BYTES_MAX];
        let points_to = |offset: &usize, expected: &str| {
            let address = u64_at(entry, *offset);
            let mut bytes = vec![0; expected.len() + 1];
            mapping.contains(&address)
                && memory::read(postmaster, address, &mut bytes).is_ok()
                && until_zero(&bytes) == expected.as_bytes()
        };
        let pointer = |field, expected: &str| {
            let places = (0..ENTRY_BYTES_MAX).step_by(8);
            only(field, places.filter(|offset| points_to(offset, expected)))
        };
        let application = pointer("application name", &known.application)?;
        let text = pointer("text", &known.text)?;
        // The pointers of the entry's neighbors differ by the lengths of the two buffers.
        let all = &window.0;
        let own_text = u64_at(entry, text);
        let own_application = u64_at(entry, application);
        let next = own_text.wrapping_add(text_bytes as u64);
        let previous = own_text.wrapping_sub(text_bytes as u64);
        let neighbor = |start: usize, expected: u64| -> Option<usize> {
            let other = u64_at(all, start + application);
            let apart = other.abs_diff(own_application) as usize;
            (u64_at(all, start + text) == expected && (16..=4096).contains(&apart)).then_some(apart)
        };
        let mut found = (text.max(application) + 8..=ENTRY_BYTES_MAX)
            .step_by(8)
            .filter_map(|stride| {
                let apart =
                    neighbor(BEFORE + stride, next).or_else(|| neighbor(BEFORE - stride, previous));
                apart.map(|apart| (stride, apart))
            });
        match (found.next(), found.next()) {
            (Some((stride, application_bytes)), None) => Ok(Self {
                application,
                text,
                application_bytes,
                stride,
            }),
            (first, _) => Err(SessionsError::AmbiguousField {
                field: "the distance of two entries",
                places: if first.is_some() { 2 } else { 0 },
            }),
        }
    }
}

/// The offsets of all other fields. `idle` is the same entry after the transaction.
fn fields(
    known: &KnownFields,
    window: &EntryWindow,
    idle: &EntryWindow,
    pointers: &Pointers,
) -> Result<EntryLayout, SessionsError> {
    let entry = &window.entry()[..pointers.stride];
    let idle = &idle.entry()[..pointers.stride];
    let time = |field, value: i64| {
        let places = (0..pointers.application).step_by(8);
        only(field, places.filter(|&at| i64_at(entry, at) == value))
    };
    let backend_start = time("backend_start", known.backend_start)?;
    let transaction_start = time("xact_start", known.transaction_start)?;
    let activity_start = time("query_start", known.activity_start)?;
    let state_change = time("state_change", known.state_change)?;
    let pids = (0..backend_start).step_by(4);
    let pid = only("pid", pids.filter(|&at| u32_at(entry, at) == known.pid))?;
    let oids = (state_change + 8..pointers.application).step_by(4);
    let is_pair =
        |at: &usize| u32_at(entry, *at) == known.database && u32_at(entry, *at + 4) == known.user;
    let database = only("database and user", oids.filter(is_pair))?;
    let states = (database + 8..pointers.application).step_by(4);
    // `idle in transaction` is two after `idle` in `BackendState`, which is 1, or 2 from 18.
    let is_state = |at: &usize| {
        let (was, is) = (u32_at(entry, *at), u32_at(idle, *at));
        (1..=2).contains(&is) && was == is + 2
    };
    let state = only("state", states.filter(is_state))?;
    let query_id = known.query_id.filter(|&id| id != 0).map(|id| {
        let places = (pointers.text + 8..pointers.stride).step_by(8);
        only("query_id", places.filter(|&at| i64_at(entry, at) == id))
    });
    let (before, after) = (u32_at(entry, 0), u32_at(idle, 0));
    if pid == 0 || before % 2 == 1 || after % 2 == 1 || after <= before {
        return Err(SessionsError::AmbiguousField {
            field: "change count",
            places: 0,
        });
    }
    Ok(EntryLayout {
        stride: pointers.stride,
        pid,
        backend_start,
        transaction_start,
        activity_start,
        state_change,
        database,
        state,
        idle: u32_at(idle, state),
        application: pointers.application,
        text: pointers.text,
        query_id: query_id.transpose()?,
    })
}

fn only(
    field: &'static str,
    mut places: impl Iterator<Item = usize>,
) -> Result<usize, SessionsError> {
    let first = places.next();
    match (first, places.count()) {
        (Some(place), 0) => Ok(place),
        (first, others) => Err(SessionsError::AmbiguousField {
            field,
            places: others + usize::from(first.is_some()),
        }),
    }
}

/// Compares the observer's entry, read with the learned layout, with what the server says of it.
fn confirm(array: &StatusArray, known: &KnownFields) -> Result<(), SessionsError> {
    let unreadable = || SessionsError::unreadable(array.postmaster_pid);
    let mut entries = Vec::new();
    array.read_entries(&mut entries).map_err(unreadable())?;
    let stride = array.layout.stride;
    let entry = |slot: usize| super::layout::Entry {
        bytes: &entries[slot * stride..][..stride],
        layout: &array.layout,
    };
    let differs = |field| SessionsError::Unconfirmed { field };
    let mut slots = (0..array.slots).filter(|&slot| entry(slot).pid() == known.pid);
    let slot = slots.next().ok_or(differs("pid"))?;
    let found = entry(slot);
    let string = |(address, length): (u64, usize)| {
        let mut bytes = vec![0; length];
        memory::read(array.postmaster_pid, address, &mut bytes).map_err(unreadable())?;
        Ok::<_, SessionsError>(String::from_utf8_lossy(until_zero(&bytes)).into_owned())
    };
    let times = [
        (found.started_us(), known.backend_start, "backend_start"),
        (
            found.activity_started_us(),
            known.activity_start,
            "query_start",
        ),
        (found.state_changed_us(), known.state_change, "state_change"),
    ];
    for (read, expected, field) in times {
        if read != expected + EPOCH_US {
            return Err(differs(field));
        }
    }
    if (found.database(), found.user()) != (known.database, known.user) {
        return Err(differs("database and user"));
    }
    if found.state() != super::reading::SessionState::Idle || known.state != "idle" {
        return Err(differs("state"));
    }
    if string(array.application(slot))? != known.application {
        return Err(differs("application_name"));
    }
    if string(array.text(slot))? != known.text {
        return Err(differs("query"));
    }
    Ok(())
}
