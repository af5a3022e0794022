//! From trials to verdicts: which trials count, and that every list adds up.

use hdrhistogram::Histogram;
use pgassay_account::comparison::{
    Assessment, CostDifference, Inconclusive, UnitOfAnalysis, Verdict, assess,
};
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_model::cpu::CpuTotals;
use pgassay_model::plan::{Overrides, Plan, ServerPlan, plan};
use pgassay_model::profile::{Frame, Profile, ProfileBuilder};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{ClientTotals, Latency, Trial, TrialKind};

fn two_variants() -> Plan {
    planned("")
}

fn nine_conditions() -> Plan {
    planned("[conditions]\nclients = [1, 2, 3, 4, 5, 6, 7, 8, 9]\n")
}

const TWO: &str = "[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                   [[variant]]\nname = \"simple\"\n[[variant]]\nname = \"prepared\"\n";

fn planned(more: &str) -> Plan {
    let source = StudySource {
        file: "s.toml".to_owned(),
        text: format!("question = \"?\"\n{TWO}{more}[length]\npairs = 6\n"),
    };
    plan(
        &source.parse().expect("the study is valid"),
        &source,
        &Overrides::default(),
    )
    .expect("the study can be planned")
}

/// A trial of 0.1 s with this `tps` and `cpu_us` per transaction.
pub fn trial(block: u32, variant: usize, kind: TrialKind, tps: f64, cpu_us: f64) -> Trial {
    let transactions = (tps / 10.0) as u64;
    let mut latency = Histogram::<u64>::new(3).expect("3 digits are allowed");
    latency
        .record_n((8e9 / tps) as u64, transactions)
        .expect("the histogram is resizable");
    Trial {
        repeats: None,
        server_start: 0,
        block,
        condition: 0,
        variant,
        position: 0,
        kind,
        started_us: 0,
        window_us: 1e5,
        transactions,
        credited_transactions: None,
        transactions_total: transactions + 10,
        failed: 0,
        failed_us: 0.0,
        latency: Latency::from_histogram(&latency),
        server: Some(CpuTotals {
            on_cpu_us: cpu_us * (transactions + 10) as f64,
            run_queue_us: 0.0,
            processes: 8,
        }),
        client: ClientTotals::default(),
        cpu_steal: 0.0,
        other_programs: 0.0,
        unaccounted: None,
        counters: [("log.lines", (transactions + 10) as f64)].into(),
        cpu_utilization: 0.0,
        background: Vec::new(),
        waits: None,
        cross_checks: None,
        backend_memory: None,
    }
}

/// Six blocks; the machine drifts, and the variant is `ratio` times as fast throughout.
pub fn trials(ratio: f64) -> Vec<Trial> {
    let mut all = Vec::new();
    for block in 0..6 {
        let drift = 20_000.0 * (1.0 - 0.03 * f64::from(block));
        let noise = [1.002, 0.999, 1.001, 0.998, 1.0, 1.003][block as usize];
        for _ in 0..2 {
            all.push(trial(block, 0, TrialKind::Timed, drift, 50.0));
            all.push(trial(
                block,
                1,
                TrialKind::Timed,
                drift * ratio * noise,
                30.0,
            ));
        }
        // Profiled trials must not affect verdicts.
        all.push(trial(block, 0, TrialKind::Profiled, drift * 0.9, 55.0));
        all.push(trial(block, 1, TrialKind::Profiled, drift * 0.1, 99.0));
    }
    all
}

pub fn assessed(trials: &[Trial], profiles: &[Profile]) -> Assessment {
    assess(&two_variants(), &["18".to_owned()], trials, profiles).expect("valid histograms")
}

