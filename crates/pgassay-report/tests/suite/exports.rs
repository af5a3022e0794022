//! An observation in every output format, checked by the rules of the format.

use std::collections::HashMap;

use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::profile::{BlockedStack, Frame, ProfileBuilder, Quality};
use pgassay_model::waits::{WaitCount, WaitSource, Waits};
use pgassay_record::observation::{Observation, SCHEMA, Subject};
use pgassay_report::{
    ExportFormat, ExportedStacks, Style, export, observation_html, observation_text,
};
use serde_json::Value;

fn frame(symbol: &str, object: &str) -> Frame {
    Frame {
        symbol: Some(symbol.to_owned()),
        object: object.to_owned(),
        offset: 0,
        kernel: object == "[kernel]",
    }
}

/// Twenty samples of 100 µs each, in four stacks.
fn observation() -> Observation {
    let mut builder = ProfileBuilder::new(1);
    let main = || frame("PostgresMain", "postgres");
    let run = || frame("PortalRun", "postgres");
    let unnamed = Frame {
        symbol: None,
        offset: 0x1f,
        ..main()
    };
    builder.add(0, [main(), run(), frame("ExecScan", "postgres")], 10);
    builder.add(0, [main(), run(), unnamed], 4);
    builder.add(0, [main(), frame("operator;<b>", "x.so")], 2);
    builder.add(
        0,
        [
            main(),
            frame("send", "libc.so.6"),
            frame("sock_write", "[kernel]"),
        ],
        4,
    );
    builder.add_quality(&Quality {
        samples: 20,
        user_samples: 20,
        unwound_to_entry: 20,
        ..Quality::default()
    });
    Observation {
        schema: SCHEMA.to_owned(),
        pgassay_version: "0.0.0".to_owned(),
        activity: None,
        findings: Vec::new(),
        started_us: 1_795_304_631_000_000,
        window_us: 2e6,
        frequency_hz: 100,
        subject: Subject {
            postmaster_pid: Some(4711),
            address: None,
            backend_pid: None,
            major: Some("18".to_owned()),
        },
        transactions: Some(100),
        backends: Some(CpuTotals {
            on_cpu_us: 2000.0,
            run_queue_us: 1000.0,
            processes: 2,
        }),
        sessions: 2,
        backends_present_us: 4e6,
        ended_cpu_us: None,
        background: vec![Background {
            role: "checkpointer".to_owned(),
            cpu: CpuTotals {
                on_cpu_us: 500.0,
                run_queue_us: 0.0,
                processes: 1,
            },
        }],
        profile: Some(builder.finish()),
        waits: Some(Waits {
            source: WaitSource::Memory,
            blocked_samples: 4,
            runnable_samples: 96,
            unreadable: 0,
            sampling_cpu_us: 1.0,
            late: None,
            events: vec![
                WaitCount {
                    kind: "Client".to_owned(),
                    name: "ClientRead".to_owned(),
                    samples: 3,
                },
                WaitCount {
                    kind: String::new(),
                    name: String::new(),
                    samples: 1,
                },
            ],
        }),
        tier: None,
        limitations: Vec::new(),
    }
}

fn exported(format: ExportFormat) -> Vec<u8> {
    export(&observation(), ExportedStacks::OnCpu, format).unwrap()
}

fn text(format: ExportFormat) -> String {
    String::from_utf8(exported(format)).unwrap()
}

