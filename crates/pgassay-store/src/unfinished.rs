//! What a run that did not finish left: its plan and the trials that ended.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead};
use std::path::Path;

use pgassay_model::detail::RunDetail;
use pgassay_model::trial::Trial;
use pgassay_record::run::ServerFacts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::directories::{DETAILS_FILE, RUN_FILE, TRIALS_FILE};
use crate::error::StoreError;
use crate::origin::{FirstLine, RunMarker, RunStart, TRIALS_SCHEMA};
use crate::regular_file::BoundedReader;
use crate::{Store, ownership, regular_file};

/// Occupies space until the result is written.
pub(crate) const RESERVED_FILE: &str = ".reserved";
/// More transactions than a trial can have; sums of this many stay far from the limit of 64 bits.
const TRANSACTIONS_MAX: u64 = 1 << 48;
/// More blocks and server starts than a run can have.
const STARTS_MAX: u32 = 1 << 24;

/// What a run that did not finish left.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRun {
    /// The run's beginning.
    pub start: RunStart,
    /// The trials that ended, in order. If a process that continued the run repeated trials, only the
    /// repetitions.
    pub trials: Vec<Trial>,
    /// Whether a process is still measuring it.
    pub is_running: bool,
    /// The servers, in the plan's order; empty if they were not running yet.
    pub servers: Vec<ServerFacts>,
    /// How often it was continued.
    pub resumed: u32,
    /// Number of trials that were repeated.
    pub repeated: usize,
}

impl Store {
    /// Reads what a run that did not finish left.
    ///
    /// # Errors
    /// [`StoreError::NoRun`] if there is no file of trials, [`StoreError::Damaged`] if its first line
    /// is not readable. A last line that was not written completely is ignored.
    pub fn unfinished(&self, id: &str) -> Result<UnfinishedRun, StoreError> {
        Ok(read(&self.root.join(id))?.0)
    }
}

/// The place of a trial in a run.
#[derive(Clone, Copy, Deserialize)]
struct TrialPlace {
    block: u32,
    condition: usize,
    position: u32,
}

/// The trials that count, from the lines of all processes that measured a run.
struct SavedTrials<T> {
    /// In order; without those that do not count.
    trials: Vec<Option<T>>,
    /// By block and condition.
    rounds: HashMap<(u32, usize), SavedRound>,
    /// The number of the process that measured what follows, from 0.
    process: u32,
    repeated: usize,
}

/// The trials of a block and a condition, by their indices.
#[derive(Default)]
struct SavedRound {
    /// The last process that measured one.
    process: u32,
    of_process: Vec<(u32, usize)>,
    earlier: Vec<usize>,
    /// Positions of the earlier ones.
    earlier_positions: HashSet<u32>,
}

impl<T> SavedTrials<T> {
    fn new() -> Self {
        Self {
            trials: Vec::new(),
            rounds: HashMap::new(),
            process: 0,
            repeated: 0,
        }
    }

    /// Adds a trial. If an earlier process has measured a trial in its place, the trial belongs to a
    /// round that is repeated as a whole, and the earlier trials of the round do not count. Takes the same time for
    /// each trial on average, however many there are: others can have written the file.
    fn add(&mut self, place: TrialPlace, trial: T) {
        let round = self.rounds.entry((place.block, place.condition));
        let round = round.or_default();
        if round.process < self.process {
            round.process = self.process;
            for (position, index) in round.of_process.drain(..) {
                round.earlier.push(index);
                round.earlier_positions.insert(position);
            }
        }
        if round.earlier_positions.contains(&place.position) {
            self.repeated += round.earlier.len();
            for index in round.earlier.drain(..) {
                self.trials[index] = None;
            }
            round.earlier_positions.clear();
        }
        round.of_process.push((place.position, self.trials.len()));
        self.trials.push(Some(trial));
    }

    fn counting(self) -> impl Iterator<Item = T> {
        self.trials.into_iter().flatten()
    }
}