#[test]
fn a_steady_ratio_under_drift_is_found_and_profiled_trials_do_not_count() {
    let assessment = assessed(&trials(1.4), &[]);
    let [comparison] = &assessment.comparisons[..] else {
        panic!("one variant against one baseline")
    };
    assert_eq!(comparison.verdict, Verdict::Faster);
    assert!(
        (comparison.tps.ratio - 1.4).abs() < 0.01,
        "{:?}",
        comparison.tps
    );
    assert!(
        comparison.tps.low > 1.38 && comparison.tps.high < 1.42,
        "drift must not count as noise: {:?}",
        comparison.tps
    );
    assert_eq!(comparison.tps.by_pair.len(), 6, "one pair per block");
    assert!((comparison.latency_p99.ratio - 1.0 / 1.4).abs() < 0.01);
    let cpu = comparison.server_cpu.as_ref().expect("totals are there");
    assert!((cpu.ratio - 0.6).abs() < 1e-9);
    assert_eq!(assessment.points[1].trials, 12);
    let cpu_us = assessment.points[0]
        .server_cpu_us
        .expect("totals are there");
    assert!((cpu_us - 50.0).abs() < 1e-9);
}

/// Throughput of 20,000, 28,000 and 28,000 per second.
#[test]
fn stepwise_each_variant_is_compared_with_the_one_before() {
    let third = "[[variant]]\nname = \"third\"\nprotocol = \"extended\"\n";
    for (top, ratios) in [("", [1.4, 1.4]), ("stepwise = true\n", [1.4, 1.0])] {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!("{top}question = \"?\"\n{TWO}{third}[length]\npairs = 6\n"),
        };
        let study = source.parse().expect("the study is valid");
        let plan = plan(&study, &source, &Overrides::default()).expect("it can be planned");
        let of_third = |it: &Trial| Trial {
            variant: 2,
            ..it.clone()
        };
        let mut all = trials(1.4);
        let third: Vec<Trial> = all
            .iter()
            .filter(|it| it.variant == 1)
            .map(of_third)
            .collect();
        all.extend(third);
        let assessment = assess(&plan, &["18".to_owned()], &all, &[]).expect("valid histograms");
        let found: Vec<f64> = assessment
            .comparisons
            .iter()
            .map(|it| it.tps.ratio)
            .collect();
        assert_eq!(found.len(), 2);
        for (found, ratio) in found.iter().zip(ratios) {
            assert!((found - ratio).abs() < 0.01, "{top}: {found}");
        }
        let [second, third] = &assessment.comparisons[..] else {
            panic!("two variants are compared")
        };
        assert_eq!(second.verdict, Verdict::Faster);
        assert_eq!(third.verdict == Verdict::Faster, top.is_empty(), "{top}");
        let cpu = third.server_cpu.as_ref().expect("totals are there");
        assert_eq!(cpu.ratio < 0.7, top.is_empty(), "{}", cpu.ratio);
    }
}

#[test]
fn no_difference_is_equivalent_and_noise_is_inconclusive() {
    assert_eq!(
        assessed(&trials(1.0), &[]).comparisons[0].verdict,
        Verdict::Equivalent
    );
    let mut noisy = trials(1.0);
    for trial in noisy.iter_mut().filter(|trial| trial.variant == 1) {
        let factor = [0.8, 1.25, 0.9, 1.1, 1.2, 0.85][trial.block as usize];
        trial.transactions = (trial.transactions as f64 * factor) as u64;
    }
    assert_eq!(
        assessed(&noisy, &[]).comparisons[0].verdict,
        Verdict::Inconclusive
    );
}

#[test]
fn an_incomplete_run_is_assessed_by_its_complete_blocks() {
    let half: Vec<Trial> = trials(1.4)
        .into_iter()
        .filter(|trial| trial.block < 3)
        .collect();
    assert_eq!(assessed(&half, &[]).comparisons[0].tps.by_pair.len(), 3);
    let one_sided: Vec<Trial> = trials(1.4)
        .into_iter()
        .filter(|trial| trial.variant == 0)
        .collect();
    assert!(assessed(&one_sided, &[]).comparisons.is_empty());
}

fn profile(stacks: &[(&[&str], u32)]) -> Profile {
    let mut builder = ProfileBuilder::new(6);
    for block in 0..6 {
        for (symbols, count) in stacks {
            let frames = symbols.iter().map(|symbol| Frame {
                symbol: Some((*symbol).to_owned()),
                object: "postgres".to_owned(),
                offset: 0,
                kernel: false,
            });
            builder.add(block, frames, *count);
        }
    }
    builder.finish()
}

