//! Records and reports each transaction during a run: figures, logs, errors.
//!
//! Source: `processXactStats`, `doLog`, `printVerboseErrorMessages`, `commandFailed` and
//! `readCommandResponse` in pgbench.c.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgassay_lab::connector;
use pgassay_load::{
    AbortCause, FailedTry, FailedTryFate, FailureKind, LoadError, Observer, PoolPart,
    ScriptLocation, Transaction, TransactionOutcome,
};
use pgassay_script::{EvalError, Refusal, Rng};
use pgassay_wire::ServerMessage;

use super::figures::{Board, Cells, latency_and_lag_us};
use super::hdr_log::{HdrLog, Second};
use super::memory::MemoryBefore;
use super::message;
use super::settings::Settings;

/// State shared by the observers of all threads.
pub struct Common {
    pub settings: Settings,
    pub board: Board,
    /// The log of `--hdr-log`.
    pub hdr_log: Option<HdrLog>,
    /// With which lines of progress begin.
    pub progress_label: &'static str,
    /// The clients' part of a run of several processes.
    pub part: Option<PoolPart>,
    /// Added to the load generator's clock to get the time since 1970.
    pub epoch_shift_us: u64,
    /// The memory of this process without clients.
    pub memory_before: MemoryBefore,
    /// Whether something could not be written to a log.
    pub has_incomplete_log: AtomicBool,
}

impl Common {
    /// Whether something could not be written to a log.
    pub fn has_incomplete_log(&self) -> bool {
        self.has_incomplete_log.load(Ordering::Relaxed)
    }

    /// Reports the first error of a log of transactions. A full disk must not end a run.
    fn report_log_error(&self, error: &std::io::Error) {
        if !self.has_incomplete_log.swap(true, Ordering::Relaxed) {
            let why = connector::os_error_text(error);
            message::error(&format!("could not write to logfile: {why}"));
        }
    }
}

/// A thread's observer.
pub struct Watcher {
    common: Arc<Common>,
    thread: usize,
    log: Option<TransactionLog>,
    second: Option<Second>,
}

struct TransactionLog {
    file: BufWriter<Arc<File>>,
    sample: Rng,
    /// The current interval of an aggregated log. The first begins with the run.
    interval: Cells,
    interval_begin_us: u64,
    latency_min_us: f64,
    latency_max_us: f64,
    lag_min_us: f64,
}

impl Watcher {
    /// The observer of a thread; `file` is its log.
    pub fn new(common: &Arc<Common>, thread: usize, sample: Rng, file: Option<Arc<File>>) -> Self {
        let log = file.map(|file| TransactionLog::new(file, sample));
        Self {
            common: Arc::clone(common),
            thread,
            log,
            second: common.hdr_log.as_ref().map(HdrLog::second),
        }
    }
}

impl Observer for Watcher {
    fn begun(&mut self, begin_ns: u64) {
        if let Some(log) = &mut self.log {
            // The log has whole seconds, and so have its intervals, as in pgbench.
            let begin_us = begin_ns / 1000 + self.common.epoch_shift_us;
            log.interval_begin_us = begin_us / 1_000_000 * 1_000_000;
        }
    }

    fn transaction(&mut self, transaction: &Transaction) {
        let settings = &self.common.settings;
        let cells = &self.common.board.of_thread(self.thread)[transaction.script];
        cells.count(transaction, settings.latency_limit_us);
        if let (Some(second), Some(log)) = (&mut self.second, &self.common.hdr_log) {
            second.count(transaction, self.common.epoch_shift_us, log);
        }
        if let Some(log) = &mut self.log {
            let now_us = transaction.end_ns / 1000 + self.common.epoch_shift_us;
            if let Err(error) = log.transaction(transaction, settings, now_us) {
                self.common.report_log_error(&error);
                self.log = None;
            }
        }
    }

    fn wants_each_skipped(&self) -> bool {
        self.log.is_some()
    }

    fn skipped(&mut self, first: &Transaction, count: u64) {
        self.common.board.of_thread(self.thread)[first.script].skip(count);
    }

