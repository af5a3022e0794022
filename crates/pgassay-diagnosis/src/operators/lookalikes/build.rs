//! Servers to find something on.

use pgassay_record::activity::{
    Activity, ActivitySession, ActivityStatement, ActivityWait, BlockedSession, BlockingEpisode,
    CatalogActivity, ConnectionUse, DatabaseActivity, DatabaseAge, IndexActivity, LoadCell,
    LoadMark, LoadMarkKind, LockTarget, RelationName, RootBlocker, SessionHold, SessionStatus,
    StatementCounters, TableActivity,
};

/// Length of the windows, in microseconds.
pub(super) const WINDOW_US: f64 = 10e6;
pub(super) const DAY_US: f64 = 86_400e6;
/// What the healthy server executes.
pub(super) const PLAIN: &str = "select balance from account where id = $1";

/// A server under construction; healthy at first.
pub(super) struct ExampleServer {
    pub activity: Activity,
}

impl ExampleServer {
    /// Autovacuum works on the table `orders`.
    pub fn autovacuum_of_orders(mut self) -> Self {
        self.activity.marks.push(LoadMark {
            at_us: 0.0,
            length_us: 0.0,
            kind: LoadMarkKind::Vacuum,
            text: "autovacuum of public.orders".to_owned(),
            count: None,
        });
        self
    }

    /// A healthy server: one session executes lookups by primary key.
    pub fn new() -> Self {
        let catalog = CatalogActivity {
            database: "shop".to_owned(),
            window_us: WINDOW_US,
            statistics_age_us: Some(30.0 * DAY_US),
            uptime_us: 60.0 * DAY_US,
            databases: vec![DatabaseActivity {
                name: "shop".to_owned(),
                committed: 10_000,
                rolled_back: 3,
                sessions: Some(2),
                ..DatabaseActivity::default()
            }],
            ages: vec![DatabaseAge {
                database: "shop".to_owned(),
                age: 40_000_000,
                multixact_age: 100,
                freeze_max_age: 200_000_000,
                left: 2_100_000_000,
                consumed_per_s: 100.0,
            }],
            connections: Some(ConnectionUse {
                used: 20,
                idle: Some(18),
                available: 97,
                started_seen: 2,
                brief_seen: None,
            }),
            settings: settings(),
            ..CatalogActivity::default()
        };
        let activity = Activity {
            window_us: WINDOW_US,
            sweeps: 500,
            waits: vec![ActivityWait::default()],
            catalog: Some(catalog),
            ..Activity::default()
        };
        let server = Self { activity };
        server.load(PLAIN, "", 1.0).executed(PLAIN, 5000, 1)
    }

    pub fn without_load(mut self) -> Self {
        self.activity.cells.clear();
        self
    }

    /// Changes the catalog.
    pub fn catalog(mut self, change: impl FnOnce(&mut CatalogActivity)) -> Self {
        change(self.activity.catalog.as_mut().expect("a catalog"));
        self
    }

    /// Adds average sessions that are active in a statement and a wait, such as `IO:DataFileRead`;
    /// empty for CPU.
    pub fn load(self, text: &str, wait: &str, sessions: f64) -> Self {
        self.cell(text, wait, sessions, SessionStatus::Active)
    }

    /// Adds average sessions that are idle in a transaction after a statement.
    pub fn idle_after(self, text: &str, sessions: f64) -> Self {
        let wait = "Client:ClientRead";
        self.cell(text, wait, sessions, SessionStatus::IdleInTransaction)
    }

