//! `--hdr-log`: latency histograms per second and script and, if statements are timed, per statement
//! for the whole run, in the log format of `HdrHistogram`'s tools (version 1.3, V2 histograms
//! deflated; values in ns, maxima in ms).
//!
//! During a run, each thread keeps the histograms of the current second, and packs them, a few kB each, when it is
//! over. Another thread merges and writes them once per second.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use pgassay_lab::connector::os_error_text;
use pgassay_load::{Measurement, Transaction, TransactionOutcome};
use pgassay_rights::FileToWrite;
use pgassay_script::ParsedScript;

use super::message::{Exit, fatal};

const NS_PER_MS: f64 = 1e6;
/// How often what has ended is written.
const EVERY: Duration = Duration::from_secs(1);

/// Packed histograms, one per thread.
type Parts = Vec<Vec<u8>>;
/// Those of each second since 1970 and script.
type PackedSeconds = BTreeMap<(u64, usize), Parts>;

/// The log of a run.
pub struct HdrLog {
    path: String,
    file: File,
    /// The names of the scripts, as tags.
    scripts: Vec<String>,
    /// What is not written yet.
    packed: Mutex<PackedSeconds>,
    /// The second that each thread is in; 0 before its first transaction.
    threads: Mutex<Vec<Arc<AtomicU64>>>,
    /// The first second in the file.
    first: OnceLock<u64>,
    /// Whether something could not be written, which was reported.
    has_failed: AtomicBool,
}

/// A thread's histograms of the current second, by script.
pub struct Second {
    since_1970_s: u64,
    /// The same, for the thread that writes.
    reached: Arc<AtomicU64>,
    latency_ns: Vec<Histogram<u64>>,
}

/// A histogram that grows with its values.
fn growing() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

impl Second {
    /// Counts a successful transaction.
    pub fn count(&mut self, transaction: &Transaction, epoch_shift_us: u64, log: &HdrLog) {
        if transaction.outcome != TransactionOutcome::Done {
            return;
        }
        let second = (transaction.end_ns / 1000 + epoch_shift_us) / 1_000_000;
        if second != self.since_1970_s {
            self.pack(log);
            self.since_1970_s = second;
            self.reached.store(second, Ordering::Release);
        }
        let latency_ns = transaction.end_ns.saturating_sub(transaction.scheduled_ns);
        self.latency_ns[transaction.script]
            .record(latency_ns)
            .expect("a histogram of three digits can grow to hold any value");
    }

    /// The thread has counted its last transaction.
    pub fn close(&mut self, log: &HdrLog) {
        self.pack(log);
        self.reached.store(u64::MAX, Ordering::Release);
    }

    /// Packs and resets the histograms.
    fn pack(&mut self, log: &HdrLog) {
        for (script, latency_ns) in self.latency_ns.iter_mut().enumerate() {
            if latency_ns.is_empty() {
                continue;
            }
            let mut packed = Vec::new();
            V2DeflateSerializer::new()
                .serialize(latency_ns, &mut packed)
                .expect("writing to memory cannot fail, and counts fit");
            let mut all = log.packed.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry((self.since_1970_s, script))
                .or_default()
                .push(packed);
            latency_ns.reset();
        }
    }
}

impl HdrLog {
    /// Creates the file.
    pub fn create(path: &str, scripts: &[(Arc<ParsedScript>, u32)]) -> Result<Self, Exit> {
        let opened = FileToWrite::at(Path::new(path)).and_then(|it| it.open_at_once());
        let file = opened.map_err(|error| {
            fatal(&format!(
                "could not open histogram log \"{path}\": {}",
                os_error_text(&error)
            ))
        })?;
        let scripts = scripts.iter().map(|(script, _)| tag(script.name()));
        Ok(Self::of(path, file, scripts.collect()))
    }

    fn of(path: &str, file: File, scripts: Vec<String>) -> Self {
        Self {
            path: path.to_owned(),
            file,
            scripts,
            packed: Mutex::default(),
            threads: Mutex::default(),
            first: OnceLock::new(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// A thread's initial, empty histograms.
    pub fn second(&self) -> Second {
        let reached = Arc::<AtomicU64>::default();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(Arc::clone(&reached));
        Second {
            since_1970_s: 0,
            reached,
            latency_ns: self.scripts.iter().map(|_| growing()).collect(),
        }
    }

    /// Writes each second when it is over, until the other end of the channel is dropped. Returns whether all that was
    /// over could be written.
    pub fn write_meanwhile(&self, done: &Receiver<()>) -> bool {
        while done.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            if self.write_completed().is_err() {
                return false;
            }
        }
        true
    }

    /// Writes the seconds that all threads have left.
    fn write_completed(&self) -> Result<(), Exit> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = threads.iter().map(|it| it.load(Ordering::Acquire));
        let current = reached.min().unwrap_or(0);
        drop(threads);
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = packed.split_off(&(current, 0));
        let completed = std::mem::replace(&mut *packed, rest);
        drop(packed);
        if completed.is_empty() {
            return Ok(());
        }
        self.append(|| self.text(&completed, &[]))
    }

    /// Writes the rest of the log.
    pub fn write(
        &self,
        scripts: &[(Arc<ParsedScript>, u32)],
        measurement: &Measurement,
    ) -> Result<(), Exit> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = std::mem::take(&mut *packed);
        drop(packed);
        let length = Duration::from_micros(measurement.window_us);
        let mut statements = Vec::new();
        for ((script, _), commands) in scripts.iter().zip(&measurement.commands) {
            for (index, command) in commands.iter().enumerate() {
                if !command.latency_ns.is_empty() {
                    let name = tag(&format!("{}:{}", script.name(), index + 1));
                    statements.push((name, &command.latency_ns, length));
                }
            }
        }
        self.append(|| self.text(&rest, &statements))
    }

