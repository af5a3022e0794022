//! A session that explains statements: with the settings of a point's clients, and with time limits.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pgassay_explain::{ExplainOptions, ExplainRefusal, ExplainRequest, PreparedExplain, QueryPlan};
use pgassay_model::plan::Point;
use pgassay_model::study::Network;
use pgassay_server::{Connection, ConnectionError};

use super::row_counts::rows_vary;
use super::script_settings::ScriptSettings;
use crate::connector::connect;
use crate::host::DataLocation;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long the server may execute one statement, unless trials are longer.
const STATEMENT_LIMIT_MIN: Duration = Duration::from_secs(30);
/// After that, how long its answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A statement that took longer is not executed again to warm up the session, in milliseconds.
const REPEATED_MAX_MS: f64 = 1000.0;

/// A session that explains statements.
pub struct ExplainSession {
    connection: Connection,
    /// `server_version_num`.
    version: u32,
    /// Whether pgassay started the server.
    is_own: bool,
    /// What the script has set before the statement.
    pub settings: ScriptSettings,
}

/// A plan as the server sent it.
pub struct SentPlan {
    /// Its JSON without indentation.
    pub json: String,
    /// The same as a tree.
    pub tree: QueryPlan,
    /// Whether the statement was executed.
    pub is_executed: bool,
    /// Whether a second execution returned or changed another number of rows.
    pub rows_vary: bool,
    /// Why it was only planned although it was to be executed.
    pub execution_error: Option<String>,
}

/// Why there is no plan.
pub enum NotExplained {
    /// EXPLAIN does not accept the statement.
    Refused(ExplainRefusal),
    /// The server reported an error, or its answer is not a plan.
    Failed(String),
    /// The connection is lost.
    Lost(anyhow::Error),
}

impl From<ConnectionError> for NotExplained {
    fn from(error: ConnectionError) -> Self {
        let Some(sql) = error.sql() else {
            return Self::Lost(anyhow!(error));
        };
        Self::Failed(format!("{}: {}", sql.severity, sql.message))
    }
}

/// The statements that explain one statement, in order.
struct Steps {
    before: Vec<String>,
    explain: ExplainRequest,
    after: Vec<String>,
}

impl ExplainSession {
    /// Connects to a point's data as its clients do. `trial_us` is the length of its trials.
    pub fn open(
        place: &DataLocation<'_>,
        point: &Point,
        trial_us: u64,
        is_own: bool,
    ) -> Result<Self> {
        // The network does not affect plans.
        let mut target = place.host.target(place.database, Network::Unix, None)?;
        let session = point.session.iter();
        let session = session.map(|(name, value)| (name.clone(), value.clone()));
        target.settings.extend(session);
        let (exchange, _) = connect(&target, Some(CONNECT_LIMIT))
            .map_err(|error| anyhow!("{error}"))
            .context("cannot connect to explain statements")?;
        let mut connection = Connection::from(exchange);
        let limit = Duration::from_micros(3 * trial_us).max(STATEMENT_LIMIT_MIN);
        connection.set_timeout(Some(limit + ANSWER_LIMIT))?;
        let milliseconds = limit.as_millis();
        connection.execute(&format!("set statement_timeout = {milliseconds}"))?;
        let version = connection.value("show server_version_num")?;
        let version = version.and_then(|it| it.parse().ok());
        Ok(Self {
            connection,
            version: version.context("the server reports no version")?,
            is_own,
            settings: ScriptSettings::default(),
        })
    }

    /// The server's `server_version_num`.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The plan of a statement without parameters. Executes it on a server that pgassay started, unless that
    /// fails or takes too long.
    pub fn plan(&mut self, sql: &str) -> Result<SentPlan, NotExplained> {
        let is_own = self.is_own;
        let version = self.version;
        self.executed_if_own(&|options| {
            let explain = ExplainRequest::new(sql, version, options)?;
            // A function that writes would fail in a transaction that is read only.
            let begin = if is_own {
                ExplainRequest::BEGIN
            } else {
                explain.begin()
            };
            Ok(Steps {
                before: vec![begin.to_owned()],
                explain,
                after: vec![ExplainRequest::END.to_owned()],
            })
        })
    }

