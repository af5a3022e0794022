//! What holds back the removal of dead rows: the xmin horizon. Five holders are compared.
//!
//! A holder is a finding only if it does harm: a table was vacuumed since it began, and dead rows beyond
//! the table's threshold stayed. A report that runs for minutes on a server without such tables is none.
//!
//! Sessions and prepared transactions count only for tables of their database, slots and standbys for all
//! (PostgreSQL's `src/backend/storage/ipc/procarray.c`: `ComputeXidHorizons`, before 14 `GetOldestXmin`).

use pgassay_record::activity::{
    BlockingEpisode, EndingSignal, HorizonHolder, HorizonKind, RootBlocker, TableActivity,
};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::ending::{REPLICATING, end_session, waiting};
use super::live_view::LiveView;
use super::locks::{ACTIONABLE_US, is_root_still_there};
use super::names;
use super::signature::OperatorSignature;
use super::slots::{is_copy, look_at_primary};

/// A transaction manager resolves its prepared transactions within seconds.
const FORGOTTEN_US: f64 = 300e6;
/// The default of `autovacuum_naptime`.
const AUTOVACUUM_ROUND_US: f64 = 60e6;
/// From this share of `autovacuum_freeze_max_age` on, a holder soon prevents freezing.
const FREEZE_SHARE: f64 = 0.5;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "horizon-session",
        title: "A long transaction keeps VACUUM from removing dead rows",
        manual: "Routine Vacuuming: Recovering Disk Space",
        detect: session,
    },
    OperatorSignature {
        id: "prepared-transaction",
        title: "A prepared transaction holds locks or an old snapshot",
        manual: "SQL Commands: PREPARE TRANSACTION",
        detect: prepared,
    },
    OperatorSignature {
        id: "slot-horizon",
        title: "A replication slot keeps VACUUM from removing dead rows",
        manual: "High Availability: Replication Slots",
        detect: slot,
    },
    OperatorSignature {
        id: "standby-horizon",
        title: "A standby keeps VACUUM from removing dead rows",
        manual: "Server Configuration: hot_standby_feedback",
        detect: standby,
    },
];

/// How long it has held the horizon: known, or by its age at the present rate of transactions, since the
/// server does not know when a slot or a standby began to.
fn lasting_us(view: &LiveView<'_>, holder: &HorizonHolder) -> Option<f64> {
    let estimated = view.transactions_us(holder.age);
    holder.lasting_us.or(estimated)
}

/// Whether VACUUM of this database's tables must respect the holder.
pub(super) fn affects(holder: &HorizonHolder, database: &str) -> bool {
    holder.database.as_ref().is_none_or(|own| own == database)
}

/// Whether a holder that began before this time keeps dead rows in the watched database.
pub(super) fn is_held_back_since(view: &LiveView<'_>, ago_us: f64) -> bool {
    let database = &view.catalog.database;
    let all = &view.catalog.horizon;
    // A snapshot of this database is as old as the oldest transaction that writes in any database: while
    // sessions here have snapshots, such a transaction of another database counts after all.
    let is_seen_here = |other: &HorizonHolder| {
        let mut sessions = all.iter().filter(|it| it.kind == HorizonKind::Session);
        sessions.any(|it| affects(it, database) && it.age >= other.age)
    };
    let mut early = all
        .iter()
        .filter(|it| it.lasting_us.is_some_and(|us| us > ago_us));
    early.any(|it| affects(it, database) || is_seen_here(it))
}

/// Tables that were vacuumed under the holder and have kept more dead rows than autovacuum tolerates.
fn kept_back<'a>(view: &LiveView<'a>, holder: &HorizonHolder) -> Vec<&'a TableActivity> {
    let affects = affects(holder, &view.catalog.database);
    let mut tables: Vec<&TableActivity> = view
        .catalog
        .tables
        .iter()
        .filter(|table| {
            let vacuumed_us = table.vacuumed_ago_us.unwrap_or(f64::INFINITY);
            let lasting_us = lasting_us(view, holder).unwrap_or(0.0);
            affects && table.dead_rows as f64 > table.vacuum_threshold && vacuumed_us < lasting_us
        })
        .collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.dead_rows));
    tables
}

/// Whether another holder that counts here is far older: then this one matters only after that one is
/// gone.
fn is_oldest(view: &LiveView<'_>, holder: &HorizonHolder) -> bool {
    let database = &view.catalog.database;
    let ages = view.catalog.horizon.iter();
    let oldest = ages
        .filter(|it| it.kind != HorizonKind::SlotCatalog && affects(it, database))
        .map(|it| it.age)
        .max();
    holder.age.saturating_mul(10) >= oldest.unwrap_or(0).saturating_mul(9)
}

