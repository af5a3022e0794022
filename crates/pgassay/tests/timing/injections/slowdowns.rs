//! The power of verdicts on a real server: B does the same as A plus work that takes a known share of
//! A's response time. How often is B found to be slower?
//!
//! The work is calibrated with `pgassay bench`, which shares only the load engine with studies. Its
//! actual share is measured the same way, before and after the attempts, alternating A and B.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pgassay_account::comparison::{Ratio, Verdict};
use pgassay_record::run::Run;
use pgassay_server::Server;
use pgassay_test_support::{Finished, Scratch, servers};

use super::laboratory::BURN;

use crate::PROGRAM;

/// More clients than a small machine has CPUs, with CPU-bound queries. With one client, the rate
/// depends mostly on wake-ups between CPUs, which vary with the placement of its two processes.
const CLIENTS: u32 = 4;
const BASE_LOOPS: u64 = 4000;
/// Loops to calibrate the cost of one; alternating rounds for that, and for measuring the share.
const CALIBRATION_LOOPS: u64 = 2000;
const CALIBRATION_ROUNDS: u32 = 4;
const ROUNDS: u32 = 15;
/// Pairs of the pilot run that estimates the noise.
const PILOT_PAIRS: u32 = 20;
/// An effect of this many standard errors is found in 19 of 20 attempts.
const STANDARD_ERRORS: f64 = 3.6;
/// The noise of comparisons may exceed that of the pilot by this factor: it changes, and the pilot's is an
/// estimate.
const NOISE_MARGIN: f64 = 1.5;
/// Minimum and maximum number of pairs.
const PAIRS: [u32; 2] = [20, 160];

/// Options set by `benchmarks/slowdowns`.
pub struct Options {
    /// Shares of the response time, in percent.
    effects: Vec<f64>,
    tries: u32,
    /// Pairs per comparison; `None`: as many as the noise requires.
    pairs: Option<u32>,
    trial: Duration,
    data: Option<String>,
}

impl Options {
    pub fn from_environment() -> Self {
        let text =
            |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let effects = text("SLOWDOWNS_EFFECTS", "5,2");
        let effects = effects.split(',').map(|it| it.trim().parse());
        let trial_ms: u64 = text("SLOWDOWNS_TRIAL_MS", "100").parse().expect("ms");
        Self {
            effects: effects.map(|it| it.expect("percent")).collect(),
            tries: text("SLOWDOWNS_TRIES", "25").parse().expect("a number"),
            pairs: env::var("SLOWDOWNS_PAIRS")
                .ok()
                .map(|it| it.parse().expect("a number")),
            trial: Duration::from_millis(trial_ms),
            data: env::var("SLOWDOWNS_DATA").ok(),
        }
    }
}

/// The verdicts for one effect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Power {
    pub percent: f64,
    pub tries: u32,
    /// B is slower.
    pub found: u32,
    /// B is faster.
    pub wrong: u32,
}

impl Power {
    /// Requires all of the large effects, 80% of the small ones, and never the wrong sign.
    pub fn suffices(&self) -> bool {
        let wanted = if self.percent >= 5.0 { 1.0 } else { 0.8 };
        self.wrong == 0 && f64::from(self.found) >= wanted * f64::from(self.tries)
    }
}

struct Bench {
    server: Server,
    scratch: Scratch,
}

/// Tests all effects and prints the results; `None` without a server.
pub fn run(options: &Options) -> Option<Vec<Power>> {
    let mut config = servers::config_on_disk();
    config
        .settings
        .insert("autovacuum".to_owned(), "off".to_owned());
    let bench = Bench {
        server: servers::start_with("18", &config)?,
        scratch: Scratch::on_disk(PROGRAM),
    };
    let mut connection = bench.server.connect().expect("connect");
    for statement in [BURN].into_iter().chain(ITEMS) {
        connection
            .execute(statement)
            .expect("the statement succeeds");
    }
    let (baseline_us, loop_us) = bench.calibrate();
    println!("without the work {baseline_us:.2} µs; a loop of it {loop_us:.4} µs\n");
    println!(
        "| work, of the response time | measured before and after, in turns | tries | found slower | wrong sign | not found | pairs | pair SD | ratios | time a try |\n\
         |--:|---|--:|--:|--:|--:|--:|--:|---|--:|"
    );
    let mut data = options.data.as_ref().map(|path| {
        let mut file = File::create(path).expect("the file for raw data");
        writeln!(
            file,
            "percent,loops,try,verdict,ratio,low,high,pairs,pair_sd,seconds"
        )
        .expect("the file is written");
        file
    });
    let mut all = Vec::new();
    for &percent in &options.effects {
        let loops = (percent / 100.0 * baseline_us / loop_us).round() as u64;
        let before = bench.share(loops);
        let series = bench.series(percent, loops, options, data.as_mut());
        let after = bench.share(loops);
        let shares = [before, after].map(|it| format!("{:+.2}%", it * 100.0));
        all.push(series.report(percent, &shares.join(", ")));
    }
    Some(all)
}

const ITEMS: [&str; 3] = [
    "create table item (id int primary key, note text)",
    "insert into item select i, 'note' from generate_series(1, 10000) i",
    "vacuum analyze item",
];

fn script(loops: &str) -> String {
    format!("\\set id random(1, 10000)\nselect note, burn({loops}) from item where id = :id;\n")
}

/// The total loops with this many more than A.
fn with(loops: u64) -> u64 {
    BASE_LOOPS + loops
}

