//! Query plans of PostgreSQL 9.6 to 18, and the difference between two of them.
//!
//! - [`ExplainRequest`] writes the EXPLAIN statement with the options that a version has, and refuses
//!   what cannot be explained; [`PreparedExplain`] does so for prepared statements;
//! - [`QueryPlan`] is EXPLAIN's JSON as a tree; [`node_shares`] divides it among the nodes;
//! - [`PlanDifference`] matches the nodes of two plans and lists what differs, most important first;
//! - [`PreparedPlans`] tells the generic plan from custom ones;
//! - [`difference_text`], [`difference_sentences`] and [`plan_text`] are for reports; the types of the difference can be
//!   serialized.
//!
//! The caller sends the statements and passes the results on:
//!
//! ```
//! use pgassay_explain::{ExplainOptions, ExplainRequest, PlanDifference, QueryPlan, difference_text};
//!
//! let sql = "select * from t where k = 5;";
//! let request = ExplainRequest::new(sql, 120_022, ExplainOptions::ANALYZED)?;
//! assert_eq!(request.begin(), "begin transaction read only");
//! assert_eq!(
//!     request.sql,
//!     "explain (analyze, verbose, buffers, timing off, summary, settings, format json) \
//!      select * from t where k = 5"
//! );
//! // The server's answers, shortened, before and after `create index t_k on t (k)`.
//! let before = QueryPlan::parse(
//!     r#"[{"Plan": {"Node Type": "Seq Scan", "Relation Name": "t", "Alias": "t",
//!          "Filter": "(t.k = 5)", "Actual Rows": 100, "Actual Loops": 1, "Shared Hit Blocks": 935}}]"#,
//! )?;
//! let after = QueryPlan::parse(
//!     r#"[{"Plan": {"Node Type": "Index Scan", "Index Name": "t_k", "Relation Name": "t",
//!          "Alias": "t", "Index Cond": "(t.k = 5)", "Actual Rows": 100, "Actual Loops": 1,
//!          "Shared Hit Blocks": 103}}]"#,
//! )?;
//! let difference = PlanDifference::between(&before, &after);
//! assert_eq!(
//!     difference.changes[0].to_string(),
//!     "Method: Seq Scan on t → Index Scan using t_k on t"
//! );
//! print_to_terminal(&difference_text(&difference, ("no index", "index"), 80));
//! # fn print_to_terminal(_: &str) {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - No I/O and no clock.
//! - A plan does not differ from itself, and the difference of b and a mirrors that of a and b.
//! - Costs are never compared, and figures only if both plans have them.
//!
//! # Limits
//! - The text of a query does not show what its functions do: [`ExplainRequest::begin`] makes the
//!   transaction read only.
//! - Which partition belongs to which table is inferred from names.

mod change;
mod changes;
mod condition;
mod difference;
mod figures;
mod join_order;
mod json;
mod label;
mod lexeme;
mod lines;
mod matching;
mod number;
mod options;
mod parse;
mod partitions;
mod plan;
mod prepared;
mod renaming;
mod sentence;
mod share;
mod side;
mod spill;
mod statement;
mod step;
mod text;
mod triggers;

pub use change::{PlanChange, PlanChangeKind, PlanPlace};
pub use difference::{PlanDifference, PlanFigures, PlanSetting};
pub use figures::StepFigures;
pub use lines::{DifferenceLine, LineMark};
pub use options::{ExplainOptions, ExplainRequest};
pub use parse::PlanParseError;
pub use plan::{
    BufferUsage, MemoryUse, NodeActuals, PlanNode, QueryPlan, Serialization, SortGroups,
    TriggerUse, WalUsage, WorkerActuals,
};
pub use prepared::{PlanKind, PlanShape, PreparedExplain, PreparedPlans, kind_of, plan_kind};
pub use share::{NodeShare, node_shares};
pub use statement::{ExplainRefusal, StatementEffect, declares_cursor};
pub use text::{difference_sentences, difference_text, plan_text};
