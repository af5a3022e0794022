//! From study files to plans: the expansion, and the error messages for invalid studies.

use pgassay_model::plan::{Overrides, Plan, Point, PointId, plan};
use pgassay_model::study::{Protocol, StudyError, StudySource};

pub const FOUNDING: &str = include_str!("../../../../studies/prepared-vs-simple.toml");

pub fn planned(text: &str, overrides: &Overrides) -> Result<Plan, StudyError> {
    let source = StudySource {
        file: "s.toml".to_owned(),
        text: text.to_owned(),
    };
    plan(&source.parse()?, &source, overrides)
}

pub fn rejection(text: &str) -> String {
    planned(text, &Overrides::default())
        .expect_err("this study must be refused")
        .to_string()
}

pub const SMALL: &str = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select ${x}\"\n[parameters]\nx = 1\n\
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
    assert_eq!(of("pairs = 5", &usual), (AllBlocks, 5, 8, 2));
    let fixed = Overrides {
        pairs: Some(7),
        ..Overrides::default()
    };
    assert_eq!(of("", &fixed), (AllBlocks, 7, 8, 2));
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
    assert_eq!(of("full = \"20s\"", &usual), (Sequential, 12, 4, 1));
    assert_eq!(of("full = \"5s\"", &usual), (Sequential, 12, 2, 1));
    let round = planned(SMALL, &usual).unwrap().block(0).remove(0);
    assert_eq!((round.timed.len(), round.profiled.len()), (16, 4));
    let repeats: Vec<&[usize]> = round.timed.chunks(4).collect();
    assert!(
        repeats.iter().all(|it| it[0] == it[3] && it[1] == it[2]),
        "{repeats:?}"
    );
}

/// Regression: `run prepared-vs-simple --max-time 2min` ended before its first analysis.
#[test]
fn six_server_starts_fit_into_a_time_limit() {
    let text = format!("{SMALL}[conditions]\nclients = [1, 8]\n");
    let of = |limit: &str, length: Option<&str>| {
        let overrides = Overrides {
            max_time: Some(limit.parse().unwrap()),
            length: length.map(|it| it.parse().unwrap()),
            ..Overrides::default()
        };
        planned(&text, &overrides).unwrap()
    };
    let unlimited = planned(&text, &Overrides::default()).unwrap();
    assert_eq!(
        of("1h", None).schedule.trial_us,
        unlimited.schedule.trial_us
    );
    for limit_s in [25, 30, 60] {
        let plan = of(&format!("{limit_s}s"), None);
        let six_s = plan.estimated_us() as f64 / 2e6;
        assert!(six_s <= f64::from(limit_s), "{six_s} s of {limit_s} s");
        assert!(plan.schedule.trial_us >= 100_000, "{:?}", plan.schedule);
    }
    // A gate's baselines have trials of equal length.
    let gate = Overrides {
        gate_limit_percent: Some(5.0),
        max_time: Some("25s".parse().unwrap()),
        ..Overrides::default()
    };
    let gate = planned(&text, &gate).unwrap();
    assert_eq!(gate.schedule.trial_us, unlimited.schedule.trial_us);
    // Who gives a length decides how long trials are.
    let given = of("25s", Some("2min")).schedule;
    assert_eq!(given.trial_us, of("1h", Some("2min")).schedule.trial_us);
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
        299,
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
            assert_eq!(round.timed.len(), 6 * plan.schedule.repeats as usize);
            for repeat in round.timed.chunks(6) {
                let mirrored: Vec<usize> = repeat.iter().rev().copied().collect();
                assert_eq!(repeat, mirrored);
            }
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
        threads: Some(2),
        without_profile: true,
        ..Overrides::default()
    };
    let plan = planned(FOUNDING, &overrides).unwrap();
    assert_eq!(plan.schedule.threads, 2);
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

