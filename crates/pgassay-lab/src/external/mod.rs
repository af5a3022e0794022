//! External servers: what a study does to them, whether the user allows it, and how it is undone.
//!
//! [`ExternalUse`] is what a plan will do on a server, by the text of its statements. A run needs the
//! user's permission for it ([`check_writes`], [`check`]) before anything is touched. What a run
//! changes is in a [`UndoJournal`] before it happens, so that [`recover`] can undo it after a crash.

mod backup;
mod databases;
mod exclusive;
mod journal;
mod limits;
mod passwords;
mod permission;
mod planned;
mod recovery;
mod restoring;
mod state;
mod string_syntax;
mod study_connection;
mod undoing;

pub use backup::SettingBackup;
pub use databases::{drop_database, is_key, with_databases_left};
pub use exclusive::SettingsClaim;
pub use journal::{JournalLine, JournaledServer, UndoJournal};
pub use limits::{PATIENCE, limit_inspection, limit_study, limit_to_catalog};
pub use permission::{check, check_writes};
pub use planned::ExternalUse;
pub use recovery::recover;
pub use state::ServerState;
pub use string_syntax::StringSyntax;
pub use study_connection::{ChangedSettings, StudyConnection};
pub use undoing::restore_and_compare;
