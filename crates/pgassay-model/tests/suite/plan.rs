//! From study files to plans: the expansion, and the error messages for invalid studies.

use pgassay_model::plan::{Overrides, Plan, PointId, plan};
use pgassay_model::study::{Protocol, StudyError, StudySource};

const FOUNDING: &str = include_str!("../../../../studies/prepared-vs-simple.toml");

fn planned(text: &str, overrides: &Overrides) -> Result<Plan, StudyError> {
    let source = StudySource {
        file: "s.toml".to_owned(),
        text: text.to_owned(),
    };
    plan(&source.parse()?, &source, overrides)
}

fn rejection(text: &str) -> String {
    planned(text, &Overrides::default())
        .expect_err("this study must be refused")
        .to_string()
}

const SMALL: &str = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select ${x}\"\n[parameters]\nx = 1\n\
[[variant]]\nname = \"v\"\n[[variant]]\nname = \"w\"\n";

#[test]
fn variants_of_a_block_draw_independent_random_numbers() {
    let plan = planned(SMALL, &Overrides::default()).unwrap();
    let seeds: std::collections::BTreeSet<u64> = (0..6)
        .flat_map(|block| (0..2).map(move |variant| (block, variant)))
        .map(|(block, variant)| plan.client_seed(block, PointId::new(0, variant)))
        .collect();
    assert_eq!(
        seeds.len(),
        12,
        "with equal streams, variants would read the same pages"
    );
}

#[test]
fn the_baseline_is_not_always_the_first_to_warm_up() {
    let plan = planned(SMALL, &Overrides::default()).unwrap();
    let rounds: Vec<_> = (0..64).map(|block| plan.block(block).remove(0)).collect();
    let first = rounds.iter().filter(|it| it.warm_up == [0, 1]).count();
    assert!((16..=48).contains(&first), "{first} of 64");
    assert!(rounds.iter().all(|it| it.warm_up.len() == 2));
    // The warm-up order does not determine who runs the first trial.
    let alike = rounds.iter().filter(|it| it.warm_up[0] == it.timed[0]);
    assert!((16..=48).contains(&alike.count()));
}

#[test]
fn restart_every_groups_blocks_by_server_start() {
    let fixed = format!("{SMALL}[length]\npairs = 6\n");
    let plan = planned(&fixed, &Overrides::default()).unwrap();
    let each_block: Vec<_> = (0..6).map(|block| block..block + 1).collect();
    assert_eq!(plan.schedule.server_starts(), each_block);
    let pairs_of = format!("{SMALL}[length]\nrestart_every = 2\npairs = 6\n");
    let plan = planned(&pairs_of, &Overrides::default()).unwrap();
    assert_eq!(plan.schedule.server_starts(), [0..2, 2..4, 4..6]);
    let never = format!("{SMALL}[length]\nrestart_every = 0\npairs = 5\n");
    let plan = planned(&never, &Overrides::default()).unwrap();
    assert!(
        plan.schedule
            .server_starts()
            .into_iter()
            .eq(std::iter::once(0..5))
    );
    let uneven = format!("{SMALL}[length]\nrestart_every = 4\npairs = 5\n");
    let plan = planned(&uneven, &Overrides::default()).unwrap();
    assert_eq!(plan.schedule.server_starts(), [0..4, 4..5]);
}

