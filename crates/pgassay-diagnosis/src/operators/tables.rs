//! Tables that ANALYZE, VACUUM and freezing do not reach.

use pgassay_record::activity::{DatabaseAge, LoadMark, LoadMarkKind, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::horizon;
use super::live_view::LiveView;
use super::names;
use super::partitioned_statistics;
use super::signature::OperatorSignature;

/// Autovacuum visits each database once in `autovacuum_naptime`, a minute by default. What has been
/// due for this long is late, not just next.
const LATE_US: f64 = 300e6;
/// Beyond this multiple of the threshold, statistics or dead rows are far off.
const FAR: f64 = 2.0;
/// An update of all rows leaves five times the threshold of dead rows, by the default scale factor.
const FAR_BEHIND: f64 = 6.0;
/// Statistics of a smaller table hardly matter.
const ROWS_MIN: f64 = 1000.0;
/// Anti-wraparound vacuums begin at `autovacuum_freeze_max_age`; at this multiple they do not succeed.
const FREEZE_LATE: f64 = 1.25;
/// The same for `MultiXacts`: twice the default of `autovacuum_multixact_freeze_max_age`.
const MULTIXACT_AGE_MAX: u64 = 800_000_000;
/// Days to wraparound that leave no time for a vacuum of a large table.
const DAYS_MIN: f64 = 7.0;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "stale-statistics",
        title: "The planner's statistics of a table are missing or stale",
        manual: "Routine Vacuuming: Updating Planner Statistics",
        detect: stale_statistics,
    },
    OperatorSignature {
        id: "dead-rows",
        title: "Autovacuum does not keep up with a table",
        manual: "Routine Vacuuming: The Autovacuum Daemon",
        detect: dead_rows,
    },
    OperatorSignature {
        id: "autovacuum-disabled",
        title: "Autovacuum is disabled where it is needed",
        manual: "Routine Vacuuming: The Autovacuum Daemon",
        detect: autovacuum_disabled,
    },
    OperatorSignature {
        id: "wraparound",
        title: "Freezing does not keep up: transaction IDs are running out",
        manual: "Routine Vacuuming: Preventing Transaction ID Wraparound Failures",
        detect: wraparound,
    },
];

/// Time for which `count` changes have been beyond `limit`, if they came at this rate per second;
/// without changes now it is unknown how long ago they were.
fn overdue_us(count: u64, limit: f64, rate: f64) -> Option<f64> {
    let beyond = count as f64 - limit;
    (rate > 0.0).then(|| (beyond / rate).max(0.0) * 1e6)
}

fn is_maintained_now(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let name = format!(" of {}.{}", table.relation.schema, table.relation.name);
    let mut marks = view.activity.marks.iter();
    marks.any(|it| it.kind == LoadMarkKind::Vacuum && it.text.ends_with(&name))
}

fn stale_statistics(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    for table in &view.catalog.tables {
        let rows = table
            .estimated_rows
            .unwrap_or(0.0)
            .max(table.live_rows as f64);
        let writes = [table.inserted, table.updated, table.deleted];
        let writes = writes.into_iter().fold(0, u64::saturating_add);
        let rate = writes as f64 / view.window_s;
        let modified = table.modified_since_analyze;
        let is_far = modified as f64 > FAR * table.analyze_threshold;
        // Autovacuum is given the time that it needs.
        let overdue_us = overdue_us(modified, table.analyze_threshold, rate);
        // Of a table that was never vacuumed either, this is the age of the table.
        let created_us = view.transactions_us(table.age).unwrap_or(f64::INFINITY);
        let since_us = table.analyzed_ago_us.unwrap_or(created_us);
        let is_late = overdue_us.unwrap_or(f64::INFINITY).min(since_us) >= LATE_US
            || !table.autovacuum_enabled;
        let is_missing = !table.has_statistics && table.analyzed_ago_us.is_none();
        let readers: Vec<_> = view
            .statements_on(&table.relation)
            .filter(|(_, load)| super::sql_text::command(&load.tokens) != "insert")
            .collect();
        let load: f64 = readers.iter().map(|(_, load)| load.local).sum();
        let matters = rows >= ROWS_MIN && load >= view.noticeable();
        if !matters || !is_late || !(is_far || is_missing) || is_maintained_now(view, table) {
            continue;
        }
        let heaviest = readers
            .iter()
            .max_by(|a, b| a.1.local.total_cmp(&b.1.local));
        let name = names::relation(&table.relation);
        let detection = Detection::of(ObjectKind::Table, &name)
            .urgent(6)
            .extent(load)
            .statement(heaviest.map(|(statement, _)| *statement));
        let detection = if is_missing {
            detection.state("never analyzed: the planner has no statistics of its columns")
        } else {
            detection.with(table.analyzed_ago_us, |it, us| {
                it.counter("time since the last analyze", us, FactUnit::Micros)
            })
        };
        found.push(
            detection
                .counter("rows changed since", modified as f64, FactUnit::Count)
                .counter(
                    "changes at which autovacuum analyzes it",
                    table.analyze_threshold,
                    FactUnit::Count,
                )
                .counter("rows", rows, FactUnit::Count)
                .load("average sessions in statements that read it", load)
                .fix(format!(
                    "Analyze the table, and compare the plans before and after. {}",
                    analyzed_in_time(view, table)
                ))
                .sql(format!("analyze {name}"))
                .risk(
                    "It reads a sample of the table and does not block reads or writes; plans may \
                     change.",
                ),
        );
    }
    found.extend(partitioned_statistics::never_analyzed(view));
    found
}