    /// A plan of a prepared statement, executed as by [`Self::plan`].
    pub fn prepared(
        &mut self,
        of: &dyn Fn(ExplainOptions) -> Result<PreparedExplain, ExplainRefusal>,
    ) -> Result<SentPlan, NotExplained> {
        let is_own = self.is_own;
        self.executed_if_own(&|options| {
            let prepared = of(options)?;
            let prepared = if is_own {
                prepared.writable()
            } else {
                prepared
            };
            Ok(Steps {
                before: prepared.before,
                explain: prepared.explain,
                after: prepared.after,
            })
        })
    }

    /// A plan of a prepared statement, without executing it.
    pub fn only_planned(
        &mut self,
        of: &dyn Fn(ExplainOptions) -> Result<PreparedExplain, ExplainRefusal>,
    ) -> Result<SentPlan, NotExplained> {
        let prepared = of(ExplainOptions::default()).map_err(NotExplained::Refused)?;
        self.send(&Steps {
            before: prepared.before,
            explain: prepared.explain,
            after: prepared.after,
        })
    }

    /// Executes a statement in a transaction that is rolled back, and returns the names and values of the last
    /// row of its last result. On an external server the transaction is read only.
    pub fn last_row(&mut self, sql: &str) -> Result<Vec<(String, Option<String>)>, NotExplained> {
        let begin = if self.is_own {
            ExplainRequest::BEGIN
        } else {
            "begin transaction read only"
        };
        self.connection.execute(begin)?;
        self.send_settings()?;
        let results = self.connection.query_all(sql);
        self.connection.execute(ExplainRequest::END)?;
        let last = results?.pop().unwrap_or_default();
        let row = last.rows.into_iter().next_back().unwrap_or_default();
        Ok(last.columns.into_iter().zip(row).collect())
    }

    fn executed_if_own(
        &mut self,
        steps: &dyn Fn(ExplainOptions) -> Result<Steps, ExplainRefusal>,
    ) -> Result<SentPlan, NotExplained> {
        let planned = || steps(ExplainOptions::default()).map_err(NotExplained::Refused);
        if !self.is_own {
            return self.send(&planned()?);
        }
        let executed = steps(ExplainOptions::ANALYZED).map_err(NotExplained::Refused)?;
        match self.send(&executed) {
            // The plan is an answer, even if the statement takes too long or fails, for example because its key
            // exists already.
            Err(NotExplained::Failed(error)) => match self.send(&planned()?) {
                Ok(sent) => Ok(SentPlan {
                    execution_error: Some(error),
                    ..sent
                }),
                Err(NotExplained::Lost(lost)) => Err(NotExplained::Lost(lost)),
                Err(_) => Err(NotExplained::Failed(error)),
            },
            // The first execution in a session also reads catalogs, which the clients' sessions have cached.
            Ok(first)
                if first
                    .tree
                    .execution_ms
                    .is_some_and(|ms| ms <= REPEATED_MAX_MS) =>
            {
                match self.send(&executed) {
                    Err(NotExplained::Failed(_)) => Ok(first),
                    Ok(again) => Ok(SentPlan {
                        rows_vary: rows_vary(&first.tree, &again.tree),
                        ..again
                    }),
                    lost => lost,
                }
            }
            other => other,
        }
    }

    /// Sends the statements. Those at the end are sent in any case, so that the session can be used again.
    fn send(&mut self, steps: &Steps) -> Result<SentPlan, NotExplained> {
        let answer = self.answer(steps);
        for sql in &steps.after {
            self.connection.execute(sql)?;
        }
        let json = answer?.unwrap_or_default();
        let lines: Vec<&str> = json.lines().map(str::trim_start).collect();
        let json = lines.join("\n");
        let tree = QueryPlan::parse(&json)
            .map_err(|error| NotExplained::Failed(format!("cannot read the plan: {error}")))?;
        Ok(SentPlan {
            json,
            tree,
            is_executed: steps.explain.is_executed,
            rows_vary: false,
            execution_error: None,
        })
    }

    fn answer(&mut self, steps: &Steps) -> Result<Option<String>, NotExplained> {
        for (at, sql) in steps.before.iter().enumerate() {
            self.connection.execute(sql)?;
            // The first begins the transaction.
            if at == 0 {
                self.send_settings()?;
            }
        }
        Ok(self.connection.value(&steps.explain.sql)?)
    }

    /// Gives the transaction the settings that the script has set. They end with it.
    fn send_settings(&mut self) -> Result<(), ConnectionError> {
        for sql in self.settings.commands() {
            self.connection.execute(sql)?;
        }
        Ok(())
    }
}