#[test]
fn blocked_stacks_are_exported_with_exact_time() {
    let mut observation = observation();
    let profile = observation.profile.as_mut().unwrap();
    profile.blocked = vec![BlockedStack {
        node: Some(1),
        wait_event_type: "Lock".to_owned(),
        wait_event: "tuple".to_owned(),
        blocked_ns: vec![40_000],
        in_transactions_ns: 0,
        in_tail_ns: 0,
    }];
    let exported = |format| {
        String::from_utf8(export(&observation, ExportedStacks::OffCpu, format).unwrap()).unwrap()
    };
    let folded = exported(ExportFormat::Folded);
    assert_eq!(folded, "PostgresMain;PortalRun;Lock: tuple 40\n");
    let speedscope: Value = serde_json::from_str(&exported(ExportFormat::Speedscope)).unwrap();
    // 4 s in total, 3 ms of which on CPU or in the run queue.
    let weight = speedscope["profiles"][0]["weights"][0].as_f64().unwrap();
    assert!((weight - 3_997_000.0).abs() < 1.0, "{weight}");
    let perf = exported(ExportFormat::Perf);
    assert!(perf.contains("40 of event 'off-cpu'"), "{perf}");
    let words: Vec<&str> = perf.split_whitespace().collect();
    let row = ["100.00%", "100.00%", "postgres", "[wait]", "[.]", "Lock:"];
    assert!(words.windows(6).any(|it| it == row), "{perf}");
}

#[test]
fn without_stacks_there_is_no_export() {
    let mut nothing = observation();
    nothing.profile = None;
    for (name, format) in ExportFormat::ALL {
        assert_eq!(
            export(&nothing, ExportedStacks::OnCpu, format),
            None,
            "{name}"
        );
    }
}

#[test]
fn folded_lines_separate_frames_by_semicolons() {
    assert_eq!(
        text(ExportFormat::Folded),
        "PostgresMain;PortalRun;ExecScan 10\n\
         PostgresMain;PortalRun;postgres+0x1f 4\n\
         PostgresMain;operator:<b> 2\n\
         PostgresMain;send;sock_write_[k] 4\n"
    );
}

#[test]
fn speedscope_gets_weights_that_add_up_to_the_exact_total() {
    let file: Value = serde_json::from_str(&text(ExportFormat::Speedscope)).unwrap();
    assert_eq!(
        file["$schema"],
        "https://www.speedscope.app/file-format-schema.json"
    );
    let frames = file["shared"]["frames"].as_array().unwrap();
    let profile = &file["profiles"][0];
    assert_eq!(
        (&profile["type"], &profile["unit"]),
        (&"sampled".into(), &"microseconds".into())
    );
    let samples = profile["samples"].as_array().unwrap();
    let weights: Vec<f64> = profile["weights"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_f64().unwrap())
        .collect();
    assert_eq!(samples.len(), weights.len());
    assert!((weights.iter().sum::<f64>() - 2000.0).abs() < 1e-9);
    assert!(profile["endValue"].as_f64().unwrap() >= 2000.0 - 1e-9);
    let names = |stack: &Value| -> Vec<String> {
        let at = |index: &Value| &frames[index.as_u64().unwrap() as usize]["name"];
        let stack = stack.as_array().unwrap();
        stack
            .iter()
            .map(|it| at(it).as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        names(&samples[0]),
        ["PostgresMain", "PortalRun", "ExecScan"]
    );
}

/// A field of a protocol buffer: an integer, or bytes.
#[derive(Debug, Clone)]
enum Field {
    Integer(u64),
    Bytes(Vec<u8>),
}

/// Reads a message field by field, by the rules of the encoding (protobuf.dev, "Encoding").
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Integer(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(field.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        out.push((key >> 3, field));
    }
    out
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn messages(all: &[(u64, Field)], number: u64) -> Vec<Vec<u8>> {
    let of_number = all.iter().filter(|(it, _)| *it == number);
    of_number
        .map(|(_, field)| match field {
            Field::Bytes(bytes) => bytes.clone(),
            Field::Integer(_) => panic!("field {number} is a message"),
        })
        .collect()
}

fn integer(all: &[(u64, Field)], number: u64) -> u64 {
    let found = all.iter().find_map(|(it, field)| match field {
        Field::Integer(value) if *it == number => Some(*value),
        _ => None,
    });
    found.unwrap_or(0)
}

fn packed(all: &[(u64, Field)], number: u64) -> Vec<u64> {
    let mut values = Vec::new();
    for bytes in messages(all, number) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            values.push(varint(&mut rest));
        }
    }
    values
}

