//! Errors that a server on this machine writes to its log while it is watched.
//!
//! Messages are recognized by their severity, in English; constants in them are replaced.

use std::collections::BTreeSet;

use pgassay_profile::LiveServer;
use pgassay_record::activity::{LoadMark, LoadMarkKind};

use super::log_file::LogFile;
use super::log_message::{LogFormat, LoggedError, without_constants};

/// Errors that are no further apart are one mark.
const PAUSE_MAX_US: f64 = 2.5e6;

/// The errors of a log.
pub(super) struct LogWatch {
    file: LogFile,
    errors: ErrorBursts,
}

impl LogWatch {
    /// Finds the log, and its present end; `None` if it cannot be read, or is not understood. `settings` is the
    /// answer to [`LOG_SETTINGS`].
    pub fn open(live: &LiveServer, settings: &str, keeps_text: bool) -> Option<Self> {
        let file = LogFile::open(live, &understood(settings))?;
        let errors = ErrorBursts::new(keeps_text);
        Some(Self { file, errors })
    }

    /// Reads what was written since the last time. `own_pids` are backends whose errors are of the watch.
    pub fn read(&mut self, at_us: f64, own_pids: &BTreeSet<u32>) {
        for line in self.file.lines() {
            if let Some(error) = LoggedError::parse(self.file.format, &line) {
                self.errors.add(at_us, &error, own_pids);
            }
        }
    }

    /// Errors since the last call, of each row of them.
    pub fn take_marks(&mut self) -> Vec<LoadMark> {
        self.errors.take()
    }

    /// All errors so far.
    pub fn marks(&self) -> impl Iterator<Item = LoadMark> {
        self.errors.bursts.iter().map(ErrorBurst::mark)
    }
}

/// The settings `log_destination` and `lc_messages`, as [`understood`] takes them. The functions are the
/// catalog's, whatever the user's `search_path` finds before them.
pub(super) const LOG_SETTINGS: &str = "select pg_catalog.concat(\
    pg_catalog.current_setting('log_destination'), ' ', pg_catalog.current_setting('lc_messages'))";

/// The formats of files that messages go to, if they are in English: all have the same messages, and the separate fields
/// of the first two depend on no prefix. A logger has a file of the format `stderr` open even if it writes others only.
fn understood(settings: &str) -> Vec<LogFormat> {
    let (destinations, language) = settings.split_once(' ').unwrap_or((settings, ""));
    let mut english = ["C", "POSIX", "en", "English"].into_iter();
    let is_english = language.is_empty() || english.any(|it| language.starts_with(it));
    let all = [
        ("csvlog", LogFormat::Csv),
        ("jsonlog", LogFormat::Json),
        ("stderr", LogFormat::Stderr),
    ];
    let written = all
        .into_iter()
        .filter(|(name, _)| is_english && destinations.contains(name));
    written.map(|(_, format)| format).collect()
}

/// Whether a prefix names one of these processes. A number that is part of a time, an address or a session's ID is
/// none, but `[%p-%l]` begins with a PID.
fn is_of(prefix: &str, pids: &BTreeSet<u32>) -> bool {
    let is_pid = |number: &str| pids.iter().any(|pid| pid.to_string() == number);
    let mut words = prefix.split(|it: char| it.is_whitespace() || "[]{}<>,;=|/@".contains(it));
    let mut after_brackets = prefix.split(['[', '<']).skip(1);
    words.any(|word| {
        let number = word.trim_matches(':');
        let in_parentheses = number.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
        is_pid(in_parentheses.unwrap_or(number))
    }) || after_brackets.any(|rest| rest.split_once('-').is_some_and(|(first, _)| is_pid(first)))
}

struct ErrorBursts {
    keeps_text: bool,
    bursts: Vec<ErrorBurst>,
}

/// Errors that followed one another.
struct ErrorBurst {
    began_us: f64,
    last_us: f64,
    count: u64,
    /// Of which were taken.
    taken: u64,
    /// They refused connections because there was no free one.
    is_refusal: bool,
    /// The first one's severity and message.
    first: String,
}

impl ErrorBurst {
    fn mark(&self) -> LoadMark {
        self.mark_of(self.count)
    }

    /// That of so many of them.
    fn mark_of(&self, count: u64) -> LoadMark {
        let more = match count.saturating_sub(1) {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        LoadMark {
            at_us: self.began_us,
            length_us: self.last_us - self.began_us,
            kind: LoadMarkKind::LogError,
            text: format!("{}{more}", self.first),
            count: Some(count),
        }
    }
}

impl ErrorBursts {
    fn new(keeps_text: bool) -> Self {
        let bursts = Vec::new();
        Self { keeps_text, bursts }
    }

    /// Those since the last call.
    fn take(&mut self) -> Vec<LoadMark> {
        let new = self.bursts.iter_mut().filter(|it| it.count > it.taken);
        let marks = new.map(|it| {
            let mark = it.mark_of(it.count - it.taken);
            it.taken = it.count;
            mark
        });
        marks.collect()
    }

