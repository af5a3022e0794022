//! Findings for operators: what a live server's sessions, statements, tables and indexes lose time to,
//! each with the object's name and the statement that fixes it.
//!
//! An [`OperatorSignature`] is a pure function of a [`LiveView`]. It detects nothing, or one problem for
//! each object. Its weight is the average number of active sessions that the fix would give back at
//! most: the load of the time axis, so that weights of different findings compare. A problem that has no
//! load yet (wraparound, a slot that keeps WAL) has no weight and ranks after those that have one.
//!
//! Thresholds are shares of the load, or multiples of the server's own thresholds. The few absolute
//! ones say why.

mod archiver;
mod deadlocks;
mod detection;
mod ending;
mod horizon;
mod index_builds;
mod index_not_used;
mod indexes;
mod live_view;
mod locks;
#[cfg(test)]
mod lookalikes;
mod missing_index;
mod names;
mod offsets;
mod ordered_reads;
mod partitioned_statistics;
mod recovery_locks;
mod replay;
mod row_queues;
mod server;
mod session_settings;
mod sessions;
mod signature;
mod slots;
mod sql_expressions;
mod sql_joins;
mod sql_order;
mod sql_text;
mod statements;
mod table_indexes;
mod table_queues;
mod table_scans;
mod tables;
mod transaction_waits;
mod unnamed_scans;
mod unserved_conditions;
mod wait_meanings;

use std::cmp::Ordering;

use pgassay_record::activity::Activity;
use pgassay_record::finding::{Finding, FindingObject, ObjectKind};

use crate::evidence::Evidence;
use detection::Detection;
use live_view::LiveView;
pub(super) use live_view::{SAMPLES_MIN, SESSIONS_MIN};
use signature::OperatorSignature;
pub(super) use transaction_waits::share_without_rows;

/// Findings of one signature; a schema with a thousand unused indexes would otherwise fill the report.
const FINDINGS_MAX: usize = 10;

/// Findings that name who blocks, or in which statements sessions wait for each other.
const LOCK_CAUSES: [&str; 7] = [
    "deadlocks",
    "row-lock-queue",
    "idle-blocker",
    "long-blocker",
    "recovery-blocks",
    "wraparound-vacuum-blocks",
    "prepared-transaction",
];

/// All signatures for operators, by family.
pub(crate) fn operator_signatures() -> impl Iterator<Item = &'static OperatorSignature> {
    [
        locks::SIGNATURES,
        row_queues::SIGNATURES,
        table_queues::SIGNATURES,
        deadlocks::SIGNATURES,
        recovery_locks::SIGNATURES,
        sessions::SIGNATURES,
        horizon::SIGNATURES,
        slots::SIGNATURES,
        archiver::SIGNATURES,
        replay::SIGNATURES,
        missing_index::SIGNATURES,
        index_not_used::SIGNATURES,
        offsets::SIGNATURES,
        indexes::SIGNATURES,
        tables::SIGNATURES,
        statements::SIGNATURES,
        server::SIGNATURES,
    ]
    .into_iter()
    .flatten()
}

/// Findings about the sessions, statements, tables and indexes of a live server: those with load first,
/// by what their fixes would give back, then those that lie ahead. `major` is the server's version, such
/// as `18` or `9.6`; `None` if unknown.
pub fn diagnose_activity(activity: &Activity, major: Option<&str>) -> Vec<Finding> {
    findings_of(&LiveView::new(activity, major, None), None)
}

/// The same, with the evidence of the server's mechanisms and the number of transactions that ended.
pub(super) fn diagnose_with(
    activity: &Activity,
    major: Option<&str>,
    evidence: Option<&Evidence>,
    transactions: Option<u64>,
) -> Vec<Finding> {
    findings_of(&LiveView::new(activity, major, evidence), transactions)
}

fn findings_of(view: &LiveView<'_>, transactions: Option<u64>) -> Vec<Finding> {
    let mut ranked: Vec<(Detection, Finding)> = Vec::new();
    for signature in operator_signatures() {
        let mut detections = (signature.detect)(view);
        detections.retain(|it| !it.facts.is_empty() && it.is_noticeable(view));
        detections.sort_by(by_rank);
        detections.truncate(FINDINGS_MAX);
        ranked.extend(detections.into_iter().map(|it| {
            let finding = it.finding(signature, view, transactions);
            (it, finding)
        }));
    }
    ranked.sort_by(|a, b| {
        by_rank(&a.0, &b.0)
            .then_with(|| b.1.confidence.cmp(&a.1.confidence))
            .then_with(|| a.1.id.cmp(&b.1.id))
            .then_with(|| a.1.object.cmp(&b.1.object))
    });
    ranked.into_iter().map(|(_, finding)| finding).collect()
}

