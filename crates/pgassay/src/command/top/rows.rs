//! The rows of each list, from an activity.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{
    Activity, ActivitySession, BlockedSession, BlockingEpisode, LoadBy, LoadRow, RelationName,
    RootBlocker, SessionStatus, TableActivity,
};
use pgassay_report::activity::{
    ClassLoads, Executions, WaitClass, age, dead_share, executions, known_wait, load, mean,
    relation_name, relation_size, share, statement_text, table_writes, wait_name,
};

/// How long something has lasted, as `pg_activity` colors it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Below 1 s.
    Calm,
    /// Below 3 s.
    Slow,
    /// Above.
    Late,
}

impl Urgency {
    pub fn of(age_us: f64) -> Self {
        match age_us {
            late if late >= 3e6 => Self::Late,
            slow if slow >= 1e6 => Self::Slow,
            _ => Self::Calm,
        }
    }
}

/// What a column sorts by.
#[derive(Debug, Clone, PartialEq)]
pub enum SortValue {
    /// Largest first.
    Number(f64),
    /// In alphabetical order.
    Name(String),
}

/// A cell, with what its column sorts by.
#[derive(Debug, Clone, PartialEq)]
pub struct TopCell {
    pub text: String,
    pub sort: SortValue,
    /// The load of a bar, drawn instead of the text, and the load of a full one.
    pub bar: Option<(ClassLoads, f64)>,
}

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub struct TopRow {
    /// What it is about: equal in later readings.
    pub key: String,
    /// A cell per column.
    pub cells: Vec<TopCell>,
    pub urgency: Urgency,
    /// What the filter searches.
    pub searched: String,
    /// Index into the activity's statements.
    pub statement: Option<u32>,
    /// Index into the activity's blocking episodes.
    pub episode: Option<usize>,
    /// The session that it is about, if that is not the root of a tree.
    pub pid: Option<u32>,
}

pub(super) fn figure(text: String, value: f64) -> TopCell {
    TopCell {
        text,
        sort: SortValue::Number(value),
        bar: None,
    }
}

pub(super) fn word(text: impl Into<String>) -> TopCell {
    let text = text.into();
    TopCell {
        sort: SortValue::Name(text.to_lowercase()),
        text,
        bar: None,
    }
}

/// A count or a rate in few columns: `4.5`, `3612`, `27.0M`; nothing for none.
fn rate(value: f64) -> TopCell {
    let text = match value {
        none if none <= 0.0 => String::new(),
        few if few < 99.5 => format!("{value:.1}"),
        some if some < 99_999.5 => format!("{value:.0}"),
        many if many < 999_500.0 => format!("{:.0}k", value / 1e3),
        many if many < 9.995e8 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    };
    figure(text, value)
}

/// What the filter searches of a session.
pub(super) fn session_words(session: &ActivitySession) -> String {
    format!(
        "{} {} {} {} {}",
        session.pid, session.user, session.application, session.database, session.client
    )
}

pub(super) fn statements(activity: &Activity, is_filtered: bool) -> Vec<TopRow> {
    let active = activity.active_sessions();
    let rows = activity.load_by(LoadBy::Statement);
    let highest = rows.first().map_or(0.0, |row| row.load);
    let mut found: Vec<TopRow> = rows
        .iter()
        .map(|row| statement(activity, row, (active, highest)))
        .collect();
    if is_filtered {
        let sessions = sessions_by_statement(activity);
        for row in &mut found {
            for &session in sessions.get(&row.statement).into_iter().flatten() {
                if let Some(session) = activity.sessions.get(session as usize) {
                    row.searched.push(' ');
                    row.searched.push_str(&session_words(session));
                }
            }
        }
    }
    found
}

/// The sessions that executed each statement, by index.
fn sessions_by_statement(activity: &Activity) -> BTreeMap<Option<u32>, BTreeSet<u32>> {
    let mut found: BTreeMap<Option<u32>, BTreeSet<u32>> = BTreeMap::new();
    let cells = activity.cells.iter();
    for cell in cells.filter(|it| it.state == SessionStatus::Active) {
        found
            .entry(cell.statement)
            .or_default()
            .insert(cell.session);
    }
    found
}

