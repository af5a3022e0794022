//! Counts instructions: runs a plan under valgrind, one client at a time.
//!
//! Servers that differ only in settings share a data directory, so that nothing else differs. It is
//! created and filled once, without valgrind, and restarted with each server's settings. Each start
//! begins with a copy of the filled data; a point that writes gets its own start. Every round counts
//! all points, each round in a different order, so that drift shows as spread. Within a round a
//! point runs its warm-up and then three segments of one, two and four units, each on a new
//! connection and with the same seed: a longer segment repeats a shorter one and continues. Unit
//! sizes are chosen before the rounds: they grow until the cost is linear, because everything that
//! a connection touches for the first time must be in the shortest segment.
//!
//! A point's figures are those of its median round. Segments are subtracted only within a round,
//! because backend startup can differ between server starts.
//!
//! Two timing-dependent effects are controlled. Backends report statistics once per second: that code
//! is not counted, and segments are kept short, so that most end before it runs. The addresses of a
//! backend's data depend on earlier backends of the server, some of which leave something behind: so
//! backends run one after the other, the same number in each round, and none is repeated. Which
//! points ran before depends on the round's order; its effect is part of the spread.
//!
//! Invariants: valgrind writes only to the server's own directory; figures cover only backends,
//! identified by the PID that the server reports to its client.

mod lengths;
mod machine;
mod names;
mod order;
mod paths;
mod segment;
mod sleep_barrier;
mod valgrind;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_account::instructions::{
    CallTree, ConditionCount, CountedLoad, Counts, NOT_LINEAR, Repeat, SCHEMA, VariantCount,
};
use pgassay_count::{InstructionTally, OutFile, variant_count};
use pgassay_model::plan::{Plan, Point as PlannedPoint, ServerPlan};
use pgassay_model::study::Network;
use pgassay_server::Server;

use self::lengths::{larger, of_unit};
pub use self::machine::machine;
use self::names::ObjectSymbols;
use self::order::StartOrder;
use self::segment::ValgrindSession;
use self::valgrind::Detail;
pub use self::valgrind::Valgrind;
use crate::host::{self, DataLocation};
use crate::run_context::RunContext;
use crate::study::LoadedStudy;
use crate::study_errors;

/// Under valgrind a server starts about twenty times slower.
const START_TIMEOUT: Duration = Duration::from_mins(3);
/// Prevents background activity during a segment; settings in the study take precedence.
const QUIET: [(&str, &str); 3] = [
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
];
/// Segments that took longer than this are not made longer.
const LINEAR_PATIENCE: Duration = Duration::from_secs(20);

/// Options of [`count`].
pub struct CountingOptions<'a> {
    /// Rounds over all points, each on newly started servers.
    pub repeats: u32,
    /// Transactions in the shortest segment; `None` chooses by cost.
    pub unit: Option<u64>,
    /// Segments of an earlier count, by condition and variant.
    pub segments_of: &'a dyn Fn(&str, &str) -> Option<[u64; 3]>,
    /// Whether to record call paths in an additional round.
    pub call_paths: bool,
    /// Parts of the study that counting does not cover.
    pub left_out: Vec<String>,
}

/// The counts of one point so far.
#[derive(Default)]
struct PointCounts {
    segments: Option<[u64; 3]>,
    /// It is the baseline, or costs about as much: then both have the same segments.
    shares_segments: bool,
    rounds: Vec<VariantCount>,
    tree: Option<CallTree>,
}

/// The callgrind output of one point in one round, by segment.
struct CallgrindOutput {
    files: [OutFile; 3],
}

impl CallgrindOutput {
    fn repeat(&self, position: u32) -> Repeat {
        Repeat {
            position,
            instructions: [0, 1, 2].map(|at: usize| self.files[at].totals.instructions),
        }
    }

    fn tally(&self, segments: [u64; 3]) -> InstructionTally {
        let [first, _, last] = &self.files;
        let mut tally = InstructionTally::default();
        tally.add(first, last, segments[2] - segments[0]);
        tally
    }
}

