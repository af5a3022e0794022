use super::normalize;
use proptest::prelude::*;

fn text(sql: &str) -> String {
    normalize(sql).text
}

#[test]
fn constants_of_every_form_become_parameters() {
    for (sql, normalized) in [
        (
            "select 1, 1.5, .5, 1e-3, 0x1F, 1_000",
            "select $1, $2, $3, $4, $5, $6",
        ),
        (
            r"select 'a''b', E'a\'b', B'01', X'1f', N'n'",
            "select $1, $2, $3, $4, $5",
        ),
        (
            r"select U&'d\0061t', $$a;b$$, $q$ $$ $q$",
            "select $1, $2, $3",
        ),
        (
            "select -1, a - 1, a -1, (b) - 1",
            "select $1, a - $2, a -$3, (b) - $4",
        ),
        ("select 'a'\n  'b'", "select $1"),
        ("set work_mem = '64MB'", "set work_mem = $1"),
        ("alter role x password 'secret'", "alter role x password $1"),
        (
            "select interval '1 day', t1.c2, \"A'1\"",
            "select interval $1, t1.c2, \"A'1\"",
        ),
        (
            r#"select U&"d\0061t" from t"#,
            r#"select U&"d\0061t" from t"#,
        ),
    ] {
        assert_eq!(text(sql), normalized, "{sql}");
    }
}

#[test]
fn constants_are_numbered_after_the_statements_own_parameters() {
    assert_eq!(text("select $2, 5, $1, 'x'"), "select $2, $3, $1, $4");
}

#[test]
fn comments_blanks_and_the_last_semicolon_are_dropped() {
    let sql = "select /* request 17 */ a -- b\n\t from  t where x=1 ; ";
    assert_eq!(text(sql), "select a from t where x=$1");
    assert_eq!(text("begin; select 1;"), "begin; select $1");
    assert_eq!(text(" -- nothing"), "");
}

#[test]
fn lists_of_values_are_folded_and_other_lists_are_not() {
    for (sql, normalized) in [
        ("a in (1,2,3) and b", "a in ($1 /*, ... */) and b"),
        ("a in ($1, $2)", "a in ($1 /*, ... */)"),
        ("a in ('x'::text, 'y'::text)", "a in ($1::text /*, ... */)"),
        ("a = any (array[1, 2])", "a = any (array[$1 /*, ... */])"),
        ("a in (1)", "a in ($1)"),
        ("a in (1, b)", "a in ($1, b)"),
        ("a in (select 1)", "a in (select $1)"),
        ("a in (-1, -2)", "a in ($1 /*, ... */)"),
        ("f(1, 2)", "f($1, $2)"),
        (
            "insert into t values (1, 'a'), (2, 'b'), (3, 'c')",
            "insert into t values ($1, $2) /*, ... */",
        ),
        ("values (1), (f(2))", "values ($1), (f($2))"),
        ("a in (1", "a in ($1"),
        ("a in (1, 2", "a in ($1 /*, ... */"),
        ("a in (1, b", "a in ($1, b"),
        ("values (1, 2), (f(3), 4", "values ($1, $2), (f($3), $4"),
    ] {
        assert_eq!(text(sql), normalized, "{sql}");
    }
}

#[test]
fn a_constant_a_parameter_and_a_list_have_one_fingerprint() {
    let fingerprint = |sql: &str| normalize(sql).fingerprint;
    let one = fingerprint("select * from T where id = 5 and x in (1,2)");
    assert_eq!(one.len(), 16);
    for same in [
        "SELECT *  FROM t WHERE id=$1 AND x IN ($2);",
        "select * from t where id = '7' and x in (1, 2, 3) -- trace",
        "select * from t where id = -5 and x in (1)",
    ] {
        assert_eq!(fingerprint(same), one, "{same}");
    }
    for other in [
        "select * from t where id = 5 and y in (1,2)",
        "select * from \"T\" where id = 5 and x in (1,2)",
        "select * from t where id = 5",
    ] {
        assert_ne!(fingerprint(other), one, "{other}");
    }
}

