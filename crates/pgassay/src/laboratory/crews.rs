//! A point's connected clients.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use pgassay_core::plan::{Point, Schedule};
use pgassay_core::study::StudySource;
use pgassay_load::{Conduct, Crew, CrewConfig, Limits, LoadError};
use pgassay_server::Server;
use pgassay_wire::conninfo::{FileText, Request, Surroundings, Target};

use super::scripts::{self, Scripts};
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;

/// Connects a point's clients to their server.
pub fn connect(
    point: &Point,
    clients: u32,
    schedule: &Schedule,
    seed: u64,
    server: &Server,
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<Crew> {
    let Scripts {
        weighted,
        names,
        notes: _,
    } = scripts::parse(point, source)?;
    let config = CrewConfig {
        target: target(server, point)?,
        clients,
        threads: schedule.threads,
        scripts: weighted,
        names,
        protocol: scripts::protocol(point.protocol),
        seed,
        scale: 1,
        variables: Vec::new(),
        debug: None,
        limits: Limits::default(),
        conduct: Conduct::default(),
    };
    Crew::connect(&config, interrupt.flag()).map_err(told)
}

/// An error of the load, with Ctrl-C told apart.
pub fn told(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Stopped => Interrupted.into(),
        other => anyhow!(other),
    }
}

fn target(server: &Server, point: &Point) -> Result<Target> {
    let mut target = Request::new()
        .conninfo(&server.conninfo())?
        .fallback_application_name("pgassay")
        .resolve(&NoSurroundings)?;
    target.settings.extend(
        point
            .session
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    Ok(target)
}

/// A server of ours is reached by what it says itself: `PGHOST` and the like must not reach it.
struct NoSurroundings;

impl Surroundings for NoSurroundings {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn user(&self) -> Option<String> {
        None
    }

    fn home(&self) -> Option<PathBuf> {
        None
    }

    fn read(&self, _path: &Path) -> io::Result<Option<FileText>> {
        Ok(None)
    }
}
