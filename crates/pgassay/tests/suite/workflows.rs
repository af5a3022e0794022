//! The workflows for GitHub that docs/gate.md explains: they are YAML, their commands run, and the part that can write
//! runs nothing of a pull request.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgassay_test_support::{Finished, Scratch};
use yaml_rust2::{Yaml, YamlLoader};

use crate::PROGRAM;

fn workflow(name: &str) -> Yaml {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/workflows")
        .join(name);
    let text = fs::read_to_string(&path).expect("the workflow is there");
    let mut documents = YamlLoader::load_from_str(&text).expect("it is YAML");
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn steps<'a>(workflow: &'a Yaml, job: &str) -> &'a [Yaml] {
    let steps = &workflow["jobs"][job]["steps"];
    steps.as_vec().expect("the job has steps")
}

/// The script of the step with this name.
fn script(workflow: &Yaml, job: &str, name: &str) -> String {
    let mut steps = steps(workflow, job).iter();
    let step = steps.find(|it| it["name"].as_str() == Some(name));
    let step = step.unwrap_or_else(|| panic!("no step {name}"));
    step["run"].as_str().expect("it runs a script").to_owned()
}

/// Runs a script as GitHub does, in the scratch directory, with these directories before the rest of PATH.
fn run(scratch: &Scratch, script: &str, first: &Path, variables: &[(&str, &str)]) -> Finished {
    let file = scratch.path().join("step.sh");
    fs::write(&file, script).expect("the script is written");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command: Command = scratch.command_of(Path::new("bash"));
    command
        .arg("-e")
        .arg(&file)
        .env("PATH", format!("{}:{path}", first.display()))
        .envs(variables.iter().copied());
    Finished::of(&command.output().expect("bash runs"))
}

#[test]
fn the_part_that_runs_a_pull_request_cannot_write() {
    let gate = workflow("gate.yml");
    let text = format!("{gate:?}");
    assert!(!text.contains("pull_request_target") && !text.contains("secrets."));
    let permissions = gate["permissions"].as_hash().expect("permissions");
    assert_eq!(permissions.len(), 1);
    assert_eq!(gate["permissions"]["contents"].as_str(), Some("read"));
    assert!(gate["jobs"]["gate"]["permissions"].is_badvalue());
    // The second part is started by the name of the first.
    let comment = workflow("gate-comment.yml");
    let started_by = comment["on"]["workflow_run"]["workflows"].as_vec();
    assert_eq!(
        started_by.map(Vec::as_slice),
        Some(&[gate["name"].clone()][..])
    );
}

#[test]
fn the_part_that_can_write_runs_no_code_of_a_pull_request() {
    let comment = workflow("gate-comment.yml");
    let used: Vec<&str> = steps(&comment, "comment")
        .iter()
        .filter_map(|it| it["uses"].as_str())
        .collect();
    assert_eq!(used, ["actions/download-artifact@v4"]);
    for step in steps(&comment, "comment") {
        // An expression in a script is replaced before the shell reads it, so it could contain commands.
        let is_plain = step["run"].as_str().is_none_or(|it| !it.contains("${{"));
        assert!(is_plain, "{step:?}");
    }
}

/// Stands in for GitHub, which a test cannot reach: answers from the environment, and notes what is posted.
const FAKE_GH: &str = "#!/bin/sh
case \"$*\" in
  *--method*) echo \"$*\" >> posted; cp comment.md body ;;
  *pulls/12*) echo \"$FAKE_HEAD\" ;;
  *issues/12/comments*) printf '%s' \"$FAKE_COMMENTS\" ;;
  *) exit 1 ;;
esac
";