    fn cell(mut self, text: &str, wait: &str, sessions: f64, state: SessionStatus) -> Self {
        let (kind, name) = wait.split_once(':').unwrap_or(("", ""));
        let wait = ActivityWait {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        let session = ActivitySession {
            pid: 1000 + self.activity.sessions.len() as u32,
            backend_type: "client backend".to_owned(),
            database: "shop".to_owned(),
            user: "web".to_owned(),
            application: "checkout".to_owned(),
            client: "10.0.0.7".to_owned(),
            ..ActivitySession::default()
        };
        let wait = index_of(&mut self.activity.waits, wait);
        let statement = self.statement_index(text);
        self.activity.sessions.push(session);
        self.activity.cells.push(LoadCell {
            session: self.activity.sessions.len() as u32 - 1,
            statement: Some(statement),
            state,
            wait,
            relation: None,
            time_us: sessions * WINDOW_US,
            samples: (sessions * 500.0) as u64,
        });
        self
    }

    fn statement_index(&mut self, text: &str) -> u32 {
        let statements = &mut self.activity.statements;
        let found = statements
            .iter()
            .position(|it| it.text.as_deref() == Some(text));
        let at = found.unwrap_or_else(|| {
            statements.push(ActivityStatement {
                fingerprint: format!("{:016x}", statements.len() + 1),
                text: Some(text.to_owned()),
                ..ActivityStatement::default()
            });
            statements.len() - 1
        });
        at as u32
    }

    /// Sets how often a statement was seen, in all and in one transaction.
    pub fn executed(mut self, text: &str, seen: u64, in_transaction: u64) -> Self {
        let at = self.statement_index(text) as usize;
        let statement = &mut self.activity.statements[at];
        statement.executions_seen = seen;
        statement.executions_seen_in_transaction_max = in_transaction;
        self
    }

    /// Sets the counters of a statement.
    pub fn counted(mut self, text: &str, counters: StatementCounters) -> Self {
        let at = self.statement_index(text) as usize;
        self.activity.statements[at].counters = Some(counters);
        self
    }

    pub fn blocking(mut self, episode: BlockingEpisode) -> Self {
        self.activity.blocking.push(episode);
        self
    }

    pub fn table(self, table: TableActivity) -> Self {
        self.catalog(|it| it.tables.push(table))
    }

    pub fn index(self, index: IndexActivity) -> Self {
        self.catalog(|it| it.indexes.push(index))
    }
}

fn settings() -> Vec<(String, String)> {
    let all = [
        ("autovacuum", "on"),
        ("checkpoint_timeout", "300 s"),
        ("max_wal_size", "1024 MB"),
        ("shared_buffers", "16384 8kB"),
        ("work_mem", "4096 kB"),
        ("deadlock_timeout", "1000 ms"),
    ];
    let owned = all.iter();
    owned
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn index_of(waits: &mut Vec<ActivityWait>, wait: ActivityWait) -> u32 {
    let found = waits.iter().position(|it| *it == wait);
    let at = found.unwrap_or_else(|| {
        waits.push(wait);
        waits.len() - 1
    });
    at as u32
}

pub(super) fn relation(name: &str) -> RelationName {
    RelationName {
        oid: 16_384 + name.bytes().map(u32::from).sum::<u32>(),
        database: "shop".to_owned(),
        schema: "public".to_owned(),
        name: name.to_owned(),
    }
}

/// A table of a million rows that autovacuum has just dealt with.
pub(super) fn table(name: &str) -> TableActivity {
    TableActivity {
        relation: relation(name),
        size_bytes: 100_000_000,
        estimated_rows: Some(1e6),
        live_rows: 1_000_000,
        analyze_threshold: 100_050.0,
        vacuum_threshold: 200_050.0,
        autovacuum_enabled: true,
        vacuumed_ago_us: Some(600e6),
        analyzed_ago_us: Some(600e6),
        age: 1_000_000,
        has_statistics: true,
        ..TableActivity::default()
    }
}

/// A B-tree of 10 MB on `orders`, used.
pub(super) fn index(name: &str, columns: &[&str]) -> IndexActivity {
    IndexActivity {
        relation: relation(name),
        table: relation("orders"),
        method: "btree".to_owned(),
        columns: columns.iter().map(|it| (*it).to_owned()).collect(),
        size_bytes: 10_000_000,
        scans: 100,
        scans_ever: 1_000_000,
        // At 100 transactions per second, more than 100 days.
        definition_age: Some(1_000_000_000),
        is_valid: true,
        ..IndexActivity::default()
    }
}

/// A server with an unused index, and this many inserts per second into its table.
pub(super) fn unused_index(writes: f64) -> ExampleServer {
    let orders = TableActivity {
        inserted: (writes * WINDOW_US / 1e6).round() as u64,
        ..table("orders")
    };
    let unused = IndexActivity {
        scans: 0,
        scans_ever: 0,
        ..index("orders_note_idx", &["note"])
    };
    ExampleServer::new().table(orders).index(unused)
}

/// Counters with this many calls and rows per call.
pub(super) fn calls(calls: u64, rows: f64) -> StatementCounters {
    StatementCounters {
        calls,
        rows: (calls as f64 * rows) as u64,
        execution_us: 9e6,
        shared_hit: calls * 20_000,
        ..StatementCounters::default()
    }
}

/// A session that is a root blocker in this state.
pub(super) fn root(state: &str, state_age_us: f64) -> RootBlocker {
    RootBlocker {
        pid: Some(4711),
        database: "shop".to_owned(),
        user: "web".to_owned(),
        application: "checkout".to_owned(),
        client: "10.0.0.7".to_owned(),
        state: state.to_owned(),
        state_age_us,
        transaction_age_us: Some(state_age_us + 1000.0),
        statement: Some("update orders set paid = $1 where id = $2".to_owned()),
        fingerprint: Some("00000000000000aa".to_owned()),
        holds: Some(SessionHold {
            mode: "RowExclusiveLock".to_owned(),
            relation: relation("orders"),
        }),
        ..RootBlocker::default()
    }
}

/// A session directly behind the root that waits for a row.
pub(super) fn blocked(pid: u32, waited_us: f64) -> BlockedSession {
    BlockedSession {
        pid,
        blocked_by: 4711,
        depth: 1,
        user: "web".to_owned(),
        statement: Some("update orders set paid = $1 where id = $2".to_owned()),
        waits_for: LockTarget {
            kind: "transactionid".to_owned(),
            mode: "ShareLock".to_owned(),
            relation: Some(relation("orders")),
        },
        waited_us,
        ..BlockedSession::default()
    }
}

/// A session that waits for a table's lock.
pub(super) fn queued(pid: u32, behind: u32, mode: &str, waited_us: f64) -> BlockedSession {
    BlockedSession {
        blocked_by: behind,
        waits_for: LockTarget {
            kind: "relation".to_owned(),
            mode: mode.to_owned(),
            relation: Some(relation("orders")),
        },
        statement: Some("alter table orders add column note text".to_owned()),
        ..blocked(pid, waited_us)
    }
}

/// An episode that goes on at the end of the window.
pub(super) fn episode(root: RootBlocker, blocked: Vec<BlockedSession>) -> BlockingEpisode {
    let in_window = |it: &BlockedSession| it.waited_us.min(WINDOW_US);
    BlockingEpisode {
        waited_us: blocked.iter().map(in_window).sum(),
        ended_by: format!("select pg_terminate_backend({})", root.pid.unwrap_or(0)),
        root,
        blocked,
        first_seen_us: 0.0,
        last_seen_us: WINDOW_US,
        is_lasting: true,
    }
}

/// A server with this episode, whose waits are also in its load.
pub(super) fn blocking(episode: BlockingEpisode) -> ExampleServer {
    let waiting = episode.waited_us / WINDOW_US;
    let text = "update orders set paid = $1 where id = $2";
    let server = ExampleServer::new().load(text, "Lock:transactionid", waiting);
    server.blocking(episode)
}