/// Whether it is the text of a command for many rows, which writes them past the buffer cache or in a ring of buffers.
pub(super) fn is_bulk_text(text: &str) -> bool {
    sql_text::is_bulk(&pgassay_script::statement_tokens::tokens(text))
}

/// What gives back most comes first; then what is most urgent, then the largest.
fn by_rank(a: &Detection, b: &Detection) -> Ordering {
    let saved = |it: &Detection| it.saved.unwrap_or(0.0);
    let urgency = b.urgency.cmp(&a.urgency);
    saved(b)
        .total_cmp(&saved(a))
        .then(urgency)
        .then(b.extent.total_cmp(&a.extent))
}

/// Marks mechanisms that are caused by an operator's finding: the queue for a lock that one idle session holds is not a
/// hot row. `sessions_of` is how many average sessions a mechanism costs. If a session that blocks others explains only
/// a part of it, the suggested fix says which.
pub(super) fn explain_mechanisms(
    mechanisms: &mut [Finding],
    operators: &[Finding],
    sessions_of: impl Fn(&Finding) -> f64,
) {
    let is_blocker = |it: &&Finding| LOCK_CAUSES.contains(&it.id.as_str());
    // Advisory locks and locks on objects are neither on rows nor on tables.
    let is_contended = |it: &&Finding| {
        let object = it.object.as_ref().map_or("", |it| it.name.as_str());
        it.id == "table-lock-queue" || it.id == "lock-contention" && object.starts_with("Lock:")
    };
    for queue in mechanisms.iter_mut() {
        let causes: Vec<&Finding> = match queue.id.as_str() {
            "relation-lock" => operators
                .iter()
                .filter(|it| is_blocker(it) || is_contended(it))
                .collect(),
            "hot-row" => operators.iter().filter(is_blocker).collect(),
            _ => continue,
        };
        let waiting = sessions_of(queue);
        let blockers = BlockingSessions::among(&causes);
        let most = causes.iter().max_by(|a, b| saved(a).total_cmp(&saved(b)));
        let most = most.filter(|it| saved(it) >= EXPLAINS_MIN * waiting);
        if let Some(cause) = most.copied().or(blockers.cause_of(waiting)) {
            queue.explained_by = Some(cause.id.clone());
        } else if let Some(words) = blockers.words(waiting) {
            let mut letters = queue.suggested_fix.chars();
            let first = letters
                .next()
                .map_or_else(String::new, |it| it.to_lowercase().collect());
            queue.suggested_fix = format!("{words}. The rest: {first}{}", letters.as_str());
        }
    }
}

/// What the fix of a finding would give back.
fn saved(finding: &Finding) -> f64 {
    finding.saved_sessions.unwrap_or(0.0)
}

/// Findings that name a session or a prepared transaction that blocks others, and the sessions that wait for them.
struct BlockingSessions<'a> {
    found: Vec<(&'a Finding, &'a FindingObject)>,
    waiting: f64,
}

impl<'a> BlockingSessions<'a> {
    fn among(causes: &[&'a Finding]) -> Self {
        let object = |it: &&'a Finding| {
            let object = it.object.as_ref()?;
            let is_session = matches!(
                object.kind,
                ObjectKind::Session | ObjectKind::PreparedTransaction
            );
            (is_session && saved(it) > 0.0).then_some((*it, object))
        };
        let found: Vec<_> = causes.iter().filter_map(object).collect();
        let waiting = found.iter().map(|it| saved(it.0)).sum();
        Self { found, waiting }
    }

    /// The first of them, if together they explain so many waiting sessions.
    fn cause_of(&self, waiting: f64) -> Option<&'a Finding> {
        let first = self.found.first().map(|it| it.0);
        first.filter(|_| self.waiting >= EXPLAINS_MIN * waiting)
    }

    /// `2.00 of the 4.98 waiting sessions are behind session 4711`; `None` without such a session.
    fn words(&self, waiting: f64) -> Option<String> {
        let (_, object) = self.found.first()?;
        let others = match self.found.len() - 1 {
            0 => String::new(),
            1 => " and one other".to_owned(),
            more => format!(" and {more} others"),
        };
        let behind = self.waiting;
        Some(format!(
            "{behind:.2} of the {waiting:.2} waiting sessions are behind {object}{others}"
        ))
    }
}

/// A cause explains waits for locks if it makes up this share of them: the rest is what the measurement may be off by.
const EXPLAINS_MIN: f64 = 0.8;
