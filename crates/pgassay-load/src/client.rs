//! A client: a session and its place in a script.
//!
//! The states of a client, and what each waits for:
//! - [`Stage::Idle`] is between transactions; nothing is asked of the server.
//! - [`Stage::Reply`] means that a statement or a pipeline was sent; the last of its answers is awaited.
//! - [`Stage::Asleep`] is `\sleep`.
//! - [`Stage::RollingBack`] means that a transaction failed in a way that could be retried, and the answer to
//!   its ROLLBACK is awaited. (Retries, which restore the random state, will start from here.)
//!
//! Nothing here reads a clock or a socket: [`Client::advance`] says what is to be done, and the
//! worker does it. Source: `advanceConnectionState` in pgbench.c; 15 to 18 differ in
//! `\syncpipeline`.

use pgassay_script::{
    Capture, Command, CommandKind, Expr, Protocol, Refusal, Rng, SqlCommand, Value, Variables,
    debug_line, eval,
};
use pgassay_wire::{Event, Execution, ServerError, Session, TransactionStatus, WireError};

use crate::capture::Captured;
use crate::error::{AbortCause, Place};
use crate::program::Program;

/// The token of ROLLBACK, which no command made; a command's token is its index.
const TOKEN_ROLLBACK: u32 = u32::MAX;

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Reply,
    Asleep { due_ns: u64 },
    RollingBack,
}

/// What is to be done for a client.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send the output and wait for answers.
    Send,
    /// Sleep so long.
    Sleep { duration_us: u64 },
    /// The transaction ended.
    End { failed: bool },
}

/// A client.
pub(crate) struct Client {
    pub session: Session,
    pub run: Run,
}

/// All of a client but its session, so that events, which borrow that, can change it.
pub(crate) struct Run {
    /// The client, counted from 0 over all threads.
    pub id: u32,
    pub stage: Stage,
    pub script: usize,
    /// When the current transaction began.
    pub begin_ns: u64,
    /// Since when the client does what it does, for booking.
    pub since_ns: u64,
    /// Since when it waits for an answer.
    pub asked_ns: u64,
    /// Transactions ended in this run, whatever their outcome.
    pub ended: u64,
    /// What the server said of its end, such as that it shuts down.
    pub last_words: Option<Box<ServerError>>,
    command: usize,
    /// Whether the current command was reached by a jump from a false condition.
    jumped: bool,
    in_pipeline: bool,
    variables: Variables,
    rng: Rng,
    /// Which of the program's statements this connection has prepared.
    prepared: Vec<bool>,
    captured: Captured,
    failure: Option<Failure>,
}

/// An error that ends the transaction.
struct Failure {
    /// The command it belongs to.
    command: usize,
    cause: AbortCause,
}

/// A client that cannot go on: the command at fault and why.
pub(crate) type Abort = Box<(Place, AbortCause)>;

impl Run {
    pub fn new(id: u32, program: &Program, variables: Variables, rng: Rng) -> Self {
        Self {
            id,
            stage: Stage::Idle,
            script: 0,
            begin_ns: 0,
            since_ns: 0,
            asked_ns: 0,
            ended: 0,
            last_words: None,
            command: 0,
            jumped: false,
            in_pipeline: false,
            variables,
            rng,
            prepared: vec![false; program.statements.len()],
            captured: Captured::default(),
            failure: None,
        }
    }

    /// What the client is doing, for messages.
    pub fn describe(&self, program: &Program) -> String {
        match self.stage {
            Stage::Idle => "between transactions".into(),
            Stage::RollingBack => "in the ROLLBACK of a failed transaction".into(),
            Stage::Reply | Stage::Asleep { .. } => {
                let place = self.place(program, self.command);
                format!(
                    "in command {} ({}) of script \"{}\", line {}: {}",
                    place.command, place.word, place.script, place.line, place.text
                )
            }
        }
    }

    fn place(&self, program: &Program, command: usize) -> Place {
        let script = &program.parts[self.script].script;
        let found = script.commands().get(command);
        Place {
            client: self.id,
            script: script.name().into(),
            script_index: self.script,
            command,
            word: found.map_or("end", Command::word).into(),
            line: found.map_or(0, |command| command.line),
            text: found
                .map(|command| command.first_line.clone())
                .unwrap_or_default(),
        }
    }

    fn abort(&self, program: &Program, cause: impl Into<AbortCause>) -> Abort {
        Box::new((self.place(program, self.command), cause.into()))
    }