/// How its statistics stay fresh.
fn analyzed_in_time(view: &LiveView<'_>, table: &TableActivity) -> &'static str {
    if view.autovacuum_is_off() {
        "Autovacuum is off on this server: turn it on, or analyze the table after each load."
    } else if table.autovacuum_enabled {
        "If it happens again, lower autovacuum_analyze_scale_factor for this table."
    } else {
        "Autovacuum is off for this table: reset autovacuum_enabled, or analyze the table after each load."
    }
}

fn dead_rows(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    for table in &view.catalog.tables {
        let rate = table.updated.saturating_add(table.deleted) as f64 / view.window_s;
        let dead = table.dead_rows as f64;
        let is_far = dead > FAR * table.vacuum_threshold && dead >= ROWS_MIN;
        let overdue = overdue_us(table.dead_rows, table.vacuum_threshold, rate);
        let since_us = table.vacuumed_ago_us.unwrap_or(view.catalog.uptime_us);
        let is_late = overdue.is_some_and(|us| us.min(since_us) >= LATE_US);
        let running = running_for(view, table).max(table.autovacuum_us.unwrap_or(0.0));
        let is_long = running >= 0.9 * view.activity.window_us && running > 0.0;
        // If the next one is not due when it ends, it keeps up, as after a single bulk update.
        let is_throttled = is_long
            && (rate * running / 1e6 >= table.vacuum_threshold
                || running >= LATE_US
                || is_far_behind(view, table));
        let is_disabled = !table.autovacuum_enabled || view.autovacuum_is_off();
        let is_due = (is_late && !goes_on_by_hand(view, table)) || is_throttled;
        if !is_far || is_disabled || !is_due || is_held_back(view, table) {
            continue;
        }
        let name = names::relation(&table.relation);
        let detection = Detection::of(ObjectKind::Table, &name)
            .urgent(5)
            .extent(dead / table.vacuum_threshold.max(1.0))
            .counter("dead rows", dead, FactUnit::Count)
            .counter(
                "dead rows at which autovacuum vacuums it",
                table.vacuum_threshold,
                FactUnit::Count,
            )
            .counter("live rows", table.live_rows as f64, FactUnit::Count)
            .counter("rows updated and deleted", rate, FactUnit::PerSecond)
            .with(table.vacuumed_ago_us, |it, us| {
                it.counter("time since the last vacuum", us, FactUnit::Micros)
            });
        let detection = detection.with(table.autovacuum_us.filter(|_| is_long), |it, us| {
            it.figure("autovacuum has been vacuuming it for", us, FactUnit::Micros)
        });
        let detection = vacuum_sooner(view, table, detection, is_long);
        found.push(detection.risk("Vacuums of the table read and write more per second."));
    }
    found
}

/// Whether an autovacuum that began before the window has more to remove than one update of all rows leaves. For how
/// long it has run may be hidden.
fn is_far_behind(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let mut running = running(view, table);
    let dead = table.dead_rows as f64;
    running.any(|it| it.text.starts_with(AUTOVACUUM) && it.at_us <= 0.0)
        && dead > FAR_BEHIND * table.vacuum_threshold
        && dead > table.live_rows as f64
}

/// Adds the fix of a table that is vacuumed too late, or too slowly.
fn vacuum_sooner(
    view: &LiveView<'_>,
    table: &TableActivity,
    detection: Detection,
    is_throttled: bool,
) -> Detection {
    if is_throttled {
        let throttled = detection
            .state("a vacuum of it ran throughout the window")
            .fix(
                "Let its vacuum work faster: it pauses whenever its cost reaches \
                     autovacuum_vacuum_cost_limit. Begin earlier with a lower scale factor.",
            );
        if has_pauses(view) {
            throttled.sql(format!(
                "{} -- after this vacuum has finished: ALTER TABLE cancels it, or waits for it",
                names::set_storage(&table.relation, "autovacuum_vacuum_cost_delay = 0")
            ))
        } else {
            throttled
        }
    } else {
        let late = detection
                .sampled(
                    "vacuums that ran on other tables",
                    vacuums(view),
                    FactUnit::Count,
                )
                .against(
                    true,
                    "whether all workers are busy elsewhere is only visible while they run",
                )
                .fix(
                    "Vacuum it now with VACUUM, and more often with a lower scale factor, unless it has a \
                     lower one already. Raise autovacuum_max_workers if all of them are busy.",
                );
        if table.vacuum_threshold > lower_threshold(view, table) {
            late.sql(names::set_storage(
                &table.relation,
                &format!("autovacuum_vacuum_scale_factor = {LOWER_SCALE_FACTOR}"),
            ))
        } else {
            late
        }
    }
}

/// The vacuums of the table in the window. An analyze is marked in the same way, as `autoanalyze of …`.
fn running<'a>(view: &LiveView<'a>, table: &TableActivity) -> impl Iterator<Item = &'a LoadMark> {
    let name = format!("{}.{}", table.relation.schema, table.relation.name);
    let is_it = move |it: &&LoadMark| {
        let mut kinds = [AUTOVACUUM, "vacuum of "].into_iter();
        it.kind == LoadMarkKind::Vacuum
            && kinds.any(|kind| it.text.strip_prefix(kind) == Some(&name))
    };
    view.activity.marks.iter().filter(is_it)
}