/// Whether a session's snapshot is as old as a transaction that has lasted longer, or that does not wait for a lock
/// while the session does. A snapshot is as old as the oldest transaction that had written when it was taken, so all
/// that begin after that one have its age, and ending them frees nothing.
fn follows_another(view: &LiveView<'_>, holder: &HorizonHolder) -> bool {
    if matches!(holder.kind, HorizonKind::Slot | HorizonKind::Standby) {
        return is_of_writer(view, holder);
    }
    let database = &view.catalog.database;
    let waits = |it: &HorizonHolder| it.wait.as_ref().is_some_and(|it| it.kind == "Lock");
    let leads = |other: &HorizonHolder| match (waits(other), waits(holder)) {
        (false, true) => true,
        (true, false) => false,
        _ => other
            .lasting_us
            .zip(holder.lasting_us)
            .is_some_and(|(other, own)| other > own),
    };
    let mut others = view.catalog.horizon.iter().filter(|it| {
        let is_transaction = matches!(
            it.kind,
            HorizonKind::Session | HorizonKind::PreparedTransaction
        );
        is_transaction && it.name != holder.name && it.age == holder.age && affects(it, database)
    });
    holder.kind == HorizonKind::Session && others.any(leads)
}

/// Whether the snapshot that a standby reports is as old as a transaction that runs here and has written: a standby's
/// snapshots see it running, also those of its shortest queries.
fn is_of_writer(view: &LiveView<'_>, holder: &HorizonHolder) -> bool {
    let mut all = view.catalog.horizon.iter();
    all.any(|it| it.has_oldest_id && it.age == holder.age)
}

/// Whether a session executes a statement that began after the last round of autovacuum: what it keeps, the next one
/// may remove. A session that is idle in a transaction may stay so for hours. A standby reports its oldest snapshot
/// every few seconds (`wal_receiver_status_interval`), and what it keeps until then, too, is removed in the next round.
fn is_passing(view: &LiveView<'_>, holder: &HorizonHolder) -> bool {
    let round_us = view.setting("autovacuum_naptime").and_then(names::micros);
    let round_us = round_us.unwrap_or(AUTOVACUUM_ROUND_US);
    match holder.kind {
        HorizonKind::Session => {
            holder.state == "active" && holder.lasting_us.is_none_or(|us| us < round_us)
        }
        HorizonKind::Slot | HorizonKind::Standby => {
            lasting_us(view, holder).is_some_and(|us| us < round_us)
        }
        _ => false,
    }
}

/// A holder of these kinds that does harm, or soon will.
fn holders(view: &LiveView<'_>, kinds: &[HorizonKind]) -> Vec<Detection> {
    let all = view.catalog.horizon.iter();
    let its = all.filter(|it| kinds.contains(&it.kind));
    its.filter_map(|holder| {
        let tables = kept_back(view, holder);
        let freeze_max_age = view.catalog.ages.iter().map(|it| it.freeze_max_age).min();
        let freeze = freeze_max_age.unwrap_or(u64::MAX) as f64 * FREEZE_SHARE;
        let prevents_freezing = holder.age as f64 >= freeze;
        // A slot's catalog_xmin holds back system catalogs only.
        let holds_rows = holder.kind != HorizonKind::SlotCatalog;
        let harms = holds_rows
            && !tables.is_empty()
            && is_oldest(view, holder)
            && !is_passing(view, holder);
        let is_cause = !follows_another(view, holder);
        ((harms || prevents_freezing) && is_cause)
            .then(|| detection(view, holder, &tables, prevents_freezing))
    })
    .collect()
}

