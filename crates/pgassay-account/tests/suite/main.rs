//! Comparisons, ledgers and margins through the public interface.

mod assess;
mod busy_server;
mod consistency;
mod ledger;
mod margin;
mod precision;
mod sequential;
