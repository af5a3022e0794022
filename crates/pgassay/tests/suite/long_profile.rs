//! A long profile does not grow. `benchmarks/long-runs` does the same for 90 minutes.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::PROGRAM;
use crate::profiling::Load;
use pgassay_server::Server;
use pgassay_test_support::{Scratch, servers};

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    private_kb: u64,
    files: usize,
    threads: u64,
}

fn held(pid: u32) -> Option<Held> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some(Held {
        private_kb: number("RssAnon:")?,
        files: std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
        threads: number("Threads:")?,
    })
}

/// The most that was held at once.
fn most(parts: &[Held]) -> Held {
    parts.iter().fold(parts[0], |a, b| Held {
        private_kb: a.private_kb.max(b.private_kb),
        files: a.files.max(b.files),
        threads: a.threads.max(b.threads),
    })
}

/// Another statement, another session, and programs that its backend executes, each time.
fn strangers(server: &Server, number: usize) {
    let mut client = server.connect().expect("a connection");
    let sql = format!("select count(*) as c{number} from pg_class where relpages < {number}");
    client.execute(&sql).expect("the statement succeeds");
    let program = "copy (select 1) to program 'cat >/dev/null'";
    client.execute(program).expect("the program succeeds");
}

/// Samples a profile until it ends.
fn watched(server: &Server, profile: &mut Child) -> Vec<Held> {
    let mut samples = Vec::new();
    while profile.try_wait().expect("it is our child").is_none() {
        strangers(server, samples.len());
        samples.extend(held(profile.id()));
        std::thread::sleep(Duration::from_millis(100));
    }
    samples
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_long_profile_does_not_grow() {
        let Some(server) = servers::start("18") else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let clients = Load::start(&server);
        let conninfo = server.conninfo();
        let mut command = scratch.command();
        command.args(["profile", "--dsn", &conninfo, "--duration", "45s", "--json"]);
        command.stdout(Stdio::null());
        let mut profile = command.spawn().expect("the program runs");
        let samples = watched(&server, &mut profile);
        clients.stop();
        assert!(profile.wait().expect("it ended").success());

        // The last samples may be of the analysis.
        let quarter = samples.len() / 4;
        assert!(quarter > 10, "{} samples", samples.len());
        let early = most(&samples[quarter..2 * quarter]);
        let late = most(&samples[2 * quarter..samples.len() - quarter / 4]);
        assert!(
            late.private_kb < early.private_kb + (8 << 10),
            "{early:?}, then {late:?}"
        );
        assert!(late.files <= early.files + 2, "{early:?}, then {late:?}");
        assert!(
            late.threads <= early.threads + 2,
            "{early:?}, then {late:?}"
        );
    }
}
