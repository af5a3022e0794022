//! Four ranks are one process: the same work, the same numbers, and exact sums.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use pgassay_test_support::BareServer;
use serde_json::Value;

use crate::mpirun::Ranks;

fn both() -> Option<(BareServer, Ranks)> {
    Some((BareServer::trusting()?, Ranks::new()?))
}

/// The rows of `drawn`, each with its number, and then none.
fn drawn(server: &BareServer) -> String {
    let rows =
        "select string_agg(concat_ws(' ', client, a, b), ';' order by client, a, b) from drawn";
    let rows = server.value(rows).unwrap();
    server.value("delete from drawn");
    rows
}

#[test]
fn four_ranks_draw_what_one_process_draws() {
    let Some((server, ranks)) = both() else {
        return;
    };
    server.value("create table drawn (client int, a bigint, b float8)");
    ranks.script(
        "one.sql",
        "\\set a random(1, 1000000000)\ninsert into drawn values (:client_id, :a, :scale);\n",
    );
    ranks.script(
        "two.sql",
        "\\set a random_zipfian(1, 1000000, 1.1)\ninsert into drawn values (:client_id, -:a, :random_seed);\n",
    );
    // Which of a thread's clients draws a script first depends on timing, so each has a thread.
    let arguments = "-c 8 -j 8 -t 25 -s 7 -f one.sql@2 -f two.sql --random-seed=42";
    let alone = ranks.run_alone(Some(&server), &format!("-n {arguments}"));
    alone.has(
        0,
        &["number of transactions actually processed: 200/200"],
        &[],
    );
    let expected = drawn(&server);
    assert_eq!(expected.split(';').count(), 200);
    for (count, lines) in [(4, 4), (2, 2), (3, 3)] {
        let ended = ranks.run(count, Some(&server), arguments);
        let processed = "number of transactions actually processed: 200/200";
        let clients = "number of clients: 8\nnumber of threads: 8\n";
        ended.has(0, &[processed, clients, "SQL script 2: two.sql"], &[]);
        assert_eq!(drawn(&server), expected, "{count} ranks");
        let table = ended.out.split("\nrank ").nth(1).unwrap();
        assert_eq!(table.lines().count(), lines + 1, "{table}");
    }
}

/// The sum of the histograms of a log.
fn logged(path: &std::path::Path) -> Histogram<u64> {
    let mut sum = Histogram::new(3).unwrap();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let Some((_, packed)) = line
            .rsplit_once(',')
            .filter(|_| !line.starts_with(['#', '"']))
        else {
            continue;
        };
        sum.add(unpacked(packed)).unwrap();
    }
    sum
}

fn unpacked(text: &str) -> Histogram<u64> {
    let bytes = STANDARD.decode(text).unwrap();
    Deserializer::new().deserialize(&mut &bytes[..]).unwrap()
}

fn buckets(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    let bucket = recorded.map(|it| (it.value_iterated_to(), it.count_at_value()));
    bucket.collect()
}

#[test]
fn the_merged_histogram_is_that_of_all_ranks_samples() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let arguments = "-c 9 -j 4 -t 50 -f one.sql --json --hdr-log=latencies -l";
    let ended = ranks.run(4, Some(&server), arguments);
    ended.has(0, &[], &[]);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["transactions"], 450);
    assert_eq!(
        json["transactions_by_client"],
        serde_json::json!(vec![50; 9])
    );

    let mut sum = Histogram::<u64>::new(3).unwrap();
    for rank in 0..4 {
        let own = logged(&ranks.path().join(format!("latencies.rank{rank}")));
        assert_eq!(
            Some(own.len()),
            json["ranks"][rank]["transactions"].as_u64()
        );
        sum.add(own).unwrap();
    }
    let merged = unpacked(json["latency_ms"]["histogram_ns"].as_str().unwrap());
    assert_eq!(buckets(&merged), buckets(&sum));
    for percentile in ["50", "90", "95", "99", "99.9"] {
        let quantile: f64 = percentile.parse().unwrap();
        let expected_ms = sum.value_at_quantile(quantile / 100.0) as f64 / 1e6;
        let found = json["latency_ms"]["percentiles"][percentile]
            .as_f64()
            .unwrap();
        assert!(
            (found - expected_ms).abs() < 1e-9,
            "{percentile}: {found} {expected_ms}"
        );
    }
}

#[test]
fn ranks_logs_have_each_transaction_of_each_client_once() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let ended = ranks.run(
        4,
        Some(&server),
        "-c 6 -j 4 -t 30 -f one.sql -l --log-prefix=own",
    );
    ended.has(0, &[], &[]);
    let mut counted = vec![0; 6];
    for entry in std::fs::read_dir(ranks.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with("own.rank") {
            continue;
        }
        for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
            let client: usize = line.split(' ').next().unwrap().parse().unwrap();
            counted[client] += 1;
        }
    }
    assert_eq!(counted, [30; 6]);
}

