//! The servers and databases of a plan. Points with equal needs share them.

use super::{DatabasePlan, PlannedSql, ServerPlan};

/// The database that exists on every server.
const DEFAULT_DATABASE: &str = "postgres";

/// The servers needed so far.
#[derive(Default)]
pub(super) struct ServerSet {
    pub(super) plans: Vec<ServerPlan>,
    /// Bytes of the set-up SQL of all databases.
    pub(super) setup_bytes: usize,
}

impl ServerSet {
    /// Indexes of the server with these binaries and settings and of its database with this setup, which
    /// are added if necessary.
    pub(super) fn find_or_add(
        &mut self,
        wanted: &ServerPlan,
        setup: Vec<PlannedSql>,
    ) -> (usize, usize) {
        let alike = |plan: &ServerPlan| {
            (&plan.version, &plan.binaries, &plan.dsn, &plan.settings)
                == (
                    &wanted.version,
                    &wanted.binaries,
                    &wanted.dsn,
                    &wanted.settings,
                )
                && plan.environment == wanted.environment
                && plan.data_checksums == wanted.data_checksums
                && plan.idle_connections == wanted.idle_connections
        };
        let server = self.plans.iter().position(alike).unwrap_or_else(|| {
            self.plans.push(wanted.clone());
            self.plans.len() - 1
        });
        let plan = &mut self.plans[server];
        plan.tcp |= wanted.tcp;
        plan.tls |= wanted.tls;
        let databases = &mut plan.databases;
        let found = databases.iter().position(|known| known.setup == setup);
        let database = found.unwrap_or_else(|| {
            let name = match databases.len() {
                0 if wanted.dsn.is_none() => DEFAULT_DATABASE.to_owned(),
                number => format!("data_{}", number + 1),
            };
            self.setup_bytes += setup.iter().map(|it| it.text.len()).sum::<usize>();
            databases.push(DatabasePlan { name, setup });
            databases.len() - 1
        });
        (server, database)
    }
}
