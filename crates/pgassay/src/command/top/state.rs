//! What is on the screen, and how keys and new readings change it. Pure: no I/O, no clock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use pgassay_lab::watch::PresentSession;
use pgassay_record::activity::Activity;
use pgassay_record::finding::Finding;

use super::columns::{TopView, VIEWS};
use super::lists::{RowSource, rows};
use super::rows::TopRow;
use super::saving;

/// What the next key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyMode {
    /// A command.
    Command,
    /// A letter of the filter.
    Filter,
    /// The letter of a column to sort by.
    Sort,
    /// Help is shown: any key closes it.
    Help,
    /// The details of the selected row are shown.
    Detail,
}

/// The server on the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopServer {
    /// Such as `PostgreSQL 18 at /run/postgresql:5432`.
    pub title: String,
    /// The major version, such as `18`; `None` if unknown.
    pub major: Option<String>,
    /// The postmaster; `None` if it is not visible from this machine.
    pub postmaster_pid: Option<u32>,
    /// Its address, if it is not on this machine.
    pub address: Option<String>,
}

/// What was seen in an interval.
#[derive(Debug, Default)]
pub struct TopReading {
    pub activity: Activity,
    /// The sessions at its end.
    pub present: Vec<PresentSession>,
}

impl From<Activity> for TopReading {
    fn from(activity: Activity) -> Self {
        Self {
            activity,
            present: Vec::new(),
        }
    }
}

/// Where and when a reading was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadingOrigin {
    pub server: TopServer,
    /// Its end, in microseconds since 1970.
    pub read_us: i64,
}

/// The intervals that `+` and `-` choose from, in milliseconds.
const INTERVALS_MS: [u64; 7] = [500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// Readings in the chart of the header.
const HISTORY_MAX: usize = 120;

/// The whole state of the screen.
pub struct TopState {
    pub server: TopServer,
    pub view: TopView,
    pub mode: KeyMode,
    /// The letter of the column that each view is sorted by, in the order of [`TopView`].
    pub sorted_by: [char; VIEWS],
    pub filter: String,
    pub is_paused: bool,
    pub interval: Duration,
    pub uses_color: bool,
    /// Only characters of ASCII are drawn.
    pub is_ascii: bool,
    /// What is shown; while paused, an older reading than the latest.
    pub shown: Option<Activity>,
    /// The sessions at its end.
    pub present: Vec<PresentSession>,
    /// Its findings, while they are on the screen.
    pub findings: Vec<Finding>,
    /// The origin of what is shown.
    pub origin: ReadingOrigin,
    /// The latest reading, if it is not shown.
    pub latest: Option<(TopReading, ReadingOrigin)>,
    /// Average active sessions of the latest readings, oldest first.
    pub history: VecDeque<f64>,
    /// Position of the selected row among those of the view.
    pub selected: usize,
    /// The key of the row whose details are shown, which can be gone.
    pub detailed: String,
    /// The first line of the details or the help that is shown.
    pub text_from: usize,
    /// With which the last line is shown, on the screen as it was drawn last.
    pub text_from_max: Cell<usize>,
    /// The answer to the last key, such as where a snapshot is.
    pub message: Option<String>,
    /// Time since the last reading, if it is overdue.
    pub silent_for: Option<Duration>,
    /// Why there is no connection, while the server is away.
    pub lost: Option<String>,
    /// Why there are no more readings.
    pub stopped: Option<String>,
}

impl TopState {
    pub fn new(interval: Duration, uses_color: bool) -> Self {
        Self {
            server: TopServer::default(),
            view: TopView::Statements,
            mode: KeyMode::Command,
            sorted_by: ['l', 't', ' ', 'r', 't', 'l'],
            filter: String::new(),
            is_paused: false,
            interval,
            uses_color,
            is_ascii: false,
            shown: None,
            present: Vec::new(),
            findings: Vec::new(),
            origin: ReadingOrigin::default(),
            latest: None,
            history: VecDeque::new(),
            selected: 0,
            detailed: String::new(),
            text_from: 0,
            text_from_max: Cell::new(0),
            message: None,
            silent_for: None,
            lost: None,
            stopped: None,
        }
    }

    /// A new reading, which ended at that time, in microseconds since 1970.
    pub fn update(&mut self, reading: impl Into<TopReading>, read_us: i64) {
        let reading = reading.into();
        self.silent_for = None;
        self.history.push_back(reading.activity.active_sessions());
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        let origin = ReadingOrigin {
            server: self.server.clone(),
            read_us,
        };
        if self.is_paused && self.shown.is_some() {
            self.latest = Some((reading, origin));
            return;
        }
        self.latest = None;
        self.show_reading(reading, origin);
    }

    fn show_reading(&mut self, reading: TopReading, origin: ReadingOrigin) {
        // The selection stays with its row.
        let key = self.selected_key();
        self.shown = Some(reading.activity);
        self.present = reading.present;
        self.origin = origin;
        self.diagnose();
        self.select(key.as_deref());
    }

    /// Finds known causes in what is shown. That takes CPU time: only while they are on the screen.
    fn diagnose(&mut self) {
        let shown = self.shown.as_ref();
        let shown = shown.filter(|_| self.view == TopView::Findings);
        self.findings = shown.map_or_else(Vec::new, |it| saving::findings(it, &self.origin));
    }

    /// The rows of the view, filtered and sorted.
    pub fn rows(&self) -> Vec<TopRow> {
        let Some(activity) = &self.shown else {
            return Vec::new();
        };
        let sorted_by = self.sorted_by[self.view as usize];
        let source = RowSource {
            activity,
            present: &self.present,
            findings: &self.findings,
        };
        rows(source, self.view, sorted_by, &self.filter)
    }

    /// The selected row; while details are shown, the row that they are of, unless it is gone.
    pub fn selected_row(&self) -> Option<TopRow> {
        let mut rows = self.rows();
        let at = match self.mode {
            KeyMode::Detail => rows.iter().position(|row| row.key == self.detailed)?,
            _ => self.selected,
        };
        (at < rows.len()).then(|| rows.swap_remove(at))
    }

    fn selected_key(&self) -> Option<String> {
        match self.mode {
            KeyMode::Detail => Some(self.detailed.clone()),
            _ => self.selected_row().map(|row| row.key),
        }
    }

    /// Selects the row with this key; if it is gone, the row in its place.
    pub fn select(&mut self, key: Option<&str>) {
        let rows = self.rows();
        let found = rows.iter().position(|row| Some(&*row.key) == key);
        let last = rows.len().saturating_sub(1);
        self.selected = found.unwrap_or(self.selected).min(last);
    }

    /// Shows another list from its top.
    pub fn show(&mut self, view: TopView) {
        self.view = view;
        self.selected = 0;
        self.diagnose();
    }

    /// Stops and continues; the latest reading is shown at once.
    pub fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let (false, Some((latest, origin))) = (self.is_paused, self.latest.take()) {
            self.show_reading(latest, origin);
        }
    }

    /// The next longer interval, or the next shorter one.
    pub fn change_interval(&mut self, is_longer: bool) {
        let now = self.interval.as_millis() as u64;
        let mut steps = INTERVALS_MS.into_iter();
        let next = if is_longer {
            steps.find(|it| *it > now)
        } else {
            steps.rfind(|it| *it < now)
        };
        if let Some(next) = next {
            self.interval = Duration::from_millis(next);
        }
        self.message = Some(format!("interval {} s", self.interval.as_secs_f64()));
    }
}
