//! A live server in its DBA's terms, on the terminal and as a page.

use insta::assert_snapshot;
use pgassay_model::check::Check;
use pgassay_model::cpu::CpuTotals;
use pgassay_model::waits::{WaitCount, Waits};
use pgassay_record::activity::{
    Activity, ActivitySession, ActivityWait, BlockingEpisode, LoadCell, RootBlocker, SessionStatus,
};
use pgassay_record::finding::Finding;
use pgassay_record::observation::Observation;
use pgassay_report::activity::{blocked_waits, headline, waited_in_all};
use pgassay_report::{Style, observation_html, observation_json, observation_text};

use crate::fixture::activity::{findings, hostile, idle, observation, outage, with_stacks};

fn at(width: usize) -> Style {
    Style {
        color: false,
        width,
    }
}

fn plain(text: &str) -> String {
    text.replace('\u{a0}', " ")
}

#[test]
fn an_outage_is_shown_in_eighty_columns() {
    let mut seen = observation(outage());
    seen.findings = findings("");
    assert_snapshot!("outage", observation_text(&seen, &at(80)));
}

#[test]
fn a_cause_among_operators_findings_explains_a_mechanism() {
    let mut seen = observation(outage());
    seen.findings = findings("");
    let wanted =
        "These waits are caused by \"A session that is idle in a transaction blocks others\"";
    let text = observation_text(&seen, &at(100));
    assert!(words_of(&text).contains(wanted), "{text}");
    let page = observation_html(&seen).replace("&quot;", "\"");
    assert!(page.contains(wanted), "{page}");
}

/// Regression: a second finding of a cause whose fix has no SQL said nothing about what to do.
#[test]
fn a_fix_in_words_is_shown_unless_an_earlier_finding_has_the_same() {
    let blocker = findings("").remove(0);
    let shown = |change: &dyn Fn(&mut Finding)| {
        let mut second = blocker.clone();
        change(&mut second);
        let mut seen = observation(outage());
        seen.findings = vec![blocker.clone(), second];
        words_of(&observation_text(&seen, &at(80)))
            .matches("Suggested fix")
            .count()
    };
    let other = |it: &mut Finding| it.suggested_fix = "Ask its owner.".to_owned();
    assert_eq!(shown(&|_| ()), 1);
    assert_eq!(shown(&other), 1, "the SQL says it");
    let without_sql = |it: &mut Finding| {
        other(it);
        it.fix_sql = None;
    };
    assert_eq!(shown(&without_sql), 2);
}

/// The words with single spaces between.
fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Regression: on 10 and 12, whose short profiles have no rates, the column had a heading and no value.
#[test]
fn without_rates_there_is_no_heading_for_them() {
    let mut activity = outage();
    for interval in &mut activity.timeline {
        interval.transactions_per_s = None;
    }
    activity.timeline[1].transactions_per_s = Some(5.0);
    let with_one = observation_text(&observation(activity.clone()), &at(80));
    assert!(with_one.contains("tx/s"), "{with_one}");
    activity.timeline[1].transactions_per_s = None;
    let without = observation_text(&observation(activity), &at(80));
    assert!(!without.contains("tx/s"), "{without}");
}

#[test]
fn mechanisms_follow_the_activity() {
    let text = observation_text(&with_stacks(), &at(100));
    let order = [
        "BLOCKING",
        "LOAD ",
        "LOAD OVER TIME",
        "TABLES",
        "OVERHEAD",
        "LEDGER",
        "FUNCTIONS",
    ];
    let at: Vec<usize> = order
        .iter()
        .map(|it| {
            text.find(&format!("\n{it}"))
                .unwrap_or_else(|| panic!("{it} in\n{text}"))
        })
        .collect();
    assert!(at.is_sorted(), "{at:?} in\n{text}");
}

#[test]
fn the_headline_names_load_wait_statement_and_blocker() {
    assert_eq!(
        plain(&headline(&outage())),
        "6.95 active sessions on average, on 2 CPUs. 70% of the load is waiting for row locks \
         in one statement: UPDATE accounts SET balance = balance + $1 WHERE id = $2. Session 4711, \
         idle in transaction for 20 s, blocks 8 sessions."
    );
}