    fn capture<'p>(&self, program: &'p Program) -> Option<&'p Capture> {
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

    /// Takes note of an event.
    #[inline]
    fn note(&mut self, event: Event<'_>, program: &Program) {
        match event {
            // A statement's own latency inside a pipeline will be taken here.
            Event::Complete { .. } => {
                if let Some(capture @ (Capture::Gset { .. } | Capture::Aset { .. })) =
                    self.capture(program)
                {
                    self.captured.complete(capture, &mut self.variables);
                }
            }
            Event::Ready { .. } => {}
            other => self.note_rare(other, program),
        }
    }

    #[cold]
    fn note_rare(&mut self, event: Event<'_>, program: &Program) {
        let noted = match event {
            Event::Row { row, .. } => self.captured.row(&row),
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
            Event::Error { token, error, .. } => {
                let command = match token {
                    None | Some(TOKEN_ROLLBACK) => self.command,
                    Some(command) => command as usize,
                };
                self.fail(command, AbortCause::Sql(error));
                Ok(())
            }
            // An immediate shutdown or a crash is announced by a mere warning.
            Event::Notice(notice) => {
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

    /// Keeps the first error of a transaction; later ones follow from it.
    fn fail(&mut self, command: usize, cause: AbortCause) {
        self.failure.get_or_insert(Failure { command, cause });
    }

    fn evaluate(&mut self, expr: &Expr, program: &Program) -> Result<Value, Abort> {
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

impl Client {
    /// Asks the server to prepare every statement. Each has its own Sync, so that one that cannot
    /// be prepared yet (its table is made by an earlier command) leaves the others alone; it is
    /// prepared when it is first executed. The tokens are the statements' indices.
    pub fn prepare(&mut self, program: &Program) -> Result<(), WireError> {
        for (index, statement) in program.statements.iter().enumerate() {
            self.session
                .parse(&statement.name, &statement.sql, index as u32)?;
            self.session.sync(index as u32);
        }
        self.run.prepared.fill(true);
        Ok(())
    }

    /// Takes note that a statement could not be prepared yet.
    pub fn not_prepared(&mut self, statement: u32) {
        self.run.prepared[statement as usize] = false;
    }

    /// Begins a transaction.
    #[inline]
    pub fn begin(&mut self, script: usize, now_ns: u64) {
        self.run.script = script;
        self.run.command = 0;
        self.run.jumped = false;
        self.run.begin_ns = now_ns;
        self.run.since_ns = now_ns;
    }

    /// Uses bytes that were read; `true` once all that was asked is answered.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], program: &Program) -> Result<bool, WireError> {
        let mut input = bytes;
        let mut is_ready = false;
        while let Some(event) = self.session.next(&mut input)? {
            is_ready |= matches!(event, Event::Ready { .. });
            self.run.note(event, program);
        }
        Ok(is_ready && self.session.pending() == 0)
    }

    /// Whether an error was noted that no retry can mend.
    #[inline]
    pub fn abort(&mut self, program: &Program) -> Option<Abort> {
        if self
            .run
            .failure
            .as_ref()
            .is_none_or(|failure| is_retriable(&failure.cause))
        {
            return None;
        }
        let failure = self.run.failure.take()?;
        Some(Box::new((
            self.run.place(program, failure.command),
            failure.cause,
        )))
    }

    /// Goes on after everything asked is answered.
    #[inline]
    pub fn resume(&mut self, program: &Program) -> Result<Step, Abort> {
        if self.run.stage == Stage::RollingBack || self.run.failure.is_some() {
            return self.fail_transaction(program);
        }
        if let Some(capture @ (Capture::Gset { .. } | Capture::Aset { .. })) =
            self.run.capture(program)
        {
            self.run
                .captured
                .end(capture, &mut self.run.variables)
                .map_err(|cause| self.run.abort(program, cause))?;
        }
        self.go_on(program)
    }

    /// Ends a transaction that could be retried, after rolling back what is open of it.
    #[cold]
    fn fail_transaction(&mut self, program: &Program) -> Result<Step, Abort> {
        if self.session.status() == TransactionStatus::Idle {
            self.run.failure = None;
            return Ok(Step::End { failed: true });
        }
        if self.run.stage == Stage::RollingBack {
            return Err(self.run.abort(program, Refusal::TransactionOpenAtEnd));
        }
        self.run.in_pipeline = false;
        self.session
            .query("ROLLBACK", TOKEN_ROLLBACK, false)
            .map_err(|error| self.run.abort(program, error))?;
        self.run.stage = Stage::RollingBack;
        Ok(Step::Send)
    }

    /// Goes on after the current command.
    #[inline]
    pub fn go_on(&mut self, program: &Program) -> Result<Step, Abort> {
        self.run.command += 1;
        self.run.jumped = false;
        self.advance(program)
    }

    /// Executes commands up to one that has to wait.
    #[inline]
    pub fn advance(&mut self, program: &Program) -> Result<Step, Abort> {
        let commands = program.parts[self.run.script].script.commands();
        while let Some(command) = commands.get(self.run.command) {
            match &command.kind {
                CommandKind::Set { slot, expr } => {
                    let value = self.run.evaluate(expr, program)?;
                    self.run.variables.set(*slot, value);
                }
                CommandKind::Sql(sql) => {
                    self.ask(sql, program)?;
                    if !self.run.in_pipeline {
                        return Ok(Step::Send);
                    }
                }
                other => {
                    if let Some(step) = self.control(other, program)? {
                        return Ok(step);
                    }
                    continue;
                }
            }
            self.run.command += 1;
            self.run.jumped = false;
        }
        if self.run.in_pipeline {
            return Err(self.run.abort(program, Refusal::PipelineOpenAtEnd));
        }
        if self.session.status() != TransactionStatus::Idle {
            return Err(self.run.abort(program, Refusal::TransactionOpenAtEnd));
        }
        Ok(Step::End { failed: false })
    }

    /// Executes one of the rarer commands and moves on from it, if it does not have to wait.
    fn control(&mut self, kind: &CommandKind, program: &Program) -> Result<Option<Step>, Abort> {
        let mut next = (self.run.command + 1, false);
        match kind {
            CommandKind::Elif { end, .. } if !self.run.jumped => next = (*end, false),
            CommandKind::If {
                condition,
                otherwise,
            }
            | CommandKind::Elif {
                condition,
                otherwise,
                ..
            } => {
                if !self.run.evaluate(condition, program)?.is_true() {
                    next = (*otherwise, true);
                }
            }
            CommandKind::Else { end } => next = (*end, false),
            CommandKind::Sleep(sleep) => {
                let duration_us = sleep
                    .duration_us(&self.run.variables)
                    .map_err(|error| self.run.abort(program, error))?;
                return Ok(Some(Step::Sleep { duration_us }));
            }
            CommandKind::StartPipeline => {
                if let Some(refusal) = Refusal::of_start(program.protocol, self.run.in_pipeline) {
                    return Err(self.run.abort(program, refusal));
                }
                self.run.in_pipeline = true;
            }
            CommandKind::SyncPipeline | CommandKind::EndPipeline => {
                if !self.run.in_pipeline {
                    return Err(self.run.abort(program, Refusal::NotInPipeline));
                }
                self.session.sync(self.run.command as u32);
                if matches!(kind, CommandKind::EndPipeline) {
                    self.run.in_pipeline = false;
                    return Ok(Some(Step::Send));
                }
            }
            CommandKind::Shell(_) | CommandKind::SetShell { .. } => {
                return Err(self.run.abort(program, AbortCause::Shell));
            }
            CommandKind::Endif | CommandKind::Sql(_) | CommandKind::Set { .. } => {}
        }
        (self.run.command, self.run.jumped) = next;
        Ok(None)
    }

    /// Puts a statement's messages into the output, those that libpq sends for pgbench.
    #[inline]
    fn ask(&mut self, sql: &SqlCommand, program: &Program) -> Result<(), Abort> {
        let Self { session, run } = self;
        let rows = *sql.capture() != Capture::None;
        if rows {
            run.begin_capture(sql.capture(), program)?;
        }
        let token = run.command as u32;
        let variables = &run.variables;
        let slots = sql.parameters();
        let write = |index: usize, out: &mut Vec<u8>| variables.write_text(slots[index], out);
        let asked = match program.protocol {
            Protocol::Simple => session.query_with(|out| sql.render(variables, out), token, rows),
            Protocol::Extended => {
                let text = Execution::Text(sql.statement());
                session.execute_with(text, slots.len(), write, token, rows)
            }
            Protocol::Prepared => {
                let index = program.parts[run.script].statements[run.command]
                    .expect("in prepared mode every SQL command has a statement");
                let statement = &program.statements[index];
                let parsed = if run.prepared[index] {
                    Ok(())
                } else {
                    run.prepared[index] = true;
                    session.parse(&statement.name, &statement.sql, token)
                };
                parsed.and_then(|()| {
                    let name = Execution::Prepared(&statement.name);
                    session.execute_with(name, slots.len(), write, token, rows)
                })
            }
        };
        asked.map_err(|error| run.abort(program, error))?;
        if program.protocol != Protocol::Simple && !run.in_pipeline {
            session.sync(token);
        }
        Ok(())
    }
}

impl Run {
    fn begin_capture(&mut self, capture: &Capture, program: &Program) -> Result<(), Abort> {
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

/// Whether pgbench would try such a transaction again: a serialization failure or a deadlock.
fn is_retriable(cause: &AbortCause) -> bool {
    matches!(cause, AbortCause::Sql(error) if matches!(error.sqlstate.as_str(), "40001" | "40P01"))
}
