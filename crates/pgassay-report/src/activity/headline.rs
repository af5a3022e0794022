//! The answer in two or three sentences.

use std::collections::BTreeMap;

use pgassay_record::activity::{
    Activity, ActivityWait, BlockedSession, BlockingEpisode, LockTarget, RootBlocker, SessionStatus,
};

use super::blind_spots::{unknown_blocking, unseen_sessions};
use super::figures::{age, load, share};
use super::sentences::{blocks, root_name};
use super::statement::statement_text;
use super::wait_class::WaitClass;
use crate::number;
use crate::terminal::cut;

/// Statements are cut here: a headline is no place for a page of SQL.
const STATEMENT_WIDTH: usize = 90;
/// Below this load nothing is worth a headline.
const LOAD_MIN: f64 = 0.005;
/// Below this many average sessions behind it, a blocker is not worth a headline: on a busy server, row
/// locks always change hands.
const WAITING_MIN: f64 = 0.2;
/// Unless it has been in its state for this long.
const LONG_US: f64 = 1e6;

/// What loads the server, who blocks it, and what of this could not be seen.
pub fn headline(activity: &Activity) -> String {
    let mut text = headline_of_seen(activity);
    for check in unseen_sessions(activity) {
        let limitation = check.limitation.as_deref().unwrap_or_default();
        text = format!("{text} {limitation}.");
    }
    text
}

/// What loads the server, and who blocks it, as far as it could be seen.
pub fn headline_of_seen(activity: &Activity) -> String {
    let active = activity.active_sessions();
    let idle = activity.idle_in_transaction();
    let sees_all = unseen_sessions(activity).is_empty();
    let mut sentences = Vec::new();
    let mut part = None;
    if active < LOAD_MIN {
        let seconds = activity.window_us / 1e6;
        let seconds = number::decimals(seconds, 1);
        let of_whom = if sees_all { "" } else { " that can be seen" };
        sentences.push(format!(
            "No session{of_whom} was active in {} over {seconds}\u{a0}s.",
            number::count(activity.sweeps, "sample")
        ));
    } else {
        let processors = activity.processors.map_or_else(String::new, |count| {
            format!(", on {}", number::count(count.into(), "CPU"))
        });
        let bound = if sees_all { "" } else { "At least " };
        sentences.push(format!(
            "{bound}{} active sessions on average{processors}.",
            load(active)
        ));
        part = largest(activity, active);
        sentences.extend(part.as_ref().map(|it| it.sentence.clone()));
    }
    if let Some(episode) = worst(activity) {
        sentences.push(blocking(activity, episode, part.as_ref()));
    } else if idle >= 0.5 {
        sentences.push(format!(
            "{} more were idle in a transaction on average.",
            load(idle)
        ));
    }
    // Where nothing is active, nothing is blocked.
    if let Some(check) = unknown_blocking(activity).filter(|_| active >= LOAD_MIN || !sees_all) {
        let is_seen = activity.blocking.iter().any(|it| !it.is_lasting);
        let was = if check.value == Activity::AT_TIMES {
            "was not known at times"
        } else if check.name == Activity::CATALOG_CONNECTION && is_seen {
            "was not known from then on"
        } else {
            "is not known"
        };
        sentences.push(format!("Who blocks whom {was}."));
    }
    sentences.join(" ")
}

/// What a wait in this statement is, after "of the load".
fn predicate(wait: &ActivityWait, statement: Option<&str>) -> String {
    match (WaitClass::of(&wait.kind), &*wait.name) {
        (WaitClass::Cpu, _) => "is running on or waiting for a CPU".to_owned(),
        (WaitClass::Lock, name) => format!("is waiting for {}", locks(name, statement)),
        (WaitClass::LightweightLock, name) => format!("is waiting for the lightweight lock {name}"),
        (WaitClass::Io, name) => format!("is waiting for I/O ({name})"),
        (WaitClass::Client, name) => format!("is waiting for clients ({name})"),
        (WaitClass::Ipc, name) => format!("is waiting for other processes ({name})"),
        (WaitClass::Other, name) => format!("is waiting for {}: {name}", wait.kind),
    }
}