fn detection(
    view: &LiveView<'_>,
    holder: &HorizonHolder,
    tables: &[&TableActivity],
    prevents_freezing: bool,
) -> Detection {
    let kind = match holder.kind {
        HorizonKind::Session => ObjectKind::Session,
        HorizonKind::PreparedTransaction => ObjectKind::PreparedTransaction,
        HorizonKind::Slot | HorizonKind::SlotCatalog => ObjectKind::Slot,
        HorizonKind::Standby => ObjectKind::Standby,
    };
    let dead = tables.iter().map(|it| it.dead_rows);
    let dead = dead.fold(0, u64::saturating_add);
    let (what, age_of) = if holder.has_oldest_id {
        ("transaction", "age of its transaction ID")
    } else {
        ("snapshot", "age of its snapshot in transactions")
    };
    let mut detection = Detection::of(kind, &holder.name)
        .urgent(if prevents_freezing { 8 } else { 6 })
        .extent(holder.age as f64)
        .figure(age_of, holder.age as f64, FactUnit::Count)
        .with(holder.lasting_us, |it, us| {
            it.figure("held for", us, FactUnit::Micros)
        });
    if let Some(worst) = tables.first() {
        detection = detection
            .counter(
                "dead rows that VACUUM could not remove",
                dead as f64,
                FactUnit::Count,
            )
            .state(format!(
                "most of them in {}, at {:.1} times its threshold",
                names::relation(&worst.relation),
                worst.dead_rows as f64 / worst.vacuum_threshold.max(1.0)
            ))
            .with(worst.vacuumed_ago_us, |it, us| {
                it.counter("time since its last VACUUM", us, FactUnit::Micros)
            });
    }
    if prevents_freezing {
        let of_its = holder.database.as_deref().map(names::identifier);
        let of_its = of_its.map_or_else(String::new, |own| format!(" of database {own}"));
        detection = detection.state(format!(
            "no row{of_its} younger than its {what} can be frozen; autovacuum_freeze_max_age is {}",
            view.catalog
                .ages
                .iter()
                .map(|it| it.freeze_max_age)
                .min()
                .unwrap_or(0)
        ));
    }
    let is_estimated = holder.lasting_us.is_none() && !prevents_freezing;
    detection
        .against(
            is_estimated,
            "how long it has held the horizon is estimated from its age",
        )
        .context(holder.detail.as_str())
}

fn session(view: &LiveView<'_>) -> Vec<Detection> {
    let found = holders(view, &[HorizonKind::Session]);
    let by_name = |name: &str| {
        let mut all = view.catalog.horizon.iter();
        all.find(|it| it.kind == HorizonKind::Session && it.name == name)
    };
    found
        .into_iter()
        .map(|it| {
            let holder = by_name(it.name());
            let is_autovacuum =
                holder.is_some_and(|it| it.detail.starts_with(RootBlocker::AUTOVACUUM));
            let is_replication =
                holder.is_some_and(|it| it.detail.starts_with(RootBlocker::REPLICATION));
            let signal = holder.map_or(EndingSignal::CancelIfBusy, HorizonHolder::ending_signal);
            let it = it.with(holder.and_then(|it| it.wait.as_ref()), waiting);
            let pid = it.name().to_owned();
            if is_autovacuum {
                it.fix(
                    "Let it end: an autovacuum that analyzes a large table keeps its snapshot until it is \
                     done, and would begin again if it were canceled. Lower the statistics target of \
                     columns that do not need it, or partition the table.",
                )
                .risk("None.")
            } else if is_replication {
                it.fix(REPLICATING).risk("None.")
            } else if signal == EndingSignal::Terminate {
                it.fix(
                    "End the session: it is idle in a transaction that holds back the xmin horizon. \
                     Commit before pauses, and set idle_in_transaction_session_timeout.",
                )
                .sql(format!("select pg_terminate_backend({pid})"))
                .risk("Its transaction is rolled back, and its application gets an error.")
            } else {
                let words = "Let it end, or cancel it. Run long reports on a standby without \
                             hot_standby_feedback, or in parts with a new snapshot each.";
                let risk = "Its statement fails, and its transaction is rolled back.";
                end_session(it, &pid, signal, words, risk)
            }
        })
        .collect()
}

fn prepared(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = holders(view, &[HorizonKind::PreparedTransaction]);
    let is_known = |found: &[Detection], gid: &str| found.iter().any(|it| it.name() == gid);
    for episode in &view.activity.blocking {
        let Some(gid) = &episode.root.gid else {
            continue;
        };
        // One that a transaction manager commits within moments is part of its work.
        let is_long = episode.root.state_age_us >= ACTIONABLE_US;
        if episode.waited_us <= 0.0 || !(episode.is_lasting || is_long) {
            continue;
        }
        let known = found.iter().position(|it| it.name() == gid);
        let holder = match known {
            Some(at) => found.remove(at),
            None => Detection::of(ObjectKind::PreparedTransaction, gid),
        };
        found.push(with_blocked(view, episode, holder));
    }
    let all = view.catalog.horizon.iter();
    for holder in all.filter(|it| it.kind == HorizonKind::PreparedTransaction) {
        let is_old = holder.lasting_us.is_some_and(|us| us >= FORGOTTEN_US);
        if is_old && !is_known(&found, &holder.name) {
            found.push(detection(view, holder, &[], false));
        }
    }
    found.into_iter().map(|it| resolved(view, it)).collect()
}

