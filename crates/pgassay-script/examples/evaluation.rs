//! Measures the cost of evaluating and rendering, in ns: `cargo run --release --example
//! evaluation`.

use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use pgassay_script::{
    BUILTINS, CommandKind, ParseOptions, ParsedScript, Rng, ScriptValue, VariableNames, Variables,
    eval,
};

const ROUNDS: u32 = 2_000_000;
const REPETITIONS: usize = 7;

/// Returns the median of several measurements of `work`, in ns per call.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut times_ns: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        })
        .collect();
    times_ns.sort_by(f64::total_cmp);
    times_ns[REPETITIONS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let lines = [
        "\\set x random(1, 1000000)",
        "\\set x random(1, 100000 * :scale)",
        "\\set x (:y + 1) * 3 % 1000",
        "\\set x case when :y > 100 and :y is not null then :y / 2 else hash(:y) end",
        "\\set x random_zipfian(1, 1000000, 1.2)",
        "\\set x permute(:y, 1000000)",
    ];
    for line in lines {
        let mut names = VariableNames::new();
        let script = ParsedScript::parse("benchmark", line, &ParseOptions::default(), &mut names)?;
        let y = names.intern(b"y");
        let CommandKind::Set { slot, expr } = &script.commands()[0].kind else {
            return Err("not \\set".into());
        };
        let mut variables = Variables::new(&Arc::new(names));
        variables.set(VariableNames::SCALE, ScriptValue::Int(10));
        variables.set(VariableNames::DEFAULT_SEED, ScriptValue::Int(1));
        variables.set(y, ScriptValue::Int(4711));
        let mut rng = Rng::from_seed(1);
        eval(expr, &mut variables, &mut rng, &mut |_| ())?;
        let cost_ns = measure(|| {
            if let Ok(value) = eval(black_box(expr), &mut variables, &mut rng, &mut |_| ()) {
                variables.set(*slot, value);
            }
        });
        writeln!(out, "{cost_ns:8.1}  {line}")?;
    }

    let mut names = VariableNames::new();
    let script = ParsedScript::parse(
        "tpcb",
        BUILTINS[0].text,
        &ParseOptions::default(),
        &mut names,
    )?;
    let slots: Vec<_> = ["aid", "bid", "tid", "delta"]
        .map(|name| names.intern(name.as_bytes()))
        .into();
    let mut variables = Variables::new(&Arc::new(names));
    for slot in slots {
        variables.set(slot, ScriptValue::Int(123_456));
    }
    let mut message = Vec::new();
    for command in script.commands() {
        let CommandKind::Sql(sql) = &command.kind else {
            continue;
        };
        let cost_ns = measure(|| {
            message.clear();
            black_box(sql).render(&variables, &mut message);
        });
        writeln!(out, "{cost_ns:8.1}  render {}", command.first_line)?;
    }
    Ok(())
}