    fn append(
        &self,
        text: impl FnOnce() -> Result<Vec<u8>, Box<dyn std::error::Error>>,
    ) -> Result<(), Exit> {
        let written = text().and_then(|text| Ok((&self.file).write_all(&text)?));
        written.map_err(|error| {
            self.has_failed.store(true, Ordering::Relaxed);
            fatal(&format!(
                "could not write histogram log \"{}\": {error}",
                self.path
            ))
        })
    }

    /// The next lines of the log, at first with its header: seconds, and statements with their names and the length of
    /// the run.
    fn text(
        &self,
        seconds: &PackedSeconds,
        statements: &[(String, &Histogram<u64>, Duration)],
    ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let is_begun = self.first.get().is_some();
        let first = || seconds.keys().next().map_or(0, |(second, _)| *second);
        let first = *self.first.get_or_init(first);
        let (mut text, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment(concat!(
                "pgassay ",
                env!("CARGO_PKG_VERSION"),
                "; values in ns"
            ))
            .with_start_time(UNIX_EPOCH + Duration::from_secs(first))
            .with_base_time(UNIX_EPOCH + Duration::from_secs(first))
            .with_max_value_divisor(NS_PER_MS)
            .begin_log_with(&mut text, &mut serializer)?;
        let several = self.scripts.len() > 1;
        for ((second, script), parts) in seconds {
            let mut sum = growing();
            for part in parts {
                let part: Histogram<u64> = Deserializer::new().deserialize(&mut &part[..])?;
                sum.add(&part)?;
            }
            let tag = several.then(|| Tag::new(&self.scripts[*script])).flatten();
            let since = Duration::from_secs(second.saturating_sub(first));
            log.write_histogram(&sum, since, Duration::from_secs(1), tag)
                .map_err(|error| format!("{error:?}"))?;
        }
        for (name, latency_ns, length) in statements {
            log.write_histogram(latency_ns, Duration::ZERO, *length, Tag::new(name))
                .map_err(|error| format!("{error:?}"))?;
        }
        if is_begun {
            // The header, of which each line begins with this.
            let lines = text.split_inclusive(|byte| *byte == b'\n');
            let header: usize = lines
                .take_while(|line| line.starts_with(b"#"))
                .map(<[u8]>::len)
                .sum();
            text.drain(..header);
        }
        Ok(text)
    }
}

/// Replaces characters that separate the log's fields.
fn tag(name: &str) -> String {
    let replaced = |letter: char| letter == ',' || letter.is_whitespace();
    name.replace(replaced, "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn done(end_ns: u64) -> Transaction {
        Transaction {
            client: 0,
            ended_before: 0,
            script: 0,
            outcome: TransactionOutcome::Done,
            scheduled_ns: end_ns - 1_000,
            begin_ns: end_ns - 1_000,
            end_ns,
            tries: 1,
        }
    }

    /// Regression: everything was in memory until the end, and the file of a run that was killed was empty.
    #[test]
    fn a_second_is_written_when_all_threads_have_left_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let file = File::create(&path).expect("a file");
        let log = HdrLog::of("log", file, vec!["s".to_owned()]);
        let lines = || {
            let text = std::fs::read_to_string(&path).expect("a log");
            let is_interval = |line: &&str| !line.starts_with('#');
            let headers = text.lines().count() - text.lines().filter(is_interval).count();
            let starts = text.lines().filter(is_interval).map(|line| {
                let start = line.split(',').next().expect("a time");
                start.parse::<f64>().expect("a number") as u64
            });
            (headers, starts.collect::<Vec<_>>())
        };
        let (mut one, mut other) = (log.second(), log.second());
        for second in 100..104 {
            one.count(&done(second * S), 0, &log);
        }
        log.write_completed().expect("it can be written");
        assert_eq!(
            lines(),
            (0, vec![]),
            "the other thread may still be in the first"
        );
        for second in [100, 102] {
            other.count(&done(second * S), 0, &log);
        }
        log.write_completed().expect("it can be written");
        assert_eq!(lines(), (4, vec![0, 1]));
        one.close(&log);
        other.close(&log);
        log.write_completed().expect("it can be written");
        assert_eq!(lines(), (4, vec![0, 1, 2, 3]));
        assert!(log.packed.lock().expect("no thread panicked").is_empty());
    }
}
