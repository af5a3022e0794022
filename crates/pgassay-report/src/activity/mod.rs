//! What the reports and `pgassay top` say of a live server's activity, in the same words.

mod blind_spots;
mod counters;
mod figures;
mod findings;
mod headline;
mod named_tables;
mod ready_sessions;
mod relations;
mod sentences;
mod short_blockers;
mod statement;
mod statement_cpu;
mod stretches;
mod wait_class;
mod waits_in_queue;

pub use blind_spots::{
    blind_spot, blind_spots, limitations, unknown_blocking, unknown_tables, unseen_sessions,
};
pub use counters::counter_lines;
pub use figures::{age, load, rate, relation_size, share, size};
pub use findings::{finding_confidence, finding_lines, finding_sql};
pub use headline::{headline, headline_of_seen};
pub(crate) use named_tables::NamedTables;
pub(crate) use ready_sessions::ready_but_idle;
pub(crate) use relations::index_writes;
pub use relations::{busy_tables, dead_share, index_remarks, server_lines, table_writes};
pub use sentences::{
    blocked_name, blocked_waits, blocks, cost, known_wait, relation_name, root_describes,
    root_name, root_statement_label, seen_when, wait_name, waited_in_all,
};
pub use short_blockers::{divided, waits_in_turn};
pub use statement::{
    Executions, counted_over, executions, mean, one_line, statement_text, tables_counted,
};
pub(crate) use statement::{other_locks, per_call};
pub(crate) use statement_cpu::StatementCpu;
pub use stretches::{TimeStretch, stretches};
pub use wait_class::{ClassLoads, WaitClass};
pub(crate) use waits_in_queue::waits_in_run_queue;

pub use crate::terminal::{cut, fit, visible};