const PARSE: &[&str] = &[
    "main",
    "PostgresMain",
    "exec_simple_query",
    "pg_parse_query",
    "raw_parser",
    "base_yyparse",
];
const RUN: &[&str] = &[
    "main",
    "PostgresMain",
    "exec_simple_query",
    "PortalRun",
    "ExecutorRun",
    "IndexNext",
];
const BIND: &[&str] = &[
    "main",
    "PostgresMain",
    "exec_bind_message",
    "GetCachedPlan",
    "RevalidateCachedQuery",
];

#[test]
fn costs_add_up_to_the_exact_totals_and_changes_are_named() {
    let simple = profile(&[(PARSE, 200), (RUN, 300)]);
    let prepared = profile(&[(BIND, 50), (RUN, 450)]);
    let assessment = assessed(&trials(1.4), &[simple, prepared]);
    let cost = assessment.comparisons[0]
        .cost
        .as_ref()
        .expect("both sides have profiles");
    assert!(
        (cost.total.baseline_us - 50.0).abs() < 1e-9 && (cost.total.variant_us - 30.0).abs() < 1e-9
    );
    for rows in [&cost.functions, &cost.phases, &cost.subsystems] {
        let sum = |side: fn(&CostRow) -> f64| rows.iter().map(side).sum::<f64>();
        assert!((sum(|row| row.baseline_us) - 50.0).abs() < 1e-6);
        assert!((sum(|row| row.variant_us) - 30.0).abs() < 1e-6);
        assert!((sum(|row| row.difference_us) + 20.0).abs() < 1e-6);
    }
    let change = |name: &str| {
        cost.functions
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.change)
    };
    assert_eq!(change("base_yyparse"), Some(Change::Removed));
    assert_eq!(change("RevalidateCachedQuery"), Some(Change::Added));
    // 300 of 500 samples of 50 µs and 450 of 500 of 30 µs: the share increases by half, the cost decreases.
    let run = cost
        .functions
        .iter()
        .find(|row| row.name == "IndexNext")
        .expect("both have it");
    assert!((run.baseline_us - 30.0).abs() < 1e-6 && (run.variant_us - 27.0).abs() < 1e-6);
    assert_eq!(
        cost.functions[0].name, "base_yyparse",
        "the largest difference comes first"
    );
    let phases: Vec<&str> = cost.phases.iter().map(|row| row.name.as_str()).collect();
    assert!(
        phases.contains(&"parse") && phases.contains(&"execute"),
        "{phases:?}"
    );
    assert!(
        cost.profiled_tps_ratio < 0.5,
        "the profiling overhead must be reported"
    );
}

#[test]
fn no_mark_with_an_interval_that_contains_0() {
    // With few samples, the exact test can detect a change although the interval contains 0.
    for few in 1..6 {
        let simple = profile(&[(PARSE, few), (RUN, 300)]);
        let prepared = profile(&[(RUN, 300)]);
        let assessment = assessed(&trials(1.4), &[simple, prepared]);
        let cost = assessment.comparisons[0]
            .cost
            .as_ref()
            .expect("both sides have profiles");
        for row in cost
            .functions
            .iter()
            .chain(&cost.phases)
            .chain(&cost.subsystems)
        {
            let is_beyond_noise = row.low_us > 0.0 || row.high_us < 0.0;
            assert!(
                is_beyond_noise || row.change == Change::Inconclusive,
                "{row:?}"
            );
        }
    }
}

#[test]
fn a_server_with_unknown_cpu_time_still_has_a_verdict() {
    let mut trials = trials(1.4);
    for trial in &mut trials {
        trial.server = None;
    }
    let assessment = assessed(&trials, &[]);
    let comparison = &assessment.comparisons[0];
    assert_eq!(comparison.verdict, Verdict::Faster);
    assert_eq!(comparison.server_cpu, None);
    let of_baseline = &assessment.points[0];
    assert_eq!(
        (of_baseline.server_cpu_us, of_baseline.server_run_queue_us),
        (None, None)
    );
    assert_eq!(assessment.ledgers, []);
}

