//! Watches the sessions while the server's processes are profiled.

use std::collections::BTreeSet;
use std::io;
use std::thread::ScopedJoinHandle;

use anyhow::{Context, Result};
use pgassay_lab::watch::{LiveWatch, WatchOptions, WatchedServer};
use pgassay_lab::{Interrupt, Patience};
use pgassay_model::check::Check;
use pgassay_profile::LiveServer;
use pgassay_record::activity::Activity;

use super::connection;
use crate::args::ProfileArgs;
use crate::exit::text_of;

/// What is needed to watch the sessions of a server.
pub struct SessionsToWatch {
    /// The connection string.
    conninfo: String,
    options: WatchOptions,
    /// An interrupt ends the waits for the server.
    patience: Patience,
}

/// The watch that the flags describe.
pub fn options(
    args: &ProfileArgs,
    conninfo: String,
    own_pid: Option<u32>,
    patience: Patience,
) -> SessionsToWatch {
    SessionsToWatch {
        conninfo,
        patience,
        options: WatchOptions {
            keeps_text: !args.no_text,
            own_pids: own_pid.into_iter().collect(),
            ..WatchOptions::default()
        },
    }
}

impl SessionsToWatch {
    /// For a server on this machine, with CPU samples of statements.
    pub fn local(conninfo: &str, keeps_text: bool, own_pids: &[u32], patience: &Patience) -> Self {
        Self {
            conninfo: conninfo.to_owned(),
            patience: patience.clone(),
            options: WatchOptions {
                keeps_text,
                own_pids: own_pids.iter().copied().collect::<BTreeSet<u32>>(),
                keeps_readings: true,
                ..WatchOptions::default()
            },
        }
    }

    /// Opens the watch. If that is not possible, the profile goes without it and says why.
    pub fn open(&self, live: Option<LiveServer>) -> (Option<LiveWatch>, Option<Check>) {
        let (conninfo, patience) = (self.conninfo.clone(), self.patience.clone());
        let connect = move || connection::patient_exchange(&conninfo, &patience);
        let server = WatchedServer {
            live,
            connect: Box::new(connect),
        };
        match LiveWatch::open(server, &self.options) {
            Ok(watch) => (Some(watch), None),
            Err(error) => (None, Some(not_watched(&error))),
        }
    }
}

/// The outcome of a watch that can end early: what it saw remains.
fn ended_early(result: Result<()>) -> Option<Check> {
    let error = result.err()?;
    Some(Check {
        name: "sessions".to_owned(),
        value: connection::INCOMPLETE.to_owned(),
        limitation: Some(format!(
            "the sessions could not be read to the end: {}",
            text_of(&error)
        )),
        fix: None,
    })
}

/// Waits for the thread that reads the sessions, if it could be started.
pub fn result_of(thread: io::Result<ScopedJoinHandle<'_, Result<()>>>) -> Option<Check> {
    let joined = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("watching does not panic");
    let result = thread.context("cannot start a thread").and_then(joined);
    ended_early(result)
}

fn not_watched(error: &anyhow::Error) -> Check {
    Check {
        name: "sessions".to_owned(),
        value: "none".to_owned(),
        limitation: Some(format!(
            "statements and sessions cannot be watched: {}",
            text_of(error)
        )),
        fix: None,
    }
}

/// Counts connections that the caller held during the watch.
pub fn with_connections(mut activity: Activity, more: u32) -> Activity {
    activity.cost.connections += more;
    activity
}

/// Says that this process was suspended since the last call.
pub fn suspension(interrupt: &Interrupt) -> Option<Check> {
    interrupt.take_suspended().then(|| Check {
        name: "suspended".to_owned(),
        value: "yes".to_owned(),
        limitation: Some(
            "pgassay was suspended (SIGSTOP or Ctrl-Z) for a part of the time, of which there are no samples: what the \
             sessions did then is assumed to be what they did before and after"
                .to_owned(),
        ),
        fix: Some("profile again, without a pause".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "Broken pipe (os error 32): Broken pipe (os error 32)" among the notes of a profile.
    #[test]
    fn a_note_says_once_why_the_sessions_could_not_be_read() {
        let lost = io::Error::from_raw_os_error(32);
        let wrapped = format!("the connection failed: {lost}");
        let check = ended_early(Err(anyhow::Error::new(lost).context(wrapped)));
        let text = check.and_then(|it| it.limitation).unwrap();
        assert!(
            text.ends_with("the connection failed: Broken pipe"),
            "{text}"
        );
    }
}
