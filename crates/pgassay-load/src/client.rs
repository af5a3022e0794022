//! A client: a session and its position in a script.
//!
//! [`ClientStage`] is the client's state. Nothing here reads a clock or a socket: [`Client::advance`]
//! returns the next [`ClientStep`], and the worker performs it.
//!
//! Source: `advanceConnectionState` in pgbench.c. Versions 15 to 18 differ only in `\syncpipeline`.

mod run;

use pgassay_script::{Capture, CommandKind, QueryProtocol, Refusal, ScriptValue, SqlCommand};
use pgassay_wire::conninfo::{Address, AttemptFailure};
use pgassay_wire::{Event, Execution, Session, TransactionStatus, WireError};

use crate::client_options::FailureKind;
use crate::error::{AbortCause, LoadError, ScriptLocation};
use crate::prefetch::prefetch_at;
use crate::program::Program;
use run::Preparation;
pub(crate) use run::{ClientRun, RunProgress};

/// The token of ROLLBACK, which is not a script command. A command's token is its index.
const TOKEN_ROLLBACK: u32 = u32::MAX;
/// Flags the token of a Parse that is sent just before its statement is executed, outside a pipeline.
const TOKEN_PREPARE: u32 = 1 << 31;

/// How much of a request, and of a client's variables, is prefetched: more than most have.
const REQUEST_BYTES: usize = 128;
const VARIABLES_BYTES: usize = 256;

/// The state of a client, as `ConnectionStateEnum` in pgbench.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientStage {
    /// Between transactions: no request is outstanding. The client chooses a script next.
    Idle,
    /// The client waits for the start of its first transaction, which is spread over time.
    Postponed,
    /// A statement or a pipeline was sent. The client waits until the last reply is complete.
    Reply,
    /// The client waits until the end of `\sleep`.
    Asleep { due_ns: u64 },
    /// The transaction failed with an error that may be retried, and ROLLBACK was sent. The client
    /// waits for its reply. A retry restores the random state but not the variables, as in pgbench.
    RollingBack,
    /// Pacing (`--rate`): the client waits until its next transaction is due.
    Throttled { due_ns: u64 },
    /// With a connection for each transaction: the client is signing in.
    Connecting,
    /// The client was aborted. It has no connection and never continues.
    Aborted,
}

impl ClientStage {
    /// Whether the client waits for the replies of its transaction.
    pub fn waits_for_reply(self) -> bool {
        matches!(self, Self::Reply | Self::RollingBack)
    }
}

/// What the worker must do next for a client.
#[derive(Debug)]
pub(crate) enum ClientStep {
    /// Send the output and wait for the reply.
    Send,
    /// Sleep this long.
    Sleep { duration_us: u64 },
    /// The transaction succeeded.
    End,
    /// The transaction failed; [`ClientRun::take_failure`] returns the error. It may be retried.
    Failed,
}

/// A client's session and its state.
pub(crate) struct Client {
    pub session: Session,
    pub run: ClientRun,
}

/// An aborted client: the command that failed, and why.
pub(crate) type Abort = Box<(ScriptLocation, AbortCause)>;

impl Client {
    /// Prefetches what the client points to that its next reply and request use.
    #[inline]
    pub fn prefetch_buffers(&self) {
        let (output, pending) = self.session.buffers();
        prefetch_at(output, REQUEST_BYTES);
        prefetch_at(pending, 1);
        prefetch_at(self.run.variables.address(), VARIABLES_BYTES);
        prefetch_at(self.run.prepared.as_ptr().cast(), 1);
    }

    /// Prepares every statement. Each Parse has its own Sync, so that a statement that cannot be
    /// prepared yet (because an earlier command creates its table) does not affect the others; that
    /// statement is prepared before its first execution. The tokens are statement indices.
    pub fn prepare(&mut self, program: &Program) -> Result<(), WireError> {
        for (index, statement) in program.statements.iter().enumerate() {
            self.session
                .parse(&statement.name, &statement.sql, index as u32)?;
            self.session.sync(index as u32);
        }
        self.run.prepared.fill(Preparation::Done);
        Ok(())
    }

    /// Records that a statement could not be prepared yet.
    pub fn mark_unprepared(&mut self, statement: u32) {
        self.run.prepared[statement as usize] = Preparation::Missing;
    }

    /// Begins the first try of a transaction of the chosen script.
    #[inline]
    pub fn begin(&mut self, now_ns: u64, program: &Program) -> Result<ClientStep, Abort> {
        self.run.begin_ns = now_ns;
        self.run.since_ns = now_ns;
        self.run.tries = 1;
        self.run.begin_rng = self.run.rng;
        if let Some(times) = &mut self.run.times {
            times.begin_transaction(self.run.ended);
        }
        if let Some(trace) = &program.trace {
            let script = program.parts[self.run.script].script.name();
            trace(&format!(
                "client {} executing script \"{script}\"",
                self.run.id
            ));
        }
        self.start(program)
    }