#[test]
fn offsets_of_one_machines_clocks_are_zero_within_their_bounds() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let ended = ranks.run(4, Some(&server), "-c 4 -T 1 -f one.sql --json");
    ended.has(0, &[], &[]);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    for rank in json["ranks"].as_array().unwrap() {
        let number = |key: &str| rank[key].as_f64().unwrap();
        // All ranks read the same clock.
        assert!(
            number("clock_offset_us").abs() <= number("clock_bound_us"),
            "{rank}"
        );
        assert!(number("begun_late_us") >= 0.0, "{rank}");
    }
}

#[test]
fn progress_is_that_of_rank_0() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let ended = ranks.run(2, Some(&server), "-c 4 -R 100 -T 3 -P 1 -f one.sql");
    let lines = [
        "rate limit schedule lag",
        "ranks: 2 on 1 host, begun within",
        "\n   1  ",
    ];
    ended.has(0, &lines, &["progress of rank 0: "]);
    assert!(!ended.err.contains("rank 1"), "{ended:?}");
}

/// Regression: it counted from 0.2 s before the start, so that the first line had the transactions of 0.8 s.
#[test]
fn progress_counts_from_the_agreed_start() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("sleep.sql", "\\sleep 300 ms\nselect 1;\n");
    let ended = ranks.run(2, Some(&server), "-c 2 -T 2 -P 1 -f sleep.sql");
    ended.has(0, &[], &["progress of rank 0: 1.0 s, "]);
    let first = ended.err.split("progress of rank 0: 1.0 s, ").nth(1);
    let tps: f64 = first.unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(tps > 2.5, "{ended:?}");
}

#[test]
fn each_rank_has_its_own_server() {
    let (Some((one, ranks)), Some(other)) = (both(), BareServer::trusting()) else {
        return;
    };
    for server in [&one, &other] {
        server.value("create table drawn (client int)");
    }
    ranks.script("one.sql", "insert into drawn values (:client_id);\n");
    let dsn = |server: &BareServer| {
        let socket = server.socket_directory();
        format!("--rank-dsn=host={} dbname=postgres", socket.display())
    };
    let (first, second) = (dsn(&one), dsn(&other));
    let arguments = ["-c", "8", "-t", "5", "-f", "one.sql", &first, &second];
    ranks
        .start(4, None, &arguments)
        .end()
        .has(0, &["40/40"], &[]);
    let clients = "select string_agg(distinct client::text, ',' order by client::text) from drawn";
    assert_eq!(one.value(clients).as_deref(), Some("0,1,4,5"));
    assert_eq!(other.value(clients).as_deref(), Some("2,3,6,7"));
}

#[test]
fn what_one_rank_cannot_do_ends_all_before_the_run() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let of = |arguments| ranks.run(3, Some(&server), arguments);
    of("-i").has(1, &[], &["run \"pgassay bench -i\" without mpirun"]);
    of("-c 2 -f one.sql").has(1, &[], &["3 ranks need at least 3 clients, but -c is 2"]);
    of("-c 3 -f missing.sql").has(1, &[], &["could not open file \"missing.sql\""]);
    of("-c 3 -f one.sql --rank-dsn=port=1 postgres").has(1, &[], &["not both"]);
    // Regression: the last one was ignored, without a message.
    let four =
        "-c 4 -f one.sql --rank-dsn=port=1 --rank-dsn=port=2 --rank-dsn=port=3 --rank-dsn=port=4";
    let refusal = "error: --rank-dsn is given 4 times, but there are only 3 ranks";
    let ended = of(four);
    ended.has(1, &[], &[refusal]);
    assert!(!ended.err.contains("connection"), "{ended:?}");
    of("-c 3 -S").has(1, &[], &["could not count number of branches"]);
    // Only rank 1 has another server, which does not exist.
    let socket = server.socket_directory();
    let first = format!("--rank-dsn=host={} dbname=postgres", socket.display());
    let arguments = [
        "-c",
        "3",
        "-f",
        "one.sql",
        &first,
        "--rank-dsn=host=/nowhere dbname=postgres",
    ];
    let ended = ranks.start(3, None, &arguments).end();
    ended.has(1, &[], &["(rank 1): error: connection to server on socket"]);
}

#[test]
fn one_rank_is_a_single_process() {
    let Some((server, ranks)) = both() else {
        return;
    };
    ranks.script("one.sql", "select 1;\n");
    let ended = ranks.run(1, Some(&server), "-c 2 -t 5 -f one.sql");
    ended.has(
        0,
        &["number of transactions actually processed: 10/10"],
        &[],
    );
    assert!(!ended.out.contains("ranks:"), "{ended:?}");
}