/// Regression: row locks were half of the load, advisory locks the other half, and the headline named the
/// statement that waited for the former, and then the session that held the latter.
#[test]
fn the_headline_names_what_sessions_wait_for_if_it_is_not_the_largest_part() {
    let mut activity = outage();
    for blocked in &mut activity.blocking[0].blocked {
        blocked.waits_for.kind = "advisory".to_owned();
    }
    let text = plain(&headline(&activity));
    let end = "Session 4711, idle in transaction for 20 s, blocks 8 sessions that wait for advisory locks.";
    assert!(text.ends_with(end), "{text}");
}

/// Regression: of a server that stopped, "blocks 8 sessions. Who blocks whom is not known."; and of a hidden blocker,
/// "unknown for 0.0 ms".
#[test]
fn the_headline_says_what_is_not_known_of_a_blocker() {
    let mut activity = outage();
    activity.blocking[0].is_lasting = false;
    activity.blocking[0].root.state = "unknown".to_owned();
    activity.unavailable = vec![Check {
        name: Activity::CATALOG_CONNECTION.to_owned(),
        value: "lost".to_owned(),
        limitation: None,
        fix: None,
    }];
    let text = plain(&headline(&activity));
    let end = "Session 4711, whose state is not known, blocked 8 sessions. Who blocks whom was not known from then on.";
    assert!(text.ends_with(end), "{text}");
}

/// Regression: before version 14, sessions that were seen waiting once "waited 0.0 ms".
#[test]
fn a_wait_of_unknown_length_has_no_time() {
    let mut activity = outage();
    let episode = &mut activity.blocking[0];
    episode.waited_us = 0.0;
    for blocked in &mut episode.blocked {
        blocked.waited_us = 0.0;
        assert!(blocked_waits(blocked, true).starts_with("waits for "));
    }
    assert_eq!(waited_in_all(&activity.blocking[0]), "");
}

/// Regression: the sentences about a hot row and about a session that held another row read as if it caused both.
#[test]
fn the_headline_says_how_much_of_the_waits_is_behind_the_blocker() {
    let mut activity = outage();
    let update = activity.statements[0].fingerprint.clone();
    for blocked in &mut activity.blocking[0].blocked {
        blocked.fingerprint = Some(update.clone());
    }
    activity.blocking[0].waited_us = 0.4 * 4.83 * activity.window_us;
    let text = plain(&headline(&activity));
    let end = "Session 4711, idle in transaction for 20 s, blocks 8 sessions: 40% of these waits.";
    assert!(text.ends_with(end), "{text}");
    for blocked in &mut activity.blocking[0].blocked {
        blocked.fingerprint = Some("other".to_owned());
    }
    let text = plain(&headline(&activity));
    let end = "Separately, session 4711, idle in transaction for 20 s, blocks 8 sessions that wait for row locks.";
    assert!(text.ends_with(end), "{text}");
}

/// Regression: 24 s of waits behind short transactions were "… and 9 other blockers", below one of 16 s, and one
/// reading of such a blocker was "92 ms in all".
#[test]
fn blockers_in_turn_are_one_line_with_the_waits_of_the_samples() {
    let mut activity = outage();
    let long = activity.blocking[0].clone();
    let waited_us: f64 = 4.83 * activity.window_us;
    activity.blocking = vec![BlockingEpisode {
        waited_us: 0.4 * waited_us,
        ..long.clone()
    }];
    let mut blocked = long.blocked.clone();
    for session in &mut blocked {
        session.waited_us = 9.2e4 / 8.0;
    }
    for pid in 1..=9 {
        activity.blocking.push(BlockingEpisode {
            blocked: blocked.clone(),
            root: RootBlocker {
                pid: Some(pid),
                transaction_age_us: Some(9e4),
                ..long.root.clone()
            },
            waited_us: 9.2e4,
            first_seen_us: 4.3e6,
            last_seen_us: 4.3e6,
            is_lasting: false,
            ..long.clone()
        });
    }
    let text = plain(&words_of(&observation_text(
        &observation(activity.clone()),
        &at(100),
    )));
    let line = "9 sessions that blocked others for a short time, in turn: about 87 s of waits by samples, 2.90 sessions \
                on average; most in: UPDATE accounts";
    let at_line = text.find(line);
    assert!(
        at_line < text.find("session 4711 blocks 8 sessions, which waited 58 s in all"),
        "{text}"
    );
    assert!(
        at_line.is_some() && !text.contains("other blocker"),
        "{text}"
    );
    let page = plain(&observation_html(&observation(activity)));
    assert!(page.contains(line), "{page}");
    let moment =
        "blocked 8 sessions, which had waited 92 ms when they were seen (at 4.3 s into the window)";
    assert!(page.contains(moment), "{page}");
}