#[test]
fn without_pairs_a_plan_is_sequential_and_a_server_start_is_its_unit() {
    use pgassay_model::plan::StoppingRule::{AllBlocks, Sequential};
    let of = |length: &str, overrides: &Overrides| {
        let plan = planned(&format!("{SMALL}[length]\n{length}\n"), overrides).unwrap();
        let schedule = plan.schedule;
        (
            schedule.stopping,
            schedule.blocks,
            schedule.timed(),
            schedule.profiled,
        )
    };
    let usual = Overrides::default();
    assert_eq!(of("", &usual), (Sequential, 12, 8, 2));
    assert_eq!(of("restart_every = 2", &usual), (Sequential, 24, 4, 1));
    assert_eq!(of("restart_every = 9", &usual), (Sequential, 108, 2, 1));
    // Without restarts, pairs are the units.
    assert_eq!(of("restart_every = 0", &usual), (Sequential, 48, 2, 1));
    assert_eq!(of("pairs = 5", &usual), (AllBlocks, 5, 2, 1));
    let fixed = Overrides {
        pairs: Some(7),
        ..Overrides::default()
    };
    assert_eq!(of("", &fixed), (AllBlocks, 7, 2, 1));
    // A gate and a time limit end a run, also of a study that fixes its pairs.
    let gate = Overrides {
        gate_limit_percent: Some(5.0),
        ..Overrides::default()
    };
    assert_eq!(of("pairs = 5", &gate), (Sequential, 12, 8, 2));
    let limited = Overrides {
        max_time: Some("1min".parse().unwrap()),
        ..Overrides::default()
    };
    assert_eq!(of("pairs = 5", &limited), (Sequential, 12, 8, 2));
    // Short trials would waste time between them: fewer and longer ones.
    assert_eq!(of("full = \"40s\"", &usual), (Sequential, 12, 4, 1));
    assert_eq!(of("full = \"5s\"", &usual), (Sequential, 12, 2, 1));
    let round = planned(SMALL, &usual).unwrap().block(0).remove(0);
    assert_eq!((round.timed.len(), round.profiled.len()), (16, 4));
    let repeats: Vec<&[usize]> = round.timed.chunks(4).collect();
    assert!(
        repeats.iter().all(|it| it[0] == it[3] && it[1] == it[2]),
        "{repeats:?}"
    );
}

#[test]
fn a_half_width_decides_the_number_of_pairs_unless_the_user_does() {
    use pgassay_model::plan::StoppingRule::{AllBlocks, Precision, Sequential};
    let of = |length: &str, overrides: &Overrides| {
        let text = format!("{SMALL}[length]\n{length}\n");
        planned(&text, overrides).map(|plan| {
            let schedule = plan.schedule;
            (
                schedule.stopping,
                schedule.blocks,
                schedule.half_width_percent,
            )
        })
    };
    let usual = Overrides::default();
    let wanted = Overrides {
        half_width: Some("0.5%".parse().unwrap()),
        ..Overrides::default()
    };
    let in_study = "half_width = \"1%\"";
    assert_eq!(of(in_study, &usual), Ok((Precision, 12, Some(1.0))));
    assert_eq!(of(in_study, &wanted), Ok((Precision, 12, Some(0.5))));
    assert_eq!(of("pairs = 5", &wanted), Ok((Precision, 12, Some(0.5))));
    let unrestarted = format!("{in_study}\nrestart_every = 0");
    assert_eq!(of(&unrestarted, &usual), Ok((Precision, 48, Some(1.0))));
    let fixed = Overrides {
        pairs: Some(7),
        ..Overrides::default()
    };
    assert_eq!(of(in_study, &fixed), Ok((AllBlocks, 7, None)));
    // A quick run has wider intervals, and a gate another question.
    let quick = Overrides {
        quick: true,
        ..Overrides::default()
    };
    assert_eq!(of(in_study, &quick), Ok((Sequential, 12, None)));
    let gate = Overrides {
        gate_limit_percent: Some(5.0),
        ..wanted.clone()
    };
    assert_eq!(of(in_study, &gate), Ok((Sequential, 12, None)));
    // A time limit ends both stages.
    let limited = Overrides {
        max_time: Some("1min".parse().unwrap()),
        ..wanted
    };
    let plan = planned(SMALL, &limited).unwrap();
    assert_eq!(plan.schedule.stopping, Precision);
    assert_eq!(plan.schedule.max_time_us, Some(60_000_000));
    let both = of("half_width = \"1%\"\npairs = 5", &usual).unwrap_err();
    assert!(both.to_string().contains("remove `pairs`"), "{both}");
    let bare = of("half_width = \"1\"", &usual).unwrap_err().to_string();
    assert!(bare.contains("a number and %, such as 1%"), "{bare}");
}

