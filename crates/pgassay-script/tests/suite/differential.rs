//! Comparison with the real pgbench: the same scripts, seeds and messages.
//!
//! Requires pgbench 15 or later on PATH and, except for scripts that are rejected before
//! connecting, PostgreSQL's server programs. Without them the tests report that they were skipped;
//! with `PGASSAY_NO_SKIP` set they fail.

use pgassay_script::{BUILTINS, QueryProtocol};
use pgassay_test_support::BareServer;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::common::{client, parse};
use crate::grammar::{DEFINES, expression};
use crate::real_pgbench::{self, Pgbench};
use crate::refusals::REFUSALS;

/// Returns the lines of pgbench's standard error that `debug()` printed.
fn debug_lines(stderr: &str) -> Vec<&str> {
    stderr
        .lines()
        .filter(|line| line.starts_with("debug(script="))
        .collect()
}

fn definitions() -> Vec<String> {
    DEFINES
        .iter()
        .flat_map(|(name, value)| ["-D".to_owned(), format!("{name}={value}")])
        .collect()
}

/// Runs a script once with both programs and compares every value that it prints.
#[track_caller]
fn assert_same_values(pgbench: &Pgbench, server: &BareServer, text: &str, seed: u64) {
    let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
    let ours = client(names, seed, &DEFINES).run(&script);
    assert!(ours.error.is_none(), "{:?}", ours.error);
    let seed = format!("--random-seed={seed}");
    let mut arguments = vec!["-n", "-t", "1", &seed];
    let definitions = definitions();
    arguments.extend(definitions.iter().map(String::as_str));
    let theirs = pgbench.run(Some(server), &arguments, text);
    let theirs = debug_lines(&theirs);
    assert_eq!(ours.debugged.len(), theirs.len());
    let commands = text.lines().filter(|line| line.starts_with('\\'));
    for ((ours, theirs), command) in ours.debugged.iter().zip(theirs).zip(commands) {
        assert_eq!(ours, theirs, "{command}");
    }
}

#[test]
fn refusals_against_the_real_pgbench() {
    let Some(pgbench) = Pgbench::find() else {
        return;
    };
    let mut compared = 0;
    for (text, expected) in REFUSALS {
        if text.contains("syncpipeline") && pgbench.version < 17 {
            continue;
        }
        let stderr = pgbench.run(None, &["-n", "-M", "prepared"], text);
        let said = stderr
            .trim_end()
            .strip_prefix("pgbench: error: ")
            .unwrap_or(&stderr);
        assert_eq!(said, *expected, "{text:?}");
        compared += 1;
    }
    assert!(compared > 30);
}

#[test]
fn random_expressions_against_the_real_pgbench() {
    let Some((pgbench, server)) = real_pgbench::both() else {
        return;
    };
    let mut runner = TestRunner::deterministic();
    let (mut good, mut failing) = (Vec::new(), Vec::new());
    while good.len() < 400 {
        let node = expression().new_tree(&mut runner).unwrap().current();
        let text = format!("\\set x debug({})\n", node.text(0));
        let (script, names) = parse(&text, QueryProtocol::Simple).unwrap();
        match client(names, 1, &DEFINES).run(&script).error {
            None => good.push(text),
            Some((_, error)) => failing.push((text, error)),
        }
    }
    assert_same_values(&pgbench, &server, &good.concat(), 1);

    // A client aborts at its first error, so each expression needs a separate run.
    let definitions = definitions();
    let mut arguments = vec!["-n", "-t", "1"];
    arguments.extend(definitions.iter().map(String::as_str));
    for (text, error) in failing.iter().take(40) {
        let stderr = pgbench.run(Some(&server), &arguments, text);
        assert!(
            stderr.contains(&format!("pgbench: error: {error}\n")),
            "{text}{error}\n{stderr}"
        );
        let reason = error.abort_reason();
        assert!(
            stderr.contains(&format!("(set) of script 0; {reason}")),
            "{stderr}"
        );
    }
}

#[test]
fn random_draws_and_functions_against_the_real_pgbench() {
    let Some((pgbench, server)) = real_pgbench::both() else {
        return;
    };
    let lines = |round: i64| {
        let (low, high) = (round * 37 - 1000, round * round * 1000 + 7);
        format!(
            "\\set a debug(random({low}, {high}))\n\
             \\set b debug(random_exponential({low}, {high}, 0.{round}1 + 3))\n\
             \\set c debug(random_gaussian({low}, {high}, 2.{round}))\n\
             \\set d debug(random_zipfian(1, {high}, 1.{round}1))\n\
             \\set e debug(permute(:a, :d + {round}, :b))\n\
             \\set f debug(hash(:a) # hash_fnv1a(:b) # hash_murmur2(:c, {round}))\n\
             \\set g debug(permute({round}, 100))\n\
             \\set h debug(sqrt(:d) * ln(:d + 0.5) / exp(:d / 1e6) - pow(:d, 0.3) + pi() * {round})\n\
             \\set i2 debug(sqrt(-1.0 * :d) + {round})\n\
             \\set j debug(ln(-1 * :d))\n\
             \\set k debug(:default_seed)\n\\set l debug(:random_seed)\n",
        )
    };
    let text: String = (0..60).map(lines).collect();
    for seed in [5432, 1, 0, u64::MAX] {
        assert_same_values(&pgbench, &server, &text, seed);
    }
}

