//! CPU time of parallel workers, which is not part of a point's server CPU time.

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_model::wording::grouped;
use pgassay_record::run::Run;

/// Background processes below this share of the backends' CPU time are not mentioned.
const SHARE_NOTICEABLE: f64 = 0.2;
/// What a parallel worker is while it runs, and after it ended; and what reads files for the backends from 18 on.
const ROLES: [&str; 3] = ["parallel worker", "ended processes", "io worker"];
/// Points that are named.
const SHOWN_MAX: usize = 6;

/// The points whose server CPU time leaves out much that their statements caused, as a sentence.
pub(crate) fn sentence(run: &Run) -> Option<String> {
    let points = run.plan.points.iter();
    let found: Vec<_> = points
        .map(|it| (it, per_transaction(&run.trials, it.condition, it.variant)))
        .collect();
    let is_noticeable = found.iter().any(|(_, cpu)| {
        cpu.is_some_and(|(backends_us, workers_us)| workers_us > SHARE_NOTICEABLE * backends_us)
    });
    if !is_noticeable {
        return None;
    }
    let words = found.iter().filter_map(|(point, cpu)| {
        let (backends_us, workers_us) = (*cpu)?;
        let title = run.plan.conditions[point.condition].title();
        let variant = &run.plan.variants[point.variant];
        Some(format!(
            "{} + {} µs of {variant} ({title})",
            grouped(backends_us),
            grouped(workers_us)
        ))
    });
    let words: Vec<String> = words.take(SHOWN_MAX).collect();
    Some(format!(
        "\"server CPU\" is the CPU time of the sessions' own processes. Parallel workers, I/O workers and processes \
         that ended used additional CPU time, per transaction: {}",
        words.join(", ")
    ))
}

/// CPU time of the backends, and of parallel workers, in microseconds per transaction.
fn per_transaction(trials: &[Trial], condition: usize, variant: usize) -> Option<(f64, f64)> {
    let is_of_point = |it: &&Trial| {
        it.kind == TrialKind::Timed && (it.condition, it.variant) == (condition, variant)
    };
    let (mut backends_us, mut workers_us, mut transactions) = (0.0, 0.0, 0);
    for trial in trials.iter().filter(is_of_point) {
        backends_us += trial.server?.on_cpu_us;
        let background = trial.background.iter();
        let workers = background.filter(|it| ROLES.contains(&it.role.as_str()));
        workers_us += workers.map(|it| it.cpu.on_cpu_us).sum::<f64>();
        transactions += trial.transactions_total;
    }
    let per = |us: f64| us / transactions as f64;
    (transactions > 0).then(|| (per(backends_us), per(workers_us)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_model::cpu::{Background, CpuTotals};

    /// Regression: a statement with parallel workers seemed to use less CPU time than without.
    #[test]
    fn workers_count_after_their_end_and_the_checkpointer_does_not() {
        let cpu = |on_cpu_us: f64| CpuTotals {
            on_cpu_us,
            ..CpuTotals::default()
        };
        let background = |role: &str, us: f64| Background {
            role: role.to_owned(),
            cpu: cpu(us),
        };
        let trial = |kind: TrialKind| Trial {
            transactions_total: 10,
            server: Some(cpu(1000.0)),
            background: vec![
                background("ended processes", 1500.0),
                background("parallel worker", 500.0),
                background("checkpointer", 9000.0),
            ],
            ..Trial::empty(kind)
        };
        let trials = [trial(TrialKind::Timed), trial(TrialKind::Profiled)];
        assert_eq!(per_transaction(&trials, 0, 0), Some((100.0, 200.0)));
        assert_eq!(per_transaction(&trials, 0, 1), None);
    }
}
