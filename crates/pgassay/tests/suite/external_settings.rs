//! Settings of an external server that a study changes, and that others change after it.

use std::time::Duration;

use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::os::kill;
use pgassay_test_support::{Scratch, wait_for_exit, wait_until};

use crate::PROGRAM;
use crate::external_changes::{SETTINGS, journals, sleepers, start, study};
use crate::external_server::{ALLOWED, Theirs, run_of};

fn messages(run: &Run, kind: WarningKind) -> Vec<&str> {
    let warnings = run.warnings.iter().filter(|it| it.kind == kind);
    warnings.map(|it| it.message.as_str()).collect()
}

/// Regression: the next run put back every setting of a killed run, whatever others had set since.
#[test]
fn the_next_run_leaves_what_others_have_set_since_a_killed_run() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    theirs.ask("alter role maker set jit = on");
    let before = theirs.ask(SETTINGS);
    let scratch = Scratch::new(PROGRAM);
    let dsn = theirs.server.conninfo();
    // The texts of the last statements do not show the values.
    let setup = "alter role maker set work_mem = '5MB';\n\
        alter role maker set jit = off;\n\
        alter system set work_mem = '6MB';\n\
        alter role maker reset enable_sort;\n\
        set search_path = pg_catalog, \"$user\", 'a b';\n\
        begin;\n\
        alter role guest set search_path from current;\n\
        alter role all set work_mem = E'7MB';\n\
        commit;\n\
        select pg_sleep(600);\n";
    let mut child = start(&scratch, &study(&dsn, setup), &[]);
    wait_until("the setup sleeps", || sleepers(&theirs) == "1");
    kill(child.id().cast_signed(), libc::SIGKILL);
    wait_for_exit(&mut child, Duration::from_mins(1));
    wait_until("the setup's statement ends", || sleepers(&theirs) == "0");
    theirs.ask("alter role maker set work_mem = '8MB'");
    theirs.ask("alter system set work_mem = '9MB'");
    theirs.ask("alter role maker set enable_sort = off");

    let arguments = [&ALLOWED[..], &["--no-profile", "--json"]].concat();
    let finished = scratch.run(&study(&dsn, ""), &arguments);
    let run = run_of(&finished);
    let said = &finished.stderr;
    let (_, undone) = said.split_once("undid what a killed run left").unwrap();
    let undone = undone.lines().next().unwrap();
    for statement in [
        "alter role \"maker\" set \"jit\" = E'on'",
        "alter role \"guest\" reset \"search_path\"",
        "alter role all reset \"work_mem\"",
    ] {
        assert!(undone.contains(statement), "{statement}: {said}");
    }
    let left = messages(&run, WarningKind::Leftover);
    assert_eq!(left.len(), 1, "{left:?}");
    for setting in [
        "work_mem of role maker is '8MB' (before the run: not set; to put that back: \
         alter role \"maker\" reset \"work_mem\";)",
        "work_mem of ALTER SYSTEM is '9MB' (before the run: not set; to put that back: \
         alter system reset \"work_mem\";)",
        "enable_sort of role maker is 'off' (before the run: not set;",
    ] {
        assert!(left[0].contains(setting), "{setting}: {left:?}");
    }
    assert!(journals(&scratch).is_empty());
    theirs.ask("alter role maker reset work_mem");
    theirs.ask("alter role maker reset enable_sort");
    theirs.ask("alter system reset work_mem");
    assert_eq!(theirs.ask(SETTINGS), before);
    theirs.assert_untouched();
}

mod slow {
    use super::*;

    /// Regression: at the end of a run, such a setting was put back, and the warning did not show its value.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_setting_that_others_change_during_a_run_is_left_and_shown() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        theirs.ask("alter database postgres set work_mem = '4MB'");
        let scratch = Scratch::new(PROGRAM);
        // A code block is to pgassay as another session: it does not know what is done there.
        let setup = "create role gone;\n\
        alter role gone set jit = off;\n\
        alter database postgres set work_mem = '5MB';\n\
        alter role maker set app.password = 'a';\n\
        alter role maker set jit = off;\n\
        do $$ begin\n\
        execute $q$alter database postgres set work_mem = '777MB'$q$;\n\
        execute $q$alter role maker set app.password = 's3cr3t-of-others'$q$;\n\
        drop role gone; end $$;\n";
        let altering = study(&theirs.server.conninfo(), setup);
        let arguments = [&ALLOWED[..], &["--no-profile", "--json"]].concat();
        let run = run_of(&scratch.run(&altering, &arguments));
        let said = messages(&run, WarningKind::ServerChanged);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].ends_with("setting work_mem of database postgres changed"),
            "{said:?}"
        );
        assert!(
            said[0].contains("setting app.password of role maker added,"),
            "{said:?}"
        );
        assert_eq!(
            said[1].split_once("as they are: ").unwrap().1,
            "work_mem of database postgres is '777MB' (before the run: '4MB'; to put that back: \
         alter database \"postgres\" set \"work_mem\" = E'4MB';); app.password of role maker has a value that \
         may be a password and is not shown (before the run: not set; to put that back: \
         alter role \"maker\" reset \"app\".\"password\";)"
        );
        let text = |value: &str| Some(value.to_owned());
        assert_eq!(
            theirs.ask(SETTINGS)[1..3],
            [
                [text("maker"), text("app.password=s3cr3t-of-others")],
                [text("postgres"), text("work_mem=777MB")],
            ]
        );
        let kept = serde_json::to_string(&run.warnings).unwrap();
        assert!(!kept.contains("s3cr3t-of-others"), "{kept}");
        assert!(journals(&scratch).is_empty());
        theirs.assert_untouched();
    }
}
