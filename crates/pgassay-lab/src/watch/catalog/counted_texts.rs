//! What `pg_stat_statements` counted, with the texts that it has.

use pgassay_record::activity::StatementCounters;
use pgassay_script::ConstantMark;

/// PostgreSQL 10 numbers the constants that `pg_stat_statements` replaces.
const NUMBERED_SINCE: u32 = 100_000;

/// The entries of statements that clients sent.
#[derive(Debug)]
pub struct CountedTexts {
    /// One for each user, database and query ID.
    pub texts: Vec<CountedText>,
    /// None is missing: the server showed all entries, and evicted none meanwhile.
    pub are_all: bool,
    /// How constants are replaced.
    pub mark: ConstantMark,
}

/// An entry.
#[derive(Debug, Clone)]
pub struct CountedText {
    /// Its query ID.
    pub query_id: i64,
    /// The text of the execution that created it, with its constants replaced.
    pub text: String,
    /// Its end was not read.
    pub is_cut: bool,
    /// What was counted over the window; `None` if nothing was, or it is unknown.
    pub counters: Option<StatementCounters>,
}

impl CountedTexts {
    /// How a server of this version replaces constants.
    pub(super) fn mark(version: u32) -> ConstantMark {
        if version >= NUMBERED_SINCE {
            ConstantMark::Numbered
        } else {
            ConstantMark::QuestionMark
        }
    }
}
