//! What limits a point of a curve.
//!
//! With perfect scaling, the response time does not depend on the number of clients. So the limit of a
//! point is the kind of ledger rows that has grown most per transaction since the smallest number of
//! clients (or the lowest rate): this is where the time went that scaling lost. A point whose response time
//! grew by less than a tenth has no limit.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, Nature, Part, Row, is_client_run_queue, is_remainder};

/// A response time that grew by less than this share has no limit.
const GROWTH_MIN: f64 = 0.1;
/// More clients than there are would not help much if transactions took longer by at least this share.
const INSIDE_GROWTH_MIN: f64 = 0.25;
/// More clients do not help either if at least this share of the machine's CPU time is used, most of it by the
/// server and the load generator.
const BUSY_MIN: f64 = 0.9;
/// The row of that limit.
const ALL_BUSY: &str = "all CPUs are busy";
/// The load generator is the limit if it was the bottleneck in this share of the trials.
const CLIENT_LIMITED: f64 = 0.5;
/// Its row if none of its rows has grown.
const CLIENT_CPU: &str = "client CPU";

/// What limits a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScalingLimit {
    /// The kind.
    pub kind: LimitKind,
    /// The ledger's row of this kind that grew most, such as `LWLock WALWrite`.
    pub row: String,
    /// Growth of the rows of this kind since the first point, per transaction.
    pub us: f64,
    /// Growth of the response time since the first point, per transaction; with a rate and any limit but
    /// `clients`, without the time before the transaction's start.
    pub growth_us: f64,
}

/// Kinds of limits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The response time hardly grew.
    Nothing,
    /// Waiting for a CPU.
    Processors,
    /// More CPU time per transaction, as by spinning or by cache misses.
    ServerCpu,
    /// Heavyweight locks, such as row locks.
    Locks,
    /// Lightweight locks.
    LightweightLocks,
    /// Files: reading, writing and syncing data and WAL.
    Storage,
    /// Other waits of the server.
    OtherWaits,
    /// The load generator.
    LoadGenerator,
    /// Network and wake-up.
    Network,
    /// With a rate: transactions that were due waited for a free client.
    Clients,
    /// Unexplained time.
    Unexplained,
}

/// The kind of a row; `None` for time that is not part of the response time or that the script requests.
fn kind(row: &Row) -> Option<LimitKind> {
    let starts = |prefix: &str| row.mechanism.starts_with(prefix);
    Some(match row.part {
        Part::Between => return None,
        Part::Client if row.nature == Nature::Think => return None,
        Part::OnCpu => LimitKind::ServerCpu,
        Part::RunQueue | Part::Running => LimitKind::Processors,
        Part::Client if is_client_run_queue(&row.mechanism) => LimitKind::Processors,
        Part::Client if is_remainder(&row.mechanism) => LimitKind::Network,
        Part::Client => LimitKind::LoadGenerator,
        Part::Unexplained => LimitKind::Unexplained,
        Part::Blocked if row.nature == Nature::Service => LimitKind::Storage,
        Part::Blocked if starts("LWLock") => LimitKind::LightweightLocks,
        Part::Blocked if starts("Lock") => LimitKind::Locks,
        Part::Blocked => LimitKind::OtherWaits,
    })
}

/// The parts of a point's response time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseSide<'a> {
    pub ledger: &'a Ledger,
    /// From the time at which a transaction was due to its start.
    pub waited_us: f64,
}

impl ResponseSide<'_> {
    fn response_us(&self) -> f64 {
        self.ledger.response_us + self.waited_us
    }
}

/// What grew most from the first point to another one.
pub(crate) fn limit(
    first: ResponseSide<'_>,
    side: ResponseSide<'_>,
    client_limited: f64,
) -> ScalingLimit {
    let growth_us = side.response_us() - first.response_us();
    let none = |kind: LimitKind, row: &str| ScalingLimit {
        kind,
        row: row.to_owned(),
        us: growth_us,
        growth_us,
    };
    let rows = growth_by_row(first, side);
    let waited_us = side.waited_us - first.waited_us;
    let inside_us = growth_us - waited_us;
    if client_limited >= CLIENT_LIMITED {
        return of_load_generator(&rows, inside_us);
    }
    if growth_us < GROWTH_MIN * first.response_us() {
        return none(LimitKind::Nothing, "");
    }
    // If transactions take longer themselves, that is why those that are due wait for a free client.
    let is_inside = inside_us >= INSIDE_GROWTH_MIN * first.ledger.response_us;
    let mut kinds: BTreeMap<LimitKind, f64> = BTreeMap::new();
    for ((kind, _), us) in &rows {
        *kinds.entry(*kind).or_default() += us;
    }
    if is_inside {
        kinds.remove(&LimitKind::Clients);
    }
    let most = kinds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((kind, us)) = most else {
        return none(LimitKind::Unexplained, "");
    };
    let row = most_grown(&rows, kind);
    ScalingLimit {
        kind,
        row: row.map_or_else(String::new, |(name, _)| name.to_owned()),
        us,
        growth_us: if is_inside { inside_us } else { growth_us },
    }
}

