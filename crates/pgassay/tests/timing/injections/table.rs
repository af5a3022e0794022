//! The long tier: every injection, on several versions, with one client and with many.

use std::env;
use std::fs::File;
use std::io::Write;

use pgassay_account::ledger::LedgerDifference;

use super::cases::{Case, Length};
use super::laboratory::{Figure, Laboratory, Landing};

/// Options set by `benchmarks/injections`.
pub struct Options {
    versions: Vec<String>,
    clients: Vec<u32>,
    only: Vec<String>,
    length: Length,
    data: Option<String>,
}

impl Options {
    pub fn from_environment() -> Self {
        let list = |name: &str, default: &str| -> Vec<String> {
            let text = env::var(name).unwrap_or_else(|_| default.to_owned());
            let parts = text.split(',').map(str::trim).filter(|it| !it.is_empty());
            parts.map(str::to_owned).collect()
        };
        let clients = list("INJECTIONS_CLIENTS", "1,64").into_iter();
        let pairs = env::var("INJECTIONS_PAIRS").unwrap_or_else(|_| "6".to_owned());
        Self {
            versions: list("INJECTIONS_VERSIONS", "10,15,18"),
            clients: clients
                .map(|it| it.parse().expect("a number of clients"))
                .collect(),
            only: list("INJECTIONS_ONLY", ""),
            length: Length {
                full: env::var("INJECTIONS_LENGTH").unwrap_or_else(|_| "24s".to_owned()),
                pairs: pairs.parse().expect("a number of pairs"),
            },
            data: env::var("INJECTIONS_DATA").ok(),
        }
    }

    fn wants(&self, case: Case) -> bool {
        self.only.is_empty() || self.only.iter().any(|it| it == case.name())
    }
}

/// Injects and prints; returns the injections that missed their row or changed another.
pub fn run(options: &Options) -> Vec<String> {
    let mut data = options.data.as_ref().map(|path| {
        let mut file = File::create(path).expect("the file for raw data");
        writeln!(file, "version,clients,injection,injected_us,part,row,baseline_us,variant_us,difference_us,low_us,high_us,change,explained,failed_checks").expect("the file is written");
        file
    });
    println!(
        "| version | clients | injection | d, µs | its row | Δ of it | error | most beyond noise elsewhere | ΔR | marked elsewhere | explained | |\n\
         |---|--:|---|--:|---|--:|--:|---|--:|---|---|---|"
    );
    let mut missed = Vec::new();
    for version in &options.versions {
        let Some(mut laboratory) = Laboratory::open(version) else {
            continue;
        };
        for &clients in &options.clients {
            for case in Case::ALL.into_iter().filter(|case| options.wants(*case)) {
                if let Err(why) = laboratory.permits(case) {
                    println!(
                        "| {version} | {clients} | {} | – | skipped: {why} |",
                        case.name()
                    );
                    continue;
                }
                let landing = laboratory.inject(case, clients, &options.length);
                println!("{}", line(version, clients, case, &landing));
                if let Some(data) = &mut data {
                    write_rows(data, version, clients, case, &landing);
                }
                if !landing.is_in_its_row() || landing.is_elsewhere() {
                    missed.push(format!("{version}, {clients}, {}", case.name()));
                }
            }
        }
    }
    missed
}

fn figure(figure: &Figure) -> String {
    format!("{:+.1} ± {:.1}", figure.us, figure.half_width_us)
}

/// Names of the failed checks with sides, errors and limits, such as `Samples of Variant -19.0% (12.0%)`.
fn failed_checks(ledger: &LedgerDifference) -> String {
    let failed = ledger.checks.iter().filter(|check| !check.passed);
    let named = failed.map(|check| {
        let of_side = check
            .side
            .map_or(String::new(), |side| format!(" of {side:?}"));
        let (error, bound) = (check.error * 100.0, check.bound * 100.0);
        format!("{:?}{of_side} {error:+.1}% ({bound:.1}%)", check.name)
    });
    named.collect::<Vec<_>>().join("; ")
}

fn line(version: &str, clients: u32, case: Case, landing: &Landing) -> String {
    let verdict = match (landing.is_in_its_row(), landing.is_elsewhere()) {
        (true, false) => "pass",
        (true, true) => "also elsewhere",
        (false, false) => "not in its row",
        (false, true) => "elsewhere",
    };
    format!(
        "| {version} | {} | {} | {:.1} | {} | {} | {:+.1}% | {} {} | {} | {} | {} | {verdict} |",
        case.clients(clients),
        case.name(),
        landing.injected_us,
        case.row(),
        figure(&landing.named),
        landing.error() * 100.0,
        landing.other.0,
        figure(&landing.other.1),
        figure(&landing.response),
        landing.marked.join("; "),
        if landing.ledger.explained {
            "yes".to_owned()
        } else {
            failed_checks(&landing.ledger)
        },
    )
}

fn write_rows(data: &mut File, version: &str, clients: u32, case: Case, landing: &Landing) {
    let ledger = &landing.ledger;
    let groups = ledger
        .groups
        .iter()
        .map(|it| (format!("{:?}", it.part), &it.cost));
    for (part, row) in groups.chain([(String::new(), &ledger.response)]) {
        writeln!(
            data,
            "{version},{},{},{:.1},{part},\"{}\",{:.2},{:.2},{:.2},{:.2},{:.2},{:?},{},{}",
            case.clients(clients),
            case.name(),
            landing.injected_us,
            row.name,
            row.baseline_us,
            row.variant_us,
            row.difference_us,
            row.low_us,
            row.high_us,
            row.change,
            ledger.explained,
            failed_checks(ledger),
        )
        .expect("the file is written");
    }
}