    /// Begins another try of a failed transaction. It draws the same random numbers, but variables
    /// keep their values.
    pub fn retry(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        self.run.tries += 1;
        self.run.rng = self.run.begin_rng;
        self.start(program)
    }

    #[inline]
    fn start(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        self.run.stage = ClientStage::Idle;
        self.run.command = 0;
        self.run.jumped = false;
        self.advance(program)
    }

    /// Processes bytes received from `address` while signing in; returns `true` when the server is ready.
    pub fn receive_sign_in(
        &mut self,
        bytes: &[u8],
        address: &Address,
    ) -> Result<bool, (AttemptFailure, LoadError)> {
        let client = self.run.id;
        let mut input = bytes;
        let mut is_ready = false;
        loop {
            let event = self.session.next(&mut input).map_err(|error| {
                let failure = AttemptFailure::of_wire(&error);
                (failure, LoadError::Wire { client, error })
            })?;
            match event {
                // The session keeps the beginning of a message that is cut here.
                None => return Ok(is_ready),
                Some(Event::Ready { .. }) => is_ready = true,
                Some(Event::Error { error, .. }) => {
                    let failure = AttemptFailure::of_server(&error, &self.session);
                    let refused = LoadError::Refused {
                        client,
                        address: address.clone(),
                        error,
                    };
                    return Err((failure, refused));
                }
                Some(_) => {}
            }
        }
    }

