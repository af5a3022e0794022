//! Clients of PostgreSQL, driven by the load engine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use pgassay_load::{
    ClientOptions, ClientPool, ClientPoolConfig, IoChoice, LoadError, Measurement, RunLength,
    TextRow,
};
use pgassay_model::plan::Point;
use pgassay_model::study::StudySource;
use pgassay_server::FLUSH_STATISTICS;
use pgassay_wire::conninfo::Target;

use super::scripts::{self, Scripts};
use super::{Clients, ClientsOrder, session_settings};
use crate::cancel::{CancelWatch, Cancelable, Canceler};
use crate::host::DataLocation;
use crate::interrupt::{Interrupt, Interrupted};
use crate::observe::TransactionRecorder;
use crate::run_context::RunContext;
use crate::study_errors::at_line;

/// How long transactions may go on after the user requested a stop: less than the load engine waits
/// before it abandons them ([`pgassay_load::Limits::stop`]).
const STOP_GRACE: Duration = Duration::from_millis(300);

/// The backend that answers, its limit for idle sessions (`0` is none, NULL a server before PostgreSQL 14), and its
/// version. Without operators, which a search path could replace.
const ASK_IDLE_LIMIT: &str = "select pg_catalog.pg_backend_pid(), \
     pg_catalog.current_setting('idle_session_timeout', true), \
     pg_catalog.current_setting('server_version_num')";
/// Since this version, a statement makes a backend report its statistics.
const FLUSHES_SINCE: u32 = 150_000;

/// Clients of PostgreSQL.
pub struct PostgresClients {
    /// Their connections.
    pool: ClientPool,
    /// Cancels their statements on an external server.
    canceler: Option<Arc<Canceler>>,
    /// What follows a statement that sets or resets the server's limit for idle sessions, if there is one. Without it,
    /// the statement would count as a transaction of a trial. Empty if nothing does.
    after_idle_limit: Option<&'static str>,
}

impl PostgresClients {
    /// Clients with these connections.
    ///
    /// # Errors
    /// A lost connection.
    pub fn new(mut pool: ClientPool, canceler: Option<Arc<Canceler>>) -> Result<Self, LoadError> {
        let after_idle_limit = after_idle_limit(&mut pool)?;
        Ok(Self {
            pool,
            canceler,
            after_idle_limit,
        })
    }

    /// Cancels statements of the load if the user requests a stop.
    fn cancel_on_stop(&self, interrupt: &Interrupt) -> Result<Option<CancelWatch>> {
        let Some(canceler) = &self.canceler else {
            return Ok(None);
        };
        let what = Cancelable {
            canceler: Arc::clone(canceler),
            keys: self.pool.backends(),
            closer: None,
            grace: STOP_GRACE,
            report: None,
        };
        CancelWatch::start(interrupt, what).map(Some)
    }

    /// Cancels what still runs on an external server after a failure: the end of a connection does not end its
    /// statement.
    fn cancel_busy(&self) {
        if self.canceler.is_none() {
            return;
        }
        let mut busy = self.pool.busy_backends().into_iter();
        let canceled = busy.try_for_each(|it| {
            Canceler::at(it.endpoint, self.pool.target().clone(), it.with_tls).cancel(it.key)
        });
        // A server that does not answer has been reported.
        if let Err(error) = canceled {
            tracing::debug!("cannot cancel a statement: {error:#}");
        }
    }
}

/// [`PostgresClients::after_idle_limit`]; `None` if the server does not end idle sessions. A pooler keeps its clients'
/// connections, and a setting would remain in a session that others get, so behind one there is none, either.
fn after_idle_limit(pool: &mut ClientPool) -> Result<Option<&'static str>, LoadError> {
    let Some(&first) = pool.backend_pids().first() else {
        return Ok(None);
    };
    let rows = pool.query_first(ASK_IDLE_LIMIT)?;
    let Some([Some(answering), Some(limit), Some(version)]) = rows.first().map(Vec::as_slice)
    else {
        return Ok(None);
    };
    let after = match version.parse::<u32>() {
        Ok(version) if version >= FLUSHES_SINCE => FLUSH_STATISTICS,
        _ => "",
    };
    let is_limited = *answering == first.to_string() && limit != "0";
    Ok(is_limited.then_some(after))
}

impl Clients for PostgresClients {
    fn run(
        &mut self,
        length: &RunLength,
        point: &Point,
        context: &RunContext<'_>,
    ) -> Result<Measurement> {
        let watch = self.cancel_on_stop(context.interrupt)?;
        let measured = self.pool.run(length);
        if measured.is_err() {
            self.cancel_busy();
        }
        if watch.is_some() && measured.is_err() {
            // A canceled statement is an error of the load.
            context.check()?;
        }
        measured.map_err(|error| describe_load_error(error, context.source(), point))
    }

