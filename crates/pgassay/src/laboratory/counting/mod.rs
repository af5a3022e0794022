//! Counting: follows a plan under valgrind, one client at a time.
//!
//! Servers that differ in settings only share a data directory: it is made and filled once, without
//! valgrind, and started again with each one's settings, so that nothing else differs. Each start begins
//! with a copy of the data as they were filled; a point that writes has a start for itself. Rounds go
//! over all of them, so that a drift shows as a spread, each in an order of its own. Within a round a point
//! runs its warm-up and then three segments of one, two and four units, each on a connection of its own,
//! with the same seed: a longer segment repeats a shorter one and goes on. Before the rounds, units are
//! chosen: they grow until the cost is linear, because what a connection touches for the first time must
//! be in the shortest segment.
//!
//! A point's figures are those of its median round. Segments are subtracted within a round only: a
//! backend's start can differ from one start of the server to the next.
//!
//! Two things that time decides would show otherwise. Backends hand statistics over once a second:
//! that is not collected, and segments are kept short, so that most end before it. And where a backend's
//! data lie in memory depends on the backends that the server had before, some of which leave something
//! behind; so they follow one after the other, as many in each round, and none is run again. Which points
//! they served before depends on the round's order, and what that changes is part of the spread.
//!
//! Invariants: nothing that valgrind writes lies outside of the server's own directory; figures are
//! of backends alone, found by the number that the server tells its client.

mod lockstep;
mod machine;
mod names;
mod order;
mod paths;
mod segment;
mod valgrind;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_core::instructions::{
    CallTree, ConditionCount, Counts, NOT_LINEAR, Repeat, SCHEMA, VariantCount,
};
use pgassay_core::plan::{Plan, Point as PlannedPoint, ServerPlan};
use pgassay_core::study::Network;
use pgassay_count::{OutFile, Tally, variant_count};
use pgassay_server::Server;

use self::names::Names;
use self::order::Order;
use self::segment::{Bench, larger};
use self::valgrind::Detail;
pub use self::valgrind::Valgrind;
use super::servers::{self, Place};
use crate::catalogue::Found;
use crate::cli::ServerArgs;
use crate::interrupt::Interrupt;
use crate::places;
use crate::progress::Progress;

/// A server under valgrind starts some twenty times slower.
const START_TIMEOUT: Duration = Duration::from_mins(3);
/// What must not start in the middle of a segment; a study may say otherwise.
const QUIET: [(&str, &str); 3] = [
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
];
/// Segments that took longer are not made longer again.
const LINEAR_PATIENCE: Duration = Duration::from_secs(20);
/// A variant keeps the baseline's segments unless it is so many times dearer.
const DEARER: u64 = 8;

/// How to count.
pub struct Options<'a> {
    /// Rounds over all points, each with servers started afresh.
    pub repeats: u32,
    /// Transactions of the shortest segment, instead of a number chosen by their cost.
    pub unit: Option<u64>,
    /// Segments as an earlier count had them, by condition and variant.
    pub segments_of: &'a dyn Fn(&str, &str) -> Option<[u64; 3]>,
    /// Whether to keep call paths too, in a round of their own.
    pub call_paths: bool,
    /// What the study asks for and counting does not do.
    pub left_out: Vec<String>,
}

/// What one point gave so far.
#[derive(Default)]
struct Point {
    segments: Option<[u64; 3]>,
    /// Each round's figures.
    rounds: Vec<VariantCount>,
    tree: Option<CallTree>,
}

/// One round of one point.
struct Counted {
    files: [OutFile; 3],
}

impl Counted {
    fn repeat(&self, position: u32) -> Repeat {
        Repeat {
            position,
            instructions: [0, 1, 2].map(|at: usize| self.files[at].totals.instructions),
        }
    }

    fn tally(&self, segments: [u64; 3]) -> Tally {
        let [first, _, last] = &self.files;
        let mut tally = Tally::default();
        tally.add(first, last, segments[2] - segments[0]);
        tally
    }
}

