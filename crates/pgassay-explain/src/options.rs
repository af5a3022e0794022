//! The EXPLAIN statement for a server's version.

use crate::statement::{ExplainRefusal, StatementEffect, StatementText};

/// What to ask of EXPLAIN. The default is a plan without executing the statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExplainOptions {
    /// Execute the statement: rows, loops, buffers, spills. A cursor is only planned.
    pub analyze: bool,
    /// Read the clock at each node, which slows the statement. Ignored without `analyze`.
    pub node_times: bool,
    /// The generic plan of a text with `$1`, since 16 and without `analyze`.
    pub generic_plan: bool,
}

impl ExplainOptions {
    /// With ANALYZE, without the time of each node.
    pub const ANALYZED: Self = Self {
        analyze: true,
        node_times: false,
        generic_plan: false,
    };
}

/// An EXPLAIN statement, whose result is one JSON text for [`QueryPlan::parse`](crate::QueryPlan::parse).
///
/// Send [`begin`](Self::begin), `sql` and [`END`](Self::END) in this order. The transaction is
/// always rolled back, so that a statement that writes leaves its rows unchanged. A sequence keeps its
/// new value, and a rolled-back write leaves dead rows: use a server of your own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRequest {
    /// The statement to send.
    pub sql: String,
    /// What the explained statement does when it is executed.
    pub effect: StatementEffect,
    /// Whether this request executes it.
    pub is_executed: bool,
}

impl ExplainRequest {
    /// Begins a transaction that is not read only: see [`Self::begin`].
    pub const BEGIN: &'static str = "begin";
    /// Ends the transaction.
    pub const END: &'static str = "rollback";

    /// EXPLAIN for one statement on a server with this `server_version_num` (90624 for 9.6.24,
    /// 180006 for 18.6).
    pub fn new(sql: &str, version: u32, options: ExplainOptions) -> Result<Self, ExplainRefusal> {
        let text = StatementText::read(sql)?;
        if options.generic_plan {
            if version < 160_000 {
                return Err(ExplainRefusal::NoGenericPlan);
            }
            if options.analyze {
                return Err(ExplainRefusal::GenericPlanExecuted);
            }
        } else if text.parameters > 0 {
            return Err(ExplainRefusal::Parameters);
        }
        Ok(Self::of_text(&text, version, options))
    }

    pub(crate) fn of_text(text: &StatementText<'_>, version: u32, options: ExplainOptions) -> Self {
        let options = ExplainOptions {
            analyze: options.analyze && !text.is_cursor,
            ..options
        };
        let list = option_list(version, options).join(", ");
        Self {
            sql: format!("explain ({list}) {}", text.sql),
            effect: text.effect,
            is_executed: options.analyze,
        }
    }

    /// Begins the transaction. A query that is executed must not write: a function that writes fails
    /// in a read-only transaction, and so does `nextval`. On a server of your own, a transaction that
    /// is not read only explains them too.
    pub fn begin(&self) -> &'static str {
        if self.is_executed && self.effect == StatementEffect::Reads {
            "begin transaction read only"
        } else {
            Self::BEGIN
        }
    }

    /// Whether sending it can change data, even if only until the transaction is rolled back. Do not
    /// send such a request to a server that others use.
    pub fn writes(&self) -> bool {
        self.is_executed && self.effect != StatementEffect::Reads
    }
}

/// The options that a version has. Source: the release notes and `src/backend/commands/explain.c` of
/// 9.6 to 18.
fn option_list(version: u32, options: ExplainOptions) -> Vec<&'static str> {
    let ExplainOptions {
        analyze,
        node_times,
        generic_plan,
    } = options;
    let table = [
        ("analyze", 0, analyze),
        ("verbose", 0, true),
        // Without ANALYZE, the buffers of planning.
        ("buffers", if analyze { 0 } else { 130_000 }, true),
        ("timing off", 0, analyze && !node_times),
        // The planning time of a plan that is not executed.
        ("summary", 100_000, true),
        ("settings", 120_000, true),
        ("wal", 130_000, analyze),
        ("generic_plan", 160_000, generic_plan),
        ("memory", 170_000, true),
        ("serialize text", 170_000, analyze),
        ("format json", 0, true),
    ];
    let had = table
        .into_iter()
        .filter(|(_, since, is_wanted)| *is_wanted && version >= *since);
    had.map(|(option, ..)| option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(version: u32, options: ExplainOptions) -> String {
        ExplainRequest::new("select 1;", version, options)
            .unwrap()
            .sql
    }

    #[test]
    fn each_version_gets_the_options_it_has() {
        let analyzed = ExplainOptions::ANALYZED;
        assert_eq!(
            sql(90_624, analyzed),
            "explain (analyze, verbose, buffers, timing off, format json) select 1"
        );
        assert_eq!(
            sql(120_022, analyzed),
            "explain (analyze, verbose, buffers, timing off, summary, settings, format json) select 1"
        );
        assert_eq!(
            sql(180_006, analyzed),
            "explain (analyze, verbose, buffers, timing off, summary, settings, wal, memory, \
             serialize text, format json) select 1"
        );
        let plain = ExplainOptions::default();
        assert_eq!(
            sql(90_624, plain),
            "explain (verbose, format json) select 1"
        );
        assert_eq!(
            sql(130_000, plain),
            "explain (verbose, buffers, summary, settings, format json) select 1"
        );
        let with_times = ExplainOptions {
            node_times: true,
            ..analyzed
        };
        assert!(!sql(150_000, with_times).contains("timing"));
    }

    /// Regression: the blocks of a cursor's whole query, of which a transaction fetched 100 rows.
    #[test]
    fn a_cursor_is_not_run_to_its_end() {
        for text in [
            "declare c cursor for select 1",
            "-- all\nDECLARE c no scroll cursor with hold for table t",
        ] {
            let request = ExplainRequest::new(text, 180_000, ExplainOptions::ANALYZED).unwrap();
            assert!(!request.is_executed && !request.sql.contains("analyze"));
            assert!(crate::declares_cursor(text), "{text}");
        }
        assert!(!crate::declares_cursor("select declare from t"));
    }

    #[test]
    fn only_a_query_that_is_executed_runs_read_only() {
        let of = |sql, options| ExplainRequest::new(sql, 180_000, options).unwrap();
        let query = of("select 1", ExplainOptions::ANALYZED);
        assert_eq!(
            (query.begin(), query.writes()),
            ("begin transaction read only", false)
        );
        let update = of("update t set a = 1", ExplainOptions::ANALYZED);
        assert_eq!((update.begin(), update.writes()), ("begin", true));
        let plain = of("update t set a = 1", ExplainOptions::default());
        assert!(!plain.writes());
        let execute = of("execute p", ExplainOptions::ANALYZED);
        assert!(execute.writes());
    }

    #[test]
    fn parameters_need_a_generic_plan_or_values() {
        let generic = ExplainOptions {
            generic_plan: true,
            ..ExplainOptions::default()
        };
        let with = |version, options| {
            ExplainRequest::new("select $1::int", version, options).map(|it| it.sql)
        };
        assert_eq!(
            with(180_000, ExplainOptions::default()),
            Err(ExplainRefusal::Parameters)
        );
        assert_eq!(with(150_000, generic), Err(ExplainRefusal::NoGenericPlan));
        let both = ExplainOptions {
            analyze: true,
            ..generic
        };
        assert_eq!(
            with(180_000, both),
            Err(ExplainRefusal::GenericPlanExecuted)
        );
        assert!(with(180_000, generic).unwrap().contains("generic_plan"));
    }
}
