//! PostgreSQL, the load engine, and all probes.

use anyhow::Result;
use pgassay_model::plan::{Plan, ServerPlan};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_server::InstallationSource;

use crate::equipment::Equipment;
use crate::host::{self, ExternalServer, Host, Servers};
use crate::load::{EngineDriver, LoadDriver, same_settings, session_settings};
use crate::observe::{BackendMemoryPeaks, HardwareCounters, Probes, Statistics, TrialObserver};
use crate::plans::{self, TakenPlans};
use crate::run_context::RunContext;

/// PostgreSQL, the load engine, and all probes.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealEquipment;

impl Equipment for RealEquipment {
    fn find(&self, wanted: &ServerPlan, context: &RunContext<'_>) -> Result<()> {
        if wanted.dsn.is_none() {
            host::find(wanted, context)?;
        }
        Ok(())
    }

    fn start(
        &mut self,
        wanted: &ServerPlan,
        context: &RunContext<'_>,
    ) -> Result<(Box<dyn Host>, Vec<Warning>)> {
        let Some(dsn) = &wanted.dsn else {
            let server = host::start(wanted, context)?;
            let mut warnings = Vec::new();
            if let InstallationSource::Installed { note } = &server.installation().source {
                warnings.push(Warning {
                    kind: WarningKind::InstalledVersionUsed,
                    variant: None,
                    message: note.clone(),
                });
            }
            if server.is_in_memory() {
                warnings.push(Warning {
                    kind: WarningKind::DataInMemory,
                    variant: None,
                    message:
                        "the servers' data are in memory (tmpfs), so nothing waits for a disk, \
                              not even a commit; specify a directory on a disk with --data-parent"
                            .to_owned(),
                });
            }
            return Ok((Box::new(server), warnings));
        };
        let mut external = ExternalServer::attach(dsn, context)?;
        external.check_connection_limit(wanted.connections)?;
        let warnings = external.warnings(wanted.settings.iter())?;
        for warning in &warnings {
            context.note(&warning.message);
        }
        Ok((Box::new(external), warnings))
    }

    fn check_sessions(
        &self,
        plan: &Plan,
        (server, host): (usize, &dyn Host),
        context: &RunContext<'_>,
    ) -> Result<()> {
        session_settings::check(plan, server, host, context)
    }

    fn same_settings(
        &self,
        plan: &Plan,
        servers: &Servers,
        context: &RunContext<'_>,
    ) -> Result<Vec<Warning>> {
        same_settings::warnings(plan, servers, context)
    }

    fn driver(&mut self, plan: &Plan) -> Result<Box<dyn LoadDriver>> {
        Ok(Box::new(EngineDriver::start(plan)?))
    }

    fn observers<'a>(
        &self,
        plan: &'a Plan,
        servers: &'a Servers,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<Box<dyn TrialObserver + 'a>>> {
        Ok(vec![
            Box::new(BackendMemoryPeaks::new(servers)),
            Box::new(HardwareCounters::probe()),
            Box::new(Statistics::open(plan, servers)?),
            Box::new(Probes::open(plan, servers, warnings)?),
        ])
    }

    fn plans(
        &self,
        plan: &Plan,
        servers: &Servers,
        context: &RunContext<'_>,
    ) -> Result<TakenPlans> {
        plans::take(plan, servers, context)
    }
}