/// How the mark of an autovacuum begins. A vacuum by hand is not throttled by default.
const AUTOVACUUM: &str = "autovacuum of ";

/// Time in the window in which autovacuum vacuumed the table; one that went on beyond the window counts from
/// its start.
fn running_for(view: &LiveView<'_>, table: &TableActivity) -> f64 {
    let automatic = running(view, table).filter(|it| it.text.starts_with(AUTOVACUUM));
    let lengths = automatic.map(|it| {
        if it.length_us > 0.0 {
            it.length_us
        } else {
            (view.activity.window_us - it.at_us).max(0.0)
        }
    });
    lengths.fold(0.0, f64::max)
}

/// Whether a vacuum of the table runs at the end of the window.
fn goes_on(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let mut running = running(view, table);
    running.any(|it| it.length_us <= 0.0)
}

/// The same for a vacuum that autovacuum did not start.
fn goes_on_by_hand(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let mut running = running(view, table);
    running.any(|it| it.length_us <= 0.0 && !it.text.starts_with(AUTOVACUUM))
}

/// The fix where a vacuum of the table with the oldest transaction ID runs: a second one would wait for it.
fn being_frozen(detection: Detection, table: &TableActivity) -> Detection {
    detection
        .fix(format!(
            "Let the vacuum of {} finish, which runs now: another one would wait for it. If it is too slow, lower \
             autovacuum_vacuum_cost_delay and reload; a vacuum that runs already notices this from version 16 on. \
             End what holds back the xmin horizon: near the limit, the server assigns no more transaction IDs, so \
             that all writes fail.",
            names::relation(&table.relation)
        ))
        .risk("Vacuums read and write more per second.")
}

