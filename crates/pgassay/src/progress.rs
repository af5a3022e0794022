//! Progress on stderr: a progress bar on a terminal, occasional plain lines otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pgassay_report::printable;

use crate::output::print_line_stderr;

/// Minimum interval between lines about trials if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The progress display of a run.
pub struct ProgressDisplay {
    bar: Option<ProgressBar>,
    plain_at: Option<Instant>,
    /// The last stage shown, to avoid repeating it.
    stage: String,
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
            plain_at: None,
            stage: String::new(),
        }
    }

    /// Starts a stage of unknown length, for example "starting PostgreSQL 18.1".
    pub fn stage(&mut self, message: &str) {
        if self.stage == message {
            return;
        }
        message.clone_into(&mut self.stage);
        match &self.bar {
            Some(bar) => bar.set_message(printable(message).into_owned()),
            None => print_line_stderr(message),
        }
    }

    /// Starts the trials, `total` in number.
    pub fn trials(&mut self, total: u64) {
        self.plain_at = None;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(0);
            bar.set_style(trials());
        }
    }

    /// Reports `done` of `total` trials; `message` describes the current one.
    pub fn trial(&mut self, done: u64, total: u64, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(printable(message).into_owned());
            return;
        }
        if self.plain_at.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            self.plain_at = Some(Instant::now());
            print_line_stderr(&format!("trial {done} of {total}: {message}"));
        }
    }

    /// Prints a permanent line.
    pub fn note(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_line_stderr(message)),
            None => print_line_stderr(message),
        }
    }

    /// Clears the progress bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
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

fn trials() -> ProgressStyle {
    ProgressStyle::with_template("{bar:24} {pos}/{len} trials, {eta} left  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
