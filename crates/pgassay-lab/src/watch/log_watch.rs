//! Errors that a server on this machine writes to its log while it is watched.
//!
//! The file is the one that the server has open: the logger's, or the postmaster's standard error. Only
//! what is written from the start of the watch on is read. Messages are recognized by their severity, in
//! English and in the format `stderr` (`send_message_to_server_log`, utils/error/elog.c); constants in
//! them are replaced.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pgassay_profile::{LiveServer, Role};
use pgassay_record::activity::{LoadMark, LoadMarkKind};

/// Of what was written since the last reading, the end up to this size is read.
const READ_MAX: u64 = 1 << 20;
/// Longer lines are cut.
const LINE_MAX: usize = 8192;
/// Characters of a message that are kept.
const MESSAGE_MAX: usize = 160;
/// Errors that are no further apart are one mark.
const PAUSE_MAX_US: f64 = 2.5e6;
/// Flags of an open file in `/proc/PID/fdinfo`: writes are appended (`O_APPEND`).
const APPENDS: u32 = 0o2000;

const ERRORS: [&str; 3] = ["ERROR", "FATAL", "PANIC"];
/// What else a line can begin with, behind `log_line_prefix`.
const OTHERS: [&str; 16] = [
    "LOG",
    "WARNING",
    "NOTICE",
    "INFO",
    "DEBUG",
    "DEBUG1",
    "DEBUG2",
    "DEBUG3",
    "DEBUG4",
    "DEBUG5",
    "DETAIL",
    "HINT",
    "QUERY",
    "CONTEXT",
    "LOCATION",
    "STATEMENT",
];
/// Words before a quoted name, which is no constant.
const NAMED: [&str; 18] = [
    "relation",
    "table",
    "column",
    "constraint",
    "database",
    "role",
    "user",
    "index",
    "function",
    "type",
    "schema",
    "sequence",
    "view",
    "trigger",
    "extension",
    "tablespace",
    "parameter",
    "slot",
];

/// The end of a log.
pub(super) struct LogWatch {
    file: File,
    /// So much of it was read.
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
    keeps_text: bool,
    bursts: Vec<ErrorBurst>,
}

/// Errors that followed one another.
struct ErrorBurst {
    began_us: f64,
    last_us: f64,
    count: u64,
    /// The first one's severity and message.
    first: String,
}

impl ErrorBurst {
    fn mark(&self) -> LoadMark {
        let more = match self.count - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        LoadMark {
            at_us: self.began_us,
            length_us: self.last_us - self.began_us,
            kind: LoadMarkKind::LogError,
            text: format!("{}{more}", self.first),
            count: Some(self.count),
        }
    }
}

impl LogWatch {
    /// Finds the log, and its present end; `None` if there is no such file or it cannot be read.
    pub fn open(live: &LiveServer, keeps_text: bool) -> Option<Self> {
        let mut processes = live.processes().into_iter();
        let logger = processes.find(|it| it.role == Role::Logger);
        let path = match logger {
            Some(logger) => appended_file(logger.pid)?,
            None => PathBuf::from(format!("/proc/{}/fd/2", live.postmaster_pid)),
        };
        // Opening anything else could wait, or have effects.
        let file = path.metadata().ok()?.is_file().then(|| File::open(&path));
        let file = file?.ok()?;
        let at = file.metadata().ok()?.len();
        Some(Self {
            file,
            at,
            rest: Vec::new(),
            keeps_text,
            bursts: Vec::new(),
        })
    }

