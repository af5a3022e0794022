//! What watches the server for `pgassay top`.

use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_lab::local_server;
use pgassay_lab::watch::{LiveWatch, WatchOptions, WatchedServer};
use pgassay_lab::{Interrupt, major_of};
use pgassay_record::activity::{Activity, WatchCost};

use super::TopArgs;
use super::state::TopServer;
use crate::command::profile::connection;

/// Samples for this long or until an interrupt, and returns what it saw.
pub type ActivityFeed = Box<dyn FnMut(Duration, &Interrupt) -> Result<Activity>>;

/// Connects, and says what is watched.
pub fn open(args: &TopArgs) -> Result<(TopServer, ActivityFeed)> {
    let conninfo = args.database.clone().unwrap_or_default();
    let (mut exchange, place) = connection::exchange(&conninfo)?;
    let version = exchange.parameter("server_version").map(str::to_owned);
    let live = local_server::find(&mut exchange).ok().map(|it| it.0);
    drop(exchange);
    let where_from = if live.is_some() {
        ""
    } else {
        ", not on this machine"
    };
    let server = TopServer {
        title: format!(
            "PostgreSQL {} at {place}{where_from}",
            version.as_deref().unwrap_or("(unknown version)")
        ),
        major: version.as_deref().map(major_of),
        postmaster_pid: live.as_ref().map(|it| it.postmaster_pid),
        address: live.is_none().then_some(place),
    };
    let watched = WatchedServer {
        live,
        connect: Box::new(move || Ok(connection::exchange(&conninfo)?.0)),
    };
    let options = WatchOptions {
        frequency_hz: args.frequency,
        keeps_text: !args.no_text,
        ..WatchOptions::default()
    };
    let mut watch = LiveWatch::open(watched, &options)?;
    let mut before = WatchCost::default();
    let feed = move |length: Duration, interrupt: &Interrupt| {
        watch.run_until(Instant::now() + length, interrupt)?;
        let mut activity = watch.take();
        let now = activity.cost;
        activity.cost = since(&now, &before);
        before = now;
        Ok(activity)
    };
    Ok((server, Box::new(feed)))
}

/// The cost of the last interval. A watch counts from its start.
fn since(now: &WatchCost, before: &WatchCost) -> WatchCost {
    WatchCost {
        own_cpu_us: now.own_cpu_us - before.own_cpu_us,
        backend_cpu_us: now
            .backend_cpu_us
            .map(|us| us - before.backend_cpu_us.unwrap_or(0.0)),
        peak_memory_bytes: now.peak_memory_bytes,
        statements_sent: now.statements_sent - before.statements_sent,
    }
}
