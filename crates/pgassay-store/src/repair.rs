//! Uses the index in spite of damage, locks and missing rights, because the directories contain
//! everything.
//!
//! A damaged index is removed and rebuilt from the directories. If another process holds it locked, it
//! cannot be written, another user can replace it, or the file is no index, an index in memory replaces it for one
//! query.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use crate::error::StoreError;
use crate::files;
use crate::index::{self, Filter, RunLine};
use crate::pinned_directory::PinnedDirectory;

pub(crate) fn list(root: &Path, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
    match list_from_file(root, filter) {
        Err(error) if is_damaged(&error) => {
            tracing::warn!(%error, "the index is damaged and will be rebuilt");
            let rebuilt = remove(root).and_then(|()| list_from_file(root, filter));
            rebuilt.or_else(|_| list_from_memory(root, filter))
        }
        Err(error) if is_unusable(&error) => list_from_memory(root, filter),
        other => other,
    }
}

pub(crate) fn rebuild(root: &Path) -> Result<(), StoreError> {
    remove(root)?;
    let mut connection = index::open(root)?;
    index::update(&mut connection, root)
}

fn list_from_file(root: &Path, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
    let mut connection = index::open(root)?;
    check(&connection).map_err(|source| index::failed(root, source))?;
    index::update(&mut connection, root)?;
    index::lines(&connection, filter).map_err(|source| index::failed(root, source))
}

fn list_from_memory(root: &Path, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
    let mut connection = index::in_memory(root)?;
    index::update(&mut connection, root)?;
    index::lines(&connection, filter).map_err(|source| index::failed(root, source))
}

/// Checks every page, because a list reads few of them, and users query the rest.
fn check(connection: &Connection) -> rusqlite::Result<()> {
    let found: String = connection.query_row("pragma quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" {
        return Ok(());
    }
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(code, Some(found)))
}

fn remove(root: &Path) -> Result<(), StoreError> {
    let opened = PinnedDirectory::open(root).map_err(|source| StoreError::writing(root, source))?;
    if index::has_another_file(&opened) {
        let source = index::refused("it is not an index of pgassay");
        return Err(index::failed(root, source));
    }
    for companion in index::COMPANIONS.into_iter().chain([""]) {
        let path = opened.path().join(format!("{}{companion}", index::FILE));
        files::remove(&path).map_err(|error| error.with_path(&opened.path(), root))?;
    }
    Ok(())
}

fn code(error: &StoreError) -> Option<ErrorCode> {
    match error {
        StoreError::Index { source, .. } => source.sqlite_error_code(),
        _ => None,
    }
}

/// Damage that a new index repairs. Tables that are missing, or are not ours, are damage, too.
fn is_damaged(error: &StoreError) -> bool {
    let codes = [
        ErrorCode::NotADatabase,
        ErrorCode::DatabaseCorrupt,
        ErrorCode::Unknown,
    ];
    code(error).is_some_and(|code| codes.contains(&code))
}

/// Locked, not writable, or on a full or failing disk.
fn is_unusable(error: &StoreError) -> bool {
    let codes = [
        ErrorCode::ReadOnly,
        ErrorCode::CannotOpen,
        ErrorCode::PermissionDenied,
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::FileLockingProtocolFailed,
        ErrorCode::DiskFull,
        ErrorCode::SystemIoFailure,
    ];
    code(error).is_some_and(|code| codes.contains(&code))
}