/// Counts every point of a plan.
pub fn count(
    plan: &Plan,
    options: &CountingOptions<'_>,
    context: &RunContext<'_>,
) -> Result<Counts> {
    let valgrind = Valgrind::find()?;
    check_countable(plan, context.study)?;
    let mut laboratory = Counter {
        plan,
        options,
        context: *context,
        valgrind: &valgrind,
        points: plan.points.iter().map(|_| PointCounts::default()).collect(),
        position: 0,
        names: RefCell::default(),
    };
    for cluster in clusters(&plan.servers) {
        laboratory.cluster(&cluster)?;
    }
    Ok(Counts {
        schema: SCHEMA.to_owned(),
        question: context.study.study.question.clone(),
        seed: plan.schedule.seed,
        machine: machine(&valgrind),
        ignored: options.left_out.clone(),
        conditions: laboratory.conditions()?,
    })
}

/// Returns an error if a plan contains something that cannot be counted.
pub fn check_countable(plan: &Plan, found: &LoadedStudy) -> Result<()> {
    refuse_dsn(plan, found)?;
    let idles = |point: &&PlannedPoint| plan.servers[point.server].idle_connections > 0;
    let names: BTreeSet<&str> = plan
        .points
        .iter()
        .filter(idles)
        .map(|point| plan.variants[point.variant].as_str())
        .collect();
    if !names.is_empty() {
        let names: Vec<&str> = names.into_iter().collect();
        bail!(
            "`idle_connections` cannot be counted, because each is a process under valgrind; use --variant to choose variants without it (it is in \"{}\")",
            names.join("\", \"")
        );
    }
    if let Some(point) = plan.points.iter().find(|it| it.reconnects) {
        bail!(
            "variant \"{}\" cannot be counted: its transactions reconnect, and counting begins in PostgresMain, after process start",
            plan.variants[point.variant]
        );
    }
    Ok(())
}

/// Returns an error if a plan contains an external server.
fn refuse_dsn(plan: &Plan, found: &LoadedStudy) -> Result<()> {
    let Some(dsn) = plan.servers.iter().find_map(|server| server.dsn.as_ref()) else {
        return Ok(());
    };
    let message = "cannot count instructions on an external server, because it would have to run under \
                   valgrind; choose other variants with --variant, or specify a version or `binaries` \
                   instead of `dsn`";
    Err(study_errors::at_dsn(found, dsn, message))
}

/// Indexes of servers that can share a data directory.
fn clusters(servers: &[ServerPlan]) -> Vec<Vec<usize>> {
    let mut clusters: Vec<Vec<usize>> = Vec::new();
    let alike = |a: &ServerPlan, b: &ServerPlan| {
        let ways = (a.tcp, a.tls) == (b.tcp, b.tls);
        (ways && a.data_checksums == b.data_checksums)
            && (&a.version, &a.binaries, &a.databases) == (&b.version, &b.binaries, &b.databases)
    };
    for (index, server) in servers.iter().enumerate() {
        match clusters
            .iter_mut()
            .find(|cluster| alike(&servers[cluster[0]], server))
        {
            Some(cluster) => cluster.push(index),
            None => clusters.push(vec![index]),
        }
    }
    clusters
}

struct Counter<'a> {
    plan: &'a Plan,
    options: &'a CountingOptions<'a>,
    context: RunContext<'a>,
    valgrind: &'a Valgrind,
    points: Vec<PointCounts>,
    /// The current point's position in its round, from 1.
    position: u32,
    names: RefCell<ObjectSymbols>,
}

