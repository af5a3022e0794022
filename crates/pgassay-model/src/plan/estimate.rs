//! How long a run takes.

use super::Plan;

// Estimates, measured with `prepared-vs-simple` on two CPUs without other load.

/// Time to stop all servers, to start them, and to fill their caches. Loads that write take up to 2 s longer.
const RESTART_US: u64 = 1_000_000;
/// What an idle connection adds to a restart, and its process to the search of a profiled trial for the server's
/// processes; measured with 3,300 of them on two virtual CPUs.
const IDLE_START_US: u64 = 8_000;
const IDLE_PROFILED_US: u64 = 600;
/// Time between trials in addition to settling: reading statistics,
const PAUSE_US: u64 = 8_000;
/// and for each client.
const PAUSE_OF_CLIENT_US: u64 = 450;
/// Windows of warm-up per point and block,
const WARM_UP_WINDOWS: u64 = 4;
/// and the time to connect each client.
const CONNECT_US: u64 = 1_500;

impl Plan {
    /// Estimated total time once the servers are running, µs: measuring, pauses between trials, warm-up
    /// and server restarts.
    pub fn estimated_us(&self) -> u64 {
        let schedule = &self.schedule;
        let conditions = self.points.iter().map(|it| &self.conditions[it.condition]);
        let clients = conditions.map(|it| u64::from(it.clients)).sum::<u64>();
        let windows = self.points.len() as u64 * WARM_UP_WINDOWS;
        let of_block = windows * schedule.warm_up_window_us + clients * CONNECT_US;
        let warm_up = u64::from(schedule.blocks) * of_block;
        let pauses = self.trials() * (schedule.settle_us + PAUSE_US)
            + schedule.trials_per_point() * clients * PAUSE_OF_CLIENT_US;
        let restarts = if self.restarts_servers() {
            (schedule.server_starts().len() as u64).saturating_sub(1)
        } else {
            0
        };
        let idle = self.servers.iter().map(|it| u64::from(it.idle_connections));
        let idle = idle.sum::<u64>();
        let profiled = self.points.len() as u64 * u64::from(schedule.blocks * schedule.profiled);
        let of_idle = idle * (restarts * IDLE_START_US + profiled * IDLE_PROFILED_US);
        self.measurement_us() + warm_up + pauses + restarts * RESTART_US + of_idle
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Overrides, plan};
    use crate::study::StudySource;

    /// Regression: `connection-count` took 475 s instead of the "about 219 s" that it announced.
    #[test]
    fn a_thousand_idle_connections_take_time_at_each_server_start_and_profiled_trial() {
        let estimate = |idle: u32| {
            let source = StudySource {
                file: "s.toml".to_owned(),
                text: format!(
                    "question = \"?\"\n[[script]]\nname = \"s\"\ntext = \"select 1\"\n[[variant]]\nname = \"a\"\n\
                     [[variant]]\nname = \"b\"\nidle_connections = {idle}\n[length]\npairs = 6\nfull = \"30s\"\n"
                ),
            };
            let study = source.parse().unwrap();
            let plan = plan(&study, &source, &Overrides::default()).unwrap();
            (plan.estimated_us(), plan.schedule)
        };
        let ((none, schedule), (thousand, _)) = (estimate(0), estimate(1000));
        let profiled = u64::from(2 * 6 * schedule.profiled);
        assert_eq!(thousand - none, 5 * 8_000_000 + profiled * 600_000);
    }
}
