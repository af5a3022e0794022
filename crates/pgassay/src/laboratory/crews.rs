//! A point's connected clients.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use pgassay_core::plan::Point;
use pgassay_core::study::StudySource;
use pgassay_load::{Conduct, Crew, CrewConfig, Limits, LoadError};
use pgassay_server::Server;
use pgassay_wire::conninfo::{FileText, Request, Surroundings, Target};

use super::scripts::{self, Scripts};
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::places::at_line;

/// How many clients on how many threads, and the seed of their random numbers.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Connections.
    pub clients: u32,
    /// Threads of the load generator.
    pub threads: u32,
    /// The same seed draws the same numbers.
    pub seed: u64,
}

/// Connects a point's clients to their server.
pub fn connect(
    point: &Point,
    size: Size,
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
        clients: size.clients,
        threads: size.threads,
        scripts: weighted,
        names,
        protocol: scripts::protocol(point.protocol),
        seed: size.seed,
        scale: point.scale,
        variables: Vec::new(),
        debug: None,
        limits: Limits::default(),
        conduct: Conduct::default(),
    };
    Crew::connect(&config, interrupt.flag()).map_err(|error| told(error, source, point))
}

/// An error of the load: Ctrl-C told apart, a script's failure with its line in the study.
pub fn told(error: LoadError, source: &StudySource, point: &Point) -> anyhow::Error {
    match error {
        LoadError::Stopped => Interrupted.into(),
        LoadError::Aborted { ref place, .. } => {
            let script = point
                .scripts
                .get(place.script_index)
                .map_or(0, |script| script.index);
            let path = ["script", &script.to_string(), "text"];
            at_line(
                source,
                &path,
                place.line.max(1) as usize,
                &error.to_string(),
            )
        }
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