impl Counter<'_> {
    /// Runs all rounds on the servers that share one data directory.
    fn cluster(&mut self, cluster: &[usize]) -> Result<()> {
        let first = &self.plan.servers[cluster[0]];
        let mut server = host::start_with_data(first, &self.context)?;
        let result = self.rounds(cluster, &mut server);
        self.context.stage("stopping the server");
        // The reason why counting failed is more informative than an error while stopping.
        match result {
            Ok(()) => Ok(server.stop()?),
            Err(error) => Err(error),
        }
    }

    fn rounds(&mut self, cluster: &[usize], server: &mut Server) -> Result<()> {
        let program = server.installation().program("postgres");
        let has_names = !self.names.borrow_mut().are_missing(&program);
        let detail = if has_names {
            Detail::Functions
        } else {
            Detail::Addresses
        };
        // In separate server starts, so that all rounds begin alike: the addresses of a backend's data
        // depend on the number of backends before it, and what libc executes depends slightly on those.
        let mut points = 0..self.plan.points.len();
        if points
            .any(|it| cluster.contains(&self.plan.points[it].server) && self.fixed(it).is_none())
        {
            let stage = "choosing the number of transactions";
            let order = StartOrder::of_plan(self.plan, cluster);
            self.each(&order, server, detail, stage, Self::choose)?;
            share_longest(&mut self.points, |it| self.plan.points[it].condition);
        }
        for round in 1..=self.options.repeats {
            let stage = format!("counting, round {round} of {}", self.options.repeats);
            let order = StartOrder::of_round(self.plan, cluster, round);
            self.each(&order, server, detail, &stage, Self::point)?;
        }
        // Without symbols, callgrind's call paths have wrong names.
        if self.options.call_paths && has_names {
            let stage = "counting call paths";
            let order = StartOrder::of_plan(self.plan, cluster);
            let paths = Self::paths;
            self.each(&order, server, Detail::CallPaths, stage, paths)?;
        }
        Ok(())
    }

    /// Restarts each server of a cluster in turn with its original data, and calls `does` for each of
    /// its points.
    fn each(
        &mut self,
        order: &StartOrder,
        server: &mut Server,
        detail: Detail,
        stage: &str,
        does: fn(&mut Self, usize, &Server) -> Result<()>,
    ) -> Result<()> {
        self.position = 0;
        for (index, points) in &order.servers {
            let mut databases = BTreeSet::new();
            let mut is_fresh = false;
            for &point in points {
                self.position += 1;
                let planned = &self.plan.points[point];
                let variant = &self.plan.variants[planned.variant];
                self.context.stage(&format!(
                    "{stage}, PostgreSQL {}: {}{variant}",
                    server.installation().version,
                    self.title(planned.condition),
                ));
                // A point that writes leaves traces that no reset removes, so it gets its own copy of
                // the data, which no other point uses.
                let writes = !planned.resets.is_empty();
                if writes || !is_fresh {
                    self.context.check()?;
                    let wanted = &self.plan.servers[*index];
                    self.restart(server, wanted, detail)
                        .map_err(|error| {
                            host::at_setting(self.context.study, &wanted.settings, error)
                        })
                        .with_context(|| self.variants_of(*index))?;
                    databases.clear();
                }
                is_fresh = !writes;
                let arrived = if databases.insert(planned.database) {
                    self.bench(point, server).warm_relcache()
                } else {
                    Ok(())
                };
                arrived
                    .and_then(|()| does(self, point, server))
                    .map_err(|error| host::death_or(server, error))
                    .with_context(|| format!("variant \"{variant}\""))?;
            }
        }
        Ok(())
    }

    /// The variants that use a server, for error messages.
    fn variants_of(&self, server: usize) -> String {
        let points = self
            .plan
            .points
            .iter()
            .filter(|point| point.server == server);
        let names: BTreeSet<&str> = points
            .map(|point| self.plan.variants[point.variant].as_str())
            .collect();
        let names: Vec<&str> = names.into_iter().collect();
        format!("variant \"{}\", under valgrind", names.join("\", \""))
    }

    fn title(&self, condition: usize) -> String {
        match self.plan.conditions[condition].label.as_str() {
            "" => String::new(),
            label => format!("{label}, "),
        }
    }

    fn restart(
        &self,
        server: &mut Server,
        wanted: &ServerPlan,
        detail: Detail,
    ) -> Result<(), pgassay_server::ServerError> {
        let launcher = self.valgrind.launcher(server.own_dir(), detail);
        server.restart_with_initial_data(|config| {
            config.launcher = launcher;
            config.start_timeout = START_TIMEOUT;
            config.environment.clone_from(&wanted.environment);
            config.settings = QUIET
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .chain(wanted.settings.clone())
                .collect();
        })
    }

    fn bench<'b>(&'b self, index: usize, server: &'b Server) -> ValgrindSession<'b> {
        let planned = &self.plan.points[index];
        ValgrindSession {
            point: planned,
            server,
            place: DataLocation {
                host: server,
                database: &self.plan.servers[planned.server].databases[planned.database].name,
                address: match planned.network {
                    Network::Unix => None,
                    _ => server.tcp_address(),
                },
            },
            seed: self.plan.schedule.seed,
            context: &self.context,
            names: &self.names,
        }
    }

    /// Counts one point in one round.
    fn point(&mut self, index: usize, server: &Server) -> Result<()> {
        let segments = self.points[index].segments.or_else(|| self.fixed(index));
        let segments = segments.context("counting started before segments were chosen")?;
        let counted = once(&self.bench(index, server), segments)?;
        let planned = &self.plan.points[index];
        let mut settings = self.plan.servers[planned.server].settings.clone();
        settings.extend(planned.session.clone());
        let round = variant_count(
            &self.plan.variants[planned.variant],
            machine::build(server),
            settings,
            segments,
            vec![counted.repeat(self.position)],
            &counted.tally(segments),
        );
        let point = &mut self.points[index];
        point.segments = Some(segments);
        point.rounds.push(round);
        Ok(())
    }

    /// Chooses the number of transactions in a point's segments: those of the baseline unless its
    /// transactions cost much more, then more until the cost is linear.
    fn choose(&mut self, index: usize, server: &Server) -> Result<()> {
        if self.fixed(index).is_none() {
            let bench = self.bench(index, server);
            let unit = bench.unit()?;
            let baseline = self.baseline_of(index);
            let of_baseline = baseline.and_then(|it| it.segments);
            let is_alike = |it: &[u64; 3]| lengths::is_alike(unit, *it);
            let first = of_baseline
                .filter(is_alike)
                .unwrap_or_else(|| of_unit(unit));
            let shares_segments = of_baseline.is_none_or(|it| is_alike(&it));
            // On another build, the baseline was counted before.
            let is_counted = baseline.is_some_and(|it| !it.rounds.is_empty());
            // Another try would only take as long as a round.
            let is_heavy = lengths::is_heavy(first[0]);
            let segments = if is_heavy || is_counted && shares_segments {
                first
            } else {
                until_linear(&bench, first)?
            };
            let point = &mut self.points[index];
            point.segments = Some(segments);
            point.shares_segments = shares_segments;
        }
        Ok(())
    }

    /// The first point under the same condition whose segments were chosen.
    fn baseline_of(&self, index: usize) -> Option<&PointCounts> {
        let condition = self.plan.points[index].condition;
        let mut points = self.plan.points.iter().zip(&self.points);
        let baseline = points.find(|(other, _)| other.condition == condition);
        baseline.map(|(_, point)| point)
    }

    /// The segments of a point from an earlier count or from the command line.
    fn fixed(&self, index: usize) -> Option<[u64; 3]> {
        let planned = &self.plan.points[index];
        let label = &self.plan.conditions[planned.condition].label;
        let variant = &self.plan.variants[planned.variant];
        let earlier = (self.options.segments_of)(label, variant);
        earlier.or_else(|| self.options.unit.map(of_unit))
    }

    fn conditions(&self) -> Result<Vec<ConditionCount>> {
        let conditions = self.plan.conditions.iter().enumerate();
        conditions
            .map(|(condition, planned)| {
                let points = self.plan.points.iter().zip(&self.points);
                let variants = points
                    .filter(|(point, _)| point.condition == condition)
                    .map(|(planned, point)| self.variant(planned, point))
                    .collect::<Result<Vec<_>>>()?;
                Ok(ConditionCount {
                    title: planned.label.clone(),
                    variants,
                })
            })
            .collect()
    }

    fn load(&self, point: &PlannedPoint) -> CountedLoad {
        let database = &self.plan.servers[point.server].databases[point.database];
        let setup = database.setup.iter().chain(&point.resets);
        CountedLoad {
            protocol: point.protocol.as_str().to_owned(),
            session: point.session.clone(),
            scripts: point.scripts.iter().map(|it| it.text.clone()).collect(),
            setup: setup.map(|it| it.text.clone()).collect(),
        }
    }

    /// The median round of a point, with the totals of all rounds.
    fn variant(&self, planned: &PlannedPoint, point: &PointCounts) -> Result<VariantCount> {
        let mut rounds: Vec<&VariantCount> = point.rounds.iter().collect();
        rounds.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        let Some(median) = rounds.get(rounds.len().saturating_sub(1) / 2) else {
            bail!(
                "variant \"{}\" was not counted",
                self.plan.variants[planned.variant]
            );
        };
        let repeats = point.rounds.iter().flat_map(|round| &round.repeats);
        Ok(VariantCount {
            repeats: repeats.copied().collect(),
            tree: point.tree.clone(),
            load: Some(self.load(planned)),
            ..(*median).clone()
        })
    }
}

