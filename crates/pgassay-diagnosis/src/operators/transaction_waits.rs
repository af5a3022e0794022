//! Which statements wait for the end of another transaction for a reason other than its rows.
//!
//! All such waits have the wait event `transactionid` (`src/backend/storage/lmgr/lmgr.c`, `XactLockTableWait`).

use pgassay_record::activity::{Activity, LoadCell, SessionStatus};

use pgassay_script::statement_tokens::{self, StatementToken};

/// Commands that wait until the transactions before them have ended: those of the replication protocol for the
/// first snapshot of a slot (`snapbuild.c`), and CREATE INDEX for the rows that it meets.
const COMMANDS: [&str; 4] = [
    "create",
    "reindex",
    "create_replication_slot",
    "start_replication",
];
/// Functions that do it likewise.
const FUNCTIONS: [&str; 5] = [
    "pg_create_logical_replication_slot",
    "pg_logical_slot_get_changes",
    "pg_logical_slot_peek_changes",
    "pg_logical_slot_get_binary_changes",
    "pg_logical_slot_peek_binary_changes",
];

/// Whether the text shows that it waits for transactions, and not for rows that they have locked.
pub(super) fn waits_for_all(tokens: &[StatementToken]) -> bool {
    let command = tokens.first();
    command.is_some_and(|it| it.is_any(&COMMANDS)) || tokens.iter().any(|it| it.is_any(&FUNCTIONS))
}

/// The share of the waits for other transactions that are not for their rows.
pub(crate) fn share_without_rows(activity: &Activity) -> f64 {
    let is_wait = |it: &&LoadCell| {
        let wait = activity.waits.get(it.wait as usize);
        let is_of_transaction =
            wait.is_some_and(|it| it.kind == "Lock" && it.name == "transactionid");
        it.state == SessionStatus::Active && is_of_transaction
    };
    let (mut all_us, mut others_us) = (0.0, 0.0);
    for cell in activity.cells.iter().filter(is_wait) {
        all_us += cell.time_us;
        let statement = cell
            .statement
            .and_then(|it| activity.statements.get(it as usize));
        let text = statement.and_then(|it| it.text.as_deref());
        if text.is_some_and(|it| waits_for_all(&statement_tokens::tokens(it))) {
            others_us += cell.time_us;
        }
    }
    if all_us > 0.0 {
        others_us / all_us
    } else {
        0.0
    }
}