fn statement(activity: &Activity, row: &LoadRow, (active, highest): (f64, f64)) -> TopRow {
    let text = statement_text(activity, row.index);
    let found = row
        .index
        .and_then(|it| activity.statements.get(it as usize));
    let loads = ClassLoads::of(activity, &row.by_wait);
    let seconds = (activity.window_us / 1e6).max(f64::MIN_POSITIVE);
    let calls = found.map_or(word(""), |it| match executions(it) {
        Executions::Exact(calls) => rate(calls as f64 / activity.counters_s()),
        // None began in this interval.
        Executions::AtLeast(0) => figure(String::new(), 0.0),
        Executions::AtLeast(seen) => {
            let cell = rate(seen as f64 / seconds);
            figure(format!("≥{}", cell.text), seen as f64 / seconds)
        }
    });
    let (mean_text, mean_us) = match mean(activity, row) {
        Some((us, true)) => (format!("≤{}", age(us)), us),
        Some((us, false)) => (age(us), us),
        None => (String::new(), 0.0),
    };
    TopRow {
        key: found.map_or_else(String::new, |it| it.fingerprint.clone()),
        urgency: Urgency::of(mean_us),
        searched: text.clone(),
        cells: vec![
            figure(load(row.load), row.load),
            figure(share(row.load, active), row.load),
            calls,
            figure(mean_text, mean_us),
            TopCell {
                text: String::new(),
                sort: SortValue::Number(loads.total() - loads.0[0]),
                bar: Some((loads, highest)),
            },
            word(text),
        ],
        statement: row.index,
        episode: None,
        pid: None,
    }
}

/// Active sessions that waited, with what they waited for most.
pub(super) fn waiting(activity: &Activity) -> Vec<TopRow> {
    let mut found: BTreeMap<(u32, u32), (f64, Option<u32>)> = BTreeMap::new();
    for cell in &activity.cells {
        let wait = activity.waits.get(cell.wait as usize);
        let is_wait = wait.is_some_and(|it| !it.kind.is_empty());
        if cell.state == SessionStatus::Active && is_wait {
            let entry = found.entry((cell.session, cell.wait)).or_default();
            entry.0 += cell.time_us;
            entry.1 = cell.statement.or(entry.1);
        }
    }
    let found = found.into_iter();
    found
        .filter_map(|((session, wait), (time_us, statement))| {
            let session = activity.sessions.get(session as usize)?;
            let wait = activity.waits.get(wait as usize)?;
            // Other waits of a session have no blocker.
            let is_lock = WaitClass::of(&wait.kind) == WaitClass::Lock;
            let blocked = blocked_now(activity, session.pid).filter(|_| is_lock);
            let age_us = blocked.map_or(0.0, |(_, it)| it.waited_us);
            let blocker = blocker(blocked.map(|it| it.1));
            let text = statement_text(activity, statement);
            let name = wait_name(wait);
            Some(TopRow {
                key: format!("{} {name}", session.pid),
                urgency: Urgency::of(age_us),
                searched: format!("{} {name} {text}", session_words(session)),
                cells: vec![
                    pid(session.pid),
                    figure(share(time_us, activity.window_us), time_us),
                    word(name),
                    blocker,
                    word(&session.user),
                    word(&session.application),
                    word(text),
                ],
                statement,
                episode: blocked.map(|it| it.0),
                pid: Some(session.pid),
            })
        })
        .collect()
}

/// A PID: the lowest first.
pub(super) fn pid(pid: u32) -> TopCell {
    TopCell {
        sort: SortValue::Number(-f64::from(pid)),
        ..word(pid.to_string())
    }
}

/// Who blocks the session: by PID, and those who are not blocked last.
fn blocker(blocked: Option<&BlockedSession>) -> TopCell {
    let (text, order) = match blocked.map(|it| it.blocked_by) {
        Some(0) => ("prepared".to_owned(), 0.0),
        Some(pid) => (pid.to_string(), -f64::from(pid)),
        None => (String::new(), f64::NEG_INFINITY),
    };
    figure(text, order)
}

/// The session among those that are blocked now, and the index of its episode. Episodes that have ended stay on the
/// screen for a while.
pub(super) fn blocked_now(activity: &Activity, pid: u32) -> Option<(usize, &BlockedSession)> {
    let lasting = activity.blocking.iter().enumerate();
    let mut lasting = lasting.filter(|(_, it)| it.is_lasting);
    lasting.find_map(|(at, it)| Some((at, it.blocked.iter().find(|it| it.pid == pid)?)))
}

/// The trees: each root and what is behind it. A filter keeps or drops a whole tree.
pub(super) fn blocking(activity: &Activity) -> Vec<TopRow> {
    let mut rows = Vec::new();
    for (at, episode) in activity.blocking.iter().enumerate() {
        let from = rows.len();
        let key = episode_key(activity, episode);
        rows.push(root(activity, episode, (at, &key)));
        let behind = episode.blocked.iter();
        rows.extend(behind.map(|it| branch(activity, it, episode.is_lasting, (at, &key))));
        let searched: Vec<String> = rows[from..].iter().map(|it| it.searched.clone()).collect();
        let searched = searched.join(" ");
        for row in &mut rows[from..] {
            row.searched.clone_from(&searched);
        }
    }
    rows
}

fn relation(relation: Option<&RelationName>) -> String {
    relation.map_or_else(String::new, |it| relation_name(&it.schema, &it.name))
}