/// Locks of this `locktype` that a statement waits for.
fn locks(kind: &str, statement: Option<&str>) -> String {
    match kind {
        "transactionid" if statement.is_some_and(awaits_transactions) => TRANSACTIONS.to_owned(),
        "virtualxid" => TRANSACTIONS.to_owned(),
        "transactionid" | "tuple" => "row locks".to_owned(),
        "relation" => "table locks".to_owned(),
        "advisory" => "advisory locks".to_owned(),
        "extend" => "locks to extend tables".to_owned(),
        LockTarget::SAFE_SNAPSHOT => "a safe snapshot".to_owned(),
        _ => format!("locks of type {kind}"),
    }
}

const TRANSACTIONS: &str = "the end of other transactions";

/// Whether a statement that waits for a transaction ID wants all older transactions to end, and not a row: a new
/// replication slot needs a moment without them, and so do commands such as CREATE INDEX CONCURRENTLY.
fn awaits_transactions(statement: &str) -> bool {
    const COMMANDS: [&str; 7] = [
        "create",
        "create_replication_slot",
        "reindex",
        "alter",
        "drop",
        "vacuum",
        "refresh",
    ];
    let text = statement.to_lowercase();
    let command = text.split_whitespace().next().unwrap_or_default();
    COMMANDS.contains(&command)
        || text.contains("replication_slot(")
        || text.contains("pg_log_standby_snapshot(")
}

/// The largest part of the load in words.
struct LargestPart {
    sentence: String,
    /// The statement that it is about; `None` if there are several, or it is unknown.
    fingerprint: Option<String>,
    /// Average sessions of the statement, or of all.
    sessions: f64,
}

/// The largest part of the load, and the statement behind it.
fn largest(activity: &Activity, active: f64) -> Option<LargestPart> {
    let mut parts: BTreeMap<String, BTreeMap<Option<u32>, f64>> = BTreeMap::new();
    let cells = activity.cells.iter();
    for cell in cells.filter(|cell| cell.state == SessionStatus::Active) {
        let Some(wait) = activity.waits.get(cell.wait as usize) else {
            continue;
        };
        let statement = cell.statement.map(|index| index as usize);
        let statement = statement.and_then(|index| activity.statements.get(index));
        let text = statement.and_then(|it| it.text.as_deref());
        let of_part = parts.entry(predicate(wait, text)).or_default();
        *of_part.entry(cell.statement).or_default() += cell.time_us / activity.window_us;
    }
    let sum = |part: &BTreeMap<Option<u32>, f64>| part.values().sum::<f64>();
    let (what, by_statement) = parts.iter().max_by(|a, b| sum(a.1).total_cmp(&sum(b.1)))?;
    let whole = sum(by_statement);
    let (statement, most) = by_statement.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    let text = cut(&statement_text(activity, *statement), STATEMENT_WIDTH);
    let is_of_one = statement.is_some() && most / whole >= 0.5;
    let sentence = if statement.is_none() {
        format!("{} of the load {what}.", share(whole, active))
    } else if is_of_one {
        let one = share(*most, active);
        format!("{one} of the load {what} in one statement: {text}.")
    } else {
        format!(
            "{} of the load {what}, in {}; {} in the largest: {text}.",
            share(whole, active),
            number::count(by_statement.len() as u64, "statement"),
            share(*most, active),
        )
    };
    let known = statement.and_then(|it| activity.statements.get(it as usize));
    Some(LargestPart {
        sentence,
        fingerprint: known.filter(|_| is_of_one).map(|it| it.fingerprint.clone()),
        sessions: if is_of_one { *most } else { whole },
    })
}

