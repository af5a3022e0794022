//! Saves what is on the screen, for `pgassay report` and `pgassay show`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pgassay_diagnosis::diagnose_observation;
use pgassay_record::activity::Activity;
use pgassay_record::finding::Finding;
use pgassay_record::observation::{Observation, SCHEMA, Subject};

use super::state::ReadingOrigin;

/// More snapshots in one directory are a mistake.
const NUMBER_MAX: u32 = 9999;

/// Writes the activity as an observation into a new file of the directory, which only the user may
/// read: statements can contain secrets in names. Returns its path.
pub fn save(activity: &Activity, origin: &ReadingOrigin, directory: &Path) -> Result<PathBuf> {
    let text = pgassay_report::observation_json(&observation(activity, origin));
    for number in 1..=NUMBER_MAX {
        let path = directory.join(format!("pgassay-top-{number}.json"));
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(text.as_bytes());
                if written.is_err() {
                    // A part of a snapshot would only be an unreadable one.
                    let _ = std::fs::remove_file(&path);
                }
                written.with_context(|| format!("cannot write {}", path.display()))?;
                return Ok(path);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                let what = format!("cannot create {}", path.display());
                return Err(anyhow::Error::new(error).context(what));
            }
        }
    }
    bail!(
        "{} already has {NUMBER_MAX} snapshots; remove some",
        directory.display()
    )
}

/// The findings that a snapshot of this activity has.
pub fn findings(activity: &Activity, origin: &ReadingOrigin) -> Vec<Finding> {
    observation(activity, origin).findings
}

/// Those of the window, by the rates on the screen. The counts of the databases are of another time: that between the
/// last two readings of the tables.
fn transactions(activity: &Activity) -> Option<u64> {
    let intervals = activity.timeline.iter();
    let ended = intervals.map(|it| Some(it.transactions_per_s? * it.length_us / 1e6));
    let ended = ended.sum::<Option<f64>>()?;
    (!activity.timeline.is_empty()).then_some(ended.round() as u64)
}

/// An observation of nothing but this activity.
fn observation(activity: &Activity, origin: &ReadingOrigin) -> Observation {
    let ReadingOrigin { server, read_us } = origin;
    let seconds = activity.window_us / 1e6;
    let mut observation = Observation {
        schema: SCHEMA.to_owned(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_us: read_us - activity.window_us as i64,
        window_us: activity.window_us,
        frequency_hz: (activity.sweeps as f64 / seconds.max(f64::MIN_POSITIVE)).round() as u32,
        subject: Subject {
            postmaster_pid: server.postmaster_pid,
            address: server.address.clone(),
            backend_pid: None,
            major: server.major.clone(),
        },
        transactions: transactions(activity),
        backends: None,
        sessions: u32::try_from(activity.sessions.len()).unwrap_or(u32::MAX),
        backends_present_us: 0.0,
        ended_cpu_us: None,
        background: Vec::new(),
        profile: None,
        waits: None,
        activity: Some(activity.clone()),
        tier: None,
        limitations: Vec::new(),
        findings: Vec::new(),
    };
    observation.findings = diagnose_observation(&observation);
    observation
}
