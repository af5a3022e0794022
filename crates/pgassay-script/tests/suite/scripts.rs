//! Scripts: splitting into commands, substitution, conditionals, and error messages.

use std::sync::Arc;

use crate::common::{client, parse, run};
use crate::refusals::REFUSALS;
use pgassay_script::{
    BUILTINS, Builtin, Capture, CommandKind, Compat, ParseErrorKind, ParseOptions, ParsedScript,
    QueryProtocol, Rng, ScriptCommand, ScriptSet, Seeding, VariableNames, Variables, parse_seed,
    split_weight,
};

fn commands(text: &str) -> Vec<ScriptCommand> {
    parse(text, QueryProtocol::Simple)
        .unwrap()
        .0
        .commands()
        .to_vec()
}

fn sql_texts(text: &str) -> Vec<String> {
    commands(text)
        .iter()
        .filter_map(|command| match &command.kind {
            CommandKind::Sql(sql) => Some(String::from_utf8(sql.text().to_vec()).unwrap()),
            _ => None,
        })
        .collect()
}

#[track_caller]
fn error(text: &str) -> String {
    parse(text, QueryProtocol::Prepared)
        .unwrap_err()
        .to_string()
}

#[test]
fn statements_end_where_psql_ends_them() {
    let text = r#"-- a comment; with a semicolon
SELECT 1; select ';', E'\';', $$;$$, $a$ $$;$b$ $a$ /* ; /* ; */ ; */, ";"";", (2; 3);
SELECT 'a'
  ';';  SELECT E'a'
  '\';' ;
CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END;
SELECT x$a$;$a$; SELECT 1begin; SELECT $1; SELECT n'\', U&'\';
SELECT 4"#;
    let expected = [
        "SELECT 1;",
        r#"select ';', E'\';', $$;$$, $a$ $$;$b$ $a$ /* ; /* ; */ ; */, ";"";", (2; 3);"#,
        "SELECT 'a'\n  ';';",
        "SELECT E'a'\n  '\\';' ;",
        "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END;",
        "SELECT x$a$;",
        "$a$; SELECT 1begin; SELECT $1; SELECT n'\\', U&'\\';\nSELECT 4",
    ];
    assert_eq!(sql_texts(text), expected);
}

#[test]
fn commands_have_line_numbers() {
    let text = "-- one\n\n  SELECT 1,\n  2;\n\\set a 1 + \\\n  2\n\n\\\nSELECT\n3; SELECT 4 \\gset\n\\sleep 1";
    let found: Vec<_> = commands(text)
        .iter()
        .map(|command| (command.line, command.first_line.clone()))
        .collect();
    let expected = [
        (3, "SELECT 1,"),
        (5, "\\set a 1 + \\\n  2"),
        (9, "SELECT"),
        (10, "SELECT 4 "),
        (11, "\\sleep 1"),
    ];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
}

#[test]
fn backslash_semicolon_combines_and_captures_belong_to_statements() {
    let text =
        "\\; \\; SELECT 0 AS i5 \\; SELECT 5 AS i5 \\; \\; \\gset\nSELECT 1 \\aset p_\n\\set x 1";
    let commands = commands(text);
    let captures: Vec<_> = commands
        .iter()
        .filter_map(|command| match &command.kind {
            CommandKind::Sql(sql) => Some((
                String::from_utf8(sql.text().to_vec()).unwrap(),
                sql.capture().clone(),
            )),
            _ => None,
        })
        .collect();
    let expected = [
        (
            "; ; SELECT 0 AS i5 ; SELECT 5 AS i5 ; ; ".to_owned(),
            Capture::Gset {
                prefix: Box::default(),
            },
        ),
        (
            "SELECT 1 ".to_owned(),
            Capture::Aset {
                prefix: (*b"p_").into(),
            },
        ),
    ];
    assert_eq!(captures, expected);
    assert_eq!(commands.len(), 3);
}