/// The episode to name: the one with the longest wait, if that is worth a headline.
fn worst(activity: &Activity) -> Option<&BlockingEpisode> {
    // One that ended before an interval of `pgassay top` is not what loads the server now.
    let seen = activity.blocking.iter().filter(|it| it.last_seen_us >= 0.0);
    let worst = seen.max_by(|a, b| a.waited_us.total_cmp(&b.waited_us))?;
    let waiting = worst.waited_us / activity.window_us.max(f64::MIN_POSITIVE);
    let is_long = worst.is_lasting && worst.root.state_age_us >= LONG_US;
    (is_long || waiting >= WAITING_MIN).then_some(worst)
}

/// How the sessions behind a blocker relate to the largest part of the load.
enum BlockedPart {
    /// They are not known to wait for something else than it names.
    Same,
    /// They execute another statement.
    Separate,
    /// They are this share of it.
    Part(String),
}

/// Blockers with a smaller share of what the sentence before names are not its whole cause.
const WHOLE_MIN: f64 = 0.8;

fn relation(activity: &Activity, episode: &BlockingEpisode, part: &LargestPart) -> BlockedPart {
    let is_its = |it: &BlockedSession| match (&it.fingerprint, &part.fingerprint) {
        (Some(own), Some(named)) => own == named,
        _ => true,
    };
    if !episode.blocked.iter().any(is_its) {
        return BlockedPart::Separate;
    }
    let waiting = episode.waited_us / activity.window_us.max(f64::MIN_POSITIVE);
    if waiting > 0.0 && waiting < WHOLE_MIN * part.sessions {
        return BlockedPart::Part(share(waiting, part.sessions));
    }
    BlockedPart::Same
}

/// Who blocks how many. What they wait for is named unless the sentence before, of the largest part of the load, does
/// so; then it is said how much of that it is.
fn blocking(activity: &Activity, episode: &BlockingEpisode, part: Option<&LargestPart>) -> String {
    let before = part.map_or("", |it| &it.sentence);
    let root = &episode.root;
    let others = number::count(episode.blocked.len() as u64, "session");
    let verb = blocks(episode);
    let state = match &*root.state {
        "prepared transaction" => String::new(),
        RootBlocker::UNKNOWN => ", whose state is not known,".to_owned(),
        RootBlocker::UNTRACKED => {
            ", whose state is not known (track_activities is off),".to_owned()
        }
        state => format!(", {state} for {},", age(root.state_age_us)),
    };
    let name = root_name(root);
    let name = name[..1].to_uppercase() + &name[1..];
    if root.is_deadlocked {
        return format!("{name} and {others} behind it waited in a deadlock.");
    }
    let of_each = |it: &BlockedSession| locks(&it.waits_for.kind, it.statement.as_deref());
    let waits_for = episode.blocked.first().map(of_each);
    let is_alike = |first: &String| episode.blocked.iter().all(|it| of_each(it) == *first);
    let is_named = waits_for
        .as_ref()
        .is_some_and(|it| before.contains(&format!("waiting for {it}")));
    let relation = part
        .filter(|_| is_named)
        .map_or(BlockedPart::Same, |it| relation(activity, episode, it));
    let is_separate = matches!(relation, BlockedPart::Separate);
    let waits_for = waits_for.filter(|_| !is_named || is_separate);
    let waits = match (episode.is_lasting, episode.blocked.len()) {
        (false, _) => "waited",
        (true, 1) => "waits",
        (true, _) => "wait",
    };
    let which = waits_for.map_or_else(String::new, |it| {
        let locks = if is_alike(&it) { &*it } else { "locks" };
        format!(" that {waits} for {locks}")
    });
    let of_part = match relation {
        BlockedPart::Part(share) => format!(": {share} of these waits"),
        BlockedPart::Same | BlockedPart::Separate => String::new(),
    };
    if is_separate {
        let name = root_name(root);
        return format!("Separately, {name}{state} {verb} {others}{which}.");
    }
    format!("{name}{state} {verb} {others}{which}{of_part}.")
}