/// How a prepared transaction ends.
fn resolved(view: &LiveView<'_>, detection: Detection) -> Detection {
    let gid = detection.name().to_owned();
    let of_it = |it: &&BlockingEpisode| it.root.gid.as_deref() == Some(&*gid);
    let mut held = view.catalog.horizon.iter();
    let holder = held.find(|it| it.kind == HorizonKind::PreparedTransaction && it.name == gid);
    let is_there = |it: &BlockingEpisode| it.is_lasting || is_root_still_there(view, it);
    let mut episodes = view.activity.blocking.iter().filter(of_it);
    if holder.is_none() && !episodes.any(is_there) {
        return detection
            .fix(
                "No session waits for it anymore. A transaction manager should commit what it has prepared at \
                 once: until then, the locks remain, also if the manager or the server restarts.",
            )
            .risk("No change on the server, only in the application.");
    }
    let is_old = |us: f64| us >= FORGOTTEN_US;
    let of_horizon = holder.is_some_and(|it| it.lasting_us.is_some_and(is_old));
    let mut episodes = view.activity.blocking.iter().filter(of_it);
    let is_forgotten = of_horizon || episodes.any(|it| is_old(it.root.state_age_us));
    let literal = names::literal(&gid);
    let detection = detection
        .fix(format!(
            "Ask its transaction manager whether to commit it (commit prepared {literal}) or to roll it \
             back. It keeps its locks, also through a restart, and has no session that could end."
        ))
        .risk(
            "What it did is lost, while other databases may have committed their part of the same \
             transaction.",
        );
    // One that is being committed now must not be rolled back: it is part of another server's transaction.
    if is_forgotten {
        detection.sql(format!(
            "rollback prepared {literal} -- in the database of the transaction"
        ))
    } else {
        detection
    }
}

/// With the sessions that wait for it.
fn with_blocked(view: &LiveView<'_>, episode: &BlockingEpisode, detection: Detection) -> Detection {
    let waiting = episode.waited_us / view.activity.window_us.max(1.0);
    detection
        .saved(waiting)
        .load("sessions waiting for it, on average", waiting)
        .figure(
            "most sessions waiting at once",
            episode.blocked.len() as f64,
            FactUnit::Count,
        )
        .figure("prepared for", episode.root.state_age_us, FactUnit::Micros)
        .with(episode.root.holds.as_ref(), |it, hold| {
            let relation = names::relation(&hold.relation);
            it.state(format!("holds {} on {relation}", hold.mode))
        })
}

fn slot(view: &LiveView<'_>) -> Vec<Detection> {
    let found = holders(view, &[HorizonKind::Slot, HorizonKind::SlotCatalog]);
    let with_fix = |it: Detection| {
        let mut slots = view.catalog.slots.iter();
        if slots
            .clone()
            .any(|slot| slot.name == it.name() && is_copy(view, slot))
        {
            return look_at_primary(it);
        }
        let active = slots.find(|slot| slot.name == it.name() && slot.is_active);
        let name = names::literal(it.name());
        match active.map(|slot| slot.kind.as_str()) {
            Some("physical") => end_feedback(it),
            Some(_) => it.fix(
                "Find out why what reads from the slot is slow, such as a long transaction on a \
                 subscriber.",
            ),
            None => it
                .fix("Start what reads from the slot. If nothing will, drop it.")
                .sql(format!("select pg_drop_replication_slot({name})"))
                .risk("A standby or subscriber that still needs the slot must be built again."),
        }
    };
    found.into_iter().map(with_fix).collect()
}

fn standby(view: &LiveView<'_>) -> Vec<Detection> {
    let found = holders(view, &[HorizonKind::Standby]);
    found.into_iter().map(end_feedback).collect()
}

/// The fix for a snapshot that a standby reports, through a slot or without.
fn end_feedback(detection: Detection) -> Detection {
    detection
        .fix(
            "On the standby, end the long query, or turn hot_standby_feedback off there and reload: \
             it reports its oldest snapshot to this server.",
        )
        .sql("alter system set hot_standby_feedback = off -- on the standby, which must reload")
        .risk("Long queries on the standby are then canceled when they conflict with recovery.")
}
