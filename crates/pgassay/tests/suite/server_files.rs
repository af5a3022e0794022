//! Profiles of a server whose program is stripped, has a separate debug file, or was deleted: symbols
//! are kept where there are any; the rest are addresses and counted as such.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::PROGRAM;
use crate::profiling::{Load, observed, run};
use pgassay_model::waits::WaitSource;
use pgassay_record::observation::Observation;
use pgassay_server::{Installation, Server};
use pgassay_test_support::{Scratch, sampling_is_permitted, servers, skip};

/// Not exported: only the symbol table names it.
const LOCAL: &str = "exec_simple_query";
/// Called by it, and exported.
const EXPORTED: &str = "PortalRun";

/// Nearly all of its time is in the executor. With a short one, 45% is, and on a loaded machine, with
/// few samples, less than the 30% that the tests want.
const LONG: &str = "select count(*) from pg_class a, pg_class b";
/// A session often waits for its client.
const SHORT: &str = "select count(*) from pg_class";

/// A copy of an installation that the test can modify.
fn copy(scratch: &Scratch) -> Option<Installation> {
    let original = servers::installation("18")?;
    let whole = original.bin_dir.parent().expect("bin is in it");
    let directory = scratch.path().join("pg");
    tool("cp", &["-a", path(whole), path(&directory)]);
    Some(Installation {
        bin_dir: directory.join("bin"),
        ..original
    })
}

fn path(path: &Path) -> &str {
    path.to_str().expect("plain characters")
}

fn tool(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// The binutils programs that modify object files.
fn has_binutils() -> bool {
    let is_there = Command::new("objcopy").arg("--version").output().is_ok();
    if !is_there {
        skip("stripped programs", "there is no objcopy");
    }
    is_there
}

fn start(installation: &Installation) -> Server {
    Server::start(installation, &servers::config()).expect("the server starts")
}

/// The profile of a busy server; `change` is called while it is busy.
fn profiling(
    scratch: &Scratch,
    server: &Server,
    statement: &'static str,
    change: impl FnOnce(),
) -> Observation {
    let clients = Load::of(server, 2, statement);
    change();
    let dsn = server.conninfo();
    let arguments = ["profile", "--dsn", &dsn, "--duration", "2s", "--json"];
    let finished = run(scratch
        .command()
        .args(arguments)
        .args(["--frequency", "499"]));
    clients.stop();
    let seen = observed(&finished);
    let quality = &seen.profile.as_ref().expect("sampled").quality;
    assert!(quality.samples > 20, "{quality:?}");
    let whole = quality.unwound_to_entry as f64 / quality.user_samples as f64;
    assert!(whole > 0.97, "{quality:?}");
    seen
}

/// The function's share of the CPU time, with what it called.
fn share(seen: &Observation, function: &str) -> f64 {
    let functions = seen.functions();
    let row = functions.iter().find(|row| row.name == function);
    row.map_or(0.0, |row| row.children_us / seen.on_cpu_us())
}

/// The limitation of this name about the server's program.
fn said<'a>(seen: &'a Observation, limit: &str) -> Vec<&'a str> {
    let of_name = seen.limitations.iter().filter(|it| it.name == limit);
    let words = of_name.filter_map(|it| it.limitation.as_deref());
    words.filter(|it| it.contains("postgres")).collect()
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_server_whose_files_are_deleted_and_replaced_keeps_its_names_and_waits() {
        if !sampling_is_permitted() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let Some(installation) = copy(&scratch) else {
            return;
        };
        let program = installation.program("postgres");
        let server = start(&installation);
        let replace = || {
            fs::create_dir_all(&installation.bin_dir).expect("a directory");
            fs::copy("/bin/true", &program).expect("another program");
        };
        let delete = || fs::remove_dir_all(scratch.path().join("pg")).expect("it is gone");
        let changes: [(&str, &dyn Fn()); 2] = [("deleted", &delete), ("replaced", &replace)];
        for (what, change) in changes {
            let seen = profiling(&scratch, &server, SHORT, change);
            assert!(share(&seen, LOCAL) > 0.3, "{what}: {:?}", seen.functions());
            assert_eq!(
                said(&seen, "unreadable_object"),
                Vec::<&str>::new(),
                "{what}"
            );
            let waits = seen.waits.as_ref().expect("root may read memory");
            assert_eq!(waits.source, WaitSource::Memory, "{what}");
            assert!(
                waits.events.iter().any(|it| it.name == "ClientRead"),
                "{what}"
            );
        }
        server.stop().expect("the server stops");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_stripped_server_has_the_names_that_it_exports_and_the_rest_is_counted() {
        if !sampling_is_permitted() || !has_binutils() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let Some(installation) = copy(&scratch) else {
            return;
        };
        let program = installation.program("postgres");
        let debug: PathBuf = scratch.path().join("pg/bin/.debug/postgres.debug");
        fs::create_dir(debug.parent().expect("bin")).expect("a directory");
        tool(
            "objcopy",
            &["--only-keep-debug", path(&program), path(&debug)],
        );
        tool("strip", &[path(&program)]);
        let server = start(&installation);
        let seen = profiling(&scratch, &server, LONG, || ());
        server.stop().expect("the server stops");
        assert!(share(&seen, EXPORTED) > 0.3, "{:?}", seen.functions());
        assert_eq!(share(&seen, LOCAL).to_bits(), 0, "it has no symbol");
        // It still appears, as an address: the caller of the exported function.
        let profile = seen.profile.as_ref().expect("sampled");
        let unnamed = profile.nodes.iter().filter(|node| {
            let callee = &profile.frames[node.frame as usize];
            let caller = node.parent.map(|at| &profile.nodes[at as usize]);
            let caller = caller.map(|node| &profile.frames[node.frame as usize]);
            callee.symbol.as_deref() == Some(EXPORTED)
                && caller.is_some_and(|it| it.symbol.is_none() && it.object == "postgres")
        });
        assert!(unnamed.count() > 0, "the caller appears as an address");
        let stripped = said(&seen, "stripped_object");
        assert_eq!(stripped.len(), 1, "{:?}", seen.limitations);
        // Of all samples, also of processes that are not in the profile: a checkpoint's, for example.
        let words = stripped[0].split(' ');
        let counts: Vec<u64> = words.filter_map(|it| it.parse().ok()).collect();
        let [unnamed, samples] = counts[..] else {
            panic!("{stripped:?}");
        };
        assert!(0 < unnamed && unnamed <= samples, "{stripped:?}");
        assert!(profile.quality.unknown_leaf > 0, "{:?}", profile.quality);

        // With the debug file linked, all functions have names.
        let link = format!("--add-gnu-debuglink={}", debug.display());
        tool("objcopy", &[&link, path(&program)]);
        let server = start(&installation);
        let seen = profiling(&scratch, &server, LONG, || ());
        assert!(share(&seen, LOCAL) > 0.3, "{:?}", seen.functions());
        assert_eq!(said(&seen, "stripped_object"), Vec::<&str>::new());
        server.stop().expect("the server stops");
    }
}
