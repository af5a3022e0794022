//! Seeded simulations behind docs/method.md: what each measurement defect costs, before and after.
#![allow(missing_docs)]
mod marks;
mod world;

fn main() {
    let runs = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(400);
    marks::tables(runs);
}
