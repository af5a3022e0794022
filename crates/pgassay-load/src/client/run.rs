//! The state of a client apart from its session: stage, variables and progress.

use pgassay_script::{
    Capture, CommandKind, Expr, QueryProtocol, Refusal, Rng, ScriptCommand, ScriptValue, Shell,
    SqlCommand, Variables, debug_line, eval,
};
use pgassay_wire::conninfo::Attempts;
use pgassay_wire::{Event, ServerMessage};

use super::{Abort, ClientStage, TOKEN_PREPARE, TOKEN_ROLLBACK};
use crate::capture::Captured;
use crate::client_options::{Transaction, TransactionOutcome};
use crate::command_times::CommandTimes;
use crate::config::DebugSink;
use crate::error::{AbortCause, DUPLICATE_STATEMENT, ScriptLocation};
use crate::program::Program;

/// A client's progress in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunProgress {
    Running,
    /// The client's own last transaction has ended. It keeps running transactions to maintain the
    /// load until the other clients' last transactions end too.
    PastEnd,
    /// The client has finished.
    Finished,
}

/// Whether a statement is prepared on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preparation {
    Missing,
    /// The server has not confirmed it yet. It may skip it, after an error in the same pipeline.
    Requested,
    Done,
}

/// The state of a client without its session: handling an event changes this state while the event
/// borrows the session.
pub(crate) struct ClientRun {
    /// The client, counted from 0 over all threads.
    pub id: u32,
    pub stage: ClientStage,
    pub script: usize,
    /// When the current transaction began.
    pub begin_ns: u64,
    /// When it was due; without pacing, when it began.
    pub scheduled_ns: u64,
    /// When the client started work on it: when the transaction began or, with a connection for
    /// each transaction, when connecting began.
    pub claimed_ns: u64,
    /// Tries of the current transaction.
    pub tries: u32,
    /// The command times, if commands are timed.
    pub times: Option<Box<CommandTimes>>,
    /// Start of the current interval for time accounting.
    pub since_ns: u64,
    /// When the outstanding request was sent.
    pub requested_ns: u64,
    /// When the connection for the current transaction was established, and when the server became
    /// ready. The latter is reset when the first reply arrives.
    pub connected_ns: u64,
    pub first_query_since_ns: Option<u64>,
    pub progress: RunProgress,
    /// Transactions that ended in this run, whatever their outcome.
    pub ended: u64,
    /// The endpoint of its connection, counted from 0.
    pub endpoint: usize,
    /// The state of the connection attempts, with a connection for each transaction.
    pub attempts: Option<Box<Attempts>>,
    /// The server's last message before it closed the connection, such as a shutdown notice.
    pub last_words: Option<Box<ServerMessage>>,
    pub(super) command: usize,
    /// Whether the current command was reached by a jump from a false condition.
    pub(super) jumped: bool,
    pub(super) in_pipeline: bool,
    pub(super) variables: Variables,
    pub(super) rng: Rng,
    /// The state of `rng` when the transaction began.
    pub(super) begin_rng: Rng,
    /// Completed queries of the current command.
    pub(super) query: u32,
    /// Which of the program's statements are prepared on this connection.
    pub(super) prepared: Vec<Preparation>,
    pub(super) captured: Captured,
    pub(super) failure: Option<TransactionFailure>,
}

/// An error that ends the transaction.
pub(super) struct TransactionFailure {
    /// The command that failed.
    pub(super) command: usize,
    pub(super) query: u32,
    pub(super) cause: AbortCause,
}

impl ClientRun {
    pub fn new(id: u32, program: &Program, variables: Variables, rng: Rng) -> Self {
        Self {
            id,
            stage: ClientStage::Idle,
            script: 0,
            begin_ns: 0,
            scheduled_ns: 0,
            claimed_ns: 0,
            tries: 1,
            times: None,
            since_ns: 0,
            requested_ns: 0,
            connected_ns: 0,
            first_query_since_ns: None,
            progress: RunProgress::Running,
            ended: 0,
            endpoint: 0,
            attempts: None,
            last_words: None,
            command: 0,
            jumped: false,
            in_pipeline: false,
            variables,
            rng,
            begin_rng: rng,
            query: 0,
            prepared: vec![Preparation::Missing; program.statements.len()],
            captured: Captured::default(),
            failure: None,
        }
    }

    /// Returns the transaction that the client is about to begin, as one that is skipped now.
    pub fn skipped_transaction(&self, now_ns: u64) -> Transaction {
        Transaction {
            client: self.id,
            ended_before: self.ended,
            script: self.script,
            outcome: TransactionOutcome::Skipped,
            scheduled_ns: self.scheduled_ns,
            begin_ns: now_ns,
            end_ns: now_ns,
            tries: 1,
        }
    }

