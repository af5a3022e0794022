//! Studies that are rejected, and the lines that the messages name.

use pgassay_model::plan::Overrides;

use crate::plan::{SMALL, planned, rejection};

#[test]
fn invalid_studies_are_rejected_with_line_and_message() {
    let table = [
        (
            SMALL.replace("${x}", "${y}"),
            "s.toml:4:1: there is no parameter \"y\"",
        ),
        (
            SMALL.replace("\"w\"", "\"v\""),
            "s.toml:10:8: duplicate variant name \"v\"",
        ),
        (
            format!("{SMALL}script = \"b\"\n"),
            "s.toml:11:10: there is no script \"b\"; known: \"a\"",
        ),
        (
            format!("{SMALL}[conditions]\nclients = [0]\n"),
            "s.toml:12:11: `clients` must list at least one number, each 1 or more",
        ),
        (
            format!("{SMALL}[length]\npairs = 1\n"),
            "s.toml:12:9: `pairs` must be at least 2",
        ),
        (
            format!("{SMALL}protocol = \"simple\"\n[conditions]\nprotocol = [\"simple\"]\n"),
            "s.toml:11:12: `protocol` is set by variant \"w\" and by [conditions]",
        ),
        (
            SMALL.replace("text = \"select ${x}\"\n", ""),
            "s.toml:2:1: script \"a\" needs one of `text`, `file` and `builtin`",
        ),
    ];
    for (text, expected) in table {
        let message = rejection(&text);
        assert!(
            message.starts_with(expected),
            "{message}\nshould start with\n{expected}"
        );
    }
}

#[test]
fn numbers_beyond_any_server_or_memory_are_rejected_with_their_line() {
    let many: Vec<String> = (1..=100).map(|number| number.to_string()).collect();
    let many = many.join(", ");
    let lists: Vec<String> = (0..20)
        .map(|index| format!("p{index} = [{many}]\n"))
        .collect();
    let cross_product = lists.concat();
    let table = [
        (
            format!("{SMALL}[conditions]\nclients = [4294967295]\n"),
            "s.toml:12:11: 4294967295 clients are too many",
        ),
        (
            format!("{SMALL}[conditions]\nclients = [200000]\n"),
            "s.toml:12:11: the variants need 400010 connections to one server",
        ),
        (
            format!("{SMALL}idle_connections = 4294967295\n"),
            "s.toml: the variants need 4294967313 connections to one server",
        ),
        (
            format!("{SMALL}[conditions.parameters]\n{cross_product}"),
            "2 variants under 18446744073709551615 conditions",
        ),
        (
            SMALL.replace("${x}", "${x * 8000000000}"),
            "s.toml:4:1: with 8000000000 lines repeated here, this text exceeds 16 MiB",
        ),
        (
            SMALL.replace("${x}", "${x * n}") + "[conditions.parameters]\nn = [\"ten\"]\n",
            "s.toml:4:1: the parameter `n` is a number of lines here, but its value is \"ten\"",
        ),
        (
            SMALL
                .replace("${x}", "${x * 16000}")
                .replace("x = 1", &format!("x = \"{}\"", "y".repeat(1000)))
                + &format!("[conditions]\nclients = [{many}]\n"),
            "the SQL and scripts of all variants and conditions exceed 256 MiB",
        ),
        (
            format!("{SMALL}[length]\npairs = 4294967295\n"),
            "s.toml:12:9: `pairs` must be at most 100000",
        ),
        (
            format!("{SMALL}[length]\nthreads = 4294967295\n"),
            "s.toml:12:11: `threads` must be between 1 and 1024",
        ),
        (
            format!("{SMALL}[length]\nfull = \"99999999d\"\n"),
            "s.toml:12:8: duration \"99999999d\" is too long",
        ),
    ];
    for (text, expected) in table {
        let message = rejection(&text);
        assert!(
            message.starts_with("s.toml:") && message.contains(expected),
            "{message}\nshould contain\n{expected}"
        );
    }
}

#[test]
fn empty_lists_are_rejected_and_not_ignored() {
    for table in ["conditions", "quick"] {
        for key in ["version", "script", "network"] {
            let message = rejection(&format!("{SMALL}[{table}]\n{key} = []\n"));
            assert!(
                message.starts_with("s.toml:12:") && message.contains("this list is empty"),
                "{message}"
            );
        }
    }
    let message = rejection(&format!("{SMALL}[conditions]\nprotocol = []\n"));
    assert!(message.contains("this list is empty"), "{message}");
}