/// Six blocks in which every trial has the same number of transactions.
fn constant_trials(of_baseline: u64, of_variant: u64) -> Vec<Trial> {
    let mut all = Vec::new();
    for block in 0..6 {
        for (variant, count) in [
            (0, of_baseline),
            (1, of_variant),
            (1, of_variant),
            (0, of_baseline),
        ] {
            let mut trial = trial(block, variant, TrialKind::Timed, 20_000.0, 50.0);
            trial.transactions = count;
            all.push(trial);
        }
    }
    all
}

#[test]
fn equal_counts_have_a_wide_interval_and_are_inconclusive() {
    // Eight clients, ten transactions each: 30.0 ms and 30.1 ms give the same count in every trial.
    let comparison = &assessed(&constant_trials(80, 80), &[]).comparisons[0];
    assert_eq!(comparison.verdict, Verdict::Inconclusive);
    assert_eq!(
        comparison.inconclusive_reason,
        Some(Inconclusive::BelowResolution)
    );
    assert!(comparison.tps.low < 30.0 / 30.1 && comparison.tps.high > 1.0);
    // The counts give ×0.900 in every block, but the latencies ×0.916.
    let comparison = &assessed(&constant_trials(80, 72), &[]).comparisons[0];
    assert_eq!(comparison.verdict, Verdict::Inconclusive);
    assert!(comparison.tps.low < 0.9 && comparison.tps.high > 0.916);
    for ratio in [
        &comparison.tps,
        &comparison.latency_mean,
        &comparison.latency_p50,
        &comparison.latency_p95,
        &comparison.latency_p99,
    ] {
        assert!(ratio.high > ratio.low && ratio.widened > 0.0, "{ratio:?}");
    }
    // With many transactions per client, rounding cannot hide such a difference.
    let mut trials = constant_trials(80_000, 40_000);
    for trial in trials.iter_mut().filter(|trial| trial.variant == 1) {
        trial.transactions += u64::from(trial.block);
    }
    let comparison = &assessed(&trials, &[]).comparisons[0];
    assert_eq!(comparison.verdict, Verdict::Slower);
    assert!(comparison.tps.widened > 0.0);
}

#[test]
fn a_verdict_that_its_rank_test_contradicts_is_inconclusive() {
    // Bimodal: in half of the blocks B is 8% faster, in the others slightly slower. The t-test is
    // significant, the rank test is not.
    let shifts = [1.083, 0.997, 1.081, 0.998, 1.079, 0.999];
    let plan = {
        let mut plan = two_variants();
        plan.schedule.blocks = 12;
        plan
    };
    let mut trials = Vec::new();
    for block in 0..12 {
        let shift = shifts[block as usize % 6] + 1e-4 * f64::from(block);
        for _ in 0..2 {
            trials.push(trial(block, 0, TrialKind::Timed, 200_000.0, 50.0));
            trials.push(trial(block, 1, TrialKind::Timed, 200_000.0 * shift, 50.0));
        }
    }
    let assessment = assess(&plan, &["18".to_owned()], &trials, &[]).expect("it is whole");
    let comparison = &assessment.comparisons[0];
    assert!(comparison.tps.low > 1.0 && comparison.tps.ranks_disagree);
    assert_eq!(comparison.verdict, Verdict::Inconclusive);
    assert_eq!(
        comparison.inconclusive_reason,
        Some(Inconclusive::RanksDisagree)
    );
}

