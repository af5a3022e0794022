//! All data about a live server, in the form that its signatures need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use pgassay_record::activity::{
    Activity, ActivitySession, ActivityStatement, CatalogActivity, LoadCell, RelationName,
    SessionStatus, TableActivity,
};

use super::names;
use super::session_settings::RoleInDatabase;
use crate::evidence::Evidence;
use pgassay_script::named_relations::{RelationMention, named_relations};
use pgassay_script::statement_tokens::{self, StatementToken};

/// A problem that would give back less than this share of the active sessions' time is not a finding …
const SHARE_MIN: f64 = 0.05;
/// … nor one that would give back less than this many average sessions: on a server with little load,
/// any statement is a large share of it.
pub(crate) const SESSIONS_MIN: f64 = 0.05;
/// Fewer samples are chance.
pub(crate) const SAMPLES_MIN: u64 = 5;

static NO_CATALOG: LazyLock<CatalogActivity> = LazyLock::new(CatalogActivity::default);

/// An activity with what signatures ask of it more than once.
pub(crate) struct LiveView<'a> {
    /// The activity.
    pub activity: &'a Activity,
    /// Its catalog; an empty one if there is none.
    pub catalog: &'a CatalogActivity,
    /// Major version: 9 (for 9.6), 10, … 18; 0 if unknown.
    pub major: u32,
    /// Time between the two readings of counters, in seconds; the length of the window without them.
    pub window_s: f64,
    /// Average active sessions.
    pub active: f64,
    /// The load of each statement of the activity.
    pub statements: Vec<StatementLoad>,
    evidence: Option<&'a Evidence>,
}

/// The load of one statement; all figures are average sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatementLoad {
    /// Sessions that execute it.
    pub active: f64,
    /// Of which in the database that the catalog describes.
    pub local: f64,
    /// Sessions idle in a transaction whose last statement it is.
    pub idle_after: f64,
    /// The readings behind `active`.
    pub samples: u64,
    /// Sessions other than parallel workers executed it. If not, a function or EXECUTE does: their texts are those
    /// that clients sent, while the workers have the text of the statement within.
    pub is_led: bool,
    /// Of `active`, parallel workers.
    by_workers: f64,
    /// `active` by wait: type and name, both empty for CPU and run queue.
    pub by_wait: BTreeMap<(String, String), f64>,
    /// Its users, each with its part of `active`.
    pub users: BTreeMap<String, f64>,
    /// Its databases, likewise.
    pub databases: BTreeMap<String, f64>,
    /// Its text, lexically; empty if unknown.
    pub tokens: Vec<StatementToken>,
    /// The relations that it names.
    pub relations: Vec<RelationMention>,
}

impl StatementLoad {
    /// Average sessions that waited for an event that satisfies the condition.
    pub(super) fn waiting(&self, includes: impl Fn(&str, &str) -> bool) -> f64 {
        let waits = self.by_wait.iter();
        let its = waits.filter(|((kind, name), _)| includes(kind, name));
        its.map(|(_, load)| load).sum()
    }

    /// How many processes execute it together: one without parallel workers, or if only workers show it.
    pub(super) fn processes(&self) -> u64 {
        let by_leaders = self.active - self.by_workers;
        if by_leaders > 0.0 {
            // A file that was edited may have a negative load.
            ((self.active / by_leaders).ceil() as u64).max(1)
        } else {
            1
        }
    }

    /// The user with most of its load.
    pub(super) fn user(&self) -> Option<&str> {
        most_of(&self.users)
    }

    /// Whose sessions execute it: the user and the database with most of its load. Neither if the user is
    /// unknown: a setting of the database would concern others.
    pub(super) fn role_in_database(&self) -> RoleInDatabase<'_> {
        let user = self.user();
        let database = user.and(most_of(&self.databases));
        RoleInDatabase { user, database }
    }
}

/// The name with most of the load.
fn most_of(names: &BTreeMap<String, f64>) -> Option<&str> {
    let known = names.iter().filter(|(name, _)| !name.is_empty());
    let most = known.max_by(|a, b| a.1.total_cmp(b.1));
    most.map(|(name, _)| name.as_str())
}

impl<'a> LiveView<'a> {
    /// Prepares an activity. `major` is such as `18` or `9.6`.
    pub(crate) fn new(
        activity: &'a Activity,
        major: Option<&str>,
        evidence: Option<&'a Evidence>,
    ) -> Self {
        let major = major.and_then(|it| it.split('.').next()?.parse().ok());
        let catalog = activity.catalog.as_ref();
        let counted_us = catalog.map(|it| it.window_us).filter(|us| *us > 0.0);
        let mut view = Self {
            activity,
            catalog: catalog.unwrap_or(&NO_CATALOG),
            major: major.unwrap_or(0),
            window_s: (counted_us.unwrap_or(activity.window_us) / 1e6).max(f64::MIN_POSITIVE),
            active: activity.active_sessions(),
            statements: Vec::new(),
            evidence,
        };
        view.statements = activity.statements.iter().map(words).collect();
        for cell in &activity.cells {
            view.add(cell);
        }
        view
    }

