//! Tables of an observation: CPU time by function, phase and subsystem.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_knowledge::{FrameName, Phase, Subsystem, Symbols};
use pgassay_model::profile::{Frame, Node, Profile};

use super::Observation;

/// CPU time of one function, phase or subsystem over the whole window.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuRow {
    /// Its name.
    pub name: String,
    /// For functions: the executable or library.
    pub object: String,
    /// For functions: whether it is in the kernel.
    pub kernel: bool,
    /// Self time, without callees.
    pub self_us: f64,
    /// Time with callees; recursion counts once.
    pub children_us: f64,
    /// Samples behind `self_us`.
    pub samples: u64,
}

/// Samples of a row: its own, and those with callees.
#[derive(Default)]
struct Count {
    own: u64,
    inclusive: u64,
}

impl Observation {
    /// Functions, highest self time first.
    pub fn functions(&self) -> Vec<CpuRow> {
        self.sampled().map_or_else(Vec::new, |profile| {
            functions(profile, None, self.cpu_us_per_sample())
        })
    }

    /// Functions of the samples in one column of the profile, such as those of a statement; highest self time first.
    pub fn functions_of(&self, column: u32) -> Vec<CpuRow> {
        self.sampled().map_or_else(Vec::new, |profile| {
            functions(profile, Some(column), self.cpu_us_per_sample())
        })
    }

    /// Functions by blocked time, longest first; a wait event counts as a function.
    pub fn blocked_functions(&self) -> Vec<CpuRow> {
        self.seen_blocked().map_or_else(Vec::new, |profile| {
            functions(&profile, None, self.blocked_us() / profile.total() as f64)
        })
    }

    /// Subsystems of the server, highest CPU time first.
    pub fn subsystems(&self) -> Vec<CpuRow> {
        let major = self.subject.major.as_deref().unwrap_or("devel");
        let symbols = Symbols::for_major(major);
        self.by_name(None, |stack| Subsystem::of(&symbols, stack).to_string())
    }

    /// Phases of a statement, highest CPU time first.
    pub fn phases(&self) -> Vec<CpuRow> {
        self.by_name(None, |stack| Phase::of(stack).to_string())
    }

    /// The same of the samples in one column of the profile.
    pub fn phases_of(&self, column: u32) -> Vec<CpuRow> {
        self.by_name(Some(column), |stack| Phase::of(stack).to_string())
    }

