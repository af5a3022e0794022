//! `--hdr-log`: latency histograms per second and script and, if statements are timed, per statement
//! for the whole run, in the log format of `HdrHistogram`'s tools (version 1.3, V2 histograms
//! deflated; values in ns, maxima in ms).
//!
//! During a run, each thread keeps the histograms of the current second. Completed ones are packed, a
//! few kB each, and merged at the end of the run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Packed histograms, one per thread.
type Parts = Vec<Vec<u8>>;

/// The log of a run.
pub struct HdrLog {
    path: String,
    file: File,
    scripts: usize,
    /// Packed histograms, by second since 1970 and script.
    packed: Mutex<BTreeMap<(u64, usize), Parts>>,
}

/// A thread's histograms of the current second, by script.
pub struct Second {
    second: u64,
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
        if second != self.second {
            self.close(log);
            self.second = second;
        }
        let latency_ns = transaction.end_ns.saturating_sub(transaction.scheduled_ns);
        self.latency_ns[transaction.script]
            .record(latency_ns)
            .expect("a histogram of three digits can grow to hold any value");
    }

    /// Packs and resets the histograms.
    pub fn close(&mut self, log: &HdrLog) {
        for (script, latency_ns) in self.latency_ns.iter_mut().enumerate() {
            if latency_ns.is_empty() {
                continue;
            }
            let mut packed = Vec::new();
            V2DeflateSerializer::new()
                .serialize(latency_ns, &mut packed)
                .expect("writing to memory cannot fail, and counts fit");
            let mut all = log.packed.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry((self.second, script)).or_default().push(packed);
            latency_ns.reset();
        }
    }
}

impl HdrLog {
    /// Creates the file.
    pub fn create(path: &str, scripts: usize) -> Result<Self, Exit> {
        let opened = FileToWrite::at(Path::new(path)).and_then(|it| it.open_at_once());
        let file = opened.map_err(|error| {
            fatal(&format!(
                "could not open histogram log \"{path}\": {}",
                os_error_text(&error)
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            scripts,
            packed: Mutex::default(),
        })
    }

    /// A thread's initial, empty histograms.
    pub fn second(&self) -> Second {
        Second {
            second: 0,
            latency_ns: (0..self.scripts).map(|_| growing()).collect(),
        }
    }

    /// Writes the log.
    pub fn write(
        &self,
        scripts: &[(Arc<ParsedScript>, u32)],
        measurement: &Measurement,
    ) -> Result<(), Exit> {
        self.try_write(scripts, measurement).map_err(|error| {
            fatal(&format!(
                "could not write histogram log \"{}\": {error}",
                self.path
            ))
        })
    }

    fn try_write(
        &self,
        scripts: &[(Arc<ParsedScript>, u32)],
        measurement: &Measurement,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let first = packed.keys().next().map_or(0, |(second, _)| *second);
        let mut file = BufWriter::new(&self.file);
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment(concat!(
                "pgassay ",
                env!("CARGO_PKG_VERSION"),
                "; values in ns"
            ))
            .with_start_time(UNIX_EPOCH + Duration::from_secs(first))
            .with_base_time(UNIX_EPOCH + Duration::from_secs(first))
            .with_max_value_divisor(NS_PER_MS)
            .begin_log_with(&mut file, &mut serializer)?;
        let several = scripts.len() > 1;
        for ((second, script), parts) in &*packed {
            let mut sum = growing();
            for part in parts {
                let part: Histogram<u64> = Deserializer::new().deserialize(&mut &part[..])?;
                sum.add(&part)?;
            }
            let name = tag(scripts[*script].0.name());
            let tag = several.then(|| Tag::new(&name)).flatten();
            let since = Duration::from_secs(second - first);
            log.write_histogram(&sum, since, Duration::from_secs(1), tag)
                .map_err(|error| format!("{error:?}"))?;
        }
        for ((script, _), commands) in scripts.iter().zip(&measurement.commands) {
            for (index, command) in commands.iter().enumerate() {
                if command.latency_ns.is_empty() {
                    continue;
                }
                let name = tag(&format!("{}:{}", script.name(), index + 1));
                let length = Duration::from_micros(measurement.window_us);
                log.write_histogram(&command.latency_ns, Duration::ZERO, length, Tag::new(&name))
                    .map_err(|error| format!("{error:?}"))?;
            }
        }
        file.flush()?;
        Ok(())
    }
}

/// Replaces characters that separate the log's fields.
fn tag(name: &str) -> String {
    let replaced = |letter: char| letter == ',' || letter.is_whitespace();
    name.replace(replaced, "_")
}