#[test]
fn the_founding_study_needs_one_server_and_twenty_seven_points() {
    let plan = planned(FOUNDING, &Overrides::default()).unwrap();
    assert_eq!(
        plan.servers.len(),
        1,
        "protocols share a server for a fair comparison"
    );
    assert_eq!(plan.variants, ["simple", "extended", "prepared"]);
    assert_eq!(plan.conditions.len(), 9);
    assert_eq!(plan.points.len(), 27);
    assert_eq!(plan.servers[0].connections, 3 * 64 + 10);
    assert!(
        plan.servers[0].databases[0].setup[0]
            .text
            .contains("generate_series(1, 1000000)"),
        "parameters are replaced"
    );
    assert_eq!(plan.point(PointId::new(0, 2)).protocol, Protocol::Prepared);
    assert_eq!(plan.conditions[0].title(), "f1, 1 client");
    assert_eq!(plan.conditions[5].title(), "plain, 64 clients");
    assert_eq!(
        plan.measurement_us() / 1_000_000,
        119,
        "approximately the time that the study requests"
    );
}

#[test]
fn every_block_holds_every_point_twice_in_mirrored_order() {
    let plan = planned(
        FOUNDING,
        &Overrides {
            seed: 7,
            ..Overrides::default()
        },
    )
    .unwrap();
    for block in 0..plan.schedule.blocks {
        let rounds = plan.block(block);
        let mut conditions: Vec<usize> = rounds.iter().map(|round| round.condition).collect();
        conditions.sort_unstable();
        assert_eq!(conditions, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for round in rounds {
            let mirrored: Vec<usize> = round.timed.iter().rev().copied().collect();
            assert_eq!(round.timed, mirrored);
            assert_eq!(round.timed.len(), 6);
            assert_eq!(round.profiled.len(), 3);
        }
    }
    assert_eq!(plan.block(3), plan.block(3));
    let other = planned(
        FOUNDING,
        &Overrides {
            seed: 8,
            ..Overrides::default()
        },
    )
    .unwrap();
    assert!(
        (0..6).any(|block| plan.block(block) != other.block(block)),
        "the seed determines the order"
    );
}

#[test]
fn command_line_options_override_the_study() {
    let overrides = Overrides {
        clients: Some(vec![2]),
        variants: Some(vec!["prepared".to_owned(), "simple".to_owned()]),
        scripts: Some(vec!["plain".to_owned()]),
        parameters: [("rows".to_owned(), "10".to_owned())].into(),
        versions: vec!["10".to_owned()],
        pairs: Some(3),
        without_profile: true,
        ..Overrides::default()
    };
    let plan = planned(FOUNDING, &overrides).unwrap();
    assert_eq!(plan.variants, ["prepared", "simple"]);
    assert_eq!(
        (
            plan.points.len(),
            plan.schedule.blocks,
            plan.schedule.profiled
        ),
        (2, 3, 0)
    );
    assert_eq!(plan.servers[0].version.as_deref(), Some("10"));
    assert!(plan.points[0].scripts[0].text.contains("random(1, 10)"));
}

#[test]
fn a_variant_with_its_own_settings_gets_its_own_server() {
    let plan = planned(
        &format!("{SMALL}settings = {{ jit = false }}\n"),
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(plan.servers.len(), 2);
    assert_eq!(plan.servers[1].settings["jit"], "off");
    assert_eq!((plan.points[0].server, plan.points[1].server), (0, 1));
}

#[test]
fn session_settings_share_the_server() {
    let plan = planned(
        &format!("{SMALL}session = {{ work_mem = \"1MB\" }}\n"),
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(plan.servers.len(), 1);
    assert_eq!(plan.points[1].session["work_mem"], "1MB");
}

#[test]
fn versions_as_conditions_give_a_server_each_and_parameters_make_points() {
    let text =
        format!("{SMALL}[conditions]\nversion = [\"10\", \"18\"]\nparameters = {{ x = [1, 2] }}\n");
    let plan = planned(&text, &Overrides::default()).unwrap();
    assert_eq!(plan.servers.len(), 2);
    assert_eq!(plan.conditions.len(), 4);
    assert_eq!(plan.conditions[1].label, "version=10, x=2");
    assert_eq!(plan.point(PointId::new(1, 0)).scripts[0].text, "select 2");
}

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
            "s.toml:11:10: there is no script \"b\"; known: a",
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
fn binaries_without_a_version_accept_any_version() {
    let overrides = Overrides {
        binaries: Some("/opt/pg/bin".to_owned()),
        ..Overrides::default()
    };
    let plan = planned(FOUNDING, &overrides).unwrap();
    assert_eq!(plan.servers[0].binaries.as_deref(), Some("/opt/pg/bin"));
    assert_eq!(plan.servers[0].version.as_deref(), Some("latest"));
}

#[test]
fn a_variant_with_other_data_gets_a_database_on_the_shared_server() {
    let text = format!(
        "{SMALL}setup = \"create table u${{x}}()\"\nreset = \"truncate u\"\n[data]\nsetup = \"create table t()\"\n"
    );
    let plan = planned(&text, &Overrides::default()).unwrap();
    assert_eq!(
        plan.servers.len(),
        1,
        "variants share a server for a fair comparison"
    );
    let names: Vec<&str> = plan.servers[0]
        .databases
        .iter()
        .map(|database| database.name.as_str())
        .collect();
    assert_eq!(names, ["postgres", "data_2"]);
    let setup: Vec<&str> = plan.servers[0].databases[1]
        .setup
        .iter()
        .map(|sql| sql.text.as_str())
        .collect();
    assert_eq!(setup, ["create table t()", "create table u1()"]);
    assert_eq!((plan.points[0].database, plan.points[1].database), (0, 1));
    assert_eq!(
        plan.points[1].resets[0].path("reset"),
        ["variant", "1", "reset"]
    );
}

#[test]
fn networks_and_settings_can_be_conditions() {
    let text = format!(
        "{SMALL}[conditions]\nnetwork = [\"unix\", {{ delay = \"1ms\" }}]\nsettings = {{ jit = [true, false] }}\n"
    );
    let plan = planned(&text, &Overrides::default()).unwrap();
    assert_eq!(plan.servers.len(), 2, "one server per setting");
    assert!(plan.servers.iter().all(|server| server.tcp));
    assert_eq!(plan.conditions[3].label, "network=1ms, jit=off");
    assert_eq!(plan.conditions[3].values["clients"], "8");
    assert_eq!(
        plan.point(PointId::new(3, 0))
            .network
            .delay()
            .map(|delay| delay.as_millis()),
        Some(1)
    );
}

#[test]
fn quick_overrides_the_study_and_the_command_line_overrides_quick() {
    let text = format!(
        "{SMALL}[conditions]\nclients = [1, 8, 64]\nversion = [\"10\", \"18\"]\n\
         [quick]\nclients = [8]\nversion = [\"18\"]\npairs = 3\nparameters = {{ x = 7 }}\n"
    );
    let mut overrides = Overrides {
        quick: true,
        ..Overrides::default()
    };
    let plan = planned(&text, &overrides).unwrap();
    assert_eq!((plan.conditions.len(), plan.schedule.blocks), (1, 3));
    assert_eq!(plan.points[0].scripts[0].text, "select 7");
    overrides.clients = Some(vec![1, 2]);
    overrides.versions = vec!["9.6".to_owned(), "12".to_owned()];
    let plan = planned(&text, &overrides).unwrap();
    assert_eq!(plan.conditions.len(), 4);
    assert_eq!(plan.servers[0].version.as_deref(), Some("9.6"));
}

#[test]
fn a_script_can_yield_several_units_per_transaction() {
    let text = SMALL.replace(
        "[parameters]\n",
        "gives = { values = \"${many}\" }\n[parameters]\nmany = 10_000\n",
    );
    let plan = planned(&text, &Overrides::default()).unwrap();
    assert_eq!(plan.points[0].per_transaction(), 10_000);
    assert_eq!(plan.points[0].gives.as_ref().unwrap().unit, "values");
    let message = rejection(&text.replace("many = 10_000", "many = \"lots\""));
    assert!(
        message.starts_with("s.toml:5:20: \"lots\" is not a valid number of values"),
        "{message}"
    );
}

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