    fn add(&mut self, cell: &LoadCell) {
        let load = cell.time_us / self.activity.window_us.max(f64::MIN_POSITIVE);
        let session = self.session(cell);
        let own = cell.statement.map(|index| index as usize);
        let Some(own) = own.filter(|index| *index < self.statements.len()) else {
            return;
        };
        let (user, database) = session.map_or(("", ""), |it| (&it.user, &it.database));
        let (user, database) = (user.to_owned(), database.to_owned());
        let is_local = database == self.catalog.database;
        let wait = self.wait(cell);
        let wait = (wait.0.to_owned(), wait.1.to_owned());
        let is_worker = session.is_some_and(|it| it.backend_type == "parallel worker");
        let own = &mut self.statements[own];
        own.is_led |= !is_worker;
        if cell.state != SessionStatus::Active {
            own.idle_after += load;
            return;
        }
        own.active += load;
        if is_worker {
            own.by_workers += load;
        }
        own.samples = own.samples.saturating_add(cell.samples);
        if is_local {
            own.local += load;
        }
        *own.by_wait.entry(wait).or_default() += load;
        *own.users.entry(user).or_default() += load;
        *own.databases.entry(database).or_default() += load;
    }

    /// Type and name of a cell's wait.
    pub(super) fn wait(&self, cell: &LoadCell) -> (&'a str, &'a str) {
        let wait = self.activity.waits.get(cell.wait as usize);
        wait.map_or(("", ""), |it| (&it.kind, &it.name))
    }

