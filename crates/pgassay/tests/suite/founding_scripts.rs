//! The published scripts of the three studies from which pgassay originated, and what pgassay reports
//! in addition to pgbench: parts of latencies, fairness, histogram logs.

use std::process::{Command, Stdio};

use pgassay_load::Histogram;
use pgassay_test_support::BareServer;

use crate::PROGRAM;

/// 2016: prepared statements against simple queries.
const PREPARED: (&str, &str) = (
    "create table test(id int primary key, info text);
     insert into test select generate_series(1,1000000),'test';
     create or replace function f1(int) returns setof text as $$
       select info from test where id=$1;
     $$ language sql;",
    "\\setrandom id 1 1000000  \nselect f1(:id);  \n",
);
/// 2017: sequences as counters.
const SEQUENCES: (&str, &str) = (
    "do language plpgsql $$
     declare
     begin
       for i in 0..63 loop
         execute 'create sequence seq_'||i||' increment by 64 MINVALUE 0 start '||i;
       end loop;
     end;
     $$;",
    "\\set id random(0,63)\nselect nextval('seq_'||:id);\n",
);
/// 2021: pipelines.
const INSERT: &str = "insert into tbl values (:r, :k);  \n";
const DRAWS: &str = "\\set size 10000000  \n\\set r random_zipfian(1, :size, 2)  \n\
                     \\set k permute(:r, :size)  \n";

struct Scratch {
    directory: tempfile::TempDir,
    server: BareServer,
}

impl Scratch {
    fn new() -> Option<Self> {
        let server = BareServer::trusting()?;
        let directory = tempfile::tempdir().unwrap();
        Some(Self { directory, server })
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn prepare(&self, sql: &str) {
        let login = pgassay_wire::Login {
            user: "tester".into(),
            database: "postgres".into(),
            ..Default::default()
        };
        let mut admin = pgassay_wire::Exchange::open(self.server.connect(), &login).unwrap();
        admin.query(sql).unwrap();
    }

    /// Runs `pgassay bench` with these arguments and returns its stdout and stderr.
    fn bench(&self, arguments: &str) -> (String, String) {
        let output = Command::new(PROGRAM)
            .arg("bench")
            .args(arguments.split_whitespace())
            .env("PGHOST", self.server.socket_directory())
            .env("PGPORT", self.server.port().to_string())
            .env("PGUSER", "tester")
            .env("PGDATABASE", "postgres")
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, notes) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{arguments}: {out}{notes}");
        (out, notes)
    }
}

/// The number that follows a label in a report.
fn number(report: &str, label: &str) -> f64 {
    let rest = &report[report.find(label).expect(label) + label.len()..];
    let end = rest.find([' ', '\n', '/', ',', '%']).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

/// The first column of the lines of statements.
fn statement_times_ms(report: &str, statement: &str) -> Vec<f64> {
    let lines = report.lines().filter(|line| line.ends_with(statement));
    lines
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn prepared_statements_and_sequences() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    for (name, (prepare, script)) in [("test.sql", PREPARED), ("seq.sql", SEQUENCES)] {
        scratch.prepare(prepare);
        scratch.write(name, script);
        for mode in ["prepared", "simple"] {
            let arguments = format!("-M {mode} -n -r -f ./{name} -c 16 -j 4 -t 50");
            let (report, notes) = scratch.bench(&arguments);
            assert!(report.contains("actually processed: 800/800"), "{report}");
            assert_eq!(notes.contains("\\setrandom"), name == "test.sql", "{notes}");
            let select = script.lines().nth(1).unwrap().trim_end();
            assert!(statement_times_ms(&report, select)[0] > 0.0, "{report}");
        }
    }
}

#[test]
fn fifty_inserts_with_and_without_a_pipeline() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    scratch.prepare("create table tbl (id int, info text)");
    let inserts = INSERT.repeat(50);
    scratch.write("t.sql", &format!("{DRAWS}begin;  \n{inserts}end;  \n"));
    scratch.write(
        "p.sql",
        &format!("{DRAWS}\\startpipeline  \n{inserts}\\endpipeline  \n"),
    );
    let (report, _) = scratch.bench("-M prepared -n -r -P 1 -f ./t.sql -c 4 -j 2 -t 20");
    assert!(report.contains("actually processed: 80/80"), "{report}");
    let each = statement_times_ms(&report, INSERT.trim_end());
    let average = number(&report, "latency average = ");
    assert_eq!(each.len(), 50, "{report}");
    assert!(each.iter().all(|time| *time > 0.0), "{each:?}");
    assert!(each.iter().sum::<f64>() < average, "{each:?} of {average}");
    // Each client's first transaction shows all fifty, each rounded to a µs.
    let (report, _) = scratch.bench("-M prepared -n -r -f ./p.sql -c 4 -j 2 -t 1");
    let piped = statement_times_ms(&report, INSERT.trim_end());
    assert_eq!(piped.len(), 50, "{report}");
    assert!(piped[0] > 0.0, "{piped:?}");
    assert!(piped.is_sorted_by(|a, b| *b >= a - 0.25), "{piped:?}");
    assert!(piped[49] > piped[0], "{piped:?}");
    // In a longer run each is timed separately; tests/timing/pipelines.rs compares their times.
    let (report, _) =
        scratch.bench("-M prepared -n -r -f ./p.sql -c 2 -t 1000 --json --latency-percentiles=10");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let statements = report["scripts"][0]["statements"].as_array().unwrap();
    let inserts = statements
        .iter()
        .filter(|it| it["text"] == INSERT.trim_end());
    let timed: Vec<u64> = inserts.map(|it| it["timed"].as_u64().unwrap()).collect();
    assert_eq!(timed.len(), 50, "{report}");
    assert!(
        timed.iter().all(|it| (10..200).contains(it)),
        "one in 50 of 2000: {timed:?}"
    );
}