    /// Reads what was written since the last time. `own_pids` are backends whose errors are of the watch.
    pub fn read(&mut self, at_us: f64, own_pids: &BTreeSet<u32>) {
        for byte in self.written() {
            if byte != b'\n' {
                if self.rest.len() < LINE_MAX {
                    self.rest.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.rest);
            self.add(at_us, &String::from_utf8_lossy(&line), own_pids);
        }
    }

    /// All errors so far.
    pub fn marks(&self) -> impl Iterator<Item = LoadMark> {
        self.bursts.iter().map(ErrorBurst::mark)
    }

    fn written(&mut self) -> Vec<u8> {
        let end = self.file.metadata().map_or(self.at, |it| it.len());
        if end < self.at {
            // It was truncated.
            self.at = 0;
            self.rest.clear();
        }
        if end - self.at > READ_MAX {
            self.at = end - READ_MAX;
            self.rest.clear();
        }
        let mut bytes = vec![0; (end - self.at) as usize];
        let read = self.file.read_at(&mut bytes, self.at).unwrap_or(0);
        bytes.truncate(read);
        self.at += read as u64;
        bytes
    }

    fn add(&mut self, at_us: f64, line: &str, own_pids: &BTreeSet<u32>) {
        let Some(error) = LoggedError::parse(line) else {
            return;
        };
        let mut numbers = error.prefix.split(|it: char| !it.is_ascii_digit());
        if numbers.any(|it| it.parse().is_ok_and(|pid: u32| own_pids.contains(&pid))) {
            return;
        }
        match self.bursts.last_mut() {
            Some(last) if at_us - last.last_us <= PAUSE_MAX_US => {
                last.last_us = at_us;
                last.count += 1;
            }
            _ => self.bursts.push(ErrorBurst {
                began_us: at_us,
                last_us: at_us,
                count: 1,
                first: if self.keeps_text {
                    format!("{}: {}", error.severity, without_constants(error.message))
                } else {
                    error.severity.to_owned()
                },
            }),
        }
    }
}

/// The settings `log_destination` and `lc_messages`, as [`is_understood`] takes them. The functions are the
/// catalog's, whatever the user's `search_path` finds before them.
pub(super) const LOG_SETTINGS: &str = "select pg_catalog.concat(\
    pg_catalog.current_setting('log_destination'), ' ', pg_catalog.current_setting('lc_messages'))";

/// Whether messages go to a file in the format that is read, and are in English. A logger has a file of this
/// format open even if it writes others only.
pub(super) fn is_understood(settings: &str) -> bool {
    let (destinations, language) = settings.split_once(' ').unwrap_or((settings, ""));
    let is_english = ["C", "POSIX", "en", "English"];
    destinations.contains("stderr")
        && (language.is_empty() || is_english.iter().any(|it| language.starts_with(it)))
}

/// The file that a logger appends to in the format `stderr`. Its standard error is still the postmaster's.
fn appended_file(pid: u32) -> Option<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let numbers = descriptors
        .flatten()
        .filter_map(|it| it.file_name().to_str()?.parse().ok());
    let numbers: BTreeSet<u32> = numbers.collect();
    let paths = numbers
        .into_iter()
        .filter(|&number| number > 2 && appends(pid, number));
    let mut paths = paths.map(|number| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
    paths.find(|path| {
        let other = |name: PathBuf| {
            let extension = name.extension().map(|it| it.to_string_lossy().into_owned());
            matches!(extension.as_deref(), Some("csv" | "json"))
        };
        let is_file = path.metadata().is_ok_and(|it| it.is_file());
        is_file && fs::read_link(path).is_ok_and(|name| !other(name))
    })
}

fn appends(pid: u32, number: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = text.lines().find_map(|it| it.strip_prefix("flags:"));
    let flags = flags.and_then(|it| u32::from_str_radix(it.trim(), 8).ok());
    flags.is_some_and(|it| it & APPENDS != 0)
}

/// The first line of a message.
struct LoggedError<'a> {
    prefix: &'a str,
    severity: &'a str,
    message: &'a str,
}

impl<'a> LoggedError<'a> {
    /// The error of a line, which can also be of another severity, or continue a message.
    fn parse(line: &'a str) -> Option<Self> {
        if line.starts_with('\t') {
            return None;
        }
        for (at, separator) in line.match_indices(":  ") {
            let before = line[..at].trim_end_matches(|it: char| it.is_ascii_alphanumeric());
            let severity = &line[before.len()..at];
            if ERRORS.contains(&severity) {
                return Some(Self {
                    prefix: before,
                    severity,
                    message: &line[at + separator.len()..],
                });
            }
            if OTHERS.contains(&severity) {
                return None;
            }
        }
        None
    }
}

