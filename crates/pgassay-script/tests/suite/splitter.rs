//! Set-up SQL: where statements end, and what is rejected.

use pgassay_script::sql::{SplitError, statements};

#[test]
fn statements_are_split_with_line_numbers() {
    let text = "-- set up\nCREATE TABLE t (a int);\n\n/* two */ INSERT INTO t\n  VALUES (';');;\n\
                CREATE FUNCTION f() RETURNS void AS $x$ BEGIN; END; $x$ LANGUAGE plpgsql;\n\
                SELECT 1 AS \"a;b\"; /* only; a comment */ ; -- the end;\nANALYZE t";
    let found: Vec<_> = statements(text)
        .unwrap()
        .into_iter()
        .map(|found| (found.line, found.text))
        .collect();
    let expected = [
        (2, "CREATE TABLE t (a int)"),
        (4, "/* two */ INSERT INTO t\n  VALUES (';')"),
        (
            6,
            "CREATE FUNCTION f() RETURNS void AS $x$ BEGIN; END; $x$ LANGUAGE plpgsql",
        ),
        (7, "SELECT 1 AS \"a;b\""),
        (8, "ANALYZE t"),
    ];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    assert_eq!(statements(" -- nothing\n"), Ok(vec![]));
}

#[test]
fn function_bodies_may_contain_semicolons() {
    let text = "SELECT 1; CREATE PROCEDURE p(a int) BEGIN ATOMIC SELECT a; SELECT CASE WHEN a = 1 \
                THEN 2 END; END; BEGIN; COMMIT;";
    let found = statements(text).unwrap();
    assert_eq!(found.len(), 4);
    assert!(found[1].text.ends_with("END; END"));
}

/// Regression: a dump of a current `pg_dump` was refused.
#[test]
fn the_lines_with_which_pg_dump_guards_a_dump_are_skipped() {
    let text = "--\n-- dump\n--\n\n\\restrict a1B2\n\nSELECT 1;\n\n\\unrestrict a1B2\n\n";
    let found = statements(text).unwrap();
    assert_eq!((found.len(), found[0].line), (1, 7));
    assert_eq!(found[0].text, "SELECT 1");
    assert!(statements("\\restricted a\nSELECT 1").is_err());
}

#[test]
fn psql_only_input_is_rejected_with_its_line() {
    let cases = [
        (
            "SELECT 1;\n\\copy t from 'f'\n",
            // Regression: it did not say what to write instead.
            "line 2: \\copy is a psql command, not SQL, and is not supported here: use INSERT, or COPY",
        ),
        (
            "SELECT 1;\n\ncopy t (a) /* c */ FROM -- c\n STDIN with csv;\n1\n\\.\n",
            "line 3: COPY FROM STDIN",
        ),
        (
            "SELECT 1;\nSELECT 'a;\n",
            "line 2: unterminated quote or comment",
        ),
        ("SELECT 1 \\; SELECT 2;", "line 1: \\; is a psql command"),
        ("SELECT (1;\nSELECT 2;", "line 1: unclosed parenthesis"),
        (
            "CREATE FUNCTION f() BEGIN ATOMIC SELECT 1;",
            "line 1: unclosed BEGIN",
        ),
    ];
    for (text, expected) in cases {
        let message = statements(text).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    assert!(matches!(
        statements("a /*"),
        Err(SplitError::Unterminated { line: 1 })
    ));
    assert!(statements("COPY t FROM '/tmp/stdin'; COPY t TO STDOUT;").is_ok());
}