/// They were different statements, and `pg_stat_statements` counts them as one.
#[test]
fn null_truth_values_and_fields_of_dates_are_constants_and_tests_for_null_are_not() {
    let fingerprint = |sql: &str| normalize(sql).fingerprint;
    for (one, other) in [
        ("update t set a = null", "update t set a = $1"),
        (
            "select * from t where b = TRUE and not false",
            "select * from t where b = $1 and not $2",
        ),
        (
            "select * from t where a in (1, null, 3)",
            "select * from t where a in ($1)",
        ),
        ("select extract(year from d)", "select EXTRACT($1 FROM d)"),
        (
            "select 1 where a is distinct from -1",
            "select $1 where a is distinct from $2",
        ),
    ] {
        assert_eq!(fingerprint(one), fingerprint(other), "{one}");
    }
    for (one, other) in [
        ("select a is null", "select a is not null"),
        ("select a is true", "select a is false"),
        ("select a is not true", "select a is not null"),
        ("select extract(year from d)", "select extract(year from e)"),
    ] {
        assert_ne!(fingerprint(one), fingerprint(other), "{one}");
    }
    assert_eq!(
        text("set a = null where b = 1"),
        "set a = null where b = $1"
    );
    assert_eq!(text("select a = - -1"), "select a = $1");
}

/// They were different statements, by the lengths of their constants.
#[test]
fn a_list_that_is_cut_is_one_statement_wherever_it_is_cut() {
    for (begins, rest) in [
        ("select a from t where b in (1,", " -22, null, 'x'::text, 5"),
        (
            "insert into t values (1, 'a', null),",
            " (2, 'b', 'x'), (4, 'c', false)",
        ),
        ("insert into t values (1, 'a', null),", " (2, 'b', "),
        ("select array[1,", " 2, 3"),
    ] {
        let one = normalize(begins).fingerprint;
        for end in 0..=rest.len() {
            let cut = format!("{begins}{}", &rest[..end]);
            assert_eq!(normalize(&cut).fingerprint, one, "{cut}");
        }
    }
}

#[test]
fn a_text_that_is_cut_within_a_constant_does_not_show_it() {
    for sql in [
        "select 'secret",
        "select $x$secret",
        "select E'sec\\'ret",
        "select 1 /* secret",
    ] {
        let text = text(sql);
        assert!(text.ends_with('…') && !text.contains("sec"), "{text}");
    }
    assert_eq!(text("select \"secr"), "select …");
    // Without standard_conforming_strings, the string goes on after its second quote.
    assert_eq!(text(r"select 'it\'s secret', 1"), "select $1 …");
    assert_eq!(text(r"select 'C:\dir', 1"), "select $1, $2");
}

#[test]
fn a_dollar_sign_after_a_constant_does_not_change_the_fingerprint() {
    let once = normalize("''$[");
    assert_eq!(once.text, "$1 $[");
    assert_eq!(normalize(&once.text), once);
}

proptest! {
    #[test]
    fn a_normalized_text_stays_as_it_is(sql in r#"([a-z0-9 '"$(),;:=\-/*.éE\\\[\]]|in|array|values){0,40}"#) {
        let once = normalize(&sql);
        let twice = normalize(&once.text.replace(super::CUT, ""));
        if !once.text.contains(super::CUT) && !once.text.contains(super::FOLDED) {
            prop_assert_eq!(&twice.fingerprint, &once.fingerprint, "{}", once.text);
        }
    }

    #[test]
    fn no_constant_survives(secret in "[a-z]{12}", before in r#"([a-z0-9 (),;:=*.]|"[a-z ]{0,3}"){0,20}"#) {
        let text = normalize(&format!("{before} '{secret}' x")).text;
        prop_assert!(!text.contains(&secret), "{}", text);
    }
}