    /// Describes what the client is doing, for messages such as "connection lost …".
    pub fn describe(&self, program: &Program) -> String {
        match self.stage {
            ClientStage::Idle | ClientStage::Postponed | ClientStage::Throttled { .. } => {
                "between transactions".into()
            }
            ClientStage::Connecting => "while signing in".into(),
            ClientStage::Aborted => "after it was aborted".into(),
            ClientStage::RollingBack => "in the ROLLBACK of a failed transaction".into(),
            ClientStage::Reply | ClientStage::Asleep { .. } => {
                let place = self.script_location(program, self.command, 0);
                format!(
                    "in command {} ({}) of script \"{}\", line {}: {}",
                    place.command, place.word, place.script, place.line, place.text
                )
            }
        }
    }

    /// Sets a variable as if it had been set before the run.
    #[cfg(test)]
    pub fn set_variable(&mut self, slot: pgassay_script::SlotId, value: ScriptValue) {
        self.variables.set(slot, value);
    }

    /// Returns the position in the script if the client is waiting for a reply.
    pub fn current_location(&self, program: &Program) -> Option<Box<ScriptLocation>> {
        (self.stage == ClientStage::Reply)
            .then(|| Box::new(self.script_location(program, self.command, self.query)))
    }

    pub(super) fn script_location(
        &self,
        program: &Program,
        command: usize,
        query: u32,
    ) -> ScriptLocation {
        let script = &program.parts[self.script].script;
        let found = script.commands().get(command);
        let (mut sent, mut statement) = (None, None);
        // Only a simple query has several. In a pipeline, those before it are of other commands.
        let query = match program.protocol {
            QueryProtocol::Simple => query,
            QueryProtocol::Extended | QueryProtocol::Prepared => 0,
        };
        if let Some(CommandKind::Sql(sql)) = found.map(|command| &command.kind) {
            let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
            statement = text(sql.statement());
            match program.protocol {
                QueryProtocol::Simple => {
                    let mut bytes = Vec::new();
                    sql.render(&self.variables, &mut bytes);
                    sent = text(&bytes);
                }
                QueryProtocol::Extended => sent.clone_from(&statement),
                QueryProtocol::Prepared => {}
            }
        }
        ScriptLocation {
            client: self.id,
            script: script.name().into(),
            script_index: self.script,
            command,
            query,
            word: found.map_or("end", ScriptCommand::word).into(),
            line: found.map_or(0, |command| command.line),
            text: found
                .map(|command| command.first_line.clone())
                .unwrap_or_default(),
            sent,
            statement,
        }
    }

    pub(super) fn abort(&self, program: &Program, cause: impl Into<AbortCause>) -> Abort {
        Box::new((
            self.script_location(program, self.command, self.query),
            cause.into(),
        ))
    }

