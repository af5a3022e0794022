//! Saves the trials of a run as they end.

use std::cell::RefCell;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pgassay_lab::system_env::unix_us;
use pgassay_lab::{EventSink, LabEvent};
use pgassay_record::run::Run;
use pgassay_store::{RunWriter, StoreError};

use crate::exit::without_os_error;
use crate::output::print_line_stderr;
use crate::progress::ProgressDisplay;

/// Shows progress, and saves each trial and what it gathers.
pub struct SavingEvents<'a> {
    progress: &'a ProgressDisplay,
    state: RefCell<SavingState>,
}

struct SavingState {
    writer: RunWriter,
    /// Whether this process continues the run of another.
    is_resumed: bool,
    has_failed: bool,
}

impl<'a> SavingEvents<'a> {
    /// Saves the trials of a new run.
    pub fn new(progress: &'a ProgressDisplay, writer: RunWriter) -> Self {
        Self::of(progress, writer, false)
    }

    /// Saves the trials of a run that is continued.
    pub fn resumed(progress: &'a ProgressDisplay, writer: RunWriter) -> Self {
        Self::of(progress, writer, true)
    }

    fn of(progress: &'a ProgressDisplay, writer: RunWriter, is_resumed: bool) -> Self {
        Self {
            progress,
            state: RefCell::new(SavingState {
                writer,
                is_resumed,
                has_failed: false,
            }),
        }
    }

    /// The writer, after the last trial.
    pub fn into_writer(self) -> RunWriter {
        self.state.into_inner().writer
    }
}

impl EventSink for SavingEvents<'_> {
    fn event(&self, event: &LabEvent<'_>) {
        self.progress.event(event);
        let mut state = self.state.borrow_mut();
        let is_resumed = state.is_resumed;
        let writer = &mut state.writer;
        let saved = match event {
            LabEvent::TrialEnded(trial) => writer.append(trial),
            LabEvent::Detail(detail) => writer.append_detail(detail),
            LabEvent::ServersStarted(servers) if is_resumed => writer
                .resumed(unix_us())
                .and_then(|()| writer.servers_started(servers)),
            LabEvent::ServersStarted(servers) => writer.servers_started(servers),
            // Once per round and not per trial, because a round in flight is repeated anyway, and the
            // disk may be the one that is measured.
            LabEvent::RoundBegins { .. } => writer.sync(),
            _ => Ok(()),
        };
        if let Err(error) = saved
            && !std::mem::replace(&mut state.has_failed, true)
        {
            // The run goes on: its trials are in memory, and there may be space again at its end.
            let sentence = format!("cannot save trials as they end: {error}");
            self.progress.note(&without_os_error(&sentence));
        }
    }
}

/// Saves the result and its files, and returns the directory. A file that cannot be written is only reported.
///
/// # Errors
/// If the result cannot be saved; the error names the directory that has the trials.
pub fn finish(writer: RunWriter, run: &Run, files: &[(String, Vec<u8>)]) -> Result<PathBuf> {
    match writer.finish(run, files) {
        Ok(directory) => Ok(directory),
        Err(error @ StoreError::FilesMissing { .. }) => {
            print_line_stderr(&format!("pgassay: {error}"));
            let StoreError::FilesMissing { directory, .. } = error else {
                unreachable!("matched above");
            };
            Ok(directory)
        }
        Err(error) => Err(error).context("cannot save the result"),
    }
}
