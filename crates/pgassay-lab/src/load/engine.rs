//! The load engine, and a Redis server if the plan needs one.

use std::sync::Arc;

use anyhow::Result;
use pgassay_model::plan::Plan;
use pgassay_model::study::DriverKind;

use super::postgres::{PostgresClients, connect_pool, describe_load_error};
use super::redis::Redis;
use super::{Clients, ClientsOrder, LoadDriver};
use crate::run_context::RunContext;

/// The load engine, and a Redis server if the plan needs one.
pub struct EngineDriver {
    redis: Redis,
}

impl EngineDriver {
    /// Starts what the plan's points need besides PostgreSQL.
    pub fn start(plan: &Plan) -> Result<Self> {
        Ok(Self {
            redis: Redis::start(plan)?,
        })
    }
}

impl LoadDriver for EngineDriver {
    fn connect(
        &self,
        order: &ClientsOrder<'_>,
        context: &RunContext<'_>,
    ) -> Result<Box<dyn Clients>> {
        if order.point.driver == DriverKind::Redis {
            let clients = self.redis.connect(order.point, order.clients, context)?;
            return Ok(Box::new(clients));
        }
        let pool = connect_pool(order, context)?;
        // Temporary servers stop with the run.
        let location = &order.location;
        let is_external = location.host.is_external();
        let database = is_external.then_some(location.database);
        let canceler = database.and_then(|it| location.host.canceler(it));
        let clients = PostgresClients::new(pool, canceler.map(Arc::new))
            .map_err(|error| describe_load_error(error, context.source(), order.point))?;
        Ok(Box::new(clients))
    }
}