/// Regression: "blocked 4 sessions that waited for row locks", one of which was an ALTER TABLE that waited for its table.
#[test]
fn sessions_that_wait_for_different_locks_wait_for_locks() {
    let headline_of = |first: &str| {
        let mut activity = outage();
        for blocked in &mut activity.blocking[0].blocked {
            blocked.waits_for.kind = "relation".to_owned();
        }
        activity.blocking[0].blocked[0].waits_for.kind = first.to_owned();
        plain(&words_of(&observation_text(
            &observation(activity),
            &at(200),
        )))
    };
    let blocks = "blocks 8 sessions that wait for";
    let mixed = headline_of("advisory");
    assert!(mixed.contains(&format!("{blocks} locks.")), "{mixed}");
    let alike = headline_of("relation");
    assert!(alike.contains(&format!("{blocks} table locks.")), "{alike}");
}

/// Regression: a replication slot that waited for older transactions to end was said to wait for row locks.
#[test]
fn a_wait_for_the_end_of_transactions_is_not_one_for_row_locks() {
    for text in [
        "SELECT pg_create_logical_replication_slot($1, $2)",
        "CREATE INDEX CONCURRENTLY ON orders (note)",
    ] {
        let mut activity = outage();
        for statement in &mut activity.statements {
            statement.text = Some(text.to_owned());
        }
        for blocked in &mut activity.blocking[0].blocked {
            blocked.statement = Some(text.to_owned());
        }
        for wait in activity.waits.iter_mut().filter(|it| it.name == "tuple") {
            wait.name = "transactionid".to_owned();
        }
        let text = plain(&headline(&activity));
        assert!(
            text.contains("waiting for the end of other transactions"),
            "{text}"
        );
        assert!(!text.contains("row locks"), "{text}");
    }
    let mut activity = outage();
    for blocked in &mut activity.blocking[0].blocked {
        blocked.waits_for.kind = "virtualxid".to_owned();
    }
    let text = plain(&headline(&activity));
    let end = "8 sessions that wait for the end of other transactions.";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn the_headline_of_an_idle_server_says_so() {
    assert_eq!(
        plain(&headline(&idle())),
        "No session was active in 200 samples over 10.0 s."
    );
    assert!(headline(&Activity::default()).starts_with("No session was active"));
}

/// Regression: without `pg_monitor`, two notes said the same.
#[test]
fn missing_rights_are_told_once() {
    let missing = |name: &str, limitation: &str| Check {
        name: name.to_owned(),
        value: "limited".to_owned(),
        limitation: Some(limitation.to_owned()),
        fix: Some("grant pg_monitor to \"web\"".to_owned()),
    };
    let rights = missing(Activity::PRIVILEGES, "few rights");
    let hidden = missing(Activity::HIDDEN_SESSIONS, "500 sessions are hidden");
    for (unavailable, said) in [(vec![rights.clone()], true), (vec![rights, hidden], false)] {
        let mut activity = idle();
        activity.unavailable = unavailable;
        let text = plain(&observation_text(&observation(activity), &at(80)));
        assert_eq!(text.contains("few rights"), said, "{text}");
        assert_eq!(text.matches("grant pg_monitor").count(), 1, "{text}");
    }
}

/// Regression: with 500 active sessions of other users, nothing seemed to happen.
#[test]
fn the_headline_tells_sessions_that_cannot_be_seen_from_idle_ones() {
    let missing = |name: &str, value: &str, limitation: &str| Check {
        name: name.to_owned(),
        value: value.to_owned(),
        limitation: Some(limitation.to_owned()),
        fix: None,
    };
    let hidden = missing(
        Activity::HIDDEN_SESSIONS,
        "limited",
        "500 sessions belong to other users, and the server does not show what they do",
    );
    let lost = missing(
        Activity::CATALOG_CONNECTION,
        "lost",
        "the connection was lost",
    );
    let refused = missing(
        Activity::BLOCKING,
        Activity::AT_TIMES,
        "blocking sessions: no",
    );
    let mut quiet = idle();
    quiet.unavailable = vec![lost.clone(), hidden.clone()];
    assert_eq!(
        plain(&headline(&quiet)),
        "No session that can be seen was active in 200 samples over 10.0 s. Who blocks whom is not \
         known. 500 sessions belong to other users, and the server does not show what they do."
    );
    let text = observation_text(&observation(quiet), &at(80));
    assert!(plain(&text).contains("that can be seen"), "{text}");
    let mut busy = outage();
    busy.unavailable = vec![hidden, refused];
    let text = plain(&headline(&busy));
    assert!(text.starts_with("At least 6.95 active sessions"), "{text}");
    assert!(
        text.contains("Who blocks whom was not known at times."),
        "{text}"
    );
    // Without active sessions, none is blocked.
    let mut alone = idle();
    alone.unavailable = vec![lost];
    assert_eq!(headline(&alone), headline(&idle()));
}

#[test]
fn a_hidden_text_is_named_by_its_fingerprint() {
    let mut activity = outage();
    for it in &mut activity.statements {
        it.text = None;
    }
    let text = observation_text(&observation(activity), &at(80));
    assert!(text.contains("(statement 51c1a5ba2f90c8d3)"), "{text}");
}

#[test]
fn no_line_of_an_activity_is_wider_than_the_terminal() {
    for activity in [
        outage(),
        idle(),
        hostile(&"long ".repeat(60)),
        hostile("简单"),
    ] {
        for width in [60, 72, 80, 100] {
            let text = observation_text(&observation(activity.clone()), &at(width));
            let wide = text.lines().find(|it| it.chars().count() > width);
            assert_eq!(wide, None, "{width}:\n{text}");
        }
    }
}

#[test]
fn names_of_a_live_server_cannot_send_terminal_commands() {
    let text = observation_text(&observation(hostile("\u{1b}]0;x\u{7}\u{9b}2J")), &at(80));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
}

#[test]
fn activity_round_trips_as_json() {
    let seen = with_stacks();
    let back: Observation = serde_json::from_str(&observation_json(&seen)).unwrap();
    assert_eq!(back, seen);
}

/// The value of the attribute after each `marker`.
fn attributes(page: &str, marker: &str) -> Vec<String> {
    let found = page.split(marker).skip(1);
    found
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn hostile_names_are_escaped_on_the_page() {
    let attack = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>";
    let mut seen = with_stacks();
    let mut activity = hostile(attack);
    for at in 0..2 {
        activity.statements[at].profile_column = Some(at as u32 + 1);
    }
    seen.activity = Some(activity);
    seen.findings = findings(attack);
    let page = observation_html(&seen);
    assert_eq!(
        page.matches("<script").count(),
        2,
        "the data, and our own script"
    );
    assert!(!page.contains("<img"));
    for name in [
        "checkout",
        "accounts",
        "UPDATE accounts",
        "shop",
        "web",
        "tuple",
    ] {
        assert!(page.contains(name), "{name}");
    }
    assert!(page.matches("&lt;script&gt;alert(1)").count() > 30);
    let (_, texts) = crate::html::parsed(&page);
    assert!(texts.matches("<script>alert(1)").count() > 30);
}

#[test]
fn a_statement_links_to_its_own_flame_graph() {
    let page = observation_html(&with_stacks());
    let (_, data) = page
        .split_once("id=\"flame-data\" type=\"application/json\">")
        .unwrap();
    let data: serde_json::Value =
        serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(attributes(&page, "data-condition=\""), ["1", "2"]);
    let sum = |condition: usize| -> f64 {
        let costs = data["conditions"][condition]["self"][0].as_array().unwrap();
        costs.iter().map(|it| it.as_f64().unwrap()).sum()
    };
    let title = |condition: usize| data["conditions"][condition]["title"].as_str().unwrap();
    assert!(
        title(1).starts_with("on CPU: UPDATE accounts"),
        "{}",
        title(1)
    );
    assert!(title(2).starts_with("on CPU: SELECT o.id"), "{}", title(2));
    // 3, 40 and 120 of 163 samples.
    for (condition, samples) in [(1, 40.0), (2, 120.0)] {
        let share = sum(condition) / sum(0);
        assert!(
            (share - samples / 163.0).abs() < 1e-3,
            "{condition}: {share}"
        );
    }
}

#[test]
fn the_page_shows_the_activity_before_the_mechanisms() {
    let page = observation_html(&with_stacks());
    let order = [
        "load-over-time",
        "load",
        "blocking",
        "tables",
        "indexes",
        "watching",
        "flame",
        "ledger",
    ];
    let at: Vec<usize> = order
        .iter()
        .map(|it| {
            page.find(&format!("<section id=\"{it}\""))
                .unwrap_or_else(|| panic!("{it}"))
        })
        .collect();
    assert!(at.is_sorted(), "{at:?}");
    assert!(page.contains("SELECT pg_terminate_backend(4711);"));
    assert_eq!(page.matches("class=\"processors\"").count(), 1);
    let height = |class: &str| page.matches(&format!("<rect class=\"{class}\"")).count();
    assert!(
        height("wait-lock") > 20 && height("wait-cpu") > 30,
        "a stacked chart"
    );
    // Without mechanisms there is no ledger and no flame graph.
    let mut plain = observation(outage());
    plain.findings = findings("");
    let plain = observation_html(&plain);
    let first = plain.find("<section id=\"operator-findings\"").unwrap();
    assert!(first < plain.find("<section id=\"load-over-time\"").unwrap());
    for part in [
        "session 4711",
        "4.83 sessions (70% of the load)",
        "Its transaction is rolled back.",
    ] {
        assert!(
            plain.contains(part) || plain.replace('\u{a0}', " ").contains(part),
            "{part}"
        );
    }
    assert!(!plain.contains("<section id=\"flame\"") && !plain.contains("<section id=\"ledger\""));
}

/// One active session for 10 s, with this time in `WALSync`, on a CPU, and in the run queue.
fn committing(sync_us: f64, on_cpu_us: f64, run_queue_us: f64) -> Observation {
    let cell = |wait, time_us| LoadCell {
        session: 0,
        statement: None,
        state: SessionStatus::Active,
        wait,
        relation: None,
        time_us,
        samples: 100,
    };
    let sync = ActivityWait {
        kind: "IO".to_owned(),
        name: "WALSync".to_owned(),
    };
    let event = |kind: &str, name: &str, samples| WaitCount {
        kind: kind.to_owned(),
        name: name.to_owned(),
        samples,
    };
    let mut seen = observation(Activity {
        sessions: vec![ActivitySession::default()],
        waits: vec![ActivityWait::default(), sync],
        cells: vec![cell(0, 1e7 - sync_us), cell(1, sync_us)],
        ..idle()
    });
    seen.backends = Some(CpuTotals {
        on_cpu_us,
        run_queue_us,
        processes: 1,
    });
    seen.backends_present_us = 1e7;
    seen.waits = Some(Waits {
        blocked_samples: 100,
        events: vec![
            event("Client", "ClientRead", 10),
            event("IO", "WALSync", 90),
        ],
        ..Waits::default()
    });
    seen
}

/// Regression: LOAD showed 10% in `WALSync` and the ledger less than 1%, without a reason.
#[test]
fn waits_that_last_into_the_run_queue_are_explained() {
    let note = "A session still shows its wait event while it waits for a CPU to continue";
    for (seen, is_explained) in [
        (committing(1e6, 3e6, 6.9e6), true),
        // No saturated CPUs, and waits that agree.
        (committing(1e6, 9.9e6, 0.0), false),
        (committing(1e6, 3e6, 6e6), false),
    ] {
        let text = words_of(&observation_text(&seen, &at(100)));
        assert_eq!(text.contains(note), is_explained, "{text}");
        assert_eq!(observation_html(&seen).contains(note), is_explained);
    }
}

/// Regression: "0.56 active sessions … waiting for a CPU" above kernel times of 2.51 sessions.
#[test]
fn sessions_that_are_ready_to_run_but_idle_for_postgres_are_stated() {
    let said = "By the kernel's times, 2.51 sessions were running on or waiting for a CPU on average. 1.51 of them";
    for (seen, is_said) in [
        (committing(0.0, 6.4e6, 1.87e7), true),
        // 20% more than the load's one session, and 0.9 sessions.
        (committing(0.0, 6e6, 6e6), false),
        (committing(5e6, 3e6, 6e6), false),
    ] {
        let text = words_of(&observation_text(&seen, &at(100)));
        assert_eq!(text.contains(said), is_said, "{text}");
        assert_eq!(text.contains("By the kernel's times"), is_said, "{text}");
        let page = observation_html(&seen);
        assert_eq!(page.contains("By the kernel's times"), is_said);
    }
}