    /// A cell's session.
    pub(super) fn session(&self, cell: &LoadCell) -> Option<&'a ActivitySession> {
        self.activity.sessions.get(cell.session as usize)
    }

    /// Average sessions that an object must give back to be worth a finding.
    pub(super) fn noticeable(&self) -> f64 {
        (SHARE_MIN * self.active).max(SESSIONS_MIN)
    }

    /// A number of average sessions as a share of all active ones, 0 to 1.
    pub(super) fn share(&self, sessions: f64) -> f64 {
        if self.active > 0.0 {
            (sessions / self.active).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// Statements with enough load and samples to say something about, heaviest first.
    pub(super) fn heavy_statements(
        &self,
    ) -> impl Iterator<Item = (&'a ActivityStatement, &StatementLoad)> {
        let mut heavy: Vec<_> = self
            .activity
            .statements
            .iter()
            .zip(&self.statements)
            .collect();
        heavy.retain(|(_, load)| load.samples >= SAMPLES_MIN && load.active >= self.noticeable());
        heavy.sort_by(|a, b| b.1.active.total_cmp(&a.1.active));
        heavy.into_iter()
    }

    /// The load of active client sessions in waits that satisfy the condition, its samples, and the
    /// index of the statement with most of it.
    pub(super) fn waiting(&self, includes: impl Fn(&str, &str) -> bool) -> WaitLoad {
        self.waiting_of(includes, |_| true)
    }

    /// The same of the statements that satisfy another condition, and of unknown ones.
    pub(super) fn waiting_of(
        &self,
        includes: impl Fn(&str, &str) -> bool,
        counts: impl Fn(&StatementLoad) -> bool,
    ) -> WaitLoad {
        let mut sum = WaitLoad::default();
        let mut by_statement: BTreeMap<u32, f64> = BTreeMap::new();
        for cell in &self.activity.cells {
            let (kind, name) = self.wait(cell);
            let is_client = self.session(cell).is_none_or(serves_client);
            if cell.state != SessionStatus::Active || !is_client || !includes(kind, name) {
                continue;
            }
            let statement = cell.statement.map(|index| index as usize);
            let known = statement.and_then(|index| self.statements.get(index));
            if !known.is_none_or(&counts) {
                continue;
            }
            let load = cell.time_us / self.activity.window_us.max(f64::MIN_POSITIVE);
            sum.load += load;
            sum.samples = sum.samples.saturating_add(cell.samples);
            if let Some(statement) = cell.statement {
                *by_statement.entry(statement).or_default() += load;
            }
        }
        let most = by_statement.iter().max_by(|a, b| a.1.total_cmp(b.1));
        sum.statement = most.map(|(statement, _)| *statement as usize);
        sum
    }

    /// Whether `mention` can only mean this table: its schema is named, or no other known table has
    /// its name.
    pub(super) fn is_mention_of(&self, mention: &RelationMention, table: &RelationName) -> bool {
        if !names::may_be(&mention.name, &table.name) {
            return false;
        }
        if let Some(schema) = &mention.schema {
            return names::may_be(schema, &table.schema);
        }
        let tables = self.catalog.tables.iter().map(|it| &it.relation);
        let meant: BTreeSet<(&str, &str)> = tables
            .filter(|it| names::may_be(&mention.name, &it.name))
            .chain([table])
            .map(|it| (it.schema.as_str(), it.name.as_str()))
            .collect();
        meant.len() == 1
    }

    /// The statements that name a table, with their load in its database.
    pub(super) fn statements_on(
        &self,
        table: &RelationName,
    ) -> impl Iterator<Item = (&'a ActivityStatement, &StatementLoad)> {
        let all = self.activity.statements.iter().zip(&self.statements);
        all.filter(|(_, load)| {
            load.local > 0.0
                && load
                    .relations
                    .iter()
                    .any(|it| self.is_mention_of(it, table))
        })
    }

    /// The table with this OID, if it had activity or has a problem.
    pub(super) fn table(&self, table: &RelationName) -> Option<&'a TableActivity> {
        let mut tables = self.catalog.tables.iter();
        tables.find(|it| it.relation.oid == table.oid && it.relation.name == table.name)
    }

    /// A setting of the server, as `pg_settings` shows it.
    pub(super) fn setting(&self, name: &str) -> Option<&'a str> {
        let mut settings = self.catalog.settings.iter();
        let found = settings.find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `max_wal_size` in bytes, or its default: the WAL that the server keeps for itself is at most about this.
    pub(super) fn max_wal_size(&self) -> f64 {
        let set = self.setting("max_wal_size").and_then(names::bytes);
        set.unwrap_or(1_073_741_824.0)
    }

    /// Whether a setting is not known to be this large already, in its unit or as a number. -1 stands for
    /// no limit, and is never less.
    pub(super) fn is_less(&self, name: &str, value: &str) -> bool {
        let size = |value: &str| names::micros(value).or_else(|| names::bytes(value));
        let Some(now) = self.setting(name) else {
            return true;
        };
        now.trim() != "-1"
            && size(now)
                .zip(size(value))
                .is_none_or(|(now, new)| now < new)
    }

    /// Whether autovacuum is off on the whole server.
    pub(super) fn autovacuum_is_off(&self) -> bool {
        self.setting("autovacuum") == Some("off")
    }

    /// Transactions that ended in the window, in all databases: committed and rolled back.
    pub(super) fn transactions(&self) -> (u64, u64) {
        let databases = self.catalog.databases.iter();
        databases.fold((0, 0), |(committed, rolled_back), it| {
            (
                u64::saturating_add(committed, it.committed),
                u64::saturating_add(rolled_back, it.rolled_back),
            )
        })
    }

    /// The share of the backends' CPU time in these functions; `None` without stacks.
    pub(super) fn cpu_in(&self, functions: &[&str]) -> Option<f64> {
        let evidence = self.evidence.filter(|it| it.cpu_us > 0.0)?;
        Some(evidence.of_cpu(evidence.in_functions(functions)))
    }

    /// The time that so many transaction IDs take at the present rate; `None` if none are used now. No view has the
    /// time at which a table or an index was created, or a slot began to hold a snapshot.
    pub(super) fn transactions_us(&self, count: u64) -> Option<f64> {
        let rates = self.catalog.ages.iter().map(|it| it.consumed_per_s);
        let rate = rates.fold(0.0, f64::max);
        (rate > 0.0).then(|| count as f64 / rate * 1e6)
    }

    /// The age of the statistics, as far as it is known: since their reset, or since the server
    /// started.
    pub(super) fn statistics_age_us(&self) -> f64 {
        self.catalog
            .statistics_age_us
            .unwrap_or(self.catalog.uptime_us)
    }
}

/// The load of some waits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitLoad {
    pub load: f64,
    pub samples: u64,
    /// Index into the activity's statements.
    pub statement: Option<usize>,
}

impl WaitLoad {
    /// Whether chance could have made it.
    pub fn is_chance(&self) -> bool {
        self.samples < SAMPLES_MIN
    }
}

fn serves_client(session: &ActivitySession) -> bool {
    matches!(
        session.backend_type.as_str(),
        "client backend" | "parallel worker" | ""
    )
}

fn words(statement: &ActivityStatement) -> StatementLoad {
    let tokens = statement_tokens::tokens(statement.text.as_deref().unwrap_or_default());
    StatementLoad {
        relations: named_relations(&tokens),
        tokens,
        ..StatementLoad::default()
    }
}

/// The name of a statement as an object: the beginning of its text, or its fingerprint.
pub(super) fn statement_name(statement: &ActivityStatement) -> String {
    const LETTERS_MAX: usize = 80;
    let Some(text) = &statement.text else {
        return statement.fingerprint.clone();
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    if text.chars().count() <= LETTERS_MAX {
        return text;
    }
    let cut: String = text.chars().take(LETTERS_MAX - 1).collect();
    format!("{}…", cut.trim_end())
}