    fn failed_try(&mut self, failed: &FailedTry<'_>) {
        let settings = &self.common.settings;
        if !settings.verbose_errors {
            return;
        }
        let client = failed.client;
        message::info(&format!(
            "client {client} got an error in command {} (SQL) of script {}; {}",
            failed.command,
            failed.script,
            message::of_server(failed.error, None)
        ));
        let what = match failed.fate {
            FailedTryFate::Retried => "repeats the transaction after the error",
            FailedTryFate::Failed => "ends the failed transaction",
            FailedTryFate::Dropped => return,
        };
        let bound = match settings.tries_max {
            0 => String::new(),
            max => format!("/{max}"),
        };
        let used = settings.latency_limit_us.map_or(String::new(), |limit_us| {
            let share = failed.elapsed_ns as f64 / 10.0 / limit_us as f64;
            format!(", {share:.3}% of the maximum time of tries was used")
        });
        message::info(&format!(
            "client {client} {what} (try {}{bound}{used})",
            failed.tries
        ));
    }

    fn aborted(&mut self, client: u32, error: &LoadError) {
        report_abort(client, error);
    }

    fn finished(&mut self) {
        if let (Some(second), Some(log)) = (&mut self.second, &self.common.hdr_log) {
            second.close(log);
        }
        if let Some(log) = &mut self.log {
            let settings = &self.common.settings;
            let now_us =
                pgassay_lab::system_env::monotonic_ns() / 1000 + self.common.epoch_shift_us;
            let closed = settings.aggregate_s.map_or(Ok(()), |every_s| {
                log.close_intervals(now_us, every_s, settings)
            });
            if let Err(error) = closed.and_then(|()| log.file.flush()) {
                self.common.report_log_error(&error);
                self.log = None;
            }
        }
    }
}

impl TransactionLog {
    fn new(file: Arc<File>, sample: Rng) -> Self {
        Self {
            file: BufWriter::new(file),
            sample,
            interval: Cells::default(),
            interval_begin_us: 0,
            latency_min_us: f64::INFINITY,
            latency_max_us: 0.0,
            lag_min_us: f64::INFINITY,
        }
    }

    fn transaction(
        &mut self,
        transaction: &Transaction,
        settings: &Settings,
        now_us: u64,
    ) -> std::io::Result<()> {
        if settings
            .sampling_rate
            .is_some_and(|rate| self.sample.unit() > rate)
        {
            return Ok(());
        }
        let (latency_us, lag_us) = latency_and_lag_us(transaction);
        if let Some(every_s) = settings.aggregate_s {
            self.close_intervals(now_us, every_s, settings)?;
            self.interval.count(transaction, None);
            if transaction.outcome == TransactionOutcome::Done {
                self.latency_min_us = self.latency_min_us.min(latency_us);
                self.latency_max_us = self.latency_max_us.max(latency_us);
                self.lag_min_us = self.lag_min_us.min(lag_us);
            }
            return Ok(());
        }
        let (client, count) = (transaction.client, transaction.ended_before + 1);
        write!(self.file, "{client} {count} ")?;
        match result(transaction.outcome, settings.failures_detailed) {
            None => write!(self.file, "{latency_us:.0}")?,
            Some(result) => write!(self.file, "{result}")?,
        }
        let (seconds, micros) = (now_us / 1_000_000, now_us % 1_000_000);
        write!(self.file, " {} {seconds} {micros}", transaction.script)?;
        if settings.rate_per_s.is_some() {
            let is_done = transaction.outcome == TransactionOutcome::Done;
            write!(self.file, " {:.0}", if is_done { lag_us } else { 0.0 })?;
        }
        if settings.tries_max != 1 {
            write!(self.file, " {}", transaction.tries - 1)?;
        }
        writeln!(self.file)
    }

    /// Writes the completed intervals, including empty ones.
    fn close_intervals(
        &mut self,
        now_us: u64,
        every_s: u32,
        settings: &Settings,
    ) -> std::io::Result<()> {
        let every_us = u64::from(every_s) * 1_000_000;
        while self.interval_begin_us + every_us <= now_us {
            let figures = self.interval.read();
            let least = |value: f64| if value.is_finite() { value } else { 0.0 };
            write!(
                self.file,
                "{} {} {:.0} {:.0} {:.0} {:.0}",
                self.interval_begin_us / 1_000_000,
                figures.done,
                figures.latency_sum_us,
                figures.latency_sum2,
                least(self.latency_min_us),
                self.latency_max_us
            )?;
            let lag = if settings.rate_per_s.is_some() {
                [
                    figures.lag_sum_us,
                    self.interval.lag_sum2(),
                    least(self.lag_min_us),
                    figures.lag_max_us,
                ]
            } else {
                [0.0; 4]
            };
            let only = |wanted: bool, value: u64| if wanted { value } else { 0 };
            let has_tries = settings.tries_max != 1;
            let detailed = settings.failures_detailed;
            write!(
                self.file,
                " {:.0} {:.0} {:.0} {:.0} {} {} {} {} {}",
                lag[0],
                lag[1],
                lag[2],
                lag[3],
                only(settings.latency_limit_us.is_some(), figures.skipped),
                only(has_tries, figures.retried),
                only(has_tries, figures.retries),
                only(detailed, figures.serialization),
                only(detailed, figures.deadlock)
            )?;
            // A field of pgbench after 18, as the option is.
            if settings.continue_on_error {
                write!(self.file, " {}", only(detailed, figures.other))?;
            }
            writeln!(self.file)?;
            self.interval.reset();
            self.latency_min_us = f64::INFINITY;
            self.latency_max_us = 0.0;
            self.lag_min_us = f64::INFINITY;
            self.interval_begin_us += every_us;
        }
        Ok(())
    }
}

