//! Records call paths in an additional round, in which callgrind separates functions by callers.
//!
//! Such a round takes 50% longer and its files are a hundred times larger, so there is only one, after
//! the rounds that give the figures and with the same segments.

use anyhow::{Context, Result};
use pgassay_count::call_tree;
use pgassay_server::Server;

use super::{Counter, lengths};

/// The main loop of a backend; the frames above it are the same in every path.
const ROOT: &str = "PostgresMain";

impl Counter<'_> {
    /// Records the call paths of one point.
    pub(super) fn paths(&mut self, index: usize, server: &Server) -> Result<()> {
        let bench = self.bench(index, server);
        let segments = self.points[index].segments;
        let [few, _, many] = segments.context("recording of call paths started before counting")?;
        let first = lengths::first(few);
        bench.warm_up(many, first)?;
        let files = [bench.segment(few, first)?, bench.segment(many, first)?];
        let tree = call_tree(&files[0], &files[1], many - few, ROOT);
        self.points[index].tree = Some(tree);
        Ok(())
    }
}