#[test]
fn the_minimum_detectable_effect_is_a_range_at_the_level_in_use() {
    let comparison = &assessed(&trials(1.4), &[]).comparisons[0];
    let basis = comparison.basis.expect("there are six pairs");
    assert_eq!((basis.unit, basis.units), (UnitOfAnalysis::Pair, 6));
    assert_eq!((basis.server_starts, basis.comparisons), (1, 1));
    // With few transactions per client, it includes the rounding error.
    let widened = comparison.tps.widened;
    let range = comparison
        .tps
        .minimum_detectable_effect_range
        .expect("there are six pairs");
    let [low, high] = range.map(|end| end - widened);
    let detectable = comparison
        .tps
        .minimum_detectable_effect
        .expect("there are six pairs")
        - widened;
    assert!(0.0 < low && low < detectable && detectable < high && high > 2.0 * low);
    // With nine conditions, each comparison has a stricter level.
    let plan = nine_conditions();
    let mut all = Vec::new();
    for condition in 0..9 {
        let of_condition = trials(1.0 + 0.001 * condition as f64);
        all.extend(of_condition.into_iter().map(|it| Trial { condition, ..it }));
    }
    let assessment = assess(&plan, &["18".to_owned()], &all, &[]).expect("it is whole");
    let strictest = assessment
        .comparisons
        .iter()
        .map(|it| it.tps.confidence_level);
    let strictest = strictest.fold(0.0, f64::max);
    assert!((strictest - (1.0 - 0.05 / 9.0)).abs() < 1e-9, "{strictest}");
    assert!(
        assessment
            .comparisons
            .iter()
            .all(|it| it.basis.is_some_and(|it| it.comparisons == 9))
    );
    let of_first = &assessment.comparisons[0].tps;
    let stricter = of_first.minimum_detectable_effect.expect("six pairs") - of_first.widened;
    assert!(stricter > 1.2 * detectable, "{stricter} {detectable}");
}

/// Three functions, with names or as a stripped executable shows them.
fn built(stripped: bool, shift: u32) -> Profile {
    let mut builder = ProfileBuilder::new(6);
    for block in 0..6 {
        for (index, (symbols, count)) in [(PARSE, 200), (RUN, 300), (BIND, 40)].iter().enumerate() {
            let frames = symbols.iter().enumerate().map(|(depth, symbol)| {
                // Exported functions keep their names.
                let named = !stripped || *symbol == "ExecutorRun" || *symbol == "raw_parser";
                Frame {
                    symbol: named.then(|| (*symbol).to_owned()),
                    object: "postgres".to_owned(),
                    offset: if named {
                        0
                    } else {
                        0x1000 * (index * 9 + depth + 1) as u64
                    },
                    kernel: false,
                }
            });
            builder.add(block, frames, *count + shift * (block as u32 % 2));
        }
    }
    builder.finish()
}

fn cost(plan: &Plan, profiles: &[Profile]) -> CostDifference {
    let majors = vec!["18".to_owned(); plan.servers.len()];
    let assessment = assess(plan, &majors, &trials(1.0), profiles).expect("valid histograms");
    let cost = assessment.comparisons[0].cost.clone();
    cost.expect("both sides have profiles")
}

/// Regression: of one stripped server, a variant whose time is in functions without a name seemed to be another build.
#[test]
fn variants_on_one_build_have_the_same_symbols() {
    let cost = cost(&two_variants(), &[built(true, 0), built(false, 3)]);
    assert!(cost.objects_with_unequal_symbols.is_empty());
}

#[test]
fn a_stripped_and_an_unstripped_build_mark_nothing_added_or_removed() {
    let mut plan = two_variants();
    plan.servers.push(ServerPlan {
        binaries: Some("/opt/patched/bin".to_owned()),
        ..plan.servers[0].clone()
    });
    plan.points[1].server = 1;
    let cost_of = |a: Profile, b: Profile| cost(&plan, &[a, b]);
    for (a, b) in [(true, false), (false, true)] {
        let cost = cost_of(built(a, 0), built(b, 3));
        assert_eq!(cost.objects_with_unequal_symbols, ["postgres"]);
        let rows = cost
            .functions
            .iter()
            .chain(&cost.phases)
            .chain(&cost.subsystems);
        for row in rows {
            assert!(
                !matches!(row.change, Change::Added | Change::Removed),
                "{row:?}"
            );
        }
        for rows in [&cost.phases, &cost.subsystems] {
            assert!(
                rows.iter().all(|row| row.change == Change::Inconclusive),
                "{rows:?}"
            );
        }
        let sum: f64 = cost.functions.iter().map(|row| row.baseline_us).sum();
        assert!(
            (sum - cost.total.baseline_us).abs() < 1e-6,
            "rows still add up"
        );
    }
    // Two builds of one kind are compared by name.
    let cost = cost_of(built(false, 0), built(false, 3));
    assert!(cost.objects_with_unequal_symbols.is_empty() && cost.functions.len() == 3);
}
