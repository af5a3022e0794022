//! What every step of a run needs: its study, its options, its events, and whether to stop.

use anyhow::Result;
use pgassay_model::study::StudySource;

use crate::event::{EventSink, LabEvent};
use crate::interrupt::Interrupt;
use crate::options::ServerOptions;
use crate::study::LoadedStudy;

/// What every step of a run needs.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    /// The study, to locate errors and to look up secrets of connection strings.
    pub study: &'a LoadedStudy,
    /// Options for the servers.
    pub options: &'a ServerOptions,
    /// Whether the user requested a stop.
    pub interrupt: &'a Interrupt,
    /// Receives what happens.
    pub events: &'a dyn EventSink,
}

impl<'a> RunContext<'a> {
    /// The study's text.
    pub fn source(&self) -> &'a StudySource {
        &self.study.source
    }

    /// Returns an error if a stop was requested.
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()
    }

    /// Announces a step of unknown length.
    pub fn stage(&self, message: &str) {
        self.events.event(&LabEvent::Stage(message));
    }

    /// Tells the user something.
    pub fn note(&self, message: &str) {
        self.events.event(&LabEvent::Note(message));
    }
}