/// The growth of each row, by its kind and name: phases do not matter here.
type RowGrowth<'a> = BTreeMap<(LimitKind, &'a str), f64>;

/// The name and the growth of the row of a kind that has grown most.
fn most_grown<'a>(rows: &RowGrowth<'a>, kind: LimitKind) -> Option<(&'a str, f64)> {
    let of_kind = rows.iter().filter(|((it, _), _)| *it == kind);
    let named = of_kind.map(|((_, name), us)| (*name, *us));
    named.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The load generator as the limit because its threads were busy, whatever grew most.
fn of_load_generator(rows: &RowGrowth<'_>, growth_us: f64) -> ScalingLimit {
    let kind = LimitKind::LoadGenerator;
    let of_kind = rows.iter().filter(|((it, _), _)| *it == kind);
    let row = most_grown(rows, kind).filter(|(_, us)| *us > 0.0);
    ScalingLimit {
        kind,
        row: row.map_or(CLIENT_CPU, |(name, _)| name).to_owned(),
        us: of_kind.map(|(_, us)| us).sum(),
        growth_us,
    }
}

/// The growth of each row from the first point to another one.
fn growth_by_row<'a>(first: ResponseSide<'a>, side: ResponseSide<'a>) -> RowGrowth<'a> {
    let mut rows = RowGrowth::new();
    for (side, sign) in [(first, -1.0), (side, 1.0)] {
        let waiting = (LimitKind::Clients, "waiting for a free client");
        *rows.entry(waiting).or_default() += sign * side.waited_us;
        for row in &side.ledger.rows {
            if let Some(kind) = kind(row) {
                *rows.entry((kind, row.mechanism.as_str())).or_default() += sign * row.us;
            }
        }
    }
    rows
}

/// Shares of the machine's CPU time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BusyShares {
    /// Used by anything.
    pub all: f64,
    /// Used by other programs than the server and the load generator.
    pub other_programs: f64,
}