/// Counts every point of a plan.
pub fn count(
    plan: &Plan,
    found: &Found,
    args: &ServerArgs,
    options: &Options<'_>,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Counts> {
    let valgrind = Valgrind::find()?;
    refuse(plan, found)?;
    let mut laboratory = Laboratory {
        plan,
        found,
        options,
        interrupt,
        valgrind: &valgrind,
        points: plan.points.iter().map(|_| Point::default()).collect(),
        position: 0,
        names: RefCell::default(),
    };
    for cluster in clusters(&plan.servers) {
        laboratory.cluster(&cluster, args, progress)?;
    }
    Ok(Counts {
        schema: SCHEMA.to_owned(),
        question: found.study.question.clone(),
        seed: plan.schedule.seed,
        machine: machine::machine(&valgrind),
        left_out: options.left_out.clone(),
        conditions: laboratory.conditions()?,
    })
}

/// An error where a plan asks for what cannot be counted.
pub fn refuse(plan: &Plan, found: &Found) -> Result<()> {
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
            "`idle_connections` cannot be counted: each would be a process under valgrind; choose variants without it with --variant (they are in \"{}\")",
            names.join("\", \"")
        );
    }
    if let Some(point) = plan.points.iter().find(|it| it.reconnects) {
        bail!(
            "variant \"{}\" cannot be counted: its transactions reconnect, and the start of a process is not in PostgresMain, where counting begins",
            plan.variants[point.variant]
        );
    }
    Ok(())
}

/// An error where a plan names a server of the user's own.
fn refuse_dsn(plan: &Plan, found: &Found) -> Result<()> {
    let Some(dsn) = plan.servers.iter().find_map(|server| server.dsn.as_ref()) else {
        return Ok(());
    };
    let message = "instructions cannot be counted on a server of your own: it would have to run under \
                   valgrind; choose other variants with --variant, or give a version or `binaries` \
                   instead of `dsn`";
    Err(places::at_dsn(found, dsn, message))
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

struct Laboratory<'a> {
    plan: &'a Plan,
    found: &'a Found,
    options: &'a Options<'a>,
    interrupt: &'a Interrupt,
    valgrind: &'a Valgrind,
    points: Vec<Point>,
    /// Which point of its round is being counted, from 1.
    position: u32,
    names: RefCell<Names>,
}