#[test]
fn pprof_can_resolve_every_sample_to_names_leaf_first() {
    let profile = fields(&exported(ExportFormat::Pprof));
    let strings: Vec<String> = messages(&profile, 6)
        .into_iter()
        .map(|it| String::from_utf8(it).unwrap())
        .collect();
    assert_eq!(strings[0], "", "the format requires it");
    let by_id = |number| -> HashMap<u64, Vec<(u64, Field)>> {
        let all = messages(&profile, number).into_iter().map(|it| fields(&it));
        all.map(|it| (integer(&it, 1), it)).collect()
    };
    let (mappings, locations, functions) = (by_id(3), by_id(4), by_id(5));
    assert!(!mappings.contains_key(&0) && !locations.contains_key(&0));
    let name = |location: u64| {
        let location = &locations[&location];
        assert!(mappings.contains_key(&integer(location, 2)));
        let line = fields(&messages(location, 4)[0]);
        strings[integer(&functions[&integer(&line, 1)], 2) as usize].clone()
    };
    let samples: Vec<_> = messages(&profile, 2).iter().map(|it| fields(it)).collect();
    let first: Vec<String> = packed(&samples[0], 1).into_iter().map(name).collect();
    assert_eq!(first, ["ExecScan", "PortalRun", "PostgresMain"]);
    let values: Vec<_> = samples.iter().map(|it| packed(it, 2)).collect();
    assert_eq!(values.iter().map(|it| it[0]).sum::<u64>(), 20, "samples");
    assert_eq!(
        values.iter().map(|it| it[1]).sum::<u64>(),
        2_000_000,
        "nanoseconds"
    );
    let types: Vec<_> = messages(&profile, 1)
        .iter()
        .map(|it| fields(it))
        .map(|it| (integer(&it, 1) as usize, integer(&it, 2) as usize))
        .map(|(kind, unit)| (strings[kind].as_str(), strings[unit].as_str()))
        .collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(integer(&profile, 10), 2_000_000_000, "the window");
    assert_eq!(integer(&profile, 12), 10_000_000, "the period");
}

#[test]
fn firefox_gets_whole_tables_and_every_sample() {
    let file: Value = serde_json::from_str(&text(ExportFormat::Firefox)).unwrap();
    assert!(file["meta"]["preprocessedProfileVersion"].as_u64().unwrap() > 40);
    let thread = &file["threads"][0];
    let samples = &thread["samples"];
    assert_eq!(samples["weightType"], "samples");
    let weights = samples["weight"].as_array().unwrap();
    let sum: u64 = weights.iter().map(|it| it.as_u64().unwrap()).sum();
    assert_eq!((weights.len(), sum), (4, 20));
    let stacks = samples["stack"].as_array().unwrap().len();
    assert_eq!(stacks, 4);
    let strings = file["shared"]["stringArray"].as_array();
    let strings = strings.or(thread["stringArray"].as_array()).unwrap();
    for name in ["ExecScan", "sock_write", "send (libc.so.6)"] {
        assert!(strings.iter().any(|it| it == name), "{name}: {strings:?}");
    }
}

