//! `pgassay timing`: measures clock-read overhead and what it means for a server.

mod meaning;

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use pgassay_model::study::HumanDuration;
use pgassay_profile::{Clock, ClockSource, ClockSteps};
use serde_json::{Value, json};

use meaning::{Grade, suggest_fix, uses};

use crate::style::folded;

/// Flags of `pgassay timing`; the first two are `pg_test_timing`'s.
#[derive(Debug, Args)]
pub struct TimingArgs {
    /// How long to read the clock, such as 3s or 500ms; without a unit, in seconds. A longer test catches
    /// rarer events.
    #[arg(short, long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub duration: Duration,

    /// Also list the exact times between two readings, in ns, until they cover this percentage of all readings
    /// (column "running %").
    #[arg(short, long, value_name = "PERCENT", value_parser = percent)]
    pub cutoff: Option<f64>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A time, which must not be too short.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<HumanDuration>()?.duration();
    if duration < Duration::from_millis(1) {
        return Err("must be at least 1ms".to_owned());
    }
    Ok(duration)
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage from 0 to 100".to_owned()),
    }
}

/// The results.
struct TimingResult {
    source: ClockSource,
    steps: ClockSteps,
    /// The cost of one read of each clock, ns.
    costs_ns: Vec<(Clock, f64)>,
}

impl TimingResult {
    fn cost_ns(&self, clock: Clock) -> f64 {
        let found = self.costs_ns.iter().find(|(it, _)| *it == clock);
        found.map_or(f64::NAN, |(_, cost_ns)| *cost_ns)
    }

    fn grade(&self) -> Grade {
        Grade::of(self.cost_ns(Clock::Monotonic))
    }
}

/// Measures and prints clock-read overhead. Fails if the clock went backwards.
pub fn timing(args: &TimingArgs, out: &mut impl Write) -> Result<()> {
    let timing = TimingResult {
        source: ClockSource::read(),
        steps: ClockSteps::watch(args.duration)?,
        costs_ns: Clock::all()
            .into_iter()
            .map(|clock| (clock, clock.cost_ns()))
            .collect(),
    };
    if args.json {
        let json = serde_json::to_string_pretty(&as_json(&timing, args.duration))?;
        writeln!(out, "{json}")?;
    } else {
        let mut text = Vec::new();
        print(&timing, args, &mut text)?;
        out.write_all(folded(&String::from_utf8_lossy(&text)).as_bytes())?;
        if let Some(fix) = suggest_fix(&timing.source, timing.grade()) {
            // A command stays on one line, to be copied.
            writeln!(out, "  to fix it: {fix}")?;
        }
    }
    out.flush()?;
    if timing.steps.backwards > 0 {
        bail!(
            "the clock went backwards {} times, by up to {} ns: no duration measured on this machine \
             is reliable; check the kernel log (dmesg | grep -i -e tsc -e clocksource)",
            timing.steps.backwards,
            timing.steps.backwards_ns_max
        );
    }
    Ok(())
}

/// The clock's display name, its JSON key, and which features read it.
fn describe(clock: Clock) -> (&'static str, &'static str, &'static str) {
    match clock {
        Clock::Monotonic => (
            "CLOCK_MONOTONIC",
            "monotonic",
            "EXPLAIN ANALYZE, track_io_timing, pg_stat_statements (since version 10)",
        ),
        Clock::TimeOfDay => (
            "gettimeofday",
            "gettimeofday",
            "now(), log_duration, log_min_duration_statement; before version 10, all of the above",
        ),
        Clock::Realtime => ("CLOCK_REALTIME", "realtime", "the time of day in ns"),
        Clock::SystemCall => (
            "a system call",
            "system_call",
            "all of the above, if programs cannot read the clock source in user space",
        ),
        Clock::Counter => (
            "the CPU's counter",
            "counter",
            "rdtsc, which the others read if possible",
        ),
    }
}

