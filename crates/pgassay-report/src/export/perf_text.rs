//! Text in the layout of `perf report --stdio`.
//!
//! Two tables: `Children Self` with the callees of each function (`perf report --children -g caller`),
//! and `Overhead` with its callers (`perf report --no-children -g callee`). See
//! `__callchain__fprintf_graph` in Linux's `tools/perf/ui/stdio/hist.c`: percentages are of all samples,
//! a chain of calls that does not branch is one node, and entries below [`BELOW_SHARE`] are left out, as
//! the heading states. CPU samples and instruction counts have the same layout.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use pgassay_account::instructions::CallTree;
use pgassay_record::observation::Observation;

use super::stacks::{self, WeightedStacks};

/// `perf report`'s default limit for call chains.
const BELOW_SHARE: f64 = 0.005;

/// The data of both tables.
struct PerfTables {
    /// The lines above the tables.
    head: String,
    functions: Vec<FunctionLine>,
    /// Sum of the functions' self costs.
    whole: f64,
    /// Functions by index, outermost first, and the self cost of the innermost on this path.
    stacks: Vec<(Vec<usize>, f64)>,
}

/// A line of a table.
struct FunctionLine {
    name: String,
    object: String,
    kernel: bool,
    own: f64,
    children: f64,
}

/// A function with its callees, or with its callers.
#[derive(Default)]
struct CallNode {
    weight: f64,
    next: BTreeMap<usize, CallNode>,
}

impl CallNode {
    fn add(&mut self, functions: impl Iterator<Item = usize>, weight: f64) {
        self.weight += weight;
        let mut at = self;
        for function in functions {
            at = at.next.entry(function).or_default();
            at.weight += weight;
        }
    }
}

/// The text of samples.
pub(super) fn text(observation: &Observation, weighed: &WeightedStacks<'_>) -> String {
    let profile = &*weighed.profile;
    let mut head = String::new();
    // Writing to a String cannot fail.
    _ = writeln!(head, "# {}", stacks::title(observation));
    _ = writeln!(head, "#\n# Total Lost Samples: {}\n#", profile.quality.lost);
    let samples = short(profile.total().saturating_mul(weighed.samples_per_count));
    _ = writeln!(head, "# Samples: {samples} of event '{}'", weighed.event);
    let whole_us = profile.total() as f64 * weighed.us_per_sample;
    let whole_ns = whole_us * 1000.0;
    _ = writeln!(head, "# Event count (approx.): {whole_ns:.0}");
    let rows = match weighed.stacks {
        stacks::ExportedStacks::OnCpu => observation.functions(),
        stacks::ExportedStacks::OffCpu => observation.blocked_functions(),
    };
    let functions: Vec<FunctionLine> = rows
        .into_iter()
        .map(|row| FunctionLine {
            name: row.name,
            object: row.object,
            kernel: row.kernel,
            own: row.self_us,
            children: row.children_us,
        })
        .collect();
    let key = |it: &FunctionLine| (it.name.clone(), it.object.clone(), it.kernel);
    let index: HashMap<_, usize> = functions.iter().map(key).zip(0..).collect();
    // Every frame is in the table of functions, which is built from the same frames.
    let of_frame: Vec<usize> = profile
        .frames
        .iter()
        .map(|it| index.get(&(it.label(), it.object.clone(), it.kernel)))
        .map(|at| at.copied().unwrap_or_default())
        .collect();
    let stacks = stacks::stacks_of(profile)
        .map(|(stack, samples)| {
            let stack = stack.into_iter().map(|frame| of_frame[frame as usize]);
            (stack.collect(), samples as f64 * weighed.us_per_sample)
        })
        .collect();
    render(&PerfTables {
        head,
        functions,
        whole: whole_us,
        stacks,
    })
}

/// The text of instruction counts.
pub(super) fn counted(tree: &CallTree, title: &str) -> String {
    let mut head = String::new();
    _ = writeln!(head, "# {title}");
    _ = writeln!(head, "#\n# Transactions: {}", tree.transactions);
    _ = writeln!(head, "# Event: 'instructions:u', counted one by one");
    _ = writeln!(head, "# Event count: {}", tree.instructions());
    let mut functions: Vec<FunctionLine> = tree
        .functions
        .iter()
        .map(|function| FunctionLine {
            name: function.name.clone(),
            object: function.object.clone(),
            kernel: false,
            own: 0.0,
            children: 0.0,
        })
        .collect();
    let mut stacks = Vec::new();
    for (at, path) in tree.paths.iter().enumerate() {
        let stack: Vec<usize> = tree.stack(at).into_iter().map(|it| it as usize).collect();
        let cost = path.instructions as f64;
        functions[path.function as usize].own += cost;
        let mut above = stack.clone();
        above.sort_unstable();
        above.dedup();
        for function in above {
            functions[function].children += cost;
        }
        stacks.push((stack, cost));
    }
    render(&PerfTables {
        head,
        functions,
        whole: tree.instructions() as f64,
        stacks,
    })
}

