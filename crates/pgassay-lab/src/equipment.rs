//! Where a run's servers, load and observers come from.

use anyhow::Result;
use pgassay_model::plan::{Plan, ServerPlan};
use pgassay_record::run::Warning;

use crate::host::{Host, Servers};
use crate::load::LoadDriver;
use crate::observe::TrialObserver;
use crate::plans::TakenPlans;
use crate::run_context::RunContext;

/// Where a run's servers, load and observers come from.
pub trait Equipment {
    /// Finds the programs of a server that the run will start, and downloads them if necessary. By default nothing.
    ///
    /// # Errors
    /// If there is no such version.
    fn find(&self, _wanted: &ServerPlan, _context: &RunContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Starts or connects to a server of the plan; its databases are created afterwards. Also returns
    /// warnings for the result.
    fn start(
        &mut self,
        wanted: &ServerPlan,
        context: &RunContext<'_>,
    ) -> Result<(Box<dyn Host>, Vec<Warning>)>;

    /// Checks what a server of the plan, which has no data yet, says to its clients' session settings. By default
    /// nothing.
    ///
    /// # Errors
    /// If it rejects one.
    fn check_sessions(
        &self,
        _plan: &Plan,
        _server: (usize, &dyn Host),
        _context: &RunContext<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// Warnings about variants whose settings make no difference on their servers, which have their data. By default
    /// none.
    ///
    /// # Errors
    /// If a stop was requested.
    fn same_settings(
        &self,
        _plan: &Plan,
        _servers: &Servers,
        _context: &RunContext<'_>,
    ) -> Result<Vec<Warning>> {
        Ok(Vec::new())
    }

    /// What drives the load of a plan.
    fn driver(&mut self, plan: &Plan) -> Result<Box<dyn LoadDriver>>;

    /// Opens what observes the trials between two server starts. They start to watch a trial in this
    /// order and finish in reverse. Adds a warning for each that is not possible here.
    fn observers<'a>(
        &self,
        plan: &'a Plan,
        servers: &'a Servers,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<Box<dyn TrialObserver + 'a>>>;

    /// Takes the plans of the statements after the last trial. By default there are none.
    ///
    /// # Errors
    /// [`crate::Interrupted`] only: missing plans are warnings.
    fn plans(
        &self,
        _plan: &Plan,
        _servers: &Servers,
        _context: &RunContext<'_>,
    ) -> Result<TakenPlans> {
        Ok(TakenPlans::default())
    }
}