fn print(timing: &TimingResult, args: &TimingArgs, out: &mut impl Write) -> Result<()> {
    let steps = &timing.steps;
    writeln!(
        out,
        "clock source: {} (available: {})",
        timing.source.current.as_deref().unwrap_or("unknown"),
        timing.source.available.join(", ")
    )?;
    writeln!(
        out,
        "CLOCK_MONOTONIC read in a loop for {} on {} CPU{} in turn",
        HumanDuration::from(args.duration),
        steps.cpus,
        if steps.cpus == 1 { "" } else { "s" },
    )?;
    writeln!(
        out,
        "time per loop including overhead: {:.2} ns; backwards: {}",
        steps.per_loop_ns(),
        match steps.backwards {
            0 => "never".to_owned(),
            times => format!("{times} times, by up to {} ns", steps.backwards_ns_max),
        }
    )?;
    print_rows(
        "\nsteps between readings:\n   <= ns",
        steps.rows(),
        steps.counted(),
        out,
    )?;
    let quantiles = [("50%", 0.5), ("99%", 0.99), ("99.99%", 0.9999)]
        .map(|(name, share)| format!("{name} up to {} ns", steps.quantile_ns(share)));
    writeln!(
        out,
        "{}, the largest {} ns",
        quantiles.join(", "),
        steps.largest_ns
    )?;
    if let Some(cutoff) = args.cutoff {
        writeln!(
            out,
            "\nexact steps up to a running percentage of {cutoff}%:"
        )?;
        print_rows("      ns", exact_up_to(steps, cutoff), steps.counted(), out)?;
    }
    writeln!(out, "\ncost of one read          ns  used by")?;
    for &(clock, cost_ns) in &timing.costs_ns {
        let (name, _, users) = describe(clock);
        writeln!(out, "  {name:17}  {cost_ns:7.1}  {users}")?;
    }
    writeln!(
        out,
        "\neffect on a server on this machine\n  {}",
        timing.grade().sentence()
    )?;
    let costs = uses(
        timing.cost_ns(Clock::Monotonic),
        timing.cost_ns(Clock::TimeOfDay),
    );
    for one in costs {
        writeln!(out, "  {}: {}; {}", one.what, one.costs, one.when)?;
    }
    Ok(())
}

/// Prints rows in the format of `pg_test_timing` since version 19.
fn print_rows(
    heading: &str,
    rows: impl Iterator<Item = (u64, u64)>,
    total: u64,
    out: &mut impl Write,
) -> Result<()> {
    writeln!(out, "{heading}   % of total  running %       count")?;
    let percent = |count: u64| count as f64 * 100.0 / total.max(1) as f64;
    let mut running = 0;
    for (ns, count) in rows {
        running += count;
        writeln!(
            out,
            "{ns:8}  {:11.4}  {:9.4}  {count:10}",
            percent(count),
            percent(running)
        )?;
    }
    Ok(())
}

/// Exact steps that occurred, up to the given running percentage.
fn exact_up_to(steps: &ClockSteps, percent: f64) -> impl Iterator<Item = (u64, u64)> {
    let wanted = steps.counted() as f64 * percent / 100.0;
    let mut listed = 0;
    (0..)
        .zip(&steps.exact)
        .map(|(ns, &count)| (ns, count))
        .filter(|(_, count)| *count > 0)
        .take_while(move |(_, count)| {
            let is_wanted = (listed as f64) < wanted;
            listed += count;
            is_wanted
        })
}

fn as_json(timing: &TimingResult, duration: Duration) -> Value {
    let steps = &timing.steps;
    let histogram: Vec<Value> = steps
        .rows()
        .map(|(ns, count)| json!({ "ns_max": ns, "count": count }))
        .collect();
    let exact: Vec<Value> = exact_up_to(steps, 100.0)
        .map(|(ns, count)| json!({ "ns": ns, "count": count }))
        .collect();
    let clocks: serde_json::Map<String, Value> = timing
        .costs_ns
        .iter()
        .map(|(clock, cost_ns)| (describe(*clock).1.to_owned(), json!(cost_ns)))
        .collect();
    json!({
        "schema": "pgassay.timing/1",
        "clock_source": { "current": timing.source.current, "available": timing.source.available },
        "duration_s": duration.as_secs_f64(),
        "cpus": steps.cpus,
        "readings": steps.readings,
        "per_loop_ns": steps.per_loop_ns(),
        "steps": {
            "counted": steps.counted(),
            "histogram": histogram,
            "exact": exact,
            "p50_ns": steps.quantile_ns(0.5),
            "p99_ns": steps.quantile_ns(0.99),
            "p9999_ns": steps.quantile_ns(0.9999),
            "max_ns": steps.largest_ns,
            "backwards": steps.backwards,
            "backwards_ns_max": steps.backwards_ns_max,
        },
        "reading_ns": clocks,
        "grade": timing.grade().name(),
        "meaning": timing.grade().sentence(),
        "fix": suggest_fix(&timing.source, timing.grade()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_of_seconds_or_has_a_unit() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("20ms"), Ok(Duration::from_millis(20)));
        for wrong in ["0", "-1", "soon", "1us"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(percent("101").is_err() && percent("99.99").is_ok());
    }
}