/// A statement that a session of a tree runs or ran last.
pub(super) fn known(activity: &Activity, fingerprint: Option<&str>) -> Option<u32> {
    let mut all = activity.statements.iter();
    let at = all.position(|it| Some(&*it.fingerprint) == fingerprint)?;
    u32::try_from(at).ok()
}

fn name(root: &RootBlocker) -> String {
    match (root.pid, &root.gid) {
        (Some(pid), _) => pid.to_string(),
        (None, Some(gid)) => gid.clone(),
        (None, None) => "?".to_owned(),
    }
}

/// The root, and how many later episodes it has: the order of episodes changes with their waits.
fn episode_key(activity: &Activity, episode: &BlockingEpisode) -> String {
    let root = &episode.root;
    let its = activity.blocking.iter();
    let its = its.filter(|it| it.root.pid == root.pid && it.root.gid == root.gid);
    let later = its.filter(|it| it.last_seen_us > episode.last_seen_us);
    format!("{} {}", name(root), later.count())
}

fn root(activity: &Activity, episode: &BlockingEpisode, (at, key): (usize, &str)) -> TopRow {
    let root = &episode.root;
    let name = name(root);
    let text = pgassay_report::activity::one_line(root.statement.as_deref().unwrap_or_default());
    // The session may remain: those that waited for it may have had a timeout.
    let was = if episode.is_lasting { "" } else { "(past) " };
    let held = relation(root.holds.as_ref().map(|it| &it.relation));
    let state = match &*root.state {
        RootBlocker::UNTRACKED => "track_activities off",
        state => state,
    };
    TopRow {
        key: format!("root {key}"),
        urgency: if episode.is_lasting {
            Urgency::of(root.state_age_us)
        } else {
            Urgency::Calm
        },
        searched: format!(
            "{name} {} {} {} {} {held} {text}",
            root.user, root.application, root.database, root.client
        ),
        cells: vec![
            word(name),
            word(known_wait(root.state_age_us).unwrap_or_default()),
            word(format!("{was}{state}")),
            word(held),
            word(text),
        ],
        statement: known(activity, root.fingerprint.as_deref()),
        episode: Some(at),
        pid: None,
    }
}

fn branch(
    activity: &Activity,
    blocked: &BlockedSession,
    is_lasting: bool,
    (at, key): (usize, &str),
) -> TopRow {
    let (waits, urgency) = if is_lasting {
        ("waits", Urgency::of(blocked.waited_us))
    } else {
        ("waited", Urgency::Calm)
    };
    let indent = "  ".repeat(blocked.depth.clamp(1, 4) as usize - 1);
    let text = blocked.statement.as_deref().unwrap_or_default();
    let text = pgassay_report::activity::one_line(text);
    let awaited = relation(blocked.waits_for.relation.as_ref());
    // It has the database and the client's address, too.
    let mut sessions = activity.sessions.iter().rev();
    let session = sessions.find(|it| it.pid == blocked.pid);
    let session = session.map(session_words).unwrap_or_default();
    TopRow {
        key: format!("{key} {}", blocked.pid),
        urgency,
        searched: format!(
            "{} {} {} {session} {awaited} {text}",
            blocked.pid, blocked.user, blocked.application
        ),
        cells: vec![
            word(format!("{indent}└ {}", blocked.pid)),
            word(known_wait(blocked.waited_us).unwrap_or_default()),
            word(format!("{waits}: {}", blocked.waits_for.kind)),
            word(awaited),
            word(text),
        ],
        statement: known(activity, blocked.fingerprint.as_deref()),
        episode: Some(at),
        pid: Some(blocked.pid),
    }
}

pub(super) fn tables(activity: &Activity) -> Vec<TopRow> {
    let Some(catalog) = &activity.catalog else {
        return Vec::new();
    };
    let seconds = (catalog.window_us / 1e6).max(f64::MIN_POSITIVE);
    catalog.tables.iter().map(|it| table(it, seconds)).collect()
}

fn table(table: &TableActivity, seconds: f64) -> TopRow {
    let name = relation_name(&table.relation.schema, &table.relation.name);
    let per_scan = table.sequential_rows as f64 / table.sequential_scans.max(1) as f64;
    TopRow {
        key: table.relation.oid.to_string(),
        urgency: Urgency::Calm,
        searched: name.clone(),
        cells: vec![
            word(name),
            rate(table.sequential_scans as f64 / seconds),
            rate(per_scan),
            rate(table.sequential_rows as f64 / seconds),
            rate(table.index_scans as f64 / seconds),
            rate(table_writes(table) as f64 / seconds),
            figure(dead_share(table), table.dead_rows as f64),
            figure(relation_size(table.size_bytes), table.size_bytes as f64),
        ],
        statement: None,
        episode: None,
        pid: None,
    }
}