/// What a log contains instead of a latency.
fn result(outcome: TransactionOutcome, detailed: bool) -> Option<&'static str> {
    match outcome {
        TransactionOutcome::Done => None,
        TransactionOutcome::Skipped => Some("skipped"),
        TransactionOutcome::Failed(FailureKind::Serialization) if detailed => Some("serialization"),
        TransactionOutcome::Failed(FailureKind::Deadlock) if detailed => Some("deadlock"),
        TransactionOutcome::Failed(FailureKind::Other) if detailed => Some("other"),
        TransactionOutcome::Failed(_) => Some("failed"),
    }
}

/// Reports why a client aborted, as pgbench does.
fn report_abort(client: u32, error: &LoadError) {
    match error {
        LoadError::Aborted { place, cause } => tell_cause(client, place, cause),
        LoadError::Refused { .. } | LoadError::Connect { .. } => {
            message::error(&message::of_load(error));
            message::error(&format!(
                "client {client} aborted while establishing connection"
            ));
        }
        LoadError::Lost {
            last,
            source,
            place,
            ..
        } => {
            // Warnings were already reported on arrival.
            let fatal = last.as_deref().filter(|last| last.is_fatal());
            tell_lost(client, place.as_deref(), fatal, source.as_ref());
        }
        other => message::error(&other.to_string()),
    }
}

/// libpq's message for a connection that was closed without an error.
const CLOSED: &str = "server closed the connection unexpectedly\n\tThis probably means the server \
     terminated abnormally\n\tbefore or while processing the request.";

/// Reports a lost connection. pgbench does not say why it was lost while a statement was in progress.
fn tell_lost(
    client: u32,
    place: Option<&ScriptLocation>,
    fatal: Option<&ServerMessage>,
    source: Option<&std::io::Error>,
) {
    let text = match (place, fatal) {
        (Some(place), None) => format!(
            "client {client} aborted in command {} (SQL) of script {}; perhaps the backend died \
             while processing",
            place.command, place.script_index
        ),
        (Some(place), Some(fatal)) => format!(
            "client {client} script {} aborted in command {} query {}: {}",
            place.script_index,
            place.command,
            place.query,
            message::of_server(fatal, None)
        ),
        (None, Some(fatal)) => {
            format!(
                "client {client} aborted: {}",
                message::of_server(fatal, None)
            )
        }
        (None, None) => {
            let why = source.map_or_else(|| CLOSED.to_owned(), connector::os_error_text);
            format!("client {client} aborted: {why}")
        }
    };
    message::error(&text);
}

fn tell_cause(client: u32, place: &ScriptLocation, cause: &AbortCause) {
    let ScriptLocation {
        command,
        query,
        word,
        script_index: script,
        ..
    } = place;
    let word = match cause {
        AbortCause::Refusal(Refusal::GsetInPipeline) => "gset",
        AbortCause::Refusal(Refusal::AsetInPipeline) => "aset",
        _ => word,
    };
    let failed = |what: &dyn std::fmt::Display| {
        message::error(&format!(
            "client {client} aborted in command {command} ({word}) of script {script}; {what}"
        ));
    };
    let at = format!("client {client} script {script} command {command} query {query}");
    let refused = |error: &ServerMessage| {
        message::error(&format!(
            "client {client} script {script} aborted in command {command} query {query}: {}",
            message::of_server(error, place.sent.as_deref())
        ));
    };
    match cause {
        AbortCause::Sql(error) => {
            refused(error);
            if is_on_another_connection(error, place) {
                message::hint(POOLER);
            }
        }
        AbortCause::Unprepared { error, name } => {
            message::error(&message::of_server(error, place.statement.as_deref()));
            // pgbench executes the statement nevertheless.
            refused(&ServerMessage {
                severity: "ERROR".to_owned(),
                message: format!("prepared statement \"{name}\" does not exist"),
                ..Default::default()
            });
        }
        AbortCause::Rows { rows } => message::error(&format!("{at}: expected one row, got {rows}")),
        AbortCause::Capture { invalid } => {
            message::error(&invalid.to_string());
            message::error(&format!(
                "{at}: error storing into variable {}",
                invalid.name
            ));
        }
        AbortCause::Eval(error) => {
            // pgbench has no message for an empty text, which \gset makes of a null.
            let is_empty =
                matches!(error, EvalError::MalformedVariable { value, .. } if value.is_empty());
            if !is_empty {
                message::error(&error.to_string());
            }
            failed(&reason(error, word));
        }
        AbortCause::ShellFailed { .. } => {
            message::error(&cause.to_string());
            failed(&"execution of meta-command failed");
        }
        AbortCause::Refusal(Refusal::Copy) => message::error(&Refusal::Copy.to_string()),
        AbortCause::Refusal(
            refusal @ (Refusal::PipelineOpenAtEnd | Refusal::TransactionOpenAtEnd),
        ) => message::error(&format!("client {client} aborted: {refusal}")),
        other => failed(other),
    }
}