/// Regression: of `TimeZone` and `timezone`, both were written, and PostgreSQL took the last: not the variant's.
#[test]
fn a_setting_of_a_variant_replaces_that_of_all_however_it_is_written() {
    let text = format!(
        "{SMALL}settings = {{ TimeZone = \"UTC\" }}\n[server.settings]\ntimezone = \"Europe/Berlin\"\n"
    );
    let plan = planned(&text, &Overrides::default()).unwrap();
    let settings: Vec<_> = plan.servers.iter().map(|it| it.settings.clone()).collect();
    let one = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    assert_eq!(
        settings,
        [one("timezone", "Europe/Berlin"), one("TimeZone", "UTC")]
    );
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
fn binaries_without_a_version_accept_any_version() {
    let overrides = Overrides {
        binaries: Some("/opt/pg/bin".to_owned()),
        ..Overrides::default()
    };
    let plan = planned(FOUNDING, &overrides).unwrap();
    assert_eq!(plan.servers[0].binaries.as_deref(), Some("/opt/pg/bin"));
    assert_eq!(plan.servers[0].version.as_deref(), Some("latest"));
}

/// Regression: the list of versions won, and `--binaries` had no effect.
#[test]
fn binaries_replace_a_list_of_versions() {
    let text =
        format!("{SMALL}[conditions]\nversion = [\"10\", \"18\"]\n[quick]\nversion = [\"18\"]\n");
    for quick in [false, true] {
        let overrides = Overrides {
            binaries: Some("/opt/pg".to_owned()),
            quick,
            ..Overrides::default()
        };
        let plan = planned(&text, &overrides).unwrap();
        let binaries = plan.servers.iter().map(|it| it.binaries.as_deref());
        assert_eq!(binaries.collect::<Vec<_>>(), [Some("/opt/pg")]);
        assert_eq!(plan.conditions.len(), 1);
    }
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

/// Regression: three conditions labeled 0, 16 and 128 all had the value 4 that `--param` gave.
#[test]
fn a_parameter_on_the_command_line_shortens_the_list_of_the_conditions() {
    let text = format!(
        "{SMALL}[conditions]\nparameters = {{ x = [0, 16, 128] }}\n[quick]\nparameters = {{ x = 16 }}\n"
    );
    let of = |quick: bool, given: Option<&str>| {
        let overrides = Overrides {
            quick,
            parameters: given
                .map(|it| ("x".to_owned(), it.to_owned()))
                .into_iter()
                .collect(),
            ..Overrides::default()
        };
        let plan = planned(&text, &overrides).unwrap();
        let of_point = |it: &Point| it.scripts[0].text.replace("select ", "");
        let values: Vec<_> = plan.points.iter().step_by(2).map(of_point).collect();
        let labels: Vec<_> = plan
            .conditions
            .iter()
            .map(|it| it.values["x"].clone())
            .collect();
        assert_eq!(values, labels);
        values.join(" ")
    };
    assert_eq!(of(false, None), "0 16 128");
    assert_eq!(of(true, None), "16");
    assert_eq!(of(false, Some("4")), "4");
    assert_eq!(of(true, Some("4")), "4");
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

#[test]
fn cpus_are_kept_awake_if_the_study_or_the_command_line_asks_for_it() {
    let is_asked = |text: &str, keep_cpus_awake: Option<bool>, dsn: Option<&str>| {
        let overrides = Overrides {
            keep_cpus_awake,
            dsn: dsn.map(str::to_owned),
            ..Overrides::default()
        };
        planned(text, &overrides).unwrap().schedule.keep_cpus_awake
    };
    assert!(!is_asked(SMALL, None, None) && is_asked(SMALL, Some(true), None));
    assert!(is_asked(FOUNDING, None, None), "one client is a condition");
    assert!(!is_asked(FOUNDING, Some(false), None));
    let running = Some("host=db");
    assert!(!is_asked(FOUNDING, None, running) && is_asked(FOUNDING, Some(true), running));
}

#[test]
fn trials_are_repeated_within_a_server_start_unless_they_would_be_too_short() {
    let schedule = planned(FOUNDING, &Overrides::default()).unwrap().schedule;
    // Connecting and warming up take as long as five trials.
    assert!(
        schedule.repeats > 1 && schedule.trial_us >= 100_000,
        "{schedule:?}"
    );
}

/// Regression: `--pairs 10` measured four trials of half a second after each server start, which vary more in sum than
/// sixteen of an eighth.
#[test]
fn a_fixed_number_of_pairs_repeats_its_trials_like_any_other_run() {
    let of = |text: &str, length: &str| {
        let overrides = Overrides {
            pairs: Some(10),
            length: Some(length.parse().unwrap()),
            ..Overrides::default()
        };
        let schedule = planned(text, &overrides).unwrap().schedule;
        (schedule.repeats, schedule.profiled, schedule.blocks)
    };
    assert_eq!(of(SMALL, "24s"), (4, 2, 10));
    assert_eq!(of(SMALL, "12s"), (2, 1, 10), "trials of 100 ms");
    assert_eq!(of(SMALL, "4s"), (1, 1, 10));
    let reset = SMALL.replace("[[script]]", "[data]\nreset = \"vacuum\"\n[[script]]");
    assert_eq!(
        of(&reset, "20s"),
        (1, 1, 10),
        "a reset may take longer than a trial"
    );
}