/// The lines of a file of trials after the first.
struct TrialLines<T> {
    saved: SavedTrials<T>,
    servers: Vec<ServerFacts>,
    /// Number and length of the lines that could be read, without the first.
    count: usize,
    bytes: u64,
    /// Whether a complete line that could not be read follows.
    is_damaged: bool,
    /// Whether nothing follows, not even a part of a line or an error of the disk.
    is_whole: bool,
}

/// Reads the lines after the first, up to one that was not written completely. `place` is that of a trial; `None` if
/// no run has such a trial.
fn lines<T: DeserializeOwned>(
    rest: &mut impl BufRead,
    place: impl Fn(&T) -> Option<TrialPlace>,
) -> TrialLines<T> {
    let mut found = TrialLines {
        saved: SavedTrials::new(),
        servers: Vec::new(),
        count: 0,
        bytes: 0,
        is_damaged: false,
        is_whole: false,
    };
    let mut line = Vec::new();
    loop {
        match regular_file::read_line(rest, &mut line) {
            Ok(true) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                found.is_damaged = true;
                break;
            }
            Ok(false) => {
                found.is_whole = line.is_empty();
                break;
            }
            Err(_) => break,
        }
        match serde_json::from_slice::<RunMarker>(&line) {
            Ok(RunMarker::Servers(servers)) => found.servers = servers,
            Ok(RunMarker::Resumed { .. }) => found.saved.process += 1,
            Err(_) => {
                let parsed = serde_json::from_slice::<T>(&line).ok();
                let Some((place, trial)) = parsed.and_then(|it| Some((place(&it)?, it))) else {
                    found.is_damaged = true;
                    break;
                };
                found.saved.add(place, trial);
            }
        }
        found.count += 1;
        found.bytes += line.len() as u64;
    }
    found
}

/// The parts of a file of trials that another process can append to.
pub(crate) struct ReadableLength {
    /// Length of all lines that could be read.
    pub(crate) bytes: u64,
    /// The number of a complete line that could not be read, from 1.
    pub(crate) damaged_line: Option<usize>,
}

/// Reads the file of trials in a run's directory.
pub(crate) fn read(directory: &Path) -> Result<(UnfinishedRun, ReadableLength), StoreError> {
    let mut opened = open(directory)?;
    let found = lines(&mut opened.rest, |trial: &Trial| {
        // `transactions` are part of them.
        let is_possible = trial.transactions_total.max(trial.transactions) <= TRANSACTIONS_MAX
            && trial.server_start.max(trial.block) <= STARTS_MAX;
        is_possible.then_some(TrialPlace {
            block: trial.block,
            condition: trial.condition,
            position: trial.position,
        })
    });
    let length = ReadableLength {
        bytes: opened.first_bytes + found.bytes,
        damaged_line: found.is_damaged.then_some(found.count + 2),
    };
    let (resumed, repeated) = (found.saved.process, found.saved.repeated);
    let unfinished = UnfinishedRun {
        start: opened.start,
        trials: found.saved.counting().collect(),
        is_running: is_locked(&opened.file),
        servers: found.servers,
        resumed,
        repeated,
    };
    Ok((unfinished, length))
}

/// What a run gathered besides the figures of its trials, and the length of the lines. Lines that
/// cannot be read are left out.
pub(crate) fn details(directory: &Path) -> Result<(Vec<RunDetail>, u64), StoreError> {
    let path = directory.join(DETAILS_FILE);
    let reading = |source| StoreError::reading(&path, source);
    let file = match regular_file::open_of_run(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        opened => opened.map_err(reading)?,
    };
    let mut reader = regular_file::bounded(file);
    let (mut all, mut bytes, mut line) = (Vec::new(), 0, Vec::new());
    while regular_file::read_line(&mut reader, &mut line).map_err(reading)? {
        bytes += line.len() as u64;
        all.extend(serde_json::from_slice::<RunDetail>(&line));
    }
    Ok((all, bytes))
}