fn vacuums(view: &LiveView<'_>) -> f64 {
    let marks = view.activity.marks.iter();
    marks.filter(|it| it.kind == LoadMarkKind::Vacuum).count() as f64
}

/// The scale factor that is suggested for a table that is vacuumed too late.
const LOWER_SCALE_FACTOR: f64 = 0.02;

/// The dead rows at which a table would be vacuumed with it.
fn lower_threshold(view: &LiveView<'_>, table: &TableActivity) -> f64 {
    let base = view.setting("autovacuum_vacuum_threshold");
    let base = base.and_then(names::bytes).unwrap_or(50.0);
    let rows = table.estimated_rows.unwrap_or(table.live_rows as f64);
    base + LOWER_SCALE_FACTOR * rows
}

/// Whether autovacuum pauses to limit its cost; -1 stands for the setting of VACUUM.
fn has_pauses(view: &LiveView<'_>) -> bool {
    let delay = match view.setting("autovacuum_vacuum_cost_delay") {
        Some("-1") => view.setting("vacuum_cost_delay"),
        own => own,
    };
    delay.is_none_or(|it| {
        it.trim_start_matches(['0', '.', ' '])
            .starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Whether a vacuum ran and left the dead rows: the horizon is the reason, and has its own finding.
fn is_held_back(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let vacuumed_us = table.vacuumed_ago_us.unwrap_or(f64::INFINITY);
    horizon::is_held_back_since(view, vacuumed_us)
}

fn autovacuum_disabled(view: &LiveView<'_>) -> Vec<Detection> {
    let needs = |table: &&TableActivity| {
        let writes = [table.inserted, table.updated, table.deleted];
        let writes = writes.into_iter().fold(0, u64::saturating_add);
        let vacuum = table.dead_rows as f64 > table.vacuum_threshold;
        let analyze = table.modified_since_analyze as f64 > table.analyze_threshold;
        writes > 0 && (vacuum || analyze)
    };
    let needing = view.catalog.tables.iter().filter(needs);
    if view.autovacuum_is_off() {
        let tables: Vec<&TableActivity> = needing.collect();
        let Some(worst) = tables.iter().max_by_key(|it| it.dead_rows) else {
            return Vec::new();
        };
        let detection = Detection::of(ObjectKind::Setting, "autovacuum")
            .urgent(6)
            .state("autovacuum is off on the whole server")
            .counter("tables due for it", tables.len() as f64, FactUnit::Count);
        let detection = due(detection, worst)
            .context(format!("the most dead rows are in {}", names::relation(&worst.relation)))
            .fix("Turn autovacuum on, and reload the configuration (select pg_reload_conf()).")
            .sql("alter system set autovacuum = on")
            .risk(
                "All tables that are due are vacuumed soon, at most autovacuum_max_workers at a time, \
                 throttled.",
            );
        return vec![detection];
    }
    needing
        .filter(|it| !it.autovacuum_enabled)
        .map(|table| {
            let name = names::relation(&table.relation);
            let detection = Detection::of(ObjectKind::Table, &name)
                .urgent(5)
                .extent(table.dead_rows as f64)
                .state("autovacuum_enabled is off for it");
            due(detection, table)
                .fix("Enable autovacuum for the table, or vacuum and analyze it after each batch.")
                .sql(format!("alter table {name} reset (autovacuum_enabled)"))
                .risk("It takes a lock that waits for other DDL and VACUUM; the table is vacuumed soon.")
        })
        .collect()
}

/// Adds what is beyond the thresholds of autovacuum: a terminal shows the first few facts.
fn due(detection: Detection, table: &TableActivity) -> Detection {
    let dead = |it: Detection| {
        it.counter("dead rows", table.dead_rows as f64, FactUnit::Count)
            .counter(
                "dead rows at which autovacuum would vacuum it",
                table.vacuum_threshold,
                FactUnit::Count,
            )
    };
    let changed = |it: Detection| {
        let what = match table.analyzed_ago_us {
            Some(_) => "rows changed since the last analyze",
            None => "rows changed, none of them analyzed",
        };
        it.counter(what, table.modified_since_analyze as f64, FactUnit::Count)
            .counter(
                "changed rows at which autovacuum would analyze it",
                table.analyze_threshold,
                FactUnit::Count,
            )
    };
    let detection = if table.dead_rows as f64 > table.vacuum_threshold {
        changed(dead(detection))
    } else {
        dead(changed(detection))
    };
    detection.with(table.vacuumed_ago_us, |it, us| {
        it.counter("time since the last vacuum", us, FactUnit::Micros)
    })
}

fn wraparound(view: &LiveView<'_>) -> Vec<Detection> {
    let ages = view.catalog.ages.iter();
    ages.filter_map(|it| {
        let days = (it.consumed_per_s > 0.0).then(|| it.left as f64 / it.consumed_per_s / 86_400.0);
        let limit = it.freeze_max_age as f64;
        let is_late = it.freeze_max_age > 0 && it.age as f64 >= FREEZE_LATE * limit;
        let is_close = it.age as f64 > limit && days.is_some_and(|days| days < DAYS_MIN);
        let is_multixact = it.multixact_age >= MULTIXACT_AGE_MAX;
        // With a low limit, a busy server passes it between two visits of autovacuum.
        let is_overdue = it.consumed_per_s <= 0.0
            || (it.age as f64 - limit) / it.consumed_per_s >= LATE_US / 1e6;
        (is_overdue && (is_late || is_close) || is_multixact).then(|| close(view, it, days))
    })
    .collect()
}

fn close(view: &LiveView<'_>, age: &DatabaseAge, days: Option<f64>) -> Detection {
    let oldest = view.catalog.tables.iter().max_by_key(|it| it.age);
    let oldest = oldest.filter(|it| {
        age.database == view.catalog.database && it.age as f64 >= 0.9 * age.freeze_max_age as f64
    });
    let mut holders = view.catalog.horizon.iter();
    let holder = holders.find(|it| horizon::affects(it, &age.database));
    let holder = holder.filter(|it| it.age >= age.freeze_max_age);
    let is_soon = days.is_some_and(|days| days < DAYS_MIN) || age.left < 200_000_000;
    let detection = Detection::of(ObjectKind::Database, names::identifier(&age.database))
        .urgent(if is_soon { 9 } else { 7 })
        .extent(age.age as f64)
        .figure("age of its oldest transaction ID", age.age as f64, FactUnit::Count)
        .figure("autovacuum_freeze_max_age", age.freeze_max_age as f64, FactUnit::Count)
        .figure("transaction IDs left", age.left as f64, FactUnit::Count)
        .with(days, |it, days| {
            it.counter("time until then at the present rate", days * 86_400e6, FactUnit::Micros)
        })
        .figure("age of its oldest MultiXact", age.multixact_age as f64, FactUnit::Count)
        .with(oldest, |it, table| {
            it.state(format!(
                "the oldest of the visible tables is {}, at {}",
                names::relation(&table.relation),
                table.age
            ))
        })
        .with(holder, |it, holder| {
            it.state(format!("{} prevents freezing, see its finding", holder.name))
        })
        .risk("It reads the table, and all its indexes unless they are skipped; it does not block reads or writes.");
    if let Some(table) = oldest.filter(|it| goes_on(view, it)) {
        return being_frozen(detection, table);
    }
    let words = "Vacuum the tables with the oldest transaction IDs, without FREEZE, which does more work than \
                 is needed now, and end what holds back the xmin horizon: near the limit, the server assigns \
                 no more transaction IDs, so that all writes fail. Then find out why autovacuum did not do \
                 it: it was canceled, throttled, or had no free worker.";
    match oldest {
        Some(table) => detection
            .fix(format!("{words} {TEMPORARY}"))
            .sql(format!("vacuum {}", names::relation(&table.relation))),
        None => detection.fix(format!(
            "{words} Connect to the database, and order pg_class by age(relfrozenxid) and \
             mxid_age(relminmxid) to find them. {TEMPORARY}"
        )),
    }
}

/// The tables that are read are ordinary ones.
const TEMPORARY: &str = "Autovacuum does not vacuum temporary tables, and a vacuum of all other tables does not help \
                         if one of these is the oldest: see age(relfrozenxid) in pg_class where relpersistence = 't'. \
                         Only the session that created it can vacuum it; it is gone when that session ends.";