impl Bench {
    /// The response time with these loops, in µs, measured by `pgassay bench`.
    fn response_us(&self, loops: u64) -> f64 {
        let path: PathBuf = self.scratch.path().join("bench.sql");
        fs::write(&path, script(&with(loops).to_string())).expect("the script is written");
        let mut command = self.scratch.command();
        command.args(["bench", "-n", "-T", "1", "-M", "prepared", "-c"]);
        command.arg(CLIENTS.to_string()).arg("-f").arg(path);
        command.arg(self.server.conninfo());
        let finished = Finished::of(&command.output().expect("the program runs"));
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let rate = finished
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|it| it.split(' ').next()?.parse::<f64>().ok());
        f64::from(CLIENTS) * 1e6 / rate.unwrap_or_else(|| panic!("no rate: {finished:?}"))
    }

    /// Medians of both response times, measured alternately.
    fn in_turns(&self, loops: u64, rounds: u32) -> [f64; 2] {
        let mut seen = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                seen[side].push(self.response_us([0, loops][side]));
            }
        }
        seen.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        })
    }

    /// The response time without the work, and the time added by one loop, in µs.
    fn calibrate(&self) -> (f64, f64) {
        let [without_us, with_us] = self.in_turns(CALIBRATION_LOOPS, CALIBRATION_ROUNDS);
        (
            without_us,
            (with_us - without_us) / CALIBRATION_LOOPS as f64,
        )
    }

    /// The share by which these loops increase the response time.
    fn share(&self, loops: u64) -> f64 {
        let [without_us, with_us] = self.in_turns(loops, ROUNDS);
        with_us / without_us - 1.0
    }

    fn series(
        &self,
        percent: f64,
        loops: u64,
        options: &Options,
        mut data: Option<&mut File>,
    ) -> Series {
        let by_noise = || self.pairs(percent, loops, options.trial);
        let mut series = Series {
            pairs: options.pairs.unwrap_or_else(by_noise),
            ..Series::default()
        };
        for number in 1..=options.tries {
            let begun = Instant::now();
            let (verdict, ratio) =
                self.compare(loops, series.pairs, options.trial, u64::from(number));
            let seconds = begun.elapsed().as_secs_f64();
            if let Some(data) = &mut data {
                writeln!(
                    data,
                    "{percent},{loops},{number},{verdict:?},{:.5},{:.5},{:.5},{},{:.5},{seconds:.1}",
                    ratio.ratio, ratio.low, ratio.high, series.pairs, ratio.pair_sd,
                )
                .expect("the file is written");
            }
            series.tries.push((verdict, ratio, seconds));
        }
        series
    }

    /// The number of pairs that detects this effect with the current noise.
    fn pairs(&self, percent: f64, loops: u64, trial: Duration) -> u32 {
        let (_, pilot) = self.compare(loops, PILOT_PAIRS, trial, 0);
        let log_effect = (1.0 + percent / 100.0).ln();
        let pairs = (STANDARD_ERRORS * NOISE_MARGIN * pilot.pair_sd / log_effect).powi(2);
        (pairs.ceil() as u32).clamp(PAIRS[0], PAIRS[1])
    }

    /// Runs one comparison.
    fn compare(&self, loops: u64, pairs: u32, trial: Duration, seed: u64) -> (Verdict, Ratio) {
        // Two variants, each of them twice in a pair.
        let full_ms = trial.as_millis() * 4 * u128::from(pairs);
        let study = format!(
            "question = \"Is it slower?\"\n[server]\ndsn = \"{}\"\n\
             [data]\nsetup = '''{BURN};\n{};'''\n\
             [[script]]\nname = \"look\"\ntext = '''\n{}'''\n\
             [[variant]]\nname = \"A\"\nprotocol = \"prepared\"\nparameters = {{ loops = {BASE_LOOPS} }}\n\
             [[variant]]\nname = \"B\"\nprotocol = \"prepared\"\nparameters = {{ loops = {} }}\n\
             [conditions]\nclients = [{CLIENTS}]\n[length]\nfull = \"{full_ms}ms\"\npairs = {pairs}\n",
            self.server.conninfo(),
            ITEMS.join(";\n"),
            script("${loops}"),
            with(loops),
        );
        let seed = seed.to_string();
        let arguments = [
            "--json",
            "--no-profile",
            "--allow-writes",
            "--allow-superuser",
            "--seed",
            &seed,
        ];
        let finished = self.scratch.run(&study, &arguments);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
        let comparison = &run.comparisons[0];
        (comparison.verdict, comparison.tps.clone())
    }
}

/// The comparisons for one effect.
#[derive(Default)]
struct Series {
    pairs: u32,
    tries: Vec<(Verdict, Ratio, f64)>,
}

impl Series {
    fn report(&self, percent: f64, shares: &str) -> Power {
        let count = |wanted: Verdict| self.tries.iter().filter(|it| it.0 == wanted).count() as u32;
        let power = Power {
            percent,
            tries: self.tries.len() as u32,
            found: count(Verdict::Slower),
            wrong: count(Verdict::Faster),
        };
        let mean = |of: &dyn Fn(&(Verdict, Ratio, f64)) -> f64| {
            self.tries.iter().map(of).sum::<f64>() / self.tries.len().max(1) as f64
        };
        let ratios = self.tries.iter().map(|it| it.1.ratio);
        println!(
            "| {percent}% | {shares} | {} | {} | {} | {} | {} | {:.2}% | {:.4} ({:.4} to {:.4}) | {:.1} s |",
            power.tries,
            power.found,
            power.wrong,
            power.tries - power.found - power.wrong,
            self.pairs,
            mean(&|it| it.1.pair_sd) * 100.0,
            mean(&|it| it.1.ratio),
            ratios.clone().fold(f64::INFINITY, f64::min),
            ratios.fold(0.0, f64::max),
            mean(&|it| it.2),
        );
        power
    }
}