#[test]
fn variables_are_substituted_as_pgbench_does() {
    let defines = [("a", "1"), ("b_2", "it's"), ("é", "2")];
    let cases = [
        (
            "SELECT :a::int, ':a', \":a\" -- :a",
            "SELECT 1::int, '1', \"1\" -- 1",
        ),
        (
            "SELECT :a:b_2,:::a,::a, x[:a:5]",
            "SELECT 1it's,:::a,::a, x[1:5]",
        ),
        (
            "SELECT :é, :nobody, :ab, :1, :",
            "SELECT 2, :nobody, :ab, :1, :",
        ),
        (
            "SELECT $$:a$$, \\:a, a := :a, :{?a}",
            "SELECT $$1$$, 1, a := 1, FALSE",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(run(text, &defines).sent, [expected], "{text}");
    }
    let values =
        "\\set n NULL\n\\set t 1 = 1\n\\set i -5432\n\\set d -54.21E-2\nSELECT :n, :t, :i, :d;";
    assert_eq!(
        run(values, &[]).sent,
        ["SELECT NULL, true, -5432, -0.5421;"]
    );
}

#[test]
fn statements_of_the_extended_protocol_have_numbered_parameters() {
    let (script, names) = parse(
        "SELECT :a::int, ':b', :a, ::c, :d;",
        QueryProtocol::Extended,
    )
    .unwrap();
    let CommandKind::Sql(sql) = &script.commands()[0].kind else {
        panic!("not SQL")
    };
    assert_eq!(sql.statement(), b"SELECT $1::int, '$2', $3, ::c, $4;");
    let parameters: Vec<_> = sql
        .parameters()
        .iter()
        .map(|&slot| names.display(slot))
        .collect();
    assert_eq!(parameters, ["a", "b", "a", "d"]);

    let many = |count| format!("SELECT {};", vec![":i"; count].join(", "));
    assert!(parse(&many(255), QueryProtocol::Prepared).is_ok());
    assert!(parse(&many(256), QueryProtocol::Simple).is_ok());
    let message = parse(&many(256), QueryProtocol::Extended)
        .unwrap_err()
        .to_string();
    let expected = "statement has too many arguments (maximum is 255): SELECT :i, ";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn undefined_variables_are_null_parameters_and_nulls_are_text() {
    let (_, mut names) = parse("SELECT 1", QueryProtocol::Extended).unwrap();
    let (a, b) = (names.intern(b"a"), names.intern(b"b"));
    let mut variables = Variables::new(&Arc::new(names));
    variables.set(b, pgassay_script::ScriptValue::Null);
    let mut text = Vec::new();
    assert!(!variables.write_text(a, &mut text));
    assert!(variables.write_text(b, &mut text));
    assert_eq!(text, b"NULL");
}

#[test]
fn control_follows_the_conditions() {
    // Every leaf returns its number; the nested ones must not be reached in sequence by mistake.
    let script = "
        \\if :a
          \\if :b
            SELECT 1;
          \\endif
        \\elif :c
          SELECT 2;
          \\if :b
          \\elif :a
            SELECT 3;
          \\else
            SELECT 4;
          \\endif
        \\elif :b
          SELECT 5;
        \\else
          \\if :b
            SELECT 6;
          \\else
            SELECT 7;
          \\endif
        \\endif
        SELECT 8;";
    let cases = [
        ("1", "0", "1", "8"),
        ("1", "1", "1", "1 8"),
        ("0", "0", "1", "2 4 8"),
        ("0", "1", "1", "2 8"),
        ("0", "1", "0", "5 8"),
        ("0", "0", "0", "7 8"),
        ("null", "0.0", "f", "7 8"),
    ];
    for (a, b, c, expected) in cases {
        let outcome = run(script, &[("a", a), ("b", b), ("c", c)]);
        let reached: Vec<_> = outcome
            .sent
            .iter()
            .map(|sql| sql.trim_start_matches("SELECT ").trim_end_matches(';'))
            .collect();
        assert_eq!(reached.join(" "), expected, "a {a}, b {b}, c {c}");
        assert!(outcome.error.is_none());
    }
    // A condition after the taken branch is not evaluated.
    let outcome = run(
        "\\if true\n\\elif 1 / 0\n\\endif\n\\if false\n\\elif debug(7)\n\\endif",
        &[],
    );
    assert_eq!(outcome.debugged, ["debug(script=0,command=5): int 7"]);
}

#[test]
fn conditions_must_match() {
    let cases = [
        (
            "\\if 1",
            "condition error in script \"test.sql\" command 2: \\if without matching \\endif",
        ),
        (
            "\\elif 1",
            "condition error in script \"test.sql\" command 1: \\elif without matching \\if",
        ),
        (
            "\\else",
            "condition error in script \"test.sql\" command 1: \\else without matching \\if",
        ),
        (
            "\\endif",
            "condition error in script \"test.sql\" command 1: \\endif without matching \\if",
        ),
        (
            "\\if 1\n\\else\n\\elif 0\n\\endif",
            "condition error in script \"test.sql\" command 3: \\elif after \\else",
        ),
        (
            "\\if 1\n\\else\n\\else\n\\endif",
            "condition error in script \"test.sql\" command 3: \\else after \\else",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn errors_match_pgbench() {
    for (text, expected) in REFUSALS {
        assert_eq!(error(text), *expected, "{text:?}");
    }
    assert_eq!(
        error("SELECT 1;\nSELECT '\0'"),
        "test.sql:2: unexpected NUL byte"
    );
    let words = format!("\\shell echo {}", ["arg"; 255].join(" "));
    assert_eq!(
        error(&words),
        "test.sql:1: too many arguments in command \"shell\""
    );
    assert!(parse(&words[..words.len() - 4], QueryProtocol::Simple).is_ok());
    let deep = format!("\\set x {}1", "(".repeat(100_000));
    assert!(error(&deep).starts_with("test.sql:1: memory exhausted (nested"));

    let at = parse("\n\\set i ;", QueryProtocol::Simple).unwrap_err();
    assert_eq!((at.line, at.column()), (2, Some(8)));
    assert!(
        matches!(at.kind, ParseErrorKind::Syntax(syntax) if syntax.detail.as_deref() == Some(";"))
    );
}

/// It is not a stack overflow either. Conditional blocks and long expressions may be as deep and long as memory allows.
#[test]
fn deep_nesting_is_an_error_that_says_so() {
    let nested = |depth: usize, open: &str, close: &str| {
        format!("\\set x {}1{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [
        ("(", ")"),
        ("- ", ""),
        ("~", ""),
        ("not ", ""),
        ("abs(", ")"),
        ("1 + (", ")"),
        ("case when true then ", " end"),
    ] {
        assert!(
            parse(&nested(300, open, close), QueryProtocol::Simple).is_ok(),
            "{open}"
        );
        let refusal = error(&nested(2_000, open, close));
        let expected =
            "test.sql:1: memory exhausted (nested more than 400 levels deep) in command \"set\"";
        assert!(refusal.starts_with(expected), "{open}: {refusal}");
    }
    let blocks = ["\\if true\n".repeat(2_000), "\\endif\n".repeat(2_000)].concat();
    assert!(parse(&blocks, QueryProtocol::Simple).is_ok());
    assert!(
        parse(
            &format!("\\set x 1{}", " + 1".repeat(2_000)),
            QueryProtocol::Simple
        )
        .is_ok()
    );
}

#[test]
fn variable_names_are_checked_when_set() {
    let outcome = run("\\set . debug(1)", &[]);
    assert_eq!(outcome.debugged.len(), 1);
    let (_, error) = outcome.error.unwrap();
    assert_eq!(error.to_string(), "set: invalid variable name: \".\"");
    assert_eq!(error.abort_reason(), "assignment of meta-command failed");
    assert!(run("\\set x :1abc", &[]).error.is_some());

    let mut names = VariableNames::new();
    let column = names.intern(b"x_c");
    assert_eq!(names.capture_slot("gset", b"x_", b"c"), Ok(Some(column)));
    assert_eq!(names.capture_slot("gset", b"", b"unread"), Ok(None));
    assert!(names.capture_slot("gset", b"", b"?column?").is_err());
    assert!(names.define("option", "1st").is_err());
}

#[test]
fn sleeps_and_shells() {
    let text = "\\set ms 250\n\\sleep :ms ms\n\\sleep 100 us\n\\sleep 2\n\\sleep 3ms\n\\sleep -1 s\n\\sleep :one MS";
    let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
    let mut client = client(names, 1, &[("one", "1.9")]);
    assert!(client.run(&script).error.is_none());
    let slept: Vec<_> = script
        .commands()
        .iter()
        .filter_map(|command| match &command.kind {
            CommandKind::Sleep(sleep) => Some(sleep.duration_us(&client.variables).unwrap()),
            _ => None,
        })
        .collect();
    assert_eq!(slept, [250_000, 100, 2_000_000, 3_000, 0, 1_000]);

    let text = "\\set n 7\n\\setshell v \\\n  echo ::x :n \\\n:n\\\n y";
    let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
    let mut client = crate::common::client(names, 1, &[]);
    client.run(&script);
    let CommandKind::SetShell { slot, shell } = &script.commands()[1].kind else {
        panic!()
    };
    assert_eq!(shell.render(&client.variables).unwrap(), b"echo :x 7 7 y");
    assert_eq!(client.variables.names().display(*slot), "v");
    for (output, expected) in [
        ("12\n", Some(12)),
        (" -3 \nx", Some(-3)),
        ("", None),
        ("one", None),
    ] {
        assert_eq!(
            shell.parse_output(output.as_bytes()).ok(),
            expected,
            "{output:?}"
        );
    }

    let message = |text: &str| run(text, &[("w", "soon")]).error.unwrap().1.to_string();
    assert_eq!(
        message("\\sleep :nobody"),
        "sleep: undefined variable \"nobody\""
    );
    assert_eq!(
        message("\\sleep :w"),
        "sleep: invalid sleep time \"soon\" for variable \"w\""
    );
    assert_eq!(
        message("\\shell echo :nobody"),
        "echo: undefined variable \":nobody\""
    );
    let long = format!("\\shell echo {}", "x".repeat(250));
    assert_eq!(message(&long), "echo: shell command is too long");
}

#[test]
fn setrandom_is_translated_with_a_note() {
    let text = "\\setrandom id 1 1000000\n\\set b random(1, 1000000)\n\
                \\setrandom g 1 :max gaussian 2.5\n\\setrandom e 1 :max exponential :p\n\
                \\setrandom u 5 5 UNIFORM\nSELECT :id, :u;";
    let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
    assert_eq!(script.notes().len(), 4);
    assert!(script.notes()[0].line == 1 && script.notes()[0].text.contains("removed"));
    let defines = [("max", "100"), ("p", "2.0")];
    let sent = client(names, 5432, &defines).run(&script).sent;
    let (modern, names) = parse(
        "\\set id random(1, 1000000)\nSELECT :id, 5;",
        QueryProtocol::Simple,
    )
    .unwrap();
    assert_eq!(sent, client(names, 5432, &[]).run(&modern).sent);
    let cases = [
        (
            "\\setrandom v 1",
            "missing argument in command \"setrandom\"",
        ),
        (
            "\\setrandom v 1 2 normal",
            "unexpected argument (normal) in command \"setrandom\"",
        ),
        (
            "\\setrandom v 1 2 gaussian",
            "missing parameter (gaussian) in command \"setrandom\"",
        ),
        (
            "\\setrandom v 1 2 uniform 3",
            "too many arguments (3) in command \"setrandom\"",
        ),
        (
            "\\setrandom v 1 x",
            "invalid argument, must be a number or a :variable (x) in command \"setrandom\"",
        ),
    ];
    for (text, expected) in cases {
        let message = error(text);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn pipelines_and_versions() {
    let text = "\\startpipeline\nSELECT 1;\n\\SyncPipeline\nSELECT 2;\n\\endpipeline";
    let kinds: Vec<_> = commands(text)
        .iter()
        .map(|command| command.word().to_owned())
        .collect();
    assert_eq!(
        kinds,
        ["startpipeline", "SQL", "SyncPipeline", "SQL", "endpipeline"]
    );
    let options = ParseOptions {
        compat: Compat::V15,
        protocol: QueryProtocol::Extended,
    };
    let error = ParsedScript::parse("s", text, &options, &mut VariableNames::new()).unwrap_err();
    assert!(
        error
            .headline()
            .contains("s:3: invalid command in command \"SyncPipeline\"")
    );
}

#[test]
fn bytes_that_are_not_utf_8_are_kept() {
    let mut names = VariableNames::new();
    let text: &[u8] = b"\\set \xe9 'x'\n";
    assert!(ParsedScript::parse("s", text, &ParseOptions::default(), &mut names).is_err());
    let text: &[u8] = b"\\set \xe9 5\nSELECT '\xe9', :\xe9;";
    let script = ParsedScript::parse("s", text, &ParseOptions::default(), &mut names).unwrap();
    let CommandKind::Sql(sql) = &script.commands()[1].kind else {
        panic!()
    };
    assert_eq!(sql.statement(), b"SELECT '\xe9', $1;");
}

#[test]
fn builtins_are_found_by_prefix_and_parse() {
    for builtin in &BUILTINS {
        assert_eq!(Builtin::find(builtin.name), Ok(builtin));
        let mut names = VariableNames::new();
        let script = ParsedScript::parse(
            builtin.title,
            builtin.text,
            &ParseOptions::default(),
            &mut names,
        )
        .unwrap();
        assert_eq!(script.name(), builtin.title);
    }
    assert_eq!(Builtin::find("se").unwrap().name, "select-only");
    let message = |name| Builtin::find(name).unwrap_err().to_string();
    assert_eq!(
        message("no-such"),
        "no builtin script found for name \"no-such\""
    );
    assert_eq!(
        message("s"),
        "ambiguous builtin name: 2 builtin scripts found for prefix \"s\""
    );

    assert_eq!(split_weight("a@b@3"), Ok(("a@b", 3)));
    assert_eq!(split_weight("plain"), Ok(("plain", 1)));
    let message = |option| split_weight(option).unwrap_err().to_string();
    assert_eq!(message("x@one"), "invalid weight specification: @one");
    assert_eq!(
        message("x@-1"),
        "weight specification out of range (0 .. 2147483647): -1"
    );
}

#[test]
fn scripts_are_chosen_by_weight() {
    let (script, _) = parse("SELECT 1", QueryProtocol::Simple).unwrap();
    let script = Arc::new(script);
    let mut set = ScriptSet::new();
    assert_eq!(
        set.total_weight().unwrap_err().to_string(),
        "total script weight must not be zero"
    );
    set.push(Arc::clone(&script), 0).unwrap();
    let mut rng = Rng::from_seed(3);
    let before = rng;
    assert_eq!(set.choose(&mut rng), 0);
    assert_eq!(rng, before, "a single script draws nothing");
    set.push(Arc::clone(&script), 1).unwrap();
    set.push(Arc::clone(&script), 3).unwrap();
    assert_eq!(set.total_weight(), Ok(4));
    let mut counts = [0; 3];
    for _ in 0..4000 {
        counts[set.choose(&mut rng)] += 1;
    }
    assert!(
        counts[0] == 0 && (900..1100).contains(&counts[1]),
        "{counts:?}"
    );
    while set.scripts().len() < 128 {
        set.push(Arc::clone(&script), 1).unwrap();
    }
    let message = set.push(script, 1).unwrap_err().to_string();
    assert_eq!(message, "at most 128 SQL scripts are allowed");
}

#[test]
fn seeds_are_drawn_in_pgbench_order() {
    let seeding = Seeding::new(7, 3, 2, false);
    let mut base = Rng::from_seed(7);
    for client in &seeding.clients {
        assert_eq!(*client, Rng::from_seed(base.next_u64()));
    }
    assert_eq!(
        seeding.default_seed.map(i64::cast_unsigned),
        Some(base.next_u64())
    );
    for thread in &seeding.threads {
        for state in [thread.choose, thread.throttle, thread.sample] {
            assert_eq!(state, Rng::from_seed(base.next_u64()));
        }
    }
    let defined = Seeding::new(7, 3, 2, true);
    assert_eq!(
        (defined.default_seed, &defined.clients),
        (None, &seeding.clients)
    );
    assert_ne!(defined.threads, seeding.threads);

    for (text, seed) in [
        ("5432", Some(5432)),
        (" +1", Some(1)),
        ("-1", Some(u64::MAX)),
        ("one", None),
        ("1x", None),
        ("", None),
        ("99999999999999999999", Some(u64::MAX)),
    ] {
        assert_eq!(parse_seed(text), seed, "{text:?}");
    }
}

#[test]
fn long_invalid_utf8_line_does_not_panic() {
    for byte in [0x80, 0xb4, 0xff] {
        let name = "strange.sql";
        let parsed = ParsedScript::parse(
            name,
            &[byte; 300],
            &ParseOptions::default(),
            &mut VariableNames::new(),
        );
        let first_line = parsed.unwrap().commands()[0].first_line.clone();
        assert_eq!(first_line.chars().count(), 127, "{byte:x}");
    }
    let euros = "€".repeat(100);
    assert_eq!(commands(&euros)[0].first_line, "€".repeat(42));
}