/// Gives the points of a condition that share their segments the longest that any of them needs. The cost of an
/// update depends on the number of updates before it.
fn share_longest(points: &mut [PointCounts], condition_of: impl Fn(usize) -> usize) {
    let mut longest: BTreeMap<usize, [u64; 3]> = BTreeMap::new();
    let is_open = |it: &PointCounts| it.shares_segments && it.rounds.is_empty();
    for (index, point) in points.iter().enumerate().filter(|(_, it)| is_open(it)) {
        if let Some(segments) = point.segments {
            let known = longest.entry(condition_of(index)).or_insert(segments);
            *known = segments.max(*known);
        }
    }
    for (index, point) in points.iter_mut().enumerate().filter(|(_, it)| is_open(it)) {
        point.segments = longest.get(&condition_of(index)).copied();
    }
}

/// Runs a warm-up and three segments.
fn once(bench: &ValgrindSession<'_>, segments: [u64; 3]) -> Result<CallgrindOutput> {
    let first = lengths::first(segments[0]);
    bench.warm_up(segments[2], first)?;
    let files = [
        bench.segment(segments[0], first)?,
        bench.segment(segments[1], first)?,
        bench.segment(segments[2], first)?,
    ];
    Ok(CallgrindOutput { files })
}

/// Lengthens the segments until the cost is linear or they take too long.
fn until_linear(bench: &ValgrindSession<'_>, first: [u64; 3]) -> Result<[u64; 3]> {
    let mut segments = first;
    loop {
        let start = Instant::now();
        let repeat = once(bench, segments)?.repeat(0);
        let is_linear = repeat.bend(segments).abs() <= NOT_LINEAR;
        match larger(segments[0]) {
            Some(unit) if !is_linear && start.elapsed() < LINEAR_PATIENCE => {
                segments = of_unit(unit);
            }
            _ => return Ok(segments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two equal variants differed by 1.4%, because one was counted over more transactions.
    #[test]
    fn variants_that_cost_about_as_much_are_counted_over_as_many_transactions() {
        let point = |unit: u64, shares_segments: bool| PointCounts {
            segments: Some(of_unit(unit)),
            shares_segments,
            ..PointCounts::default()
        };
        // The last two are of another condition, and the third costs much more.
        let mut points = [
            point(500, true),
            point(1000, true),
            point(20, false),
            point(50, true),
            point(50, true),
        ];
        share_longest(&mut points, |it| it / 3);
        let units = points.map(|it| it.segments.map(|it| it[0]));
        assert_eq!(units, [1000, 1000, 20, 50, 50].map(Some));
    }

    fn server(version: &str, setting: &str) -> ServerPlan {
        ServerPlan {
            version: Some(version.to_owned()),
            binaries: None,
            dsn: None,
            settings: BTreeMap::from([("work_mem".to_owned(), setting.to_owned())]),
            databases: Vec::new(),
            tcp: false,
            tls: false,
            environment: BTreeMap::new(),
            data_checksums: None,
            idle_connections: 0,
            connections: 1,
        }
    }

    #[test]
    fn servers_that_differ_in_settings_share_their_data() {
        let servers = [
            server("18", "4MB"),
            server("10", "4MB"),
            server("18", "8MB"),
        ];
        assert_eq!(clusters(&servers), [vec![0, 2], vec![1]]);
    }
}