/// The log and the JSON contain every transaction, in histograms that another program can read.
#[test]
fn histograms_are_exported() {
    use base64::Engine as _;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    let Some(scratch) = Scratch::new() else {
        return;
    };
    let unpacked = |text: &str| -> Histogram<u64> {
        let packed = base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap();
        Deserializer::new().deserialize(&mut &packed[..]).unwrap()
    };
    scratch.write("a.sql", "select 1;\n");
    scratch.write("b.sql", "select 2;\nselect 3;\n");
    let (out, _) = scratch.bench(
        "-n -f a.sql -f b.sql@2 -c 4 -j 2 -t 100 -r --hdr-log=out.hlog --json --random-seed=7",
    );
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let all = unpacked(json["latency_ms"]["histogram_ns"].as_str().unwrap());
    assert_eq!(all.len(), 400);
    let mut by_script = Vec::new();
    for script in json["scripts"].as_array().unwrap() {
        let of_script = unpacked(script["latency_ms"]["histogram_ns"].as_str().unwrap());
        assert_eq!(Some(of_script.len()), script["transactions"].as_u64());
        for statement in script["statements"].as_array().unwrap() {
            let each = unpacked(statement["latency_ms"]["histogram_ns"].as_str().unwrap());
            assert_eq!(each.len(), of_script.len(), "{statement}");
            // No value was cut off at the histogram's initial maximum.
            assert!(each.mean() > 5_000.0, "{statement}");
        }
        by_script.push(of_script.len());
    }
    let log = std::fs::read(scratch.directory.path().join("out.hlog")).unwrap();
    let (mut seconds, mut statements) = ([0, 0], 0);
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else {
            continue;
        };
        let latency_ns = unpacked(interval.encoded_histogram());
        assert!(latency_ns.mean() > 5_000.0);
        match interval.tag().unwrap().as_str() {
            "a.sql" => seconds[0] += latency_ns.len(),
            "b.sql" => seconds[1] += latency_ns.len(),
            tag => {
                assert!(["a.sql:1", "b.sql:1", "b.sql:2"].contains(&tag), "{tag}");
                statements += 1;
            }
        }
    }
    assert_eq!((seconds.to_vec(), statements), (by_script, 3));
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn additions_to_pgbenchs_report() {
        let Some(scratch) = Scratch::new() else {
            return;
        };
        scratch.write("s.sql", "select 1;\n");
        for io in ["epoll", "auto"] {
            let (report, _) = scratch.bench(&format!("-n -f s.sql -c 4 -R 2000 -T 1 --io={io}"));
            assert!(number(&report, "latency from schedule = avg ") > 0.0);
            let (schedule, send) = (
                number(&report, "latency from schedule = avg "),
                number(&report, "latency from send = avg "),
            );
            assert!(send > 0.0 && send <= schedule, "{report}");
            assert!(report.contains("fairness: the slowest client completed "));
            assert!(report.contains("us of CPU per transaction, on CPU "));
            assert!(report.contains("ms late on average"), "{report}");
            assert!(
                report.contains("; I/O by ") && (io == "auto" || report.contains("; I/O by epoll")),
                "{report}"
            );
            let (report, _) = scratch.bench(&format!("-n -f s.sql -c 2 -C -t 10 --io={io}"));
            for part in ["connect", "authenticate", "first query"] {
                assert!(
                    number(&report, &format!("\n{part} = avg ")) > 0.0,
                    "{report}"
                );
            }
            assert!(report.contains("actually processed: 20/20"), "{report}");
        }
        let beyond = "-n -f s.sql -c 2 -R 1000000 -T 1";
        assert!(scratch.bench(beyond).0.contains("\nunstable: "));
    }
}