fn render(account: &PerfTables) -> String {
    let below = BELOW_SHARE * 100.0;
    let mut out = account.head.clone();
    _ = writeln!(out, "# Entries and calls below {below}% are omitted.\n#");
    let columns = Columns::of(&account.functions);
    let whole = account.whole;
    let large = |cost: f64| cost >= whole * BELOW_SHARE && cost > 0.0;
    let graph = Graph {
        functions: &account.functions,
        total: account.stacks.iter().map(|(_, weight)| weight).sum(),
    };
    let mut order: Vec<usize> = (0..account.functions.len()).collect();
    let of = |at: &usize| &account.functions[*at];
    order.sort_by(|a, b| of(b).children.total_cmp(&of(a).children));
    _ = writeln!(out, "# Children      Self  {}", columns.heading());
    _ = writeln!(out, "# ........  ........  {}\n#", columns.dots());
    for at in order.iter().filter(|at| large(of(at).children)) {
        let function = of(at);
        let (children, own) = (
            percent(function.children, whole),
            percent(function.own, whole),
        );
        _ = writeln!(out, "  {children}  {own}  {}", columns.line(function));
        graph.write(&mut out, function, &callees(&account.stacks, *at));
    }
    order.sort_by(|a, b| of(b).own.total_cmp(&of(a).own));
    _ = writeln!(out, "\n# Overhead  {}", columns.heading());
    _ = writeln!(out, "# ........  {}\n#", columns.dots());
    for at in order.iter().filter(|at| large(of(at).own)) {
        let function = of(at);
        let own = percent(function.own, whole);
        _ = writeln!(out, "  {own}  {}", columns.line(function));
        graph.write(&mut out, function, &callers(&account.stacks, *at));
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

/// Widths of the columns after the percentages.
struct Columns {
    object: usize,
    symbol: usize,
}

const COMMAND: &str = "postgres";

impl Columns {
    fn of(rows: &[FunctionLine]) -> Self {
        let widest = |of: fn(&FunctionLine) -> usize| rows.iter().map(of).max().unwrap_or(0);
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

    fn line(&self, row: &FunctionLine) -> String {
        let mark = if row.kernel { "[k]" } else { "[.]" };
        format!(
            "{COMMAND}  {:<2$}  {mark} {}",
            row.object, row.name, self.object
        )
    }
}

type WeightedPaths = [(Vec<usize>, f64)];

/// What the function calls, below its outermost frame in each stack.
fn callees(stacks: &WeightedPaths, function: usize) -> CallNode {
    let mut branch = CallNode::default();
    for (stack, weight) in stacks {
        if let Some(at) = stack.iter().position(|&it| it == function) {
            branch.add(stack[at + 1..].iter().copied(), *weight);
        }
    }
    branch
}

/// The callers of the function where it is the leaf, the nearest first.
fn callers(stacks: &WeightedPaths, function: usize) -> CallNode {
    let mut branch = CallNode::default();
    for (stack, weight) in stacks {
        if let Some((&leaf, callers)) = stack.split_last()
            && leaf == function
        {
            branch.add(callers.iter().rev().copied(), *weight);
        }
    }
    branch
}

/// Draws branches.
struct Graph<'a> {
    functions: &'a [FunctionLine],
    total: f64,
}

impl Graph<'_> {
    /// Writes a function's branches below its line in the table, unless all are too small.
    fn write(&self, out: &mut String, row: &FunctionLine, branch: &CallNode) {
        if !self.large(branch).is_empty() {
            let margin = " ".repeat(12);
            _ = writeln!(out, "{margin}|");
            _ = writeln!(out, "{margin}---{}", row.name);
            self.below(out, branch, &format!("{margin}   "));
        }
        out.push('\n');
    }

    /// Branches that are worth a line, the largest first.
    fn large<'b>(&self, branch: &'b CallNode) -> Vec<(usize, &'b CallNode)> {
        let limit = self.total * BELOW_SHARE;
        let next = branch.next.iter().map(|(&frame, next)| (frame, next));
        let mut large: Vec<_> = next.filter(|(_, it)| it.weight >= limit).collect();
        large.sort_by(|(_, a), (_, b)| b.weight.total_cmp(&a.weight));
        large
    }

    fn below(&self, out: &mut String, branch: &CallNode, margin: &str) {
        // A call chain that does not branch is drawn without branches.
        let mut branch = branch;
        loop {
            let mut next = branch.next.iter();
            match (next.next(), next.next()) {
                (Some((&frame, only)), None) if is_all(only.weight, branch.weight) => {
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
            let share = next.weight / self.total * 100.0;
            let name = self.name(*frame);
            _ = writeln!(out, "{margin}|");
            _ = writeln!(out, "{margin}{tick}--{share:.2}%--{name}");
            self.below(out, next, &format!("{margin}{edge}          "));
        }
    }

    fn name(&self, function: usize) -> &str {
        &self.functions[function].name
    }
}

/// Whether two sums of the same parts are equal, up to rounding.
fn is_all(part: f64, all: f64) -> bool {
    (part - all).abs() <= all.abs() * 1e-9
}
