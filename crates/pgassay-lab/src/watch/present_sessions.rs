//! What a watch shows of this moment only, and not of the time since the last call.

use pgassay_record::activity::{Activity, IdleLockHolder};

use super::LiveWatch;
use super::catalog::CatalogWatch;
use super::collector::{PresentSession, locked};

impl LiveWatch {
    /// The sessions that the last reading found active or in a transaction. `activity` is what the last
    /// [`LiveWatch::take`] returned, `now_us` the time on the server's clock, in microseconds since 1970.
    pub fn present_sessions(&self, activity: &Activity, now_us: i64) -> Vec<PresentSession> {
        locked(&self.collector).present(activity, now_us)
    }

    /// Reads which idle transactions hold locks and do not block others yet.
    pub fn read_idle_holders(&mut self) -> Vec<IdleLockHolder> {
        let catalog = self.catalog.as_mut();
        catalog.map_or_else(Vec::new, CatalogWatch::read_idle_holders)
    }
}
