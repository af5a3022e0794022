//! Latencies of statements in the profiled trials, by point.

use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_load::CommandMeasurement;
use pgassay_model::detail::StatementTimes;
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::statement::{ScriptStatements, StatementLatency};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{Latency, LatencyError};
use pgassay_script::{CommandKind, ScriptCommand};

use super::scripts;

/// Latencies of commands by point, then by script and command.
#[derive(Default)]
pub struct Statements {
    sums: BTreeMap<PointId, Vec<Vec<CommandMeasurement>>>,
}

impl Statements {
    /// Adds the latencies of a trial, if it timed statements.
    pub fn add(&mut self, point: PointId, timed: &[Vec<CommandMeasurement>]) {
        if timed.is_empty() {
            return;
        }
        let Some(sums) = self.sums.get_mut(&point) else {
            self.sums.insert(point, timed.to_vec());
            return;
        };
        for (sum, one) in sums.iter_mut().flatten().zip(timed.iter().flatten()) {
            sum.merge(one);
        }
    }

    /// Removes the latencies of a point, by script and command; empty if there are none.
    pub fn take(&mut self, point: PointId) -> Vec<Vec<StatementTimes>> {
        let by_script = self.sums.remove(&point).unwrap_or_default();
        let times = |commands: Vec<CommandMeasurement>| commands.iter().map(times).collect();
        by_script.into_iter().map(times).collect()
    }

    /// Adds latencies that were taken from other `Statements`.
    ///
    /// # Errors
    /// A corrupted histogram; then nothing is added.
    pub fn add_times(
        &mut self,
        point: PointId,
        by_script: &[Vec<StatementTimes>],
    ) -> Result<(), LatencyError> {
        let commands = |times: &Vec<StatementTimes>| times.iter().map(measurement).collect();
        let measured: Result<Vec<Vec<_>>, _> = by_script.iter().map(commands).collect();
        self.add(point, &measured?);
        Ok(())
    }

    /// Computes means and percentiles, in the plan's order.
    ///
    /// # Errors
    /// If a script cannot be parsed; it was parsed before when its clients connected.
    pub fn finish(self, plan: &Plan, source: &StudySource) -> Result<Vec<ScriptStatements>> {
        let mut all = Vec::new();
        for (point, by_script) in self.sums {
            let parsed = scripts::parse(plan.point(point), source)?;
            for (weighted, measured) in parsed.weighted.iter().zip(by_script) {
                let commands = weighted.script.commands();
                all.push(ScriptStatements {
                    condition: point.condition,
                    variant: point.variant,
                    script: weighted.script.name().to_owned(),
                    statements: described(commands, &measured),
                });
            }
        }
        Ok(all)
    }
}

fn times(measured: &CommandMeasurement) -> StatementTimes {
    let is_timed = measured.timed > 0;
    StatementTimes {
        timed: measured.timed,
        sum_ns: measured.sum_ns,
        latency: is_timed.then(|| Latency::from_histogram(&measured.latency_ns)),
        retries: measured.retries,
        failures: measured.failures,
    }
}

fn measurement(times: &StatementTimes) -> Result<CommandMeasurement, LatencyError> {
    // Its histogram resizes, which a decoded one does not.
    let mut measured = CommandMeasurement {
        timed: times.timed,
        sum_ns: times.sum_ns,
        retries: times.retries,
        failures: times.failures,
        ..CommandMeasurement::default()
    };
    if let Some(latency) = &times.latency {
        let added = measured.latency_ns.add(latency.histogram()?);
        added.map_err(|_| LatencyError)?;
    }
    Ok(measured)
}

/// The commands that wait for the server, with their latencies.
fn described(commands: &[ScriptCommand], measured: &[CommandMeasurement]) -> Vec<StatementLatency> {
    let mut in_pipeline = false;
    let mut all = Vec::new();
    for (command, measured) in commands.iter().zip(measured) {
        match command.kind {
            CommandKind::StartPipeline => in_pipeline = true,
            CommandKind::EndPipeline => in_pipeline = false,
            CommandKind::Sql(_) => {}
            _ => continue,
        }
        if matches!(command.kind, CommandKind::StartPipeline) {
            continue;
        }
        let at = |quantile: f64| measured.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        all.push(StatementLatency {
            line: command.line,
            text: command.first_line.clone(),
            in_pipeline,
            timed: measured.timed,
            mean_us: measured.mean_ms().unwrap_or(0.0) * 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use pgassay_script::{ParseOptions, ParsedScript, VariableNames};

    #[test]
    fn saved_latencies_give_the_same_figures() {
        let measured = |values: &[u64]| {
            let mut measured = CommandMeasurement::default();
            for value in values {
                measured.latency_ns.record(*value).unwrap();
                measured.sum_ns += value;
                measured.timed += 1;
            }
            vec![vec![measured, CommandMeasurement::default()]]
        };
        let point = PointId::new(0, 1);
        let (mut direct, mut restored) = (Statements::default(), Statements::default());
        for values in [&[1_000, 2_000_000][..], &[25_000, 9_000_000_000]] {
            direct.add(point, &measured(values));
            let mut of_trial = Statements::default();
            of_trial.add(point, &measured(values));
            let saved = of_trial.take(point);
            assert_eq!(saved[0][1].latency, None);
            restored.add_times(point, &saved).unwrap();
        }
        assert_eq!(restored.sums, direct.sums);
        assert!(direct.take(PointId::new(0, 0)).is_empty());
    }

    #[test]
    fn commands_that_wait_for_the_server_are_listed() {
        let text = "\\set x 1\nselect 1;\n\\startpipeline\nselect 2;\nselect 3;\n\\endpipeline\nselect 4;\n";
        let mut names = VariableNames::new();
        let script = ParsedScript::parse("s", text, &ParseOptions::default(), &mut names).unwrap();
        let commands = script.commands();
        let measured = vec![CommandMeasurement::default(); commands.len()];
        let found: Vec<(u32, String, bool)> = described(commands, &measured)
            .into_iter()
            .map(|it| (it.line, it.text, it.in_pipeline))
            .collect();
        let wanted = [
            (2, "select 1;", false),
            (4, "select 2;", true),
            (5, "select 3;", true),
            (6, "\\endpipeline", false),
            (7, "select 4;", false),
        ];
        assert_eq!(
            found,
            wanted.map(|(line, text, is_in)| (line, text.to_owned(), is_in))
        );
    }
}
