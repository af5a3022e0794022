//! The comparisons of a run as a table for other programs: CSV, and Markdown for a web page or an email.

use std::fmt::Write;

use pgassay_record::run::{Run, Warning, WarningKind};

use crate::gate::in_markdown;
use crate::outline::{baseline_name, condition_title, variant_name};
use crate::reliability::is_of_question;
use crate::{calibration, failures, number, printable, sentence};

/// One line per comparison, with a header. Ratios are those of the variant to the baseline; an empty field is
/// unknown, such as the interval of a single pair. Shares of transactions that failed are 0 to 1. Quoted as in RFC
/// 4180.
pub fn comparisons_csv(run: &Run) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut records = vec![
        vec![
            "condition",
            "variant",
            "baseline",
            "verdict",
            "tps_ratio",
            "low",
            "high",
            "confidence_level",
            "pairs",
            "pair_sd",
            "latency_mean_ratio",
            "latency_p99_ratio",
            "server_cpu_ratio",
            "tps_uncorrected_95_low",
            "tps_uncorrected_95_high",
            "tps_sequential_p_value",
            "failed_share",
            "baseline_failed_share",
        ]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>(),
    ];
    for it in &run.comparisons {
        let tps = &it.tps;
        let given = |is_known: bool, figure: f64| {
            if is_known {
                figure.to_string()
            } else {
                String::new()
            }
        };
        let of_pairs = |figure| given(tps.by_pair.len() >= 2, figure);
        let of_interval = |figure| given(it.has_interval(), figure);
        let alone = |end: usize| known(it.tps_uncorrected_95.map(|ends| ends[end]));
        let [failed, baseline_failed] = failures::shares(run, it);
        records.push(vec![
            in_spreadsheet(&condition_title(run, it.condition)),
            in_spreadsheet(variant_name(run, it.variant)),
            in_spreadsheet(baseline_name(run, it.variant)),
            sentence::verdict_word(it.verdict).to_owned(),
            tps.ratio.to_string(),
            of_interval(tps.low),
            of_interval(tps.high),
            of_interval(tps.confidence_level),
            tps.by_pair.len().to_string(),
            of_pairs(tps.pair_sd),
            it.latency_mean.ratio.to_string(),
            it.latency_p99.ratio.to_string(),
            known(it.server_cpu.as_ref().map(|cpu| cpu.ratio)),
            alone(0),
            alone(1),
            known(it.tps_sequential_p_value),
            failed.to_string(),
            baseline_failed.to_string(),
        ]);
    }
    for record in records {
        // Writing to memory does not fail, and all records have the same number of fields.
        let written = writer.write_record(record);
        debug_assert!(written.is_ok(), "{written:?}");
    }
    String::from_utf8_lossy(&writer.into_inner().unwrap_or_default()).into_owned()
}

fn known(figure: Option<f64>) -> String {
    figure.map_or_else(String::new, |it| it.to_string())
}

/// A name that a spreadsheet does not take for a formula (OWASP, "CSV Injection"): a run may come from someone else.
fn in_spreadsheet(name: &str) -> String {
    let name = printable(name);
    if name.starts_with(['=', '+', '-', '@', '\t']) {
        return format!("'{name}");
    }
    name.into_owned()
}

/// A sequential p-value with two digits; 1 is any above 0.1.
fn p_value(value: f64) -> String {
    if value > 0.1 {
        return "> 0.1".to_owned();
    }
    if value < 0.00001 {
        return "< 0.00001".to_owned();
    }
    let decimals = (1.0 - value.log10().floor()) as usize;
    // Rounded up: it is the smallest α that excludes 1.
    let scale = 10_f64.powf(decimals as f64);
    number::decimals((value * scale - 1e-6).ceil() / scale, decimals)
}

/// The answers in sentences and a table of the comparisons.
pub fn comparisons_markdown(run: &Run) -> String {
    let mut text = format!("**{}**\n\n", in_markdown(&run.study.question));
    for answer in sentence::answers(run) {
        _ = writeln!(text, "- {}", in_markdown(&answer.text));
    }
    // There are no notes below the table.
    let is_shown = |it: &&Warning| is_of_question(it) || it.kind == WarningKind::FailedTransactions;
    for warning in run.warnings.iter().filter(is_shown) {
        _ = writeln!(text, "- **Warning:** {}", in_markdown(&warning.message));
    }
    text += "\n| condition | variant | verdict | throughput | uncorrected 95% CI | sequential p | pairs |\n\
             |---|---|---|--:|--:|--:|--:|\n";
    for it in &run.comparisons {
        _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            in_markdown(&condition_title(run, it.condition)),
            in_markdown(variant_name(run, it.variant)),
            sentence::verdict_word(it.verdict),
            sentence::throughput_in_words(it),
            it.tps_uncorrected_95
                .map_or_else(String::new, |[low, high]| number::interval(low, high)),
            it.tps_sequential_p_value.map_or_else(String::new, p_value),
            it.tps.by_pair.len(),
        );
    }
    _ = writeln!(text, "\n{}", in_markdown(&sentence::what_was_run(run)));
    for note in calibration::notes(run) {
        _ = writeln!(text, "\n{}", in_markdown(&note));
    }
    text
}
