//! Plans for external servers.

use pgassay_model::plan::Overrides;

use crate::plan::{SMALL, planned, rejection};

const MINE: &str = "dsn = \"host=h\"\n";

#[test]
fn variants_share_an_external_server_and_have_separate_databases() {
    let text = format!(
        "{SMALL}{MINE}setup = \"create table t()\"\n[[variant]]\nname = \"x\"\n{MINE}\
         [server]\nversion = \"17\"\n"
    );
    let plan = planned(&text, &Overrides::default()).unwrap();
    let servers: Vec<_> = plan
        .servers
        .iter()
        .map(|it| (it.version.as_deref(), it.dsn.as_deref()))
        .collect();
    assert_eq!(servers, [(Some("17"), None), (None, Some("host=h"))]);
    let names: Vec<_> = plan.servers[1]
        .databases
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["data_1", "data_2"], "none of them exists already");
    let of_all = format!("{SMALL}[server]\n{MINE}");
    let plan = planned(&of_all, &Overrides::default()).unwrap();
    assert_eq!(
        (plan.servers.len(), plan.servers[0].dsn.as_deref()),
        (1, Some("host=h"))
    );
}

#[test]
fn a_dsn_on_the_command_line_replaces_the_server_and_the_versions() {
    let overrides = Overrides {
        dsn: Some("host=h".to_owned()),
        ..Overrides::default()
    };
    let text = format!(
        "{SMALL}[conditions]\nversion = [\"10\", \"18\"]\n[server]\nsettings = {{ jit = false }}\n"
    );
    let plan = planned(&text, &overrides).unwrap();
    assert_eq!((plan.conditions.len(), plan.servers.len()), (1, 1));
    assert_eq!(plan.servers[0].dsn.as_deref(), Some("host=h"));
    assert_eq!(
        plan.servers[0].settings["jit"], "off",
        "for comparison with the external server"
    );
    // A variant that sets its own version still gets its own server.
    let plan = planned(&format!("{SMALL}version = \"17\"\n"), &overrides).unwrap();
    assert_eq!(plan.servers[1].version.as_deref(), Some("17"));
    let refused = planned(
        &format!("{SMALL}settings = {{ jit = false }}\n"),
        &overrides,
    )
    .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("`settings` cannot be set for variant"),
        "{refused}"
    );
}

#[test]
fn keys_that_would_change_an_external_server_are_rejected_with_their_line() {
    let conflict = |words: &str| (format!("{SMALL}{MINE}{words}\n"), words.to_owned());
    let conditions = |words: &str| {
        (
            format!("{SMALL}{MINE}[conditions]\n{words}\n"),
            words.to_owned(),
        )
    };
    let server = |words: &str| {
        (
            format!("{SMALL}[server]\n{MINE}{words}\n"),
            words.to_owned(),
        )
    };
    let both = |words: &str| {
        (
            format!("{SMALL}[server]\n{MINE}[conditions]\n{words}\n"),
            words.to_owned(),
        )
    };
    let table = [
        conflict("version = \"17\""),
        conflict("binaries = \"/opt/pg\""),
        conflict("settings = { jit = false }"),
        conflict("environment = { A = 1 }"),
        conflict("data_checksums = true"),
        conflict("idle_connections = 3"),
        conflict("network = \"tcp\""),
        conditions("version = [\"17\"]"),
        conditions("settings = { jit = [true, false] }"),
        conditions("network = [\"unix\"]"),
        both("version = [\"17\"]"),
        server("version = \"17\""),
        server("binaries = \"/opt/pg\""),
        server("settings = { jit = false }"),
        server("environment = { A = 1 }"),
        server("data_checksums = true"),
    ];
    for (text, words) in table {
        let message = rejection(&text);
        let line = 1 + text.lines().position(|line| line == words).unwrap();
        let key = words.split(' ').next().unwrap();
        let start = format!("s.toml:{line}:");
        assert!(message.starts_with(&start), "{message}\nof\n{text}");
        assert!(
            message.contains(&format!("`{key}` cannot be set")),
            "{message}"
        );
    }
    let redis = format!("{SMALL}{MINE}driver = \"redis\"\n");
    assert!(rejection(&redis).contains("`address`"));
}