#[test]
fn typed_text_against_the_real_pgbench() {
    let Some((pgbench, server)) = real_pgbench::both() else {
        return;
    };
    let texts = [
        "010",
        " -7",
        "7 ",
        "+",
        "9223372036854775808",
        "1e3",
        " .5",
        "0x1A",
        "-0x1.8p1",
        "0x",
        "1e400",
        "1e-310",
        "inf",
        "-Infinity",
        "nan",
        "tr",
        "YE",
        "on",
        "o",
        "of",
        "n",
        "trueXXX",
        "NuLl",
    ];
    for text in texts {
        let (script, names) = parse("\\set x debug(:v)", QueryProtocol::Simple).unwrap();
        let ours = client(names, 1, &[("v", text)]).run(&script);
        let define = format!("v={text}");
        let stderr = pgbench.run(
            Some(&server),
            &["-n", "-t", "1", "-D", &define],
            "\\set x debug(:v)",
        );
        match ours.error {
            None => assert_eq!(debug_lines(&stderr), ours.debugged, "{text:?}"),
            Some((_, error)) => {
                assert!(
                    stderr.contains(&format!("pgbench: error: {error}\n")),
                    "{text:?}: {stderr}"
                );
            }
        }
    }
}

#[test]
fn statements_sent_against_the_real_pgbench() {
    let Some((pgbench, server)) = real_pgbench::both() else {
        return;
    };
    let scripts = [
        "SELECT 1; select ';', E'\\';', $$;$$ /* ; /* ; */ ; */, $a$ $$;$b$ $a$;\nSELECT 'a'\n  ';';\nSELECT (2);",
        "-- a comment\n  SELECT ':i', \":i\" FROM (SELECT 1 AS \":i\", 2 AS \"4\") AS s;\nSELECT :i::int, :d, ':nobody', (ARRAY[1,2,3])[:i:3];",
        "\\; SELECT :i AS x \\; SELECT ':t' AS y \\; \\gset\nSELECT $$:n$$, $a1$ 1; $a1$;\n",
        "CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END;\nSELECT pg_temp.f();",
        "\\set a 1 + \\\n 1\n\\if :a = 2\nSELECT :a;\n\\else\nSELECT 0;\n\\endif\n/* only a comment */;\nSELECT 3 -- not ended",
        "\\set b random(1, 100000 * :scale)\nSELECT :b, n'x', U&'\\0041', b'01', x'1F', '\\', '\\:b', \\:b;\n",
    ];
    for text in scripts {
        let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
        let ours = client(names, 9, &DEFINES).run(&script);
        let definitions = definitions();
        // Since 18, -d is the database.
        let debug = if pgbench.version >= 18 {
            "--debug"
        } else {
            "-d"
        };
        let mut arguments = vec!["-n", "-t", "1", debug, "--random-seed=9"];
        arguments.extend(definitions.iter().map(String::as_str));
        let stderr = pgbench.run(Some(&server), &arguments, text);
        let mut rest = &*stderr;
        for sent in &ours.sent {
            let line = format!("client 0 sending {sent}\n");
            let Some(at) = rest.find(&line) else {
                panic!("{sent:?} is not in\n{rest}")
            };
            rest = &rest[at + line.len()..];
        }
        assert!(!stderr.contains("aborted"), "{stderr}");
        assert!(
            !rest.contains("client 0 sending"),
            "{text}\nsent more: {rest}"
        );
    }
}

#[test]
fn choices_and_seeds_of_several_clients_against_the_real_pgbench() {
    use pgassay_script::{
        ParseOptions, ParsedScript, ScriptSet, ScriptValue, Seeding, VariableNames, Variables, eval,
    };
    use std::sync::Arc;

    let Some((pgbench, server)) = real_pgbench::both() else {
        return;
    };
    let texts = [
        "\\set x debug(random(1, 1000000))\n",
        "\\set y debug(- random(1, 1000000))\n",
    ];
    let stderr = pgbench.run_files(
        Some(&server),
        &["-n", "-t", "20", "-c", "3", "-j", "1", "--random-seed=77"],
        &[(texts[0], 2), (texts[1], 3)],
    );
    let mut names = VariableNames::new();
    let mut set = ScriptSet::new();
    for (text, weight) in texts.iter().zip([2, 3]) {
        let script = ParsedScript::parse("s", *text, &ParseOptions::default(), &mut names).unwrap();
        set.push(Arc::new(script), weight).unwrap();
    }
    let mut variables = Variables::new(&Arc::new(names));
    let seeding = Seeding::new(77, 3, 1, false);
    let (mut clients, mut choose) = (seeding.clients, seeding.threads[0].choose);
    let mut ours = Vec::new();
    // With only meta commands, pgbench runs its clients in turn.
    for _ in 0..20 {
        for rng in &mut clients {
            let index = set.choose(&mut choose);
            let pgassay_script::CommandKind::Set { expr, .. } =
                &set.scripts()[index].0.commands()[0].kind
            else {
                panic!("not \\set")
            };
            let mut debug =
                |value: ScriptValue| ours.push(pgassay_script::debug_line(index, 1, value));
            eval(expr, &mut variables, rng, &mut debug).unwrap();
        }
    }
    assert_eq!(debug_lines(&stderr), ours);
}

#[test]
fn builtins_against_the_real_pgbench() {
    let Some(pgbench) = Pgbench::find() else {
        return;
    };
    for builtin in &BUILTINS {
        let stderr = pgbench.run_bare(&["--show-script", builtin.name]);
        assert_eq!(
            stderr.trim(),
            format!("-- {}: {}\n{}", builtin.name, builtin.title, builtin.text).trim()
        );
    }
}