/// Regression: each stack had at most 4,295 s, and 2,147 s in this format.
#[test]
fn hours_of_blocked_time_keep_their_shares() {
    let mut observation = observation();
    let blocked = |name: &str, hours: u64| BlockedStack {
        node: Some(1),
        wait_event_type: "Lock".to_owned(),
        wait_event: name.to_owned(),
        blocked_ns: vec![hours * 3_600_000_000_000],
        in_transactions_ns: 0,
        in_tail_ns: 0,
    };
    observation.profile.as_mut().unwrap().blocked = vec![blocked("tuple", 3), blocked("extend", 1)];
    let file = export(&observation, ExportedStacks::OffCpu, ExportFormat::Firefox).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let weights = file["threads"][0]["samples"]["weight"].as_array().unwrap();
    let weights: Vec<f64> = weights.iter().filter_map(Value::as_f64).collect();
    assert!((weights[0] / weights[1] - 3.0).abs() < 1e-6, "{weights:?}");
    // Regression: the unit of folded stacks was then no longer 1 µs.
    let folded = export(&observation, ExportedStacks::OffCpu, ExportFormat::Folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    let counts = folded.lines().filter_map(|it| it.rsplit(' ').next());
    let counts: Vec<f64> = counts.map(|it| it.parse().unwrap()).collect();
    let sum_s: f64 = counts.iter().sum::<f64>() / 1e6;
    assert!((sum_s - 4.0 * 3600.0).abs() < 0.001, "{folded}");
}

#[test]
fn the_layout_is_that_of_perf_report() {
    let expected = "\
# PostgreSQL 18, server 4711
#
# Total Lost Samples: 0
#
# Samples: 20 of event 'cpu-clock'
# Event count (approx.): 2000000
# Entries and calls below 0.5% are omitted.
#
# Children      Self  Command   Shared Object  Symbol
# ........  ........  ........  .............  .................
#
   100.00%     0.00%  postgres  postgres       [.] PostgresMain
            |
            ---PostgresMain
               |
               |--70.00%--PortalRun
               |          |
               |          |--50.00%--ExecScan
               |          |
               |           --20.00%--postgres+0x1f
               |
               |--20.00%--send
               |          sock_write
               |
                --10.00%--operator;<b>

    70.00%     0.00%  postgres  postgres       [.] PortalRun
";
    let text = text(ExportFormat::Perf);
    assert!(text.starts_with(expected), "{text}");
    let callers = "
# Overhead  Command   Shared Object  Symbol
# ........  ........  .............  .................
#
    50.00%  postgres  postgres       [.] ExecScan
            |
            ---ExecScan
               PortalRun
               PostgresMain

";
    assert!(text.contains(callers), "{text}");
    let of_the_kernel = "
    20.00%  postgres  [kernel]       [k] sock_write
            |
            ---sock_write
               send
               PostgresMain

";
    assert!(text.contains(of_the_kernel), "{text}");
}

#[test]
fn the_summary_divides_the_exact_totals_per_transaction() {
    let text = observation_text(&observation(), &Style::default());
    for line in [
        "PostgreSQL 18, postmaster 4711\n",
        "  on CPU                20.00  µs/tx   0.05%\n",
        "  blocked            39,970  µs/tx  99.9%\n",
        "  execute  14.00  70.0%",
        "   10.00  50.0%         10.00       10  ExecScan\n",
        "  client  29,978  75.0%",
        "  unexplained (blocked)  9,992  25.0%",
        "  checkpointer  5.00  µs/tx\n",
        "20 samples, 100% of user stacks unwound",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        // Column widths do not matter here.
        let (all, part) = (squeezed(&text), squeezed(line));
        assert!(all.contains(&part), "{part:?} in\n{text}");
    }
    let ledger = text.split("LEDGER").nth(1).expect("a ledger");
    let ledger = ledger.split("\n\n").next().unwrap_or_default();
    assert!(ledger.contains("service   CPU: "), "{ledger}");
    assert!(ledger.contains("queueing  run queue"), "{ledger}");
}

#[test]
fn page_contains_the_call_tree_with_escaped_names() {
    let page = observation_html(&observation());
    let (_, data) = page
        .split_once("id=\"flame-data\" type=\"application/json\">")
        .unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["conditions"][0]["unit"], "µs/tx");
    let costs = data["conditions"][0]["self"][0].as_array().unwrap();
    let sum: f64 = costs.iter().map(|it| it.as_f64().unwrap()).sum();
    assert!((sum - 20_000.0).abs() < 1e-6, "20 µs a transaction: {sum}");
    assert!(!page.contains("operator;<b>"), "names are escaped");
    assert!(page.contains("operator;&lt;b&gt;"));
}