    fn by_name(
        &self,
        column: Option<u32>,
        name: impl Fn(&[FrameName<'_>]) -> String,
    ) -> Vec<CpuRow> {
        let Some(profile) = self.sampled() else {
            return Vec::new();
        };
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        for (stack, samples) in stacks(profile, column) {
            let names: Vec<FrameName<'_>> = stack.into_iter().map(frame_name).collect();
            let count = counts.entry(name(&names)).or_default();
            count.own += samples;
            count.inclusive += samples;
        }
        let rows = counts.into_iter().map(|(name, count)| CpuRow {
            name,
            ..row(&count, self.cpu_us_per_sample())
        });
        sorted(rows.collect())
    }
}

/// Functions of a profile, highest self time first.
fn functions(profile: &Profile, column: Option<u32>, us_per_sample: f64) -> Vec<CpuRow> {
    let mut counts: BTreeMap<&Frame, Count> = BTreeMap::new();
    for (stack, samples) in stacks(profile, column) {
        if let Some(leaf) = stack.last() {
            counts.entry(leaf).or_default().own += samples;
        }
        let distinct: BTreeSet<&Frame> = stack.into_iter().collect();
        for frame in distinct {
            counts.entry(frame).or_default().inclusive += samples;
        }
    }
    let rows = counts.into_iter().map(|(frame, count)| CpuRow {
        name: frame.label(),
        object: frame.object.clone(),
        kernel: frame.kernel,
        ..row(&count, us_per_sample)
    });
    sorted(rows.collect())
}

fn row(count: &Count, us_per_sample: f64) -> CpuRow {
    CpuRow {
        name: String::new(),
        object: String::new(),
        kernel: false,
        self_us: count.own as f64 * us_per_sample,
        children_us: count.inclusive as f64 * us_per_sample,
        samples: count.own,
    }
}

/// Every stack in which samples end, those of all columns or of one, outermost frame first.
fn stacks(profile: &Profile, column: Option<u32>) -> impl Iterator<Item = (Vec<&Frame>, u64)> {
    let samples = move |node: &Node| match column {
        Some(column) => node
            .samples
            .get(column as usize)
            .map_or(0, |it| u64::from(*it)),
        None => node.total(),
    };
    (0u32..)
        .zip(&profile.nodes)
        .map(move |(index, node)| (index, samples(node)))
        .filter(|(_, samples)| *samples > 0)
        .map(|(index, samples)| (profile.stack(index), samples))
}

fn frame_name(frame: &Frame) -> FrameName<'_> {
    FrameName {
        symbol: frame.symbol.as_deref(),
        object: &frame.object,
        kernel: frame.kernel,
    }
}

/// Sorts by self time, then by time with callees (both descending), then by name.
fn sorted(mut rows: Vec<CpuRow>) -> Vec<CpuRow> {
    rows.sort_by(|a, b| {
        b.self_us
            .total_cmp(&a.self_us)
            .then(b.children_us.total_cmp(&a.children_us))
            .then_with(|| a.name.cmp(&b.name))
    });
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observation::{SCHEMA, Subject, TimeDivisor};
    use pgassay_model::cpu::CpuTotals;
    use pgassay_model::profile::ProfileBuilder;

    fn frame(symbol: &str) -> Frame {
        Frame {
            symbol: Some(symbol.to_owned()),
            object: "postgres".to_owned(),
            offset: 0,
            kernel: false,
        }
    }

    pub(in crate::observation) fn observation() -> Observation {
        let mut builder = ProfileBuilder::new(1);
        let stack = |names: &[&str]| names.iter().map(|name| frame(name)).collect::<Vec<_>>();
        builder.add(0, stack(&["PostgresMain", "PortalRun", "ExecScan"]), 6);
        builder.add(
            0,
            stack(&["PostgresMain", "PortalRun", "ExecScan", "ExecScan"]),
            2,
        );
        builder.add(
            0,
            stack(&["PostgresMain", "pg_plan_query", "standard_planner"]),
            2,
        );
        Observation {
            schema: SCHEMA.to_owned(),
            pgassay_version: String::new(),
            started_us: 0,
            window_us: 2e6,
            frequency_hz: 99,
            subject: Subject {
                postmaster_pid: Some(1),
                address: None,
                backend_pid: None,
                major: Some("18".to_owned()),
            },
            transactions: Some(100),
            backends: Some(CpuTotals {
                on_cpu_us: 1000.0,
                run_queue_us: 500.0,
                processes: 2,
            }),
            sessions: 2,
            backends_present_us: 4e6,
            ended_cpu_us: None,
            background: Vec::new(),
            profile: Some(builder.finish()),
            waits: None,
            tier: None,
            limitations: Vec::new(),
            activity: None,
            findings: Vec::new(),
        }
    }

    #[test]
    fn rows_divide_the_exact_total_and_recursion_counts_once() {
        let observation = observation();
        let functions = observation.functions();
        let row = |name: &str| functions.iter().find(|row| row.name == name).unwrap();
        assert!((row("ExecScan").self_us - 800.0).abs() < 1e-9);
        assert!((row("ExecScan").children_us - 800.0).abs() < 1e-9);
        assert!((row("PostgresMain").children_us - 1000.0).abs() < 1e-9);
        assert_eq!(functions[0].name, "ExecScan");
        for rows in [functions, observation.phases(), observation.subsystems()] {
            let sum: f64 = rows.iter().map(|row| row.self_us).sum();
            assert!((sum - 1000.0).abs() < 1e-9, "{rows:?}");
        }
        let phases: Vec<_> = observation
            .phases()
            .into_iter()
            .map(|row| row.name)
            .collect();
        assert_eq!(phases, ["execute", "plan"]);
    }

    #[test]
    fn a_column_has_its_samples_only() {
        let mut observation = observation();
        let mut builder = ProfileBuilder::new(2);
        builder.add(0, [frame("PostgresMain"), frame("PortalRun")], 6);
        builder.add(1, [frame("PostgresMain"), frame("standard_planner")], 4);
        observation.profile = Some(builder.finish());
        let names = |rows: Vec<CpuRow>| {
            let rows = rows.into_iter().filter(|it| it.samples > 0);
            rows.map(|it| (it.name, it.samples)).collect::<Vec<_>>()
        };
        let functions = names(observation.functions_of(1));
        assert_eq!(functions, [("standard_planner".to_owned(), 4)]);
        let phases = names(observation.phases_of(0));
        assert_eq!(phases, [("execute".to_owned(), 6)]);
        assert!(observation.functions_of(2).is_empty());
    }

    #[test]
    fn the_window_is_on_cpu_in_the_run_queue_or_blocked() {
        let observation = observation();
        assert!((observation.blocked_us() - (4e6 - 1500.0)).abs() < 1e-6);
    }

    #[test]
    fn without_transactions_the_basis_is_time() {
        let mut observation = observation();
        assert_eq!(observation.basis(), TimeDivisor::Transactions(100));
        assert!((observation.basis().of(1000.0) - 10.0).abs() < 1e-12);
        for nothing in [Some(0), None] {
            observation.transactions = nothing;
            assert_eq!(observation.basis(), TimeDivisor::Seconds(2.0));
            assert_eq!(observation.basis().unit(), "µs/s");
        }
        observation.profile = None;
        assert!(observation.functions().is_empty() && observation.subsystems().is_empty());
    }
}
