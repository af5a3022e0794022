//! What a run tells the program that started it.

use pgassay_model::detail::RunDetail;
use pgassay_model::trial::Trial;
use pgassay_record::run::ServerFacts;

/// Something that happened in a run.
#[derive(Debug)]
pub enum LabEvent<'a> {
    /// A step of unknown length began, for example "starting PostgreSQL 18.1".
    Stage(&'a str),
    /// A sentence that the user should see.
    Note(&'a str),
    /// All servers run and are filled.
    ServersStarted(&'a [ServerFacts]),
    /// Trials of earlier processes count: this many.
    TrialsKept(usize),
    /// The trials after a server start begin.
    TrialsBegin {
        /// Planned number of trials in the whole run.
        total: u64,
        /// Whether the run may end after fewer.
        is_most: bool,
    },
    /// The trials of a condition begin: connecting and warm-up come first.
    RoundBegins {
        /// Number of the block, from 0.
        block: u32,
        /// Planned number of blocks.
        blocks: u32,
        /// The condition's title.
        condition: &'a str,
    },
    /// The round that began has fewer trials than planned, because transactions take long: this many, often none.
    TrialsLeftOut(usize),
    /// Something was gathered besides the figures of trials; for a trial, before it is announced. A program
    /// that must not lose it writes it to disk now.
    Detail(&'a RunDetail),
    /// A trial ended. A program that must not lose it writes it to disk now.
    TrialEnded(&'a Trial),
}

/// Receives the events of a run. Called between trials and never within one, by the thread that runs them.
pub trait EventSink {
    /// Takes note of an event.
    fn event(&self, event: &LabEvent<'_>);
}

impl<F: Fn(&LabEvent<'_>)> EventSink for F {
    fn event(&self, event: &LabEvent<'_>) {
        self(event);
    }
}

/// Ignores all events.
#[derive(Debug, Clone, Copy)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn event(&self, _: &LabEvent<'_>) {}
}
