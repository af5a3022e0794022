//! Once a second, a watch reads the server's log, and asks who blocks whom.

use std::sync::Mutex;

use super::catalog::CatalogWatch;
use super::collector::{Collector, locked};
use super::log_watch::LogWatch;
use super::opening;
use super::options::Connect;
use crate::system_env::monotonic_ns;

/// Time since the first reading, in microseconds.
pub(super) fn at_us(collector: &Mutex<Collector>, epoch_ns: u64) -> f64 {
    let start_us = locked(collector).start_us();
    let now_us = monotonic_ns().saturating_sub(epoch_ns) as f64 / 1e3;
    now_us - start_us.unwrap_or(now_us)
}

/// When and how the views are asked.
pub(super) struct TickContext<'a> {
    pub collector: &'a Mutex<Collector>,
    pub epoch_ns: u64,
    pub is_last: bool,
}

impl TickContext<'_> {
    fn at_us(&self) -> f64 {
        at_us(self.collector, self.epoch_ns)
    }

    pub fn read_log(&self, log: Option<&mut LogWatch>) {
        if let Some(log) = log {
            let own_pids = locked(self.collector).own_pids.clone();
            log.read(self.at_us(), &own_pids);
        }
    }
}

/// Asks the server who blocks the sessions that wait for locks. Returns the PID of another backend that serves
/// the watch, if the last one was lost.
pub(super) fn tick(
    catalog: Option<&mut CatalogWatch>,
    connect: &mut Connect,
    context: &TickContext<'_>,
) -> Option<u32> {
    let catalog = catalog?;
    let is_new = catalog.reconnect(&mut || {
        let exchange = opening::connect(connect)?;
        // Before its first query, which readings of the sessions would see.
        if let Some(key) = exchange.backend() {
            locked(context.collector).leave_out(key.pid.cast_unsigned());
        }
        Ok(exchange)
    });
    let new = is_new.then(|| catalog.own_pid());
    if let Some(pid) = new {
        locked(context.collector).leave_out(pid);
    }
    let (waiters, others) = {
        let collector = locked(context.collector);
        (collector.lock_waiters(), collector.other_waiters())
    };
    catalog.set_other_waiters(others);
    let at_us = context.at_us();
    let asked = if context.is_last {
        catalog.last_tick(at_us, &waiters)
    } else {
        catalog.tick(at_us, &waiters)
    };
    if let Err(error) = asked {
        tracing::debug!(%error, "cannot ask who blocks whom");
    }
    locked(context.collector).name_locks(catalog.take_awaited());
    new
}
