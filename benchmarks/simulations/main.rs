//! Error rates of pgassay's statistical methods and of the methods they replaced, by simulation with fixed seeds.
//!
//! `cargo run --release -p pgassay-stats --example simulations` prints the tables of
//! `docs/simulations.md` and fails if a claim does not hold. The first argument is the number of runs, the second
//! selects one section (`families`, `ways`, `starts`, `sequences`, `counts`, `caches`, `marks` or `boundaries`).
//! `cargo test` runs short versions.
#![allow(missing_docs)]

mod boundaries;
mod caches;
mod counts;
mod families;
mod marks;
mod sequences;
mod starts;
mod studies;
mod ways;
mod world;

/// A share of runs, displayed in percent.
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

/// Name, function that prints its tables, and number of runs.
type Section = (&'static str, fn(u32), u32);

/// Prints a row of a Markdown table.
fn row(cells: &[&str]) {
    println!("| {} |", cells.join(" | "));
}

fn main() {
    let first = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let runs: u32 = first.unwrap_or(5_000);
    let section = std::env::args().nth(2);
    let tables: [Section; 8] = [
        ("families", families::tables, runs / 2),
        ("ways", ways::tables, runs),
        ("starts", starts::tables, runs),
        ("sequences", sequences::tables, runs),
        ("counts", counts::tables, runs / 10),
        ("caches", caches::tables, runs / 20),
        ("marks", marks::tables, runs / 10),
        ("boundaries", boundaries::tables, runs),
    ];
    for (name, print, runs) in tables {
        // The tables of critical values are Rust code, not part of the document.
        let by_default = section.is_none() && name != "boundaries";
        if by_default || section.as_deref() == Some(name) {
            print(runs);
        }
    }
}
