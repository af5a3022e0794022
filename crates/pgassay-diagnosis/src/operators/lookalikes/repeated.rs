//! Statements that are executed once in each transaction.

use super::of_id;
use super::statements::counted_in_transactions;

/// Regression: "executions per committed transaction 110000", of an application that reads with one statement in each
/// transaction, and rolls it back.
#[test]
fn a_transaction_that_only_reads_and_is_rolled_back_has_one_execution() {
    let found = |rolled_back: u64| {
        let server = counted_in_transactions(110_000, 0.2).catalog(|it| {
            it.databases[0].committed = 1;
            it.databases[0].rolled_back = rolled_back;
        });
        of_id("n-plus-one", &server.activity).len()
    };
    assert_eq!((found(110_000), found(0)), (0, 1));
    // Two in each, most of which are rolled back.
    assert_eq!((found(54_998), found(55_002)), (1, 0));
}
