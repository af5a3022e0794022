//! Progress on stderr: a progress bar on a terminal, occasional plain lines otherwise.

use std::cell::RefCell;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use pgassay_lab::{EventSink, LabEvent};
use pgassay_report::printable;

use crate::output::{print_line_stderr, print_stderr};
use crate::style::folded_stderr;

/// Minimum interval between lines about trials if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The progress display of a run.
pub struct ProgressDisplay {
    bar: Option<ProgressBar>,
    shown: RefCell<Shown>,
}

#[derive(Default)]
struct Shown {
    /// The last stage, to avoid repeating it.
    stage: String,
    /// The current block and condition.
    round: String,
    /// When the last plain line about trials was printed.
    plain_at: Option<Instant>,
    /// Trials that have ended, and their planned number.
    done: u64,
    total: u64,
    /// Whether the run may end after fewer trials than `total`.
    is_most: bool,
    /// Whether `total` is of several runs.
    is_of_all: bool,
}

impl ProgressDisplay {
    /// Shows progress on stderr.
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::no_length();
            bar.set_style(spinner());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            shown: RefCell::default(),
        }
    }

    fn stage(&self, message: &str) {
        let mut shown = self.shown.borrow_mut();
        if shown.stage == message {
            return;
        }
        message.clone_into(&mut shown.stage);
        match &self.bar {
            Some(bar) => bar.set_message(printable(message).into_owned()),
            None => print_line_stderr(message),
        }
    }

    /// Prints a permanent line.
    pub fn note(&self, message: &str) {
        match &self.bar {
            // Only a terminal has a bar.
            Some(bar) => bar.suspend(|| print_stderr(&folded_stderr(message))),
            None => print_line_stderr(message),
        }
    }

    /// Shows the trials of several runs, one after the other, as those of one.
    pub fn expect_in_all(&self, total: u64) {
        let mut shown = self.shown.borrow_mut();
        shown.total = total;
        shown.is_of_all = true;
    }

    fn begin_trials(&self, of_run: u64, is_most: bool) {
        let mut shown = self.shown.borrow_mut();
        shown.plain_at = None;
        let total = if shown.is_of_all { shown.total } else { of_run };
        shown.total = total;
        shown.is_most = is_most;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_style(trials(is_most));
        }
    }

    fn show_trials(&self) {
        let mut shown = self.shown.borrow_mut();
        if let Some(bar) = &self.bar {
            bar.set_position(shown.done);
            bar.set_message(printable(&shown.round).into_owned());
            return;
        }
        if shown.plain_at.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            shown.plain_at = Some(Instant::now());
            let Shown {
                done, total, round, ..
            } = &*shown;
            let next = (done + 1).min(*total);
            let of = of(shown.is_most);
            print_line_stderr(&format!("trial {next} {of} {total}: {round}"));
        }
    }

    /// Clears the progress bar. Later events are not shown.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl EventSink for ProgressDisplay {
    fn event(&self, event: &LabEvent<'_>) {
        match event {
            LabEvent::Stage(message) => self.stage(message),
            LabEvent::Note(message) => self.note(message),
            LabEvent::TrialsBegin { total, is_most } => self.begin_trials(*total, *is_most),
            LabEvent::RoundBegins {
                block,
                blocks,
                condition,
            } => {
                let round = format!("block {} of {blocks}, {condition}", block + 1);
                self.shown.borrow_mut().round = round;
                self.show_trials();
            }
            LabEvent::TrialsKept(count) | LabEvent::TrialsLeftOut(count) => {
                self.shown.borrow_mut().done += *count as u64;
            }
            LabEvent::TrialEnded(_) => {
                self.shown.borrow_mut().done += 1;
                self.show_trials();
            }
            LabEvent::ServersStarted(_) | LabEvent::Detail(_) => {}
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.finish();
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn trials(is_most: bool) -> ProgressStyle {
    let of = of(is_most);
    let template = format!("{{bar:24}} {{pos}} {of} {{len}} trials{{left}}  {{wide_msg}}");
    ProgressStyle::with_template(&template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("left", move |state: &ProgressState, out: &mut dyn Write| {
            // Before the first trial has ended, nothing is known, which indicatif shows as 0 seconds.
            if state.pos() > 0 {
                let at_most = if is_most { "at most " } else { "" };
                _ = write!(out, ", {at_most}{:#} left", HumanDuration(state.eta()));
            }
        })
}

/// What is between a number of trials and that of all: a run that ends with its verdicts may not need all.
fn of(is_most: bool) -> &'static str {
    if is_most { "of at most" } else { "of" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a run that ends with its verdicts counted its trials as if all of them would run.
    #[test]
    fn trials_that_may_not_run_are_counted_as_at_most() {
        let progress = ProgressDisplay::on_stderr();
        for (is_most, words) in [(true, "of at most"), (false, "of")] {
            let total = 3;
            progress.event(&LabEvent::TrialsBegin { total, is_most });
            assert_eq!(of(progress.shown.borrow().is_most), words);
        }
    }

    #[test]
    fn the_trials_of_a_calibrations_second_study_are_not_beyond_its_total() {
        let progress = ProgressDisplay::on_stderr();
        progress.expect_in_all(4);
        for _ in 0..2 {
            progress.begin_trials(2, false);
            progress.event(&LabEvent::TrialsKept(2));
        }
        let shown = progress.shown.borrow();
        assert_eq!((shown.done, shown.total), (4, 4));
    }
}
