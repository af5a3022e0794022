//! Comparisons, ledgers and margins through the public interface.

mod assess;
mod blocked_reasons;
mod busy_server;
mod client_thread;
mod consistency;
mod ledger;
mod margin;
mod pairs;
mod precision;
mod sequential;