/// A limit, or the processors if it is the number of clients and all processors are busy with the load: at low rates,
/// transactions include the time that it takes to wake them up, so that their own growth is hidden.
pub(crate) fn of_processors(found: ScalingLimit, used: BusyShares) -> ScalingLimit {
    let is_busy = used.all >= BUSY_MIN && used.other_programs < used.all / 2.0;
    if found.kind == LimitKind::Clients && is_busy {
        return ScalingLimit {
            kind: LimitKind::Processors,
            row: ALL_BUSY.to_owned(),
            ..found
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Divider, LedgerChecks};

    fn row(part: Part, nature: Nature, mechanism: &str, us: f64) -> Row {
        Row {
            part,
            nature,
            phase: String::new(),
            mechanism: mechanism.to_owned(),
            us,
            system_us: 0.0,
            possible_us: 0.0,
        }
    }

    fn ledger(rows: Vec<Row>) -> Ledger {
        Ledger {
            condition: 0,
            variant: 0,
            response_us: rows.iter().map(|it| it.us).sum(),
            between_transactions_us: 0.0,
            rows,
            background: Vec::new(),
            blocked_by: Divider::Nothing,
            cpu_by_stacks: false,
            tail: None,
            checks: LedgerChecks::default(),
            consistency: Vec::new(),
        }
    }

    /// 100 µs on CPU, and more.
    fn with(part: Part, nature: Nature, mechanism: &str, us: f64) -> Ledger {
        ledger(vec![
            row(Part::OnCpu, Nature::Service, "executor", 100.0),
            row(part, nature, mechanism, us),
        ])
    }

    fn side(ledger: &Ledger) -> ResponseSide<'_> {
        ResponseSide {
            ledger,
            waited_us: 0.0,
        }
    }

    #[test]
    fn waiting_for_a_free_client_is_a_limit_of_a_rate() {
        let first = with(Part::RunQueue, Nature::Queueing, "run queue", 1.0);
        let later = with(Part::RunQueue, Nature::Queueing, "run queue", 301.0);
        let waiting = |waited_us: f64| ResponseSide {
            waited_us,
            ..side(&later)
        };
        let kind = |waited_us: f64| limit(side(&first), waiting(waited_us), 0.0).kind;
        assert_eq!(kind(200.0), LimitKind::Processors);
        // Regression: on a saturated machine the limit was always the number of clients.
        let limit_of = limit(side(&first), waiting(4000.0), 0.0);
        assert_eq!(limit_of.kind, LimitKind::Processors);
        assert_eq!((limit_of.us, limit_of.growth_us), (300.0, 300.0));
        let healthy = with(Part::RunQueue, Nature::Queueing, "run queue", 11.0);
        let waiting = ResponseSide {
            waited_us: 400.0,
            ..side(&healthy)
        };
        let of_clients = limit(side(&first), waiting, 0.0);
        assert_eq!(of_clients.kind, LimitKind::Clients);
        let kind = |all: f64, other_programs: f64| {
            let used = BusyShares {
                all,
                other_programs,
            };
            of_processors(of_clients.clone(), used).kind
        };
        assert_eq!(kind(0.5, 0.0), LimitKind::Clients);
        assert_eq!(kind(0.95, 0.1), LimitKind::Processors);
        // Regression: clients that sleep in the server were not the limit if other programs kept the CPUs busy.
        assert_eq!(kind(0.99, 0.97), LimitKind::Clients);
    }

    /// Regression: it was said to be all of the growth, whatever its rows were, and NaN% without growth.
    #[test]
    fn a_busy_load_generator_has_the_share_of_its_rows_in_the_growth() {
        use Nature::{Queueing, Service};
        let first = with(Part::Client, Service, "client CPU", 10.0);
        let later = ledger(vec![
            row(Part::OnCpu, Service, "executor", 160.0),
            row(Part::Client, Service, "client CPU", 15.0),
            row(Part::Client, Queueing, "client thread busy", 35.0),
        ]);
        let waiting = ResponseSide {
            waited_us: 500.0,
            ..side(&later)
        };
        for side_of_later in [side(&later), waiting] {
            let found = limit(side(&first), side_of_later, 1.0);
            assert_eq!(found.kind, LimitKind::LoadGenerator);
            assert_eq!(found.row, "client thread busy");
            assert!((found.us - 40.0).abs() < 1e-9, "{found:?}");
            assert!((found.growth_us - 100.0).abs() < 1e-9, "{found:?}");
        }
        let same = limit(side(&first), side(&first), 1.0);
        assert_eq!((same.us, same.growth_us), (0.0, 0.0));
        assert_eq!(same.row, "client CPU");
    }

    #[test]
    fn the_limit_is_what_grew_most_since_the_first_point() {
        use Nature::{Queueing, Service, Think};
        let first = ledger(vec![
            row(Part::OnCpu, Service, "executor", 100.0),
            row(Part::Blocked, Service, "WAL sync", 900.0),
        ]);
        let later = ledger(vec![
            row(Part::OnCpu, Service, "executor", 120.0),
            row(Part::Blocked, Service, "WAL sync", 900.0),
            row(Part::Blocked, Queueing, "Lock tuple", 300.0),
            row(Part::Blocked, Queueing, "Lock transactionid", 500.0),
            row(Part::RunQueue, Queueing, "run queue", 600.0),
        ]);
        // Both locks together grew more than the run queue; the longest row stayed as it was.
        let found = limit(side(&first), side(&later), 0.0);
        assert_eq!(found.kind, LimitKind::Locks);
        assert_eq!(found.row, "Lock transactionid");
        assert!((found.us - 800.0).abs() < 1e-9 && (found.growth_us - 1420.0).abs() < 1e-9);
        assert_eq!(
            limit(side(&first), side(&later), 1.0).kind,
            LimitKind::LoadGenerator
        );
        let first = with(Part::RunQueue, Queueing, "run queue", 1.0);
        for (part, nature, mechanism, expected) in [
            (Part::RunQueue, Queueing, "run queue", LimitKind::Processors),
            (
                Part::Client,
                Queueing,
                "client run queue",
                LimitKind::Processors,
            ),
            (
                Part::Client,
                Service,
                "client CPU",
                LimitKind::LoadGenerator,
            ),
            (
                Part::Client,
                Queueing,
                "client thread busy",
                LimitKind::LoadGenerator,
            ),
            (
                Part::Client,
                Queueing,
                "network and wake-up",
                LimitKind::Network,
            ),
            (
                Part::Blocked,
                Queueing,
                "LWLock WALWrite",
                LimitKind::LightweightLocks,
            ),
            (Part::Blocked, Service, "data file read", LimitKind::Storage),
            (
                Part::Blocked,
                Queueing,
                "IPC ExecuteGather",
                LimitKind::OtherWaits,
            ),
            (Part::OnCpu, Service, "buffer manager", LimitKind::ServerCpu),
        ] {
            let later = with(part, nature, mechanism, 500.0);
            assert_eq!(
                limit(side(&first), side(&later), 0.0).kind,
                expected,
                "{mechanism}"
            );
        }
        // Sleep is requested; a response time that hardly grew has no limit.
        let hardly = with(Part::RunQueue, Queueing, "run queue", 9.0);
        assert_eq!(
            limit(side(&first), side(&hardly), 0.0).kind,
            LimitKind::Nothing
        );
        let asleep = ledger(vec![
            row(Part::OnCpu, Service, "executor", 150.0),
            row(Part::Client, Think, "client sleep", 500.0),
        ]);
        assert_eq!(
            limit(side(&first), side(&asleep), 0.0).kind,
            LimitKind::ServerCpu
        );
    }
}
