//! Waits for a server to start, and reports why it did not.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::{LOG_LINES, POLL, Server};
use crate::error::ServerError;
use crate::os;
use crate::processes;

/// `cannot_connect_now`: the server is still starting.
const STARTING: &str = "57P03";
/// The first release whose postmaster writes its state to `postmaster.pid`.
const STATE_IN_PID_FILE_SINCE: u16 = 10;
/// Its line, from 0; see `LOCK_FILE_LINE_PM_STATUS` in `src/include/utils/pidfile.h`.
const STATE_LINE: usize = 7;
/// Eight lines, of which one is a path.
const PID_FILE_BYTES_MAX: u64 = 8 << 10;
/// Time limit for the end of the backend that we connected to.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Server {
    /// Waits until the server accepts connections. If possible, reads `postmaster.pid`, as `pg_ctl`
    /// does, instead of connecting: each attempt would start a backend, and the number of backends
    /// affects the server's memory layout and so later instruction counts.
    pub(super) fn wait_until_ready(&self) -> Result<(), ServerError> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.home.exit_status() {
                return Err(self.not_started(status));
            }
            let Some(last) = self.why_not_ready()? else {
                return Ok(());
            };
            let timeout = self.config.start_timeout;
            if start.elapsed() > timeout {
                return Err(ServerError::NotReady {
                    version: self.installation.version.clone(),
                    timeout,
                    last,
                    log: self.log_tail(LOG_LINES),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Why the server does not accept connections yet; `None` if it does.
    fn why_not_ready(&self) -> Result<Option<String>, ServerError> {
        if self.installation.version.series().major() >= STATE_IN_PID_FILE_SINCE {
            let directory = self.home.directory();
            let file = directory.read_below(Path::new("data/postmaster.pid"), PID_FILE_BYTES_MAX);
            let state = file
                .ok()
                .and_then(|text| state(&text, self.postmaster_pid()));
            return Ok(match state.as_deref() {
                Some("ready" | "standby") => None,
                Some(other) => Some(format!("its state is \"{other}\"")),
                None => Some("it has not written its state".to_owned()),
            });
        }
        match self.connect() {
            Ok(connection) => {
                let pid = connection.backend_pid();
                drop(connection);
                if let Some(pid) = pid {
                    processes::wait_until_gone(pid, LEAVE_TIMEOUT);
                }
                Ok(None)
            }
            Err(error) if error.sql().is_some_and(|sql| sql.sqlstate != STARTING) => {
                Err(error.into())
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn not_started(&self, status: ExitStatus) -> ServerError {
        let version = self.installation.version.clone();
        let log = self.log.tail_since_start(LOG_LINES);
        let log = self.with_collected(log, LOG_LINES);
        if let Some((name, value, words)) = refused(&self.config.settings, &log) {
            let (name, value) = (name.to_owned(), value.to_owned());
            return ServerError::SettingRefused {
                version,
                name,
                value,
                words,
            };
        }
        let error = ServerError::NotStarted {
            version,
            how: status.to_string(),
            log: log.clone(),
        };
        error.or_disk_full(self.home.base(), &log)
    }
}

/// The state in the text of `postmaster.pid`; `None` if another process wrote it.
fn state(text: &str, postmaster: os::Pid) -> Option<String> {
    let mut lines = text.lines().map(str::trim);
    if lines.next()?.parse() != Ok(postmaster) {
        return None;
    }
    let state = lines.nth(STATE_LINE - 1)?;
    (!state.is_empty()).then(|| state.to_owned())
}

/// The study's setting that the server rejected, with the server's message, if there is one.
fn refused<'a>(
    settings: &'a BTreeMap<String, String>,
    log: &str,
) -> Option<(&'a str, &'a str, String)> {
    // `unrecognized configuration parameter "x"`, `invalid value for parameter "x": "1"`,
    // `parameter "x" requires a numeric value`, `1 is outside the valid range for parameter "x"`.
    let lines = || log.lines().filter_map(words_of_line);
    let complaint = lines().find(|(_, words)| words.contains("parameter \""))?.1;
    let (name, value) = settings
        .iter()
        .find(|(name, _)| complaint.contains(&format!("parameter \"{name}\"")))?;
    let hint = lines()
        .find(|(level, _)| *level == "HINT")
        .map(|(_, words)| format!(" ({words})"));
    // ` in file "…/pgassay.conf" line 10`: a file of ours.
    let complaint = complaint.split(" in file \"").next().unwrap_or(complaint);
    Some((
        name,
        value,
        format!("{complaint}{}", hint.unwrap_or_default()),
    ))
}

/// The severity and message of a log line, whatever its prefix.
fn words_of_line(line: &str) -> Option<(&str, &str)> {
    ["LOG", "FATAL", "ERROR", "HINT"]
        .into_iter()
        .find_map(|level| {
            let (_, words) = line.split_once(&format!("{level}:  "))?;
            Some((level, words.trim()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_another_postmaster_is_ignored() {
        let text = "4711\n/data\n1763806000\n5432\n/s\n\n  5432001    65538\nready   \n";
        assert_eq!(state(text, 4711).as_deref(), Some("ready"));
        assert_eq!(state(text, 4712), None, "left by a killed server");
        assert_eq!(state("4711\n/data\n1763806000\n5432\n/s\n", 4711), None);
    }

    fn complaint(log: &str) -> Option<(String, String)> {
        let settings = [("work_mem", "much"), ("no_such", "1")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = BTreeMap::from(settings);
        refused(&settings, log).map(|(name, _, words)| (name.to_owned(), words))
    }

    #[test]
    fn a_rejected_setting_is_found_in_the_log() {
        let log = "2026-01-01 [7] LOG:  invalid value for parameter \"work_mem\": \"much\"\n\
                   2026-01-01 [7] HINT:  Valid units are \"kB\".\nFATAL:  file contains errors\n";
        let words = "invalid value for parameter \"work_mem\": \"much\" (Valid units are \"kB\".)";
        assert_eq!(
            complaint(log),
            Some(("work_mem".to_owned(), words.to_owned()))
        );
        let unknown = "LOG:  unrecognized configuration parameter \"no_such\" in file \"/d/pgassay.conf\" line 9";
        let words = "unrecognized configuration parameter \"no_such\"";
        let found = complaint(unknown).expect("rejected");
        assert_eq!(found.1, words, "not the file, which is ours");
        assert_eq!(complaint("FATAL:  could not access file \"no_such\""), None);
        assert_eq!(
            complaint("FATAL:  unrecognized configuration parameter \"other\""),
            None
        );
    }
}