impl Laboratory<'_> {
    /// All rounds on the servers that share one data directory.
    fn cluster(
        &mut self,
        cluster: &[usize],
        args: &ServerArgs,
        progress: &mut Progress,
    ) -> Result<()> {
        let first = &self.plan.servers[cluster[0]];
        let mut server = servers::start_one(first, self.found, args, self.interrupt, progress)?;
        let result = self.rounds(cluster, &mut server, progress);
        progress.stage("stopping the server");
        // Why counting failed says more than that the server is dead.
        match result {
            Ok(()) => Ok(server.stop()?),
            Err(error) => Err(error),
        }
    }

    fn rounds(
        &mut self,
        cluster: &[usize],
        server: &mut Server,
        progress: &mut Progress,
    ) -> Result<()> {
        let program = server.installation().program("postgres");
        let has_names = !self.names.borrow_mut().are_missing(&program);
        let detail = if has_names {
            Detail::Functions
        } else {
            Detail::Addresses
        };
        // On servers of its own: where a backend's data lie in memory depends on how many backends there
        // were before it, and what libc's functions execute depends a little on that. So rounds begin alike.
        let mut points = 0..self.plan.points.len();
        if points
            .any(|it| cluster.contains(&self.plan.points[it].server) && self.fixed(it).is_none())
        {
            let stage = "choosing the segments";
            let order = Order::of_plan(self.plan, cluster);
            self.each(&order, server, detail, (stage, progress), Self::choose)?;
        }
        for round in 1..=self.options.repeats {
            let stage = format!("counting, round {round} of {}", self.options.repeats);
            let order = Order::of_round(self.plan, cluster, round);
            self.each(&order, server, detail, (&stage, progress), Self::point)?;
        }
        // Without names a chain of callers is one of wrong names.
        if self.options.call_paths && has_names {
            let stage = "counting call paths";
            let order = Order::of_plan(self.plan, cluster);
            let paths = Self::paths;
            self.each(&order, server, Detail::CallPaths, (stage, progress), paths)?;
        }
        Ok(())
    }

    /// Starts every server of a cluster again, in turn, with its data as they were set up, and does
    /// something at each of its points.
    fn each(
        &mut self,
        order: &Order,
        server: &mut Server,
        detail: Detail,
        (stage, progress): (&str, &mut Progress),
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
                progress.stage(&format!(
                    "{stage}, PostgreSQL {}: {}{variant}",
                    server.installation().version,
                    self.title(planned.condition),
                ));
                // What writes leaves traces that no reset removes; so it has data of its own, and leaves them
                // to nobody.
                let writes = !planned.resets.is_empty();
                if writes || !is_fresh {
                    self.interrupt.check()?;
                    self.restart(server, &self.plan.servers[*index], detail)
                        .map_err(|error| servers::at_setting(self.found, error))
                        .with_context(|| self.variants_of(*index))?;
                    databases.clear();
                }
                is_fresh = !writes;
                let arrived = if databases.insert(planned.database) {
                    self.bench(point, server).arrive()
                } else {
                    Ok(())
                };
                arrived
                    .and_then(|()| does(self, point, server))
                    .with_context(|| format!("variant \"{variant}\""))?;
            }
        }
        Ok(())
    }

    /// Who uses a server, for errors of its start.
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
        server.restart_afresh(|config| {
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

    fn bench<'b>(&'b self, index: usize, server: &'b Server) -> Bench<'b> {
        let planned = &self.plan.points[index];
        Bench {
            point: planned,
            server,
            place: Place {
                host: server,
                database: &self.plan.servers[planned.server].databases[planned.database].name,
                address: match planned.network {
                    Network::Unix => None,
                    _ => server.tcp_address(),
                },
            },
            source: &self.found.source,
            seed: self.plan.schedule.seed,
            interrupt: self.interrupt,
            names: &self.names,
        }
    }

    /// One round of one point.
    fn point(&mut self, index: usize, server: &Server) -> Result<()> {
        let segments = self.points[index].segments.or_else(|| self.fixed(index));
        let segments = segments.context("it is counted before its segments were chosen")?;
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

    /// Finds out how many transactions the segments of a point have: as many as its baseline's, unless
    /// it is much dearer, and more until the cost is linear.
    fn choose(&mut self, index: usize, server: &Server) -> Result<()> {
        if self.fixed(index).is_none() {
            let bench = self.bench(index, server);
            let unit = bench.unit()?;
            let first = match self.segments_of_baseline(index) {
                Some(segments) if unit * DEARER >= segments[0] => segments,
                _ => of_unit(unit),
            };
            let segments = until_linear(&bench, first)?;
            self.points[index].segments = Some(segments);
        }
        Ok(())
    }

    /// The segments of the first point under the same condition, once they are chosen.
    fn segments_of_baseline(&self, index: usize) -> Option<[u64; 3]> {
        let condition = self.plan.points[index].condition;
        let mut points = self.plan.points.iter().zip(&self.points);
        points
            .find(|(other, _)| other.condition == condition)
            .and_then(|(_, point)| point.segments)
    }

    /// The segments of a point as an earlier count had them, or as the user says.
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

    /// The median round of a point, with what all rounds gave.
    fn variant(&self, planned: &PlannedPoint, point: &Point) -> Result<VariantCount> {
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
            ..(*median).clone()
        })
    }
}

fn of_unit(unit: u64) -> [u64; 3] {
    [unit, 2 * unit, 4 * unit]
}

/// A warm-up and three segments.
fn once(bench: &Bench<'_>, segments: [u64; 3]) -> Result<Counted> {
    bench.warm_up(segments[2])?;
    let files = [
        bench.segment(segments[0])?,
        bench.segment(segments[1])?,
        bench.segment(segments[2])?,
    ];
    Ok(Counted { files })
}

/// These segments, or longer ones with which the cost is linear, or the longest for which we have time.
fn until_linear(bench: &Bench<'_>, first: [u64; 3]) -> Result<[u64; 3]> {
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
    use std::collections::BTreeMap;

    use super::*;

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
