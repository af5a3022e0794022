//! What variants ask of their servers, on real ones: idle connections, checksums, features.

mod support;

use support::{Finished, Place};

/// Each script divides by zero, and so fails the run, unless its server is as asked.
const STUDY: &str = r#"question = "Are servers as their variants ask?"
[server]
version = "18"
settings = { autovacuum = false }
[[script]]
name = "as asked"
text = """
select 1 / (count(*) = ${idle})::int from pg_stat_activity where application_name = 'pgassay' and state = 'idle' and query like '%pg_class%';
select 1 / (current_setting('data_checksums') = '${checksums}')::int;
"""
[[variant]]
name = "default"
parameters = { idle = 0, checksums = "on" }
[[variant]]
name = "idle"
idle_connections = 7
parameters = { idle = 7, checksums = "on" }
[[variant]]
name = "no checksums"
data_checksums = false
parameters = { idle = 0, checksums = "off" }
[[variant]]
name = "nowhere"
requires = { feature = "no-such-thing" }
parameters = { idle = 0, checksums = "on" }
[conditions]
clients = [1]
[length]
full = "1s"
pairs = 2
"#;

#[test]
fn servers_are_as_their_variants_ask() {
    if pgassay_server::testing::installation("18").is_none() {
        return;
    }
    let place = Place::new();
    let finished = place.run(STUDY, &["--no-profile", "--offline"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let left_out = "variant \"nowhere\" was left out: ";
    assert!(finished.stdout.contains(left_out), "{}", finished.stdout);
    assert!(
        finished.stdout.contains("without no-such-thing"),
        "{}",
        finished.stdout
    );
    place.assert_nothing_left();
}

#[test]
fn idle_connections_are_refused_where_they_would_not_count() {
    let place = Place::new();
    let path = place.study(STUDY);
    let output = place.command().arg("count").arg(path).output();
    let finished = Finished::of(&output.expect("the program runs"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    // Without valgrind it says that first.
    let said = finished.complaint();
    assert!(
        said.contains("idle_connections") || said.contains("valgrind"),
        "{said}"
    );
}
