//! Classes of wait events, by which charts are divided.

use pgassay_record::activity::Activity;

/// A class of wait events, by `wait_event_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitClass {
    /// No wait event: on a CPU, or in its run queue.
    Cpu,
    /// `IO`.
    Io,
    /// `Lock`: heavyweight locks, as on rows and tables.
    Lock,
    /// `LWLock`, in 9.6 `LWLockNamed` and `LWLockTranche`.
    LightweightLock,
    /// `Client`.
    Client,
    /// `IPC`.
    Ipc,
    /// `BufferPin` (`Buffer` from 19 on), `Timeout`, `Extension`, `Activity`, and types of later versions.
    Other,
}

impl WaitClass {
    /// All classes, in the order of charts.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Io,
        Self::Lock,
        Self::LightweightLock,
        Self::Client,
        Self::Ipc,
        Self::Other,
    ];

    /// The class of a `wait_event_type`; the empty one is [`WaitClass::Cpu`].
    pub fn of(kind: &str) -> Self {
        match kind {
            "" => Self::Cpu,
            "IO" => Self::Io,
            "Lock" => Self::Lock,
            "Client" => Self::Client,
            "IPC" => Self::Ipc,
            _ if kind.starts_with("LWLock") => Self::LightweightLock,
            _ => Self::Other,
        }
    }

    /// Its letter in bars of text.
    pub fn letter(self) -> char {
        match self {
            Self::Cpu => 'C',
            Self::Io => 'I',
            Self::Lock => 'L',
            Self::LightweightLock => 'W',
            Self::Client => 'N',
            Self::Ipc => 'P',
            Self::Other => 'o',
        }
    }

    /// Its title in legends.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Io => "I/O",
            Self::Lock => "lock",
            Self::LightweightLock => "LWLock",
            Self::Client => "client",
            Self::Ipc => "IPC",
            Self::Other => "other",
        }
    }

    /// Its name in style sheets.
    pub(crate) fn css(self) -> &'static str {
        match self {
            Self::Cpu => "wait-cpu",
            Self::Io => "wait-io",
            Self::Lock => "wait-lock",
            Self::LightweightLock => "wait-lwlock",
            Self::Client => "wait-client",
            Self::Ipc => "wait-ipc",
            Self::Other => "wait-other",
        }
    }
}

/// Average sessions by class, in the order of [`WaitClass::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassLoads(pub [f64; 7]);

impl ClassLoads {
    /// The loads of a row of a table of load (see [`pgassay_record::activity::LoadRow::by_wait`]).
    pub fn of(activity: &Activity, by_wait: &[(u32, f64)]) -> Self {
        let mut loads = Self::default();
        for (wait, load) in by_wait {
            let kind = activity.waits.get(*wait as usize);
            loads.add(kind.map_or("", |it| &it.kind), *load);
        }
        loads
    }

    /// Adds a load to the class of a `wait_event_type`.
    pub fn add(&mut self, kind: &str, load: f64) {
        self.0[WaitClass::of(kind) as usize] += load;
    }

    /// The sum over all classes.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// A bar of `width` columns for the load `whole`: how many columns each class gets. A load that
    /// is not zero gets at least one column in all.
    pub fn columns(&self, whole: f64, width: usize) -> Vec<(WaitClass, usize)> {
        let total = self.total();
        if total <= 0.0 || whole <= 0.0 || width == 0 {
            return Vec::new();
        }
        let columns = (total / whole * width as f64).round() as usize;
        let columns = columns.clamp(1, width);
        let mut spans = Vec::new();
        let (mut sum, mut drawn) = (0.0, 0);
        for (class, load) in WaitClass::ALL.into_iter().zip(self.0) {
            sum += load;
            let end = (sum / total * columns as f64).round() as usize;
            if end > drawn {
                spans.push((class, end - drawn));
                drawn = end;
            }
        }
        spans
    }

    /// The same bar in letters.
    pub fn letters(&self, whole: f64, width: usize) -> String {
        let spans = self.columns(whole, width).into_iter();
        spans
            .map(|(class, columns)| class.letter().to_string().repeat(columns))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_the_columns_of_its_load() {
        let mut loads = ClassLoads::default();
        for (kind, load) in [("", 1.0), ("Lock", 2.5), ("LWLockTranche", 0.5), ("X", 0.0)] {
            loads.add(kind, load);
        }
        assert_eq!(loads.letters(4.0, 16), "CCCCLLLLLLLLLLWW");
        assert_eq!(loads.letters(8.0, 16), "CCLLLLLW");
        assert_eq!(loads.letters(1e9, 16).len(), 1);
        assert_eq!(loads.letters(0.0, 16), "");
        assert_eq!(ClassLoads::default().letters(1.0, 16), "");
    }

    #[test]
    fn every_class_is_in_its_place() {
        for (at, class) in WaitClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, at);
        }
    }
}