/// The beginning of an unfinished run, its number of trials, and whether it is being measured.
pub(crate) fn summary(directory: &Path) -> Result<(RunStart, usize, bool), StoreError> {
    let mut opened = open(directory)?;
    let found = lines(&mut opened.rest, |place: &TrialPlace| Some(*place));
    let trials = found.saved.counting().count();
    Ok((opened.start, trials, is_locked(&opened.file)))
}

/// Whether a run can be continued: no process measures it, no other user may have written it, and it has what is
/// necessary. A curve has not.
pub(crate) fn is_resumable(root: &Path, id: &str) -> bool {
    let directory = root.join(id);
    open(&directory).is_ok_and(|it| it.start.origin.is_some() && !is_locked(&it.file))
        && ownership::open_run(root, id).is_ok()
}

/// Removes what an interrupted run no longer needs: the reserved space, and all of it if it has no
/// trials. A run stays if its trials cannot be read, or if it cannot be known whether a process measures it.
pub(crate) fn sweep(directory: &Path) {
    if !matches!(directory.join(RUN_FILE).try_exists(), Ok(false)) {
        return;
    }
    let Ok(mut opened) = open(directory) else {
        return;
    };
    // Without locks, a run in progress cannot be recognized.
    if opened.file.try_lock_shared().is_err() {
        return;
    }
    let found = lines(&mut opened.rest, |place: &TrialPlace| Some(*place));
    let has_none = opened.has_known_schema && found.is_whole && found.saved.trials.is_empty();
    // What cannot be removed stays, and is listed.
    _ = if has_none {
        fs::remove_dir_all(directory)
    } else {
        fs::remove_file(directory.join(RESERVED_FILE))
    };
}

/// A file of trials, of which the first line was read.
struct OpenedTrials {
    file: File,
    start: RunStart,
    /// Whether this version knows all of its lines.
    has_known_schema: bool,
    first_bytes: u64,
    rest: BoundedReader,
}

/// Opens the file of trials and reads its first line.
fn open(directory: &Path) -> Result<OpenedTrials, StoreError> {
    let path = directory.join(TRIALS_FILE);
    let opened = regular_file::open_of_run(&path);
    let file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => StoreError::NoRun {
            path: directory.to_owned(),
        },
        _ => StoreError::reading(&path, source),
    })?;
    let again = file
        .try_clone()
        .map_err(|source| StoreError::reading(&path, source))?;
    let mut rest = regular_file::bounded(again);
    let mut first = Vec::new();
    regular_file::read_line(&mut rest, &mut first)
        .map_err(|source| StoreError::reading(&path, source))?;
    let parsed: FirstLine =
        serde_json::from_slice(&first).map_err(|error| StoreError::Damaged {
            path,
            line: 1,
            column: error.column(),
            message: error.to_string(),
        })?;
    Ok(OpenedTrials {
        file,
        start: parsed.start,
        has_known_schema: parsed.schema == TRIALS_SCHEMA,
        first_bytes: first.len() as u64,
        rest,
    })
}

/// Whether a process measures the run of this file of trials.
pub(crate) fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock) => true,
        // Without locks, a run in progress cannot be recognized.
        Err(TryLockError::Error(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a file that another user had planted kept root's `list` busy for minutes.
    #[test]
    fn a_file_of_very_many_trials_is_read_in_time_that_is_proportional() {
        const TRIALS: u32 = 300_000;
        for spread in [1, TRIALS] {
            let mut saved = SavedTrials::new();
            for process in 0..3 {
                saved.process = process;
                for at in 0..TRIALS {
                    let place = TrialPlace {
                        block: at % spread,
                        condition: 0,
                        position: at / spread,
                    };
                    saved.add(place, (process, at));
                }
            }
            assert_eq!(saved.repeated, 2 * TRIALS as usize);
            let counting: Vec<_> = saved.counting().collect();
            assert_eq!(counting.len(), TRIALS as usize);
            assert!(counting.iter().all(|it| it.0 == 2));
        }
    }
}