    fn rest(&mut self) -> Result<(), LoadError> {
        if let Some(after) = self.after_idle_limit {
            let sql = format!("set idle_session_timeout = 0; {after}");
            self.pool.broadcast(&sql)?;
        }
        Ok(())
    }

    fn wake(&mut self) -> Result<(), LoadError> {
        if let Some(after) = self.after_idle_limit {
            let sql = format!("reset idle_session_timeout; {after}");
            self.pool.broadcast(&sql)?;
        }
        Ok(())
    }

    fn spread_starts(&mut self, spread: Duration, seed: u64) {
        self.pool.spread_starts(spread, seed);
    }

    fn broadcast(&mut self, sql: &str) -> Result<u32, LoadError> {
        self.pool.broadcast(sql)
    }

    fn query_first(&mut self, sql: &str) -> Result<Vec<TextRow>, LoadError> {
        self.pool.query_first(sql)
    }

    fn time_statements(&mut self, is_wanted: bool) {
        let has_several = self.pool.statements_max() > 1;
        self.pool.time_commands(is_wanted && has_several);
    }

    fn record_transactions(&mut self) -> Option<TransactionRecorder> {
        Some(TransactionRecorder::start(&mut self.pool))
    }

    fn stop_recording(&mut self) {
        self.pool.observe(|_| None);
    }

    fn backend_pids(&self) -> Vec<i32> {
        self.pool.backend_pids()
    }

    fn server_pids(&self) -> Vec<u32> {
        let pids = self.pool.backend_pids().into_iter();
        pids.map(i32::cast_unsigned).collect()
    }

    fn are_of_postgres(&self) -> bool {
        true
    }
}

/// Connects a point's clients to their server.
pub fn connect_pool(order: &ClientsOrder<'_>, context: &RunContext<'_>) -> Result<ClientPool> {
    let (point, source) = (order.point, context.source());
    let Scripts {
        weighted,
        names,
        notes: _,
    } = scripts::parse(point, source)?;
    let config = ClientPoolConfig {
        target: target(&order.location, point)?,
        clients: order.clients,
        threads: order.threads,
        scripts: weighted,
        names,
        protocol: scripts::protocol(point.protocol),
        seed: order.seed,
        scale: point.scale,
        variables: Vec::new(),
        debug: None,
        limits: order.limits,
        options: ClientOptions {
            rate_per_s: point.rate_per_s,
            reconnects: point.reconnects,
            ..ClientOptions::default()
        },
        // The same on all machines, to keep their results comparable.
        io: IoChoice::Epoll,
        part: None,
    };
    let mut pool = ClientPool::connect(&config, context.interrupt.flag()).map_err(|error| {
        let refused = match &error {
            LoadError::Refused { error: refusal, .. } => {
                session_settings::refused(refusal, context.study, &point.session)
            }
            _ => None,
        };
        refused.unwrap_or_else(|| describe_load_error(error, source, point))
    })?;
    pool.keep_account(true);
    Ok(pool)
}

/// Converts a load error: Ctrl-C becomes [`Interrupted`], script errors get their line in the study.
pub fn describe_load_error(error: LoadError, source: &StudySource, point: &Point) -> anyhow::Error {
    match error {
        LoadError::Stopped => Interrupted.into(),
        LoadError::Aborted { ref place, .. } => {
            let script = point
                .scripts
                .get(place.script_index)
                .map_or(0, |script| script.index);
            let path = ["script", &script.to_string(), "text"];
            at_line(
                source,
                &path,
                place.line.max(1) as usize,
                &with_hint(error.to_string()),
            )
        }
        other => anyhow!(other),
    }
}

/// The messages about a missing table of pgbench's scripts and about COPY say what to do.
fn with_hint(message: String) -> String {
    if message.contains("relation \"pgbench_") && message.contains("does not exist") {
        message
            + "; the setup creates pgbench's tables: leave out --setup, or, in a study, write [data] setup as \
               pgassay compare -S --save FILE does"
    } else if message.ends_with("COPY is not supported in pgbench, aborting") {
        message
            + "; the clients exchange no data of COPY: use a file on the server instead of STDIN and STDOUT, or \
               INSERT … SELECT"
    } else {
        message
    }
}

fn target(place: &DataLocation<'_>, point: &Point) -> Result<Target> {
    let mut target = place
        .host
        .target(place.database, point.network, place.address)?;
    let session = point.session.iter();
    let session = session.map(|(name, value)| (name.clone(), value.clone()));
    target.settings.extend(session);
    Ok(target)
}
