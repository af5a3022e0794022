//! What a watch could not see. Without it, an empty list would say that nothing happens.

use pgassay_model::check::Check;
use pgassay_record::activity::Activity;

/// What limits the lists of statements, sessions, blockers and tables, most important first.
pub fn blind_spots(activity: &Activity) -> Vec<&Check> {
    let unseen = unseen_sessions(activity);
    let is_hidden = unseen.iter().any(|it| it.name == Activity::HIDDEN_SESSIONS);
    // The rights that hide sessions; they do not hide them from who reads the server's memory.
    let rights = named(activity, &[Activity::PRIVILEGES]);
    let rights = rights.filter(|_| !is_hidden);
    let others = named(activity, &BLOCKING).chain(unread_tables(activity));
    unseen.into_iter().chain(others).chain(rights).collect()
}

/// All that a watch lacked. That sessions are hidden says more than the rights that hide them.
pub fn limitations(activity: &Activity) -> impl Iterator<Item = &Check> {
    let is_hidden = named(activity, &[Activity::HIDDEN_SESSIONS])
        .next()
        .is_some();
    let all = activity.unavailable.iter();
    all.filter(move |it| !is_hidden || it.name != Activity::PRIVILEGES)
}

/// Sessions that may be active, but count as idle.
pub fn unseen_sessions(activity: &Activity) -> Vec<&Check> {
    let names = [Activity::HIDDEN_SESSIONS, Activity::DISABLED_SESSIONS];
    named(activity, &names).collect()
}

/// Why it is not known who blocks whom.
pub fn unknown_blocking(activity: &Activity) -> Option<&Check> {
    named(activity, &BLOCKING).next()
}

/// Why tables are not known.
pub fn unknown_tables(activity: &Activity) -> Option<&Check> {
    let all = named(activity, &[Activity::VIEWS, Activity::CATALOG_CONNECTION]);
    all.chain(unread_tables(activity)).next()
}

/// Not that there are too many of them to list all.
fn unread_tables(activity: &Activity) -> impl Iterator<Item = &Check> {
    let tables = named(activity, &[Activity::TABLES]);
    tables.filter(|it| it.value == Activity::NOT_READ)
}

/// What is missing, and how to get it.
pub fn blind_spot(check: &Check) -> String {
    let limitation = check.limitation.as_deref().unwrap_or(&check.name);
    let fix = check.fix.as_ref();
    let fix = fix.map_or_else(String::new, |it| format!("; to fix it: {it}"));
    format!("{limitation}{fix}")
}

/// What hides who blocks whom.
const BLOCKING: [&str; 3] = [
    Activity::VIEWS,
    Activity::CATALOG_CONNECTION,
    Activity::BLOCKING,
];

fn named<'a>(activity: &'a Activity, names: &[&str]) -> impl Iterator<Item = &'a Check> {
    let checks = activity.unavailable.iter();
    checks.filter(|it| names.contains(&it.name.as_str()))
}
