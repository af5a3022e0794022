//! What each measurement defect costs, before and after, by simulation with fixed seeds.
//!
//! `cargo run --release -p pgassay-stats --example simulations` prints the tables of
//! `docs/simulations.md` and fails where one does not hold; a first argument is the number of runs.
//! `cargo test` runs short forms.
#![allow(missing_docs)]

mod caches;
mod counts;
mod families;
mod marks;
mod starts;
mod ways;
mod world;

/// A share of runs, printed in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

impl Share {
    fn of(hits: usize, runs: u32) -> Self {
        Self(hits as f64 / f64::from(runs))
    }

    fn complement(self) -> Self {
        Self(1.0 - self.0)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:.1}%", 100.0 * self.0)
    }
}

/// A row of a Markdown table.
fn row(cells: &[&str]) {
    println!("| {} |", cells.join(" | "));
}

fn main() {
    let first = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let runs: u32 = first.unwrap_or(5_000);
    families::tables(runs / 2);
    ways::tables(runs);
    starts::tables(runs);
    counts::tables(runs / 10);
    caches::tables(runs / 20);
    marks::tables(runs / 10);
}
