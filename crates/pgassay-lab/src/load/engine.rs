//! The load engine, and a Redis server if the plan needs one.

use anyhow::Result;
use pgassay_model::plan::Plan;
use pgassay_model::study::DriverKind;

use super::postgres::{PostgresClients, connect_pool};
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
        Ok(Box::new(PostgresClients(pool)))
    }
}
