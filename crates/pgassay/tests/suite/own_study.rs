//! Copies, checks and runs the first study of docs/study-file.md, as a new user would.

use pgassay_record::expectation::CheckOutcome;
use pgassay_record::run::Run;
use pgassay_test_support::{Finished, Scratch, servers};

use crate::PROGRAM;

/// The page's first study.
fn example() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/study-file.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```toml\n").expect("the page has a study");
    let (text, _) = rest.split_once("```").unwrap();
    text.to_owned()
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_page_s_own_study_of_two_weighted_scripts_and_two_settings_runs_as_it_stands() {
        let scratch = Scratch::new(PROGRAM);
        let text = example();
        let path = scratch.study(&text);
        let check = scratch
            .command()
            .args(["study", "check"])
            .arg(&path)
            .output()
            .unwrap();
        let check = Finished::of(&check);
        assert_eq!(check.code, Some(0), "{check:?}");
        let said = format!("{}{}", check.stdout, check.stderr);
        assert!(said.contains("2 points on 1 server"), "{said}");

        if !servers::is_available("18") {
            return;
        }
        let short = ["--length", "1s", "--pairs", "2", "--json"];
        let finished = scratch.run(&text, &short);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        scratch.assert_nothing_left();
        let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
        assert!(run.complete);
        assert_eq!(run.plan.variants, ["waits", "does not wait"]);
        assert_eq!(run.servers.len(), 1, "session settings share a server");
        assert_eq!(run.comparisons.len(), 1);
        for point in &run.points {
            assert!(point.transactions > 0, "{point:?}");
            let updated = point
                .counters
                .iter()
                .find(|it| it.name == "pg_stat_database.tup_updated");
            let updated = updated.expect("statistics were read").per_transaction;
            assert!(
                (0.07..0.13).contains(&updated),
                "one of ten transactions updates, by weight: {updated}"
            );
        }
        // The number of completed transactions is also random, so four trials may be inconclusive.
        let outcomes: Vec<Option<CheckOutcome>> =
            run.expectations.iter().map(|it| it.outcome).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    Some(_),
                    Some(CheckOutcome::Met | CheckOutcome::Inconclusive)
                ]
            ),
            "{:?}",
            run.expectations
        );
    }
}