#[test]
fn a_value_of_a_variant_that_hides_one_of_the_conditions_is_rejected() {
    for (variant, conditions) in [
        (
            "session = { work_mem = \"4MB\" }",
            "session = { work_mem = [\"1MB\", \"8MB\"] }",
        ),
        (
            "settings = { jit = \"on\" }",
            "settings = { JIT = [\"on\", \"off\"] }",
        ),
        (
            "settings = { jit = \"on\" }",
            "session = { jit = [\"on\", \"off\"] }",
        ),
        ("parameters = { x = 2 }", "parameters = { x = [1, 3] }"),
    ] {
        let message = rejection(&format!("{SMALL}{variant}\n[conditions]\n{conditions}\n"));
        assert!(
            message.starts_with("s.toml:11:")
                && message
                    .contains("is set by variant \"w\" and by [conditions]; remove one of them"),
            "{message}"
        );
    }
}

/// Regression: with `session = { database = "shop" }`, the load ran in that database, which it must not change.
#[test]
fn a_session_setting_that_would_choose_another_database_or_user_is_rejected() {
    for (keys, line) in [
        ("session = { database = \"shop\" }\n", 11),
        ("session = { User = \"postgres\" }\n", 11),
        ("[conditions]\nsession = { replication = [\"on\"] }\n", 12),
        ("session = { \"_pq_.a\" = \"1\" }\n", 11),
    ] {
        let message = rejection(&format!("{SMALL}{keys}"));
        let begin = format!("s.toml:{line}:");
        assert!(
            message.starts_with(&begin) && message.contains("is not a setting"),
            "{message}"
        );
    }
    let other = format!("{SMALL}session = {{ \"my.user\" = \"a\" }}\n");
    assert!(planned(&other, &Overrides::default()).is_ok());
}

#[test]
fn a_value_that_a_list_has_twice_is_rejected() {
    for list in [
        "clients = [1, 1]",
        "protocol = [\"simple\", \"simple\"]",
        "settings = { jit = [\"on\", \"off\", \"on\"] }",
        "version = [\"15\", \"15\"]",
    ] {
        let message = rejection(&format!("{SMALL}[conditions]\n{list}\n"));
        assert!(
            message.starts_with("s.toml:12:") && message.contains("twice; remove one"),
            "{message}"
        );
    }
}

#[test]
fn a_misspelled_param_is_an_error_and_one_without_a_default_is_not() {
    let with = |text: &str, name: &str| {
        let overrides = Overrides {
            parameters: [(name.to_owned(), "3".to_owned())].into(),
            ..Overrides::default()
        };
        planned(text, &overrides).map_err(|it| it.to_string())
    };
    let text = SMALL.replace("${x}", "${rows} + ${x}") + "[quick]\nparameters = { rows = 1 }\n";
    let message = with(&text, "rowz").expect_err("it is misspelled");
    assert!(
        message.contains("there is no parameter \"rowz\"")
            && message.contains("did you mean \"rows\"?"),
        "{message}"
    );
    assert!(with(&text, "rows").is_ok());
    assert!(with(&SMALL.replace("${x}", "${y}"), "y").is_ok());
    assert!(with(SMALL, "scale").is_ok());
    // Regression: it was accepted, and had no effect.
    let message = with(&SMALL.replace("${x}", "${clients}"), "clients").expect_err("it is fixed");
    assert!(message.contains("choose another name"), "{message}");
    let text = format!("{SMALL}parameters = {{ clients = 3 }}\n");
    assert!(rejection(&text).contains("choose another name"));
}

/// Regression: "not measured in this run", in each report of the study.
#[test]
fn an_expectation_for_values_that_no_condition_has_is_rejected() {
    let with = |clients: &str| {
        format!(
            "{SMALL}[conditions]\nclients = [1, 8]\n[quick]\nclients = [2]\n[[expect]]\nthat = \"t\"\n\
             check = \"w.tps_ratio > 1 where clients = {clients}\"\n"
        )
    };
    let message = rejection(&with("77"));
    let expected = "s.toml:17:9: no condition has clients = 77; the study has 1, 8, 2";
    assert!(message.starts_with(expected), "{message}");
    for clients in ["2", "8|77"] {
        let plan = planned(&with(clients), &Overrides::default()).unwrap();
        assert_eq!(plan.conditions.len(), 2);
    }
}