    fn add(&mut self, at_us: f64, error: &LoggedError, own_pids: &BTreeSet<u32>) {
        if is_of(&error.prefix, own_pids) {
            return;
        }
        let mut refusals = LoadMark::REFUSALS.iter();
        let is_refusal = refusals.any(|it| error.message.starts_with(it));
        let mut latest = self.bursts.iter_mut().rev();
        match latest.find(|it| it.is_refusal == is_refusal) {
            Some(last) if at_us - last.last_us <= PAUSE_MAX_US => {
                last.last_us = at_us;
                last.count += 1;
            }
            _ => self.bursts.push(ErrorBurst {
                began_us: at_us,
                last_us: at_us,
                count: 1,
                taken: 0,
                is_refusal,
                // A refusal has no text of the client.
                first: if self.keeps_text || is_refusal {
                    format!("{}: {}", error.severity, without_constants(&error.message))
                } else {
                    error.severity.to_owned()
                },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_a_row_are_one_mark_with_their_number() {
        let mut errors = ErrorBursts::new(true);
        let own = BTreeSet::from([77]);
        let lines = [
            (1e6, "2026-11-27 [12] ERROR:  division by zero"),
            (1e6, "2026-11-27 [12] STATEMENT:  select 'ERROR:  x'"),
            (2e6, "[12] u@d FATAL:  role \"x\" does not exist"),
            (2e6, "[77] ERROR:  ours"),
            (9e6, "[12] ERROR:  deadlock detected"),
            (9e6, "[12] LOG:  ERROR:  none"),
            (9e6, "\tERROR:  none"),
        ];
        for (at_us, line) in lines {
            if let Some(error) = LoggedError::parse(LogFormat::Stderr, line) {
                errors.add(at_us, &error, &own);
            }
        }
        let marks = errors.bursts.iter().map(ErrorBurst::mark);
        let found: Vec<_> = marks.map(|it| (it.at_us, it.length_us, it.text)).collect();
        let expected = [
            (1e6, 1e6, "ERROR: division by zero (and 1 more)".to_owned()),
            (9e6, 0.0, "ERROR: deadlock detected".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    /// Regression: refused connections were among the errors that followed others, of which only the first is named.
    #[test]
    fn refused_connections_are_a_mark_of_their_kind() {
        let mut errors = ErrorBursts::new(false);
        let lines = [
            (1e6, "[12] ERROR:  division by zero"),
            (2e6, "[13] FATAL:  sorry, too many clients already"),
            (3e6, "[12] ERROR:  division by zero"),
            (4e6, "[14] FATAL:  sorry, too many clients already"),
        ];
        for (at_us, line) in lines {
            let error = LoggedError::parse(LogFormat::Stderr, line).expect("an error");
            errors.add(at_us, &error, &BTreeSet::new());
        }
        let marks: Vec<LoadMark> = errors.bursts.iter().map(ErrorBurst::mark).collect();
        let found: Vec<_> = marks
            .iter()
            .map(|it| (&*it.text, it.is_refusal()))
            .collect();
        let refused = "FATAL: sorry, too many clients already (and 1 more)";
        assert_eq!(found, [("ERROR (and 1 more)", false), (refused, true)]);
    }

    /// Regression: `top` counted the refused connections of all earlier intervals again.
    #[test]
    fn errors_are_taken_once() {
        let mut errors = ErrorBursts::new(true);
        let error = LoggedError::parse(
            LogFormat::Stderr,
            "[13] FATAL:  sorry, too many clients already",
        );
        let error = error.expect("an error");
        let mut add = |times: u32, at_us: f64| {
            for _ in 0..times {
                errors.add(at_us, &error, &BTreeSet::new());
            }
            let taken = errors.take().into_iter().map(|it| (it.count, it.text));
            taken.collect::<Vec<_>>()
        };
        let text = "FATAL: sorry, too many clients already";
        assert_eq!(add(3, 1e6), [(Some(3), format!("{text} (and 2 more)"))]);
        assert_eq!(add(1, 2e6), [(Some(1), text.to_owned())]);
        assert_eq!(add(0, 3e6), []);
        assert_eq!(errors.bursts[0].mark().count, Some(4));
    }

    /// Regression: in a container, where PIDs are small, all errors of minute 45 were left out with those of pgassay's
    /// backend 45.
    #[test]
    fn a_number_of_a_time_or_an_address_is_no_pid() {
        let own = BTreeSet::from([45]);
        for prefix in [
            "2026-11-27 10:45:45.045 UTC [12] ",
            "2026-11-27 10:45:03.123 +45 [12-45] user45@db-45 ",
            "10:45:00 UTC:10.0.0.45(45000):web@shop:[12]:",
            "00045.2d 12 ",
        ] {
            assert!(!is_of(prefix, &own), "{prefix}");
        }
        for prefix in [
            "2026-11-27 10:00:00.000 UTC [45] ",
            "10:00:00 UTC:10.0.0.7(5000):web@shop:[45]:",
            "t=10:00:00,p=45,l=3 ",
            "10:00:00 45: ",
            "2026-11-27 10:00:00 UTC [45-1] web@shop ",
            "2026-11-27 10:00:00 UTC (45) ",
            "<45> ",
            "45",
        ] {
            assert!(is_of(prefix, &own), "{prefix}");
        }
    }

    #[test]
    fn logs_in_other_languages_or_in_no_file_are_not_understood() {
        for (settings, expected) in [
            ("stderr C.UTF-8", &[LogFormat::Stderr][..]),
            (
                "csvlog,stderr en_US.UTF-8",
                &[LogFormat::Csv, LogFormat::Stderr],
            ),
            ("stderr ", &[LogFormat::Stderr]),
            ("csvlog C", &[LogFormat::Csv]),
            ("jsonlog,syslog en_US", &[LogFormat::Json]),
            ("syslog C", &[]),
            ("stderr de_DE.UTF-8", &[]),
        ] {
            assert_eq!(understood(settings), expected, "{settings}");
        }
    }
}