    pub(super) fn capture<'p>(&self, program: &'p Program) -> Option<&'p Capture> {
        match &program.parts[self.script]
            .script
            .commands()
            .get(self.command)?
            .kind
        {
            CommandKind::Sql(sql) => Some(sql.capture()),
            _ => None,
        }
    }

    /// Handles an event.
    #[inline]
    pub(super) fn handle_event(&mut self, event: Event<'_>, program: &Program) {
        match event {
            Event::Complete { token, .. } => {
                if let Some(times) = &mut self.times {
                    times.complete(self.script, token as usize);
                }
                if let Some(capture @ (Capture::Gset { .. } | Capture::Aset { .. })) =
                    self.capture(program)
                    && let Err(cause) = self.captured.complete(capture, &mut self.variables)
                {
                    self.fail(self.command, cause);
                }
                self.query += 1;
            }
            Event::Ready { .. } => {}
            other => self.handle_rare_event(other, program),
        }
    }

    #[cold]
    pub(super) fn handle_rare_event(&mut self, event: Event<'_>, program: &Program) {
        let noted = match event {
            Event::DataRow { row, .. } => self.captured.row(&row),
            Event::Described { columns, .. } => match self.capture(program) {
                Some(capture) => self.captured.describe(capture, &program.names, &columns),
                None => Ok(()),
            },
            Event::Copy { token, .. } => {
                self.fail(token as usize, Refusal::Copy.into());
                Ok(())
            }
            Event::Error { error, .. } if error.is_fatal() => {
                self.last_words = Some(error);
                Ok(())
            }
            Event::Error {
                token: Some(token),
                error,
                ..
            } if token != TOKEN_ROLLBACK && token & TOKEN_PREPARE != 0 => {
                let command = (token & !TOKEN_PREPARE) as usize;
                let cause = self.unprepared(command, error, program);
                self.fail(command, cause);
                Ok(())
            }
            Event::Error { token, error, .. } => {
                let command = match token {
                    None | Some(TOKEN_ROLLBACK) => self.command,
                    Some(command) => command as usize,
                };
                self.fail(command, AbortCause::Sql(error));
                Ok(())
            }
            Event::Prepared { token } => {
                let commands = &program.parts[self.script].statements;
                if let Some(Some(index)) = commands.get((token & !TOKEN_PREPARE) as usize) {
                    self.prepared[*index] = Preparation::Done;
                }
                Ok(())
            }
            // The server announces an immediate shutdown or a crash with only a warning.
            Event::Notice(notice) => {
                if let (Some(tell), Ok(notice)) = (&program.notices, notice.read()) {
                    tell(&notice);
                }
                if notice
                    .sqlstate()
                    .is_some_and(|state| state.starts_with(b"57P"))
                {
                    self.last_words = notice.read().ok().map(Box::new);
                }
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(cause) = noted {
            self.fail(self.command, cause);
        }
    }

    /// The cause of a failure to prepare a command's statement just before its execution.
    fn unprepared(
        &self,
        command: usize,
        error: Box<ServerMessage>,
        program: &Program,
    ) -> AbortCause {
        let statements = &program.parts[self.script].statements;
        match statements.get(command).copied().flatten() {
            Some(index) if error.sqlstate != DUPLICATE_STATEMENT => AbortCause::Unprepared {
                name: String::from_utf8_lossy(&program.statements[index].name).into_owned(),
                error,
            },
            _ => AbortCause::Sql(error),
        }
    }

    /// Keeps the first error of a transaction; later errors are its consequences.
    pub(super) fn fail(&mut self, command: usize, cause: AbortCause) {
        let query = self.query;
        self.failure.get_or_insert(TransactionFailure {
            command,
            query,
            cause,
        });
    }

    /// Forgets the statements that the failed transaction was to prepare, but has not.
    pub(super) fn forget_requested_statements(&mut self) {
        for preparation in &mut self.prepared {
            if *preparation == Preparation::Requested {
                *preparation = Preparation::Missing;
            }
        }
    }

    /// Returns the error that failed the transaction, and the command.
    pub fn take_failure(&mut self) -> Option<(usize, Box<ServerMessage>)> {
        let failure = self.failure.take()?;
        match failure.cause {
            AbortCause::Sql(error) | AbortCause::Unprepared { error, .. } => {
                Some((failure.command, error))
            }
            _ => None,
        }
    }

    /// Returns the error for a script that ends inside a transaction block.
    pub fn open_at_end(&self, program: &Program) -> Abort {
        self.abort(program, Refusal::TransactionOpenAtEnd)
    }

    /// Resets the connection state for a new connection, which has no prepared statements.
    pub fn forget_connection(&mut self) {
        self.prepared.fill(Preparation::Missing);
        self.in_pipeline = false;
        self.last_words = None;
    }

    pub(super) fn evaluate(
        &mut self,
        expr: &Expr,
        program: &Program,
    ) -> Result<ScriptValue, Abort> {
        let (script, command) = (self.script, self.command);
        let mut debug = |value| {
            if let Some(sink) = &program.debug {
                sink(&debug_line(script, command + 1, value));
            }
        };
        eval(expr, &mut self.variables, &mut self.rng, &mut debug)
            .map_err(|error| self.abort(program, error))
    }
}

impl ClientRun {
    /// Runs a shell command.
    pub(super) fn shell(
        &self,
        shell: &Shell,
        captures: bool,
        program: &Program,
    ) -> Result<Vec<u8>, Abort> {
        let Some(run) = &program.shell else {
            return Err(self.abort(program, AbortCause::Shell));
        };
        let line = shell
            .render(&self.variables)
            .map_err(|error| self.abort(program, error))?;
        run(&line, captures).map_err(|reason| {
            let program_name = shell.program().to_owned();
            self.abort(
                program,
                AbortCause::ShellFailed {
                    program: program_name,
                    reason,
                },
            )
        })
    }

    /// Traces a request, as pgbench's `--debug` does.
    #[cold]
    pub(super) fn trace_sql(&self, sql: &SqlCommand, program: &Program, trace: &DebugSink) {
        let mut text = Vec::new();
        match program.protocol {
            QueryProtocol::Simple => sql.render(&self.variables, &mut text),
            QueryProtocol::Extended => text.extend_from_slice(sql.statement()),
            QueryProtocol::Prepared => {
                if let Some(index) = program.parts[self.script].statements[self.command] {
                    text.extend_from_slice(&program.statements[index].name);
                }
            }
        }
        trace(&format!(
            "client {} sending {}",
            self.id,
            String::from_utf8_lossy(&text)
        ));
    }

    pub(super) fn begin_capture(
        &mut self,
        capture: &Capture,
        program: &Program,
    ) -> Result<(), Abort> {
        if self.in_pipeline {
            let refusal = match capture {
                Capture::Gset { .. } => Refusal::GsetInPipeline,
                _ => Refusal::AsetInPipeline,
            };
            return Err(self.abort(program, refusal));
        }
        self.captured.begin();
        Ok(())
    }
}
