//! Call paths: a round in which callgrind keeps every chain of callers apart.
//!
//! It takes half as long again and files a hundred times as large, so it is run once, after the
//! rounds that give the figures, with the same segments.

use anyhow::{Context, Result};
use pgassay_count::call_tree;
use pgassay_server::Server;

use super::Laboratory;

/// Where a backend spends its life; what is above it is the same in every path.
const ROOT: &str = "PostgresMain";

impl Laboratory<'_> {
    /// The call paths of one point.
    pub(super) fn paths(&mut self, index: usize, server: &Server) -> Result<()> {
        let bench = self.bench(index, server);
        let segments = self.points[index].segments;
        let [few, _, many] = segments.context("it has call paths before it was counted")?;
        bench.warm_up(many)?;
        let files = [bench.segment(few)?, bench.segment(many)?];
        let tree = call_tree(&files[0], &files[1], many - few, ROOT);
        self.points[index].tree = Some(tree);
        Ok(())
    }
}
