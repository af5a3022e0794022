//! Sessions that wait for a table because commands that lock all of it come again and again, each for a short time.

use std::collections::BTreeMap;

use pgassay_record::activity::{BlockingEpisode, RelationName};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::locks::{is_strong, weighty};
use super::names;
use super::row_queues::is_actionable;
use super::signature::OperatorSignature;

/// Sessions that wait for tables, as a share of the load: fewer are part of running in parallel.
const TABLE_WAITS_MIN: f64 = 0.15;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "table-lock-queue",
    title: "Sessions queue for a table that commands lock again and again",
    manual: "Explicit Locking: Table-Level Locks",
    detect: table_lock_queue,
}];

/// What was seen of the queues for one table.
#[derive(Default)]
struct TableQueues {
    waited_us: f64,
    /// How often the queues were read.
    seen: u64,
    /// Statements that take a strong lock, or wait for one, each with its fingerprint and how often it was seen.
    commands: BTreeMap<(String, Option<String>), u64>,
    /// The strong lock of one of them.
    mode: String,
}

impl TableQueues {
    fn add(&mut self, episode: &BlockingEpisode, table: &RelationName) {
        let its = episode.blocked.iter();
        let its = its.filter(|it| it.waits_for.relation.as_ref() == Some(table));
        self.waited_us += its.clone().map(|it| it.waited_us).sum::<f64>();
        self.seen += 1;
        for waiter in its.filter(|it| is_strong(&it.waits_for.mode)) {
            self.add_command(
                &waiter.waits_for.mode,
                waiter.statement.as_ref(),
                waiter.fingerprint.as_ref(),
            );
        }
        let root = &episode.root;
        if let Some(hold) = root.holds.as_ref().filter(|it| is_strong(&it.mode)) {
            self.add_command(
                &hold.mode,
                root.statement.as_ref(),
                root.fingerprint.as_ref(),
            );
        }
    }

    fn add_command(&mut self, mode: &str, text: Option<&String>, fingerprint: Option<&String>) {
        mode.clone_into(&mut self.mode);
        let ends = |text: &str| {
            matches!(
                text.to_ascii_lowercase().trim(),
                "commit" | "end" | "rollback"
            )
        };
        if let Some(text) = text.filter(|it| !ends(it)) {
            *self
                .commands
                .entry((text.clone(), fingerprint.cloned()))
                .or_default() += 1;
        }
    }

    fn detection(&self, table: &RelationName, waiting: f64) -> Detection {
        let command = self.commands.iter().max_by_key(|(_, seen)| **seen);
        let command = command.map(|(command, _)| command);
        let fingerprint = command.and_then(|(_, fingerprint)| fingerprint.as_deref());
        Detection::of(ObjectKind::Table, names::relation(table))
            .fingerprint(fingerprint)
            .saved(waiting)
            .load("average sessions that wait for its lock", waiting)
            .state(format!("sessions take {} on it", self.mode))
            .sampled("queues seen, each behind a transaction of less than a second", self.seen as f64, FactUnit::Count)
            .with(command, |it, (text, _)| it.context(format!("mostly by: {text}")))
            .fix(
                "Run the command less often, or one that locks less: REFRESH MATERIALIZED VIEW CONCURRENTLY, which \
                 requires a unique index; DELETE, or a temporary table for each session, instead of TRUNCATE; a \
                 weaker mode of LOCK TABLE. Commit right after it: the lock is held until the transaction ends.",
            )
            .risk("It requires a change of the application; what locks less may take longer.")
    }
}

fn table_lock_queue(view: &LiveView<'_>) -> Vec<Detection> {
    let waiting = view.waiting(|kind, name| kind == "Lock" && name == "relation");
    if waiting.is_chance() || waiting.load < TABLE_WAITS_MIN * view.active {
        return Vec::new();
    }
    // What a single transaction causes has a finding already.
    let is_single = |it: &BlockingEpisode| {
        let root = &it.root;
        root.gid.is_some() || root.is_recovery() || root.is_deadlocked || is_actionable(root)
    };
    let waited_us = |single: bool| -> f64 {
        let all = weighty(view).filter(|it| is_single(it) == single);
        all.map(|it| it.waited_us).sum()
    };
    if waited_us(true) / view.activity.window_us.max(1.0) >= 0.5 * waiting.load {
        return Vec::new();
    }
    let mut tables: Vec<(&RelationName, TableQueues)> = Vec::new();
    for episode in weighty(view).filter(|it| !is_single(it)) {
        let mut waits = episode
            .blocked
            .iter()
            .filter(|it| it.waits_for.kind == "relation");
        let Some(table) = waits.find_map(|it| it.waits_for.relation.as_ref()) else {
            continue;
        };
        let known = tables
            .iter()
            .position(|it| it.0 == table)
            .unwrap_or_else(|| {
                tables.push((table, TableQueues::default()));
                tables.len() - 1
            });
        tables[known].1.add(episode, table);
    }
    let all_us: f64 = tables.iter().map(|it| it.1.waited_us).sum();
    let strong = tables.iter().filter(|it| !it.1.mode.is_empty());
    strong
        .map(|(table, queues)| {
            queues.detection(table, waiting.load * queues.waited_us / all_us.max(1.0))
        })
        .collect()
}