/// What to do if the statement is missing or another has its name.
const POOLER: &str = "A pooler in transaction mode gives a client several connections, and the statement was prepared \
     on another. Use another protocol (-M simple or extended), or a pooler that keeps the connections' prepared \
     statements apart, such as PgBouncer with max_prepared_statements.";

/// Whether a client does not have the connection on which it prepared the statement.
fn is_on_another_connection(error: &ServerMessage, place: &ScriptLocation) -> bool {
    // Only a prepared statement is not sent.
    let is_prepared = place.statement.is_some() && place.sent.is_none();
    is_prepared && matches!(&*error.sqlstate, "26000" | "42P05")
}

/// pgbench's description of a failed backslash command.
fn reason(error: &EvalError, word: &str) -> &'static str {
    if matches!(word, "setshell" | "shell" | "sleep") {
        "execution of meta-command failed"
    } else {
        error.abort_reason()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::Compat;

    /// The first line of an aggregated log of one transaction that failed with an error that is not retried.
    fn logged(options: &str) -> Vec<u64> {
        let words = format!("-n -l -T 9 --aggregate-interval=1 {options}");
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let settings = Settings::read(&words, Compat::V18).expect("the options are valid");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("log");
        let file = Arc::new(File::create(&path).expect("a file"));
        let mut log = TransactionLog::new(file, Rng::from_seed(1));
        let failed = Transaction {
            client: 0,
            ended_before: 0,
            script: 0,
            outcome: TransactionOutcome::Failed(FailureKind::Other),
            scheduled_ns: 1,
            begin_ns: 1,
            end_ns: 2,
            tries: 1,
        };
        log.transaction(&failed, &settings, 1).expect("it is kept");
        log.close_intervals(1_000_000, 1, &settings)
            .and_then(|()| log.file.flush())
            .expect("it can be written");
        let text = std::fs::read_to_string(path).expect("the log");
        let fields = text.split_whitespace();
        fields.map(|it| it.parse().expect("a number")).collect()
    }

    /// Regression: the last field of pgbench 19 was missing.
    #[test]
    fn aggregated_logs_have_other_failures_with_continue_on_error() {
        assert_eq!(logged(""), [0; 15]);
        assert_eq!(logged("--continue-on-error"), [0; 16]);
        let detailed = logged("--continue-on-error --failures-detailed");
        assert_eq!((detailed.len(), detailed.last()), (16, Some(&1)));
    }

    /// Regression: the error did not say that a pooler may be the reason.
    #[test]
    fn a_statement_that_was_prepared_on_another_connection_points_to_a_pooler() {
        let place = |sent: Option<&str>| ScriptLocation {
            client: 0,
            script: "s".to_owned(),
            script_index: 0,
            command: 0,
            query: 0,
            word: "SQL".to_owned(),
            line: 1,
            text: "select 1;".to_owned(),
            sent: sent.map(str::to_owned),
            statement: Some("select 1".to_owned()),
        };
        let error = |sqlstate: &str| ServerMessage {
            sqlstate: sqlstate.to_owned(),
            ..ServerMessage::default()
        };
        for (sqlstate, sent, expected) in [
            ("26000", None, true),
            ("42P05", None, true),
            ("42P01", None, false),
            ("26000", Some("execute it"), false),
        ] {
            let is_found = is_on_another_connection(&error(sqlstate), &place(sent));
            assert_eq!(is_found, expected, "{sqlstate} {sent:?}");
        }
    }
}