/// What is posted for these files, and the exit status.
fn posted(number: &str, comments: &str, head: &str) -> (Option<String>, Finished) {
    let scratch = Scratch::new(PROGRAM);
    let bin: PathBuf = scratch.path().join("bin");
    for directory in [&bin, &scratch.path().join("gate")] {
        fs::create_dir(directory).expect("a directory");
    }
    let gh = bin.join("gh");
    fs::write(&gh, FAKE_GH).expect("the program is written");
    let mut mode = fs::metadata(&gh).expect("it is there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&gh, mode).expect("its mode");
    fs::write(scratch.path().join("gate/number"), number).expect("a file");
    fs::write(scratch.path().join("gate/gate.md"), "**pass: ×1.02**\n").expect("a file");
    let script = script(
        &workflow("gate-comment.yml"),
        "comment",
        "Post the result, or update the comment",
    );
    let variables = [
        ("FAKE_HEAD", head),
        ("FAKE_COMMENTS", comments),
        ("HEAD_SHA", "abc"),
        ("REPOSITORY", "owner/name"),
    ];
    let finished = run(&scratch, &script, &bin, &variables);
    let posted = fs::read_to_string(scratch.path().join("posted")).ok();
    if posted.is_some() {
        let body = fs::read_to_string(scratch.path().join("body")).expect("the comment");
        assert_eq!(body, "<!-- pgassay gate -->\n**pass: ×1.02**\n");
    }
    (posted, finished)
}

#[test]
fn one_comment_is_posted_and_then_updated() {
    let (first, _) = posted("12\n", "", "abc");
    assert_eq!(
        first.as_deref(),
        Some(
            "api --silent --method POST repos/owner/name/issues/12/comments --field body=@comment.md\n"
        )
    );
    let (second, _) = posted("12\n", "77\n99\n", "abc");
    assert_eq!(
        second.as_deref(),
        Some(
            "api --silent --method PATCH repos/owner/name/issues/comments/77 --field body=@comment.md\n"
        )
    );
}

#[test]
fn a_comment_goes_only_to_the_pull_request_that_was_measured() {
    let (none, finished) = posted("12\n", "", "another commit");
    assert_eq!((none, finished.code), (None, Some(0)));
    let (none, finished) = posted("12/../13\n", "", "abc");
    assert_eq!((none, finished.code), (None, Some(1)), "{finished:?}");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_workflow_for_pull_requests_finds_a_missing_index_on_a_real_server() {
        let gate = workflow("gate.yml");
        let scratch = Scratch::new(PROGRAM);
        let at = |path: &str| scratch.path().join(path);
        for directory in ["base", "head"] {
            fs::create_dir(at(directory)).expect("a directory");
        }
        let schema = "create table t (id int primary key, n int);\n\
                  insert into t select g, g from generate_series(1, 50000) g;\nanalyze t;\n";
        fs::write(at("base/schema.sql"), schema).expect("a file");
        let change = "alter table t drop constraint t_pkey;\n";
        fs::write(at("head/change.sql"), change).expect("a file");
        let query = "\\set id random(1, 50000)\nselect n from t where id = :id;\n";
        fs::write(at("base/query.sql"), query).expect("a file");
        let summary = at("summary.md");
        let finished = run(
            &scratch,
            &script(&gate, "gate", "Compare"),
            Path::new(PROGRAM).parent().expect("a directory"),
            &[
                ("NUMBER", "12"),
                ("GITHUB_ACTIONS", "true"),
                ("GITHUB_STEP_SUMMARY", summary.to_str().expect("a path")),
            ],
        );
        assert_eq!(finished.code, Some(3), "{finished:?}");
        let read = |path: &str| fs::read_to_string(at(path)).expect("the file is written");
        assert_eq!(read("gate/number"), "12\n");
        assert_eq!(read("gate/gate.md"), read("summary.md"));
        assert!(
            read("gate/gate.md").starts_with("<!-- pgassay gate -->\n**regression: "),
            "{}",
            read("gate/gate.md")
        );
        assert!(read("gate/gate.xml").contains("failures=\"1\""));
        assert!(
            finished
                .stderr
                .contains("::error title=pgassay gate::regression: "),
            "{}",
            finished.stderr
        );
        let power = finished.stderr.find(
            "the gate, assuming that ratios vary by 2% (SD) between server starts: passes an equal variant in ",
        );
        let server = finished.stderr.find("starting");
        assert!(
            power.is_some_and(|power| server.is_none_or(|server| power < server)),
            "{}",
            finished.stderr
        );
        scratch.assert_nothing_left();
    }
}