    /// Processes received bytes; returns `true` when every outstanding request is answered.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], program: &Program) -> Result<bool, WireError> {
        if let Some(trace) = &program.trace {
            trace(&format!("client {} receiving", self.run.id));
        }
        let mut input = bytes;
        let mut is_ready = false;
        while let Some(event) = self.session.next(&mut input)? {
            is_ready |= matches!(event, Event::Ready { .. });
            self.run.handle_event(event, program);
        }
        Ok(is_ready && self.session.pending() == 0)
    }

    /// Returns the error that ends the client, if one occurred that a retry cannot fix.
    #[inline]
    pub fn abort(&mut self, program: &Program) -> Option<Abort> {
        if self
            .run
            .failure
            .as_ref()
            .is_none_or(|failure| is_client_kept_after(&failure.cause, program))
        {
            return None;
        }
        let failure = self.run.failure.take()?;
        Some(Box::new((
            self.run
                .script_location(program, failure.command, failure.query),
            failure.cause,
        )))
    }

    /// Continues after all replies are complete.
    #[inline]
    pub fn resume(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        if self.run.stage == ClientStage::RollingBack || self.run.failure.is_some() {
            return self.fail_transaction(program);
        }
        if let Some(capture @ (Capture::Gset { .. } | Capture::Aset { .. })) =
            self.run.capture(program)
        {
            let run = &mut self.run;
            if let Err(cause) = run.captured.end(capture, &mut run.variables) {
                // What is wrong is the result of the last query, not of one after it.
                run.query = run.query.saturating_sub(1);
                return Err(run.abort(program, cause));
            }
        }
        self.advance_to_next_command(program)
    }

    /// Ends a failed transaction, after a ROLLBACK if a transaction block is open.
    #[cold]
    fn fail_transaction(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        self.run.forget_requested_statements();
        if self.session.status() == TransactionStatus::Idle {
            return Ok(ClientStep::Failed);
        }
        if self.run.stage == ClientStage::RollingBack {
            return Err(self.run.abort(program, Refusal::TransactionOpenAtEnd));
        }
        self.run.in_pipeline = false;
        self.session
            .query("ROLLBACK", TOKEN_ROLLBACK, false)
            .map_err(|error| self.run.abort(program, error))?;
        self.run.stage = ClientStage::RollingBack;
        Ok(ClientStep::Send)
    }

    /// Continues after the current command.
    #[inline]
    pub fn advance_to_next_command(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        if let Some(times) = &mut self.run.times {
            times.end(self.run.script, self.run.command);
        }
        self.run.command += 1;
        self.run.jumped = false;
        self.advance(program)
    }

    /// Executes commands until one has to wait.
    #[inline]
    pub fn advance(&mut self, program: &Program) -> Result<ClientStep, Abort> {
        let commands = program.parts[self.run.script].script.commands();
        while let Some(command) = commands.get(self.run.command) {
            let at = self.run.command;
            if let Some(times) = &mut self.run.times {
                times.begin();
            }
            if let Some(trace) = &program.trace
                && !command.words.is_empty()
            {
                let (id, words) = (self.run.id, command.words.join(" "));
                trace(&format!("client {id} executing \\{words}"));
            }
            match &command.kind {
                CommandKind::Set { slot, expr } => {
                    let value = self.run.evaluate(expr, program)?;
                    self.run.variables.set(*slot, value);
                }
                CommandKind::Sql(sql) => {
                    self.send_statement(sql, program)?;
                    if !self.run.in_pipeline {
                        return Ok(ClientStep::Send);
                    }
                    self.run.command += 1;
                    self.run.jumped = false;
                    continue;
                }
                other => {
                    if let Some(step) = self.execute_meta_command(other, program)? {
                        return Ok(step);
                    }
                    if let Some(times) = &mut self.run.times {
                        times.end(self.run.script, at);
                    }
                    continue;
                }
            }
            if let Some(times) = &mut self.run.times {
                times.end(self.run.script, at);
            }
            self.run.command += 1;
            self.run.jumped = false;
        }
        if self.run.in_pipeline {
            return Err(self.run.abort(program, Refusal::PipelineOpenAtEnd));
        }
        Ok(ClientStep::End)
    }

    /// Whether a transaction block is open.
    #[inline]
    pub fn is_in_block(&self) -> bool {
        self.session.status() != TransactionStatus::Idle
    }

    /// Executes any command but SQL and `\set`. Returns a step if the client has to wait; otherwise
    /// it moves on to the next command.
    fn execute_meta_command(
        &mut self,
        kind: &CommandKind,
        program: &Program,
    ) -> Result<Option<ClientStep>, Abort> {
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
                return Ok(Some(ClientStep::Sleep { duration_us }));
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
                    return Ok(Some(ClientStep::Send));
                }
            }
            CommandKind::Shell(shell) => {
                self.run.shell(shell, false, program)?;
            }
            CommandKind::SetShell { slot, shell } => {
                let output = self.run.shell(shell, true, program)?;
                shell
                    .parse_output(&output)
                    .and_then(|int| {
                        let variables = &mut self.run.variables;
                        variables.assign("setshell", *slot, ScriptValue::Int(int))
                    })
                    .map_err(|error| self.run.abort(program, error))?;
            }
            CommandKind::Endif | CommandKind::Sql(_) | CommandKind::Set { .. } => {}
        }
        (self.run.command, self.run.jumped) = next;
        Ok(None)
    }

    /// Appends a statement's messages to the output: the same messages that libpq sends for
    /// pgbench.
    #[inline]
    fn send_statement(&mut self, sql: &SqlCommand, program: &Program) -> Result<(), Abort> {
        let Self { session, run } = self;
        let rows = *sql.capture() != Capture::None;
        if rows {
            run.begin_capture(sql.capture(), program)?;
        }
        let token = run.command as u32;
        run.query = 0;
        let flush = match &mut run.times {
            Some(times) if run.in_pipeline => times.record_pipelined_statement(run.command),
            _ => false,
        };
        let variables = &run.variables;
        let slots = sql.parameters();
        let write = |index: usize, out: &mut Vec<u8>| variables.write_text(slots[index], out);
        let asked = match program.protocol {
            QueryProtocol::Simple => {
                session.query_with(|out| sql.render(variables, out), token, rows)
            }
            QueryProtocol::Extended => {
                let text = Execution::Text(sql.statement());
                session.execute_with(text, slots.len(), write, token, rows)
            }
            QueryProtocol::Prepared => {
                let index = program.parts[run.script].statements[run.command]
                    .expect("in prepared mode every SQL command has a statement");
                let statement = &program.statements[index];
                let parsed = if run.prepared[index] == Preparation::Missing {
                    run.prepared[index] = Preparation::Requested;
                    // Without a Sync in between, unlike pgbench: if the server refuses the Parse, it must not execute
                    // the statement that already has this name.
                    let prepare = if run.in_pipeline {
                        token
                    } else {
                        token | TOKEN_PREPARE
                    };
                    session.parse(&statement.name, &statement.sql, prepare)
                } else {
                    Ok(())
                };
                parsed.and_then(|()| {
                    let name = Execution::Prepared(&statement.name);
                    session.execute_with(name, slots.len(), write, token, rows)
                })
            }
        };
        asked.map_err(|error| run.abort(program, error))?;
        if program.protocol != QueryProtocol::Simple && !run.in_pipeline {
            session.sync(token);
        }
        if flush {
            session.flush();
        }
        if let Some(trace) = &program.trace {
            run.trace_sql(sql, program, trace);
        }
        Ok(())
    }
}

/// Whether the client survives this error: a serialization failure, a deadlock, or, with
/// `continues_on_error`, any SQL error.
fn is_client_kept_after(cause: &AbortCause, program: &Program) -> bool {
    match cause {
        AbortCause::Sql(error) | AbortCause::Unprepared { error, .. } => {
            program.continues_on_error || FailureKind::of(error).is_retriable()
        }
        _ => false,
    }
}
