//! Text in the layout of `perf report --stdio`.
//!
//! Two tables, as people paste them: `Children Self` with what each function calls (`perf report
//! --children -g caller`), and `Overhead` with who called it (`perf report --no-children -g
//! callee`). See `__callchain__fprintf_graph` in Linux's `tools/perf/ui/stdio/hist.c`: percentages
//! are of all samples, a line of callers that does not branch is one node, and what is below
//! [`BELOW_SHARE`] is left out, which the heading says.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgassay_core::observation::{Observation, Row};
use pgassay_core::profile::Profile;

/// `perf report`'s own limit for call chains.
const BELOW_SHARE: f64 = 0.005;

/// A function with those that it called, or those that called it.
#[derive(Default)]
struct Branch {
    samples: u64,
    next: BTreeMap<u32, Branch>,
}

impl Branch {
    fn add(&mut self, frames: impl Iterator<Item = u32>, samples: u64) {
        self.samples += samples;
        let mut at = self;
        for frame in frames {
            at = at.next.entry(frame).or_default();
            at.samples += samples;
        }
    }
}

/// The whole text.
pub(super) fn text(observation: &Observation, profile: &Profile) -> String {
    let total = profile.total();
    let (lost, cpu_ns) = (
        profile.quality.lost,
        observation.backends.on_cpu_us * 1000.0,
    );
    let mut out = String::new();
    // Writing to a String cannot fail.
    _ = writeln!(out, "# {}", super::title(observation));
    _ = writeln!(out, "#\n# Total Lost Samples: {lost}\n#");
    _ = writeln!(out, "# Samples: {} of event 'cpu-clock'", short(total));
    _ = writeln!(out, "# Event count (approx.): {cpu_ns:.0}");
    let below = BELOW_SHARE * 100.0;
    _ = writeln!(out, "# Entries and calls below {below}% are left out.\n#");
    let mut rows = observation.functions();
    let columns = Columns::of(&rows);
    rows.sort_by(|a, b| b.children_us.total_cmp(&a.children_us));
    let on_cpu_us = observation.backends.on_cpu_us;
    let large = |us: f64| us >= on_cpu_us * BELOW_SHARE && us > 0.0;
    let graph = Graph { profile, total };
    _ = writeln!(out, "# Children      Self  {}", columns.heading());
    _ = writeln!(out, "# ........  ........  {}\n#", columns.dots());
    for row in rows.iter().filter(|row| large(row.children_us)) {
        let (children, own) = (
            percent(row.children_us, on_cpu_us),
            percent(row.self_us, on_cpu_us),
        );
        _ = writeln!(out, "  {children}  {own}  {}", columns.line(row));
        graph.write(&mut out, row, &callees(profile, row));
    }
    rows.sort_by(|a, b| b.self_us.total_cmp(&a.self_us));
    _ = writeln!(out, "\n# Overhead  {}", columns.heading());
    _ = writeln!(out, "# ........  {}\n#", columns.dots());
    for row in rows.iter().filter(|row| large(row.self_us)) {
        let own = percent(row.self_us, on_cpu_us);
        _ = writeln!(out, "  {own}  {}", columns.line(row));
        graph.write(&mut out, row, &callers(profile, row));
    }
    out
}

fn percent(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { part / whole } else { 0.0 };
    format!("{:>7.2}%", share * 100.0)
}

/// Numbers as perf shortens them: `12K`.
fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}K", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}

/// Widths of the columns behind the percentages.
struct Columns {
    object: usize,
    symbol: usize,
}

const COMMAND: &str = "postgres";

impl Columns {
    fn of(rows: &[Row]) -> Self {
        let widest = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
        Self {
            object: widest(|row| row.object.chars().count()).max("Shared Object".len()),
            symbol: widest(|row| row.name.chars().count() + 4).max("Symbol".len()),
        }
    }

    fn heading(&self) -> String {
        format!("Command   {:<1$}  Symbol", "Shared Object", self.object)
    }

    fn dots(&self) -> String {
        let of = |width| ".".repeat(width);
        format!(
            "{}  {}  {}",
            of(COMMAND.len()),
            of(self.object),
            of(self.symbol)
        )
    }

    fn line(&self, row: &Row) -> String {
        let mark = if row.kernel { "[k]" } else { "[.]" };
        format!(
            "{COMMAND}  {:<2$}  {mark} {}",
            row.object, row.name, self.object
        )
    }
}

fn is_row(profile: &Profile, frame: u32, row: &Row) -> bool {
    let frame = &profile.frames[frame as usize];
    frame.kernel == row.kernel && frame.object == row.object && frame.label() == row.name
}

/// What lies below the function's outermost frame in each stack.
fn callees(profile: &Profile, row: &Row) -> Branch {
    let mut branch = Branch::default();
    for (stack, samples) in super::stacks(profile) {
        if let Some(at) = stack.iter().position(|&frame| is_row(profile, frame, row)) {
            branch.add(stack[at + 1..].iter().copied(), samples);
        }
    }
    branch
}

/// Who stands above the function where it is the leaf, the nearest first.
fn callers(profile: &Profile, row: &Row) -> Branch {
    let mut branch = Branch::default();
    for (stack, samples) in super::stacks(profile) {
        if let Some((&leaf, callers)) = stack.split_last()
            && is_row(profile, leaf, row)
        {
            branch.add(callers.iter().rev().copied(), samples);
        }
    }
    branch
}

/// Draws branches.
struct Graph<'a> {
    profile: &'a Profile,
    total: u64,
}

impl Graph<'_> {
    /// A function's branches below its line in the table; none if all are too small.
    fn write(&self, out: &mut String, row: &Row, branch: &Branch) {
        if !self.large(branch).is_empty() {
            let margin = " ".repeat(12);
            _ = writeln!(out, "{margin}|");
            _ = writeln!(out, "{margin}---{}", row.name);
            self.below(out, branch, &format!("{margin}   "));
        }
        out.push('\n');
    }

    /// Branches that are worth a line, the largest first.
    fn large<'b>(&self, branch: &'b Branch) -> Vec<(u32, &'b Branch)> {
        let limit = self.total as f64 * BELOW_SHARE;
        let next = branch.next.iter().map(|(&frame, next)| (frame, next));
        let mut large: Vec<_> = next.filter(|(_, it)| it.samples as f64 >= limit).collect();
        large.sort_by_key(|(_, it)| std::cmp::Reverse(it.samples));
        large
    }

    fn below(&self, out: &mut String, branch: &Branch, margin: &str) {
        // Where all samples go the same way, the way is not drawn as a branch.
        let mut branch = branch;
        loop {
            let mut next = branch.next.iter();
            match (next.next(), next.next()) {
                (Some((&frame, only)), None) if only.samples == branch.samples => {
                    _ = writeln!(out, "{margin}{}", self.name(frame));
                    branch = only;
                }
                _ => break,
            }
        }
        let large = self.large(branch);
        for (at, (frame, next)) in large.iter().enumerate() {
            let is_last = at + 1 == large.len();
            let (tick, edge) = if is_last { (" ", " ") } else { ("|", "|") };
            let share = next.samples as f64 / self.total as f64 * 100.0;
            let name = self.name(*frame);
            _ = writeln!(out, "{margin}|");
            _ = writeln!(out, "{margin}{tick}--{share:.2}%--{name}");
            self.below(out, next, &format!("{margin}{edge}          "));
        }
    }

    fn name(&self, frame: u32) -> String {
        self.profile.frames[frame as usize].label()
    }
}
