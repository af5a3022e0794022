//! Sessions on real servers, for tests.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use pgassay_explain::{
    ExplainOptions, ExplainRequest, PlanDifference, PlanKind, PreparedExplain, QueryPlan,
    difference_text,
};
use pgassay_server::{Connection, ConnectionError, Finder, Installation, Server, VersionRequest};
use pgassay_test_support::{servers, skip_comparison};

/// A connection to a temporary server of its own.
pub struct Session {
    // Dropped before its server.
    pub connection: Connection,
    pub version: u32,
    _server: Server,
}

impl Session {
    /// Of a version that the tests download. `None`, with a visible skip, if it is not available.
    pub fn of_version(version: &str) -> Option<Self> {
        servers::installation(version).map(|it| Self::start(&it))
    }

    /// Of the newest version that Debian's packages installed. `None`, with a visible skip, if there is
    /// none.
    pub fn of_installed() -> Option<Self> {
        let mut finder = Finder::new("/nonexistent");
        finder.named_dir = Some("/usr/lib/postgresql".into());
        match finder.find(&VersionRequest::Latest, &mut |_| ()) {
            Ok(installation) => Some(Self::start(&installation)),
            Err(error) => {
                skip_comparison("plans of an installed PostgreSQL", &error.to_string());
                None
            }
        }
    }

    fn start(installation: &Installation) -> Self {
        let mut config = servers::config();
        for (name, value) in [
            ("autovacuum", "off"),
            ("max_parallel_workers_per_gather", "0"),
        ] {
            config.settings.insert(name.to_owned(), value.to_owned());
        }
        let server = Server::start(installation, &config).unwrap();
        let mut connection = server.connect().unwrap();
        connection
            .execute(
                "create table t as select g as id, g % 1000 as k, md5(g::text) as info \
                 from generate_series(1, 20000) g; \
                 create table s as select g as id, g % 100 as t_id, repeat('x', 50) as name \
                 from generate_series(1, 2000) g",
            )
            .unwrap();
        connection.execute("vacuum analyze t").unwrap();
        connection.execute("vacuum analyze s").unwrap();
        Self {
            connection,
            version: installation.version.number(),
            _server: server,
        }
    }

    /// The result of an EXPLAIN statement with its transaction.
    pub fn send(&mut self, request: &ExplainRequest) -> Result<QueryPlan, ConnectionError> {
        self.connection.execute(request.begin()).unwrap();
        let json = self.connection.value(&request.sql);
        self.connection.execute(ExplainRequest::END).unwrap();
        let plan = QueryPlan::parse(&json?.unwrap()).unwrap();
        Ok(checked(plan))
    }

    /// The plan of a statement that was executed, with these settings.
    pub fn analyzed(&mut self, settings: &str, sql: &str) -> QueryPlan {
        self.connection.execute(settings).unwrap();
        let request = ExplainRequest::new(sql, self.version, ExplainOptions::ANALYZED).unwrap();
        let plan = self.send(&request).unwrap();
        self.connection.execute("reset all").unwrap();
        plan
    }

    /// The plan of a prepared statement with one parameter.
    pub fn prepared(&mut self, sql: &str, value: &str, kind: PlanKind) -> QueryPlan {
        let explain = PreparedExplain::new(
            sql,
            &[Some(value)],
            kind,
            self.version,
            ExplainOptions::ANALYZED,
        )
        .unwrap();
        for sql in &explain.before {
            self.connection.execute(sql).unwrap();
        }
        let json = self
            .connection
            .value(&explain.explain.sql)
            .unwrap()
            .unwrap();
        for sql in &explain.after {
            self.connection.execute(sql).unwrap();
        }
        checked(QueryPlan::parse(&json).unwrap())
    }

    pub fn count(&mut self, table: &str) -> String {
        let sql = format!("select count(*) from {table}");
        self.connection.value(&sql).unwrap().unwrap()
    }
}

/// Every real plan equals itself, and has no key that should have been read.
fn checked(plan: QueryPlan) -> QueryPlan {
    assert!(PlanDifference::between(&plan, &plan).is_none());
    for node in &plan.nodes {
        assert!(!node.node_type.is_empty() && node.plan_rows.is_some());
        for key in [
            "Filter",
            "Workers",
            "Plans",
            "Actual Rows",
            "Shared Hit Blocks",
        ] {
            assert!(!node.rest.contains_key(key), "{key}: {:?}", node.rest);
        }
    }
    plan
}

/// What differs, in words; the terminal's text must fit.
pub fn said(a: &QueryPlan, b: &QueryPlan) -> Vec<String> {
    let difference = PlanDifference::between(a, b);
    let text = difference_text(&difference, ("first", "second"), 80);
    println!("{text}");
    assert!(text.lines().all(|it| it.chars().count() <= 80), "{text}");
    difference.changes.iter().map(ToString::to_string).collect()
}