/// A message with its numbers and quoted texts replaced, except for names of objects.
fn without_constants(message: &str) -> String {
    let mut text = String::new();
    // Behind it is the position in the statement, if there is one.
    let mut rest = message.split(" at character ").next().unwrap_or_default();
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '"' => quoted(rest, first),
            // Not an apostrophe.
            '\'' if !text.ends_with(char::is_alphanumeric) => quoted(rest, first),
            it if it.is_alphanumeric() || it == '_' => {
                let is_word = |it: char| it.is_alphanumeric() || it == '_';
                rest.find(|it| !is_word(it)).unwrap_or(rest.len())
            }
            it => it.len_utf8(),
        };
        let (token, behind) = rest.split_at(taken);
        let last_word = text.trim_end().rsplit(' ').next().unwrap_or_default();
        match first {
            '"' if !NAMED.contains(&last_word) => text.push_str("\"…\""),
            '\'' if taken > 1 => text.push_str("'…'"),
            it if it.is_ascii_digit() => text.push('…'),
            it if it.is_control() => text.push(' '),
            _ => text.push_str(token),
        }
        rest = behind;
    }
    match text.char_indices().nth(MESSAGE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The length of a quoted text.
fn quoted(text: &str, quote: char) -> usize {
    let end = text[1..].find(quote).map(|it| it + 2);
    end.unwrap_or(if quote == '"' { text.len() } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> LogWatch {
        LogWatch {
            file: tempfile::tempfile().expect("a file"),
            at: 0,
            rest: Vec::new(),
            keeps_text: true,
            bursts: Vec::new(),
        }
    }

    fn write(log: &LogWatch, text: &str) {
        let end = log.file.metadata().expect("a file").len();
        log.file
            .write_all_at(text.as_bytes(), end)
            .expect("written");
    }

    #[test]
    fn errors_in_a_row_are_one_mark_with_their_number() {
        let mut log = log();
        let own = BTreeSet::from([77]);
        write(
            &log,
            "2026-11-27 [12] ERROR:  division by zero\n2026-11-27 [12] STATEMENT:  select 'ERROR:  x'\n",
        );
        log.read(1e6, &own);
        write(
            &log,
            "[12] u@d FATAL:  role \"x\" does not exist\n[77] ERROR:  ours\n[12] ERR",
        );
        log.read(2e6, &own);
        write(
            &log,
            "OR:  deadlock detected\n[12] LOG:  ERROR:  none\n\tERROR:  none\n",
        );
        log.read(9e6, &own);
        let found: Vec<_> = log
            .marks()
            .map(|it| (it.at_us, it.length_us, it.text))
            .collect();
        let expected = [
            (1e6, 1e6, "ERROR: division by zero (and 1 more)".to_owned()),
            (9e6, 0.0, "ERROR: deadlock detected".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_log_that_grows_without_bounds_or_is_truncated_is_read_at_its_end() {
        let mut log = log();
        write(&log, &"x".repeat(3 << 20));
        write(&log, "\nERROR:  last\n");
        log.read(1e6, &BTreeSet::new());
        assert_eq!(log.marks().count(), 1);
        log.file.set_len(0).expect("truncated");
        write(&log, "PANIC:  new\n");
        log.read(9e6, &BTreeSet::new());
        assert_eq!(log.marks().count(), 2);
    }

    #[test]
    fn logs_in_other_formats_and_languages_are_not_understood() {
        for (settings, expected) in [
            ("stderr C.UTF-8", true),
            ("csvlog,stderr en_US.UTF-8", true),
            ("stderr ", true),
            ("csvlog C", false),
            ("jsonlog,syslog en_US", false),
            ("stderr de_DE.UTF-8", false),
        ] {
            assert_eq!(is_understood(settings), expected, "{settings}");
        }
    }

    #[test]
    fn messages_have_names_but_no_constants() {
        let cases = [
            (
                "duplicate key value violates unique constraint \"t_pkey\"",
                "duplicate key value violates unique constraint \"t_pkey\"",
            ),
            (
                "invalid input syntax for type integer: \"4711 secret\" at character 8",
                "invalid input syntax for type integer: \"…\"",
            ),
            (
                "customer 4711 can't pay 'a lot'",
                "customer … can't pay '…'",
            ),
            (
                "syntax error at or near \"open",
                "syntax error at or near \"…\"",
            ),
            (
                "relation \"t2\" does not exist\u{1b}[2J",
                "relation \"t2\" does not exist […",
            ),
        ];
        for (message, expected) in cases {
            assert_eq!(without_constants(message), expected);
        }
        assert_eq!(
            without_constants(&"ü".repeat(500)).chars().count(),
            MESSAGE_MAX + 1
        );
    }
}
