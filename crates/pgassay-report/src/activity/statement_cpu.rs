//! What a statement's CPU time was spent on, by its samples.

use pgassay_record::observation::{CpuRow, Observation};

use super::figures::share;

/// With fewer samples, shares would say little.
const SAMPLES_MIN: u64 = 10;
/// Rows below this share are left out.
const BELOW_SHARE: f64 = 0.01;

/// CPU time of one statement by phase and by function.
pub(crate) struct StatementCpu {
    /// All of its samples.
    pub samples: u64,
    phases: Vec<CpuRow>,
    functions: Vec<CpuRow>,
}

impl StatementCpu {
    /// `None` if a statement has no samples, or too few.
    pub fn of(observation: &Observation, statement: Option<u32>) -> Option<Self> {
        let statements = &observation.activity.as_ref()?.statements;
        let column = statements.get(statement? as usize)?.profile_column?;
        let phases = observation.phases_of(column);
        let samples = phases.iter().map(|it| it.samples).sum();
        (samples >= SAMPLES_MIN).then(|| Self {
            samples,
            phases,
            functions: observation.functions_of(column),
        })
    }

    /// The phases and their shares: `execute 85%, plan 15%`.
    pub fn phases(&self) -> String {
        let rows = self.large(&self.phases);
        rows.map(|it| format!("{} {}", it.name, self.share(it)))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The functions with the highest self times, and their shares of them.
    pub fn functions(&self, most: usize) -> String {
        let rows = self.large(&self.functions).take(most);
        rows.map(|it| format!("{} {}", it.name, self.share(it)))
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn large<'a>(&self, rows: &'a [CpuRow]) -> impl Iterator<Item = &'a CpuRow> + use<'a> {
        let least = self.samples as f64 * BELOW_SHARE;
        rows.iter().filter(move |it| it.samples as f64 >= least)
    }

    fn share(&self, row: &CpuRow) -> String {
        share(row.samples as f64, self.samples as f64)
    }
}
