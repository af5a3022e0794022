//! An interrupt ends what watches a live server that falls silent in the middle.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pgassay_record::observation::Observation;
use pgassay_server::{Server, ServerConfig};
use pgassay_test_support::{
    PseudoTerminal, Scratch, collapse_whitespace, os, servers, skip, wait_for_exit, wait_until,
};

use crate::PROGRAM;

/// Longer than any end takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// A server whose processes are all stopped.
struct StoppedServer(Vec<i32>);

impl StoppedServer {
    fn stop(server: &Server) -> Self {
        // First the postmaster: it then starts no process, and reaps none that ends on its own.
        let postmaster = server.postmaster_pid();
        os::kill(postmaster, libc::SIGSTOP);
        let processes = server.processes().into_iter().map(|it| it.pid);
        let mut pids: Vec<i32> = processes.filter(|pid| *pid != postmaster).collect();
        for pid in &pids {
            os::kill(*pid, libc::SIGSTOP);
        }
        // Continued last, for the same reason.
        pids.push(postmaster);
        Self(pids)
    }

    fn go_on(self) {
        for pid in self.0 {
            os::kill(pid, libc::SIGCONT);
        }
    }
}

/// Passes bytes between clients and a server, until it swallows them.
struct SwallowingProxy {
    swallows: Arc<AtomicBool>,
    port: u16,
}

impl SwallowingProxy {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallows = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&swallows);
        // The threads end with the test program, or when a connection does.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let theirs = TcpStream::connect(server).unwrap();
                for (from, to) in [(&client, &theirs), (&theirs, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let swallows = Arc::clone(&shared);
                    thread::spawn(move || pass(from, to, &swallows));
                }
            }
        });
        Self { swallows, port }
    }

    fn dsn(&self, server: &Server) -> String {
        let (password, port) = (server.password().reveal(), self.port);
        let theirs = server.conninfo();
        format!("{theirs} host=127.0.0.1 port={port} password='{password}'")
    }

    fn fall_silent(&self) {
        self.swallows.store(true, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool) {
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !swallows.load(Ordering::Relaxed) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    if !swallows.load(Ordering::Relaxed) {
        _ = to.shutdown(Shutdown::Both);
    }
}

/// `pgassay profile` in progress.
struct RunningProfile<'a> {
    scratch: &'a Scratch,
    child: Child,
}

impl<'a> RunningProfile<'a> {
    /// Profiles the server at `dsn`, and waits until there are samples; `is_remote` hides the server's processes.
    fn start(scratch: &'a Scratch, server: &Server, dsn: &str, is_remote: bool) -> Self {
        let program = scratch.command();
        let mut command = if is_remote {
            let mut command = scratch.command_of(Path::new("unshare"));
            command.args(["--pid", "--fork", "--mount-proc", "--"]);
            command.arg(program.get_program());
            command
        } else {
            program
        };
        let file = |name| File::create(scratch.path().join(name)).unwrap();
        let child = command
            .args(["profile", "--dsn", dsn, "--duration", "10min", "--json"])
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        // What the connection that counts transactions does last before the samples, or that of samples; and a
        // second, since a backend is idle before its answer has arrived.
        let condition = if is_remote {
            "state = 'idle in transaction' and query like '%pg_stat_get_activity(null)%' \
             and xact_start < clock_timestamp() - interval '1 s'"
        } else {
            "state = 'idle' and query like '%; select sum(xact_commit%' \
             and state_change < clock_timestamp() - interval '1 s'"
        };
        let mut asking = server.connect().unwrap();
        let sql = format!(
            "select count(*) from pg_stat_activity where pid <> pg_backend_pid() and {condition}"
        );
        wait_until("there are samples", || {
            asking.value(&sql).unwrap().as_deref() == Some("1")
        });
        Self { scratch, child }
    }

    /// Interrupts it, and checks what it says.
    fn check_end(mut self, is_remote: bool, signal: i32) {
        let mut pid = self.child.id().cast_signed();
        if is_remote {
            let children = format!("/proc/{pid}/task/{pid}/children");
            pid = fs::read_to_string(children)
                .unwrap()
                .trim()
                .parse()
                .unwrap();
        }
        os::kill(pid, signal);
        let code = wait_for_exit(&mut self.child, LIMIT);
        let said = self.scratch.stderr();
        assert_eq!(code, Some(2), "{said}");
        let printed = fs::read_to_string(self.scratch.path().join("stdout")).unwrap();
        let seen: Observation = serde_json::from_str(&printed).unwrap();
        assert_eq!(seen.transactions, None);
        // Not "within the time limit", which is 10 s.
        let expected = "no answer within 1 s after the interrupt";
        assert!(collapse_whitespace(&said).contains(expected), "{said}");
    }
}

/// Regression: the first Ctrl-C did not end a profile whose server had stopped, for 10 s and more.
#[test]
fn an_interrupt_ends_a_profile_of_a_server_that_is_stopped() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let running = RunningProfile::start(&scratch, &server, &server.conninfo(), false);
    let stopped = StoppedServer::stop(&server);
    running.check_end(false, libc::SIGINT);
    stopped.go_on();
    server.stop().unwrap();
}

/// Regression: nothing said why there are no samples of a part of the time.
#[test]
fn a_profile_that_is_suspended_says_so() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let mut running = RunningProfile::start(&scratch, &server, &server.conninfo(), false);
    let pid = running.child.id().cast_signed();
    for signal in [libc::SIGSTOP, libc::SIGCONT, libc::SIGINT] {
        os::kill(pid, signal);
    }
    wait_for_exit(&mut running.child, LIMIT);
    let printed = fs::read_to_string(scratch.path().join("stdout")).unwrap();
    let seen: Observation = serde_json::from_str(&printed).unwrap();
    let mut names = seen.limitations.iter().map(|it| it.name.as_str());
    assert!(names.any(|it| it == "suspended"), "{:?}", seen.limitations);
    server.stop().unwrap();
}

/// Regression: likewise if the network swallowed all bytes.
#[test]
fn an_interrupt_ends_a_profile_whose_connections_fall_silent() {
    let config = ServerConfig {
        tcp: true,
        ..servers::config()
    };
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    for is_remote in [false, true] {
        if is_remote && !os::is_root() {
            skip("a remote server", "a PID namespace requires root");
            continue;
        }
        let proxy = SwallowingProxy::before(server.tcp_address().unwrap());
        let scratch = Scratch::new(PROGRAM);
        let running = RunningProfile::start(&scratch, &server, &proxy.dsn(&server), is_remote);
        proxy.fall_silent();
        running.check_end(is_remote, libc::SIGTERM);
    }
    server.stop().unwrap();
}

/// Regression: the signal ended pgassay without a message.
#[test]
fn an_interrupt_while_a_profile_connects_said_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let scratch = Scratch::new(PROGRAM);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let dsn = format!("host=127.0.0.1 port={port} dbname=x user=x");
        let mut child = scratch
            .command()
            .args(["profile", "--dsn", &dsn])
            .stderr(File::create(scratch.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        // It then waits for an answer.
        let _silent = listener.accept().unwrap();
        os::kill(child.id().cast_signed(), signal);
        let code = wait_for_exit(&mut child, LIMIT);
        let said = scratch.stderr();
        assert_eq!(code, Some(130), "{said}");
        let expected = "interrupted before the profile began; there is no result";
        assert!(collapse_whitespace(&said).contains(expected), "{said}");
    }
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: SIGINT during the first connection of `top` to a silent server had the exit code of a failure.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn q_and_signals_end_top_of_a_server_that_is_stopped() {
        let Some(server) = servers::start("18") else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let start = || {
            let mut command = scratch.command();
            command
                .args(["top", &server.conninfo()])
                .env("TERM", "xterm-256color");
            PseudoTerminal::start(&mut command, 80, 24)
        };
        for end in [Some("q"), Some("\u{3}"), None] {
            let mut terminal = start();
            terminal.wait_for("a reading", LIMIT, |screen| {
                screen.contains("over the last")
            });
            let stopped = StoppedServer::stop(&server);
            terminal.wait_for("the silence", LIMIT, |screen| {
                screen.contains("no answer from the server for")
            });
            match end {
                Some(key) => terminal.send(key),
                None => os::kill(terminal.pid(), libc::SIGTERM),
            }
            let code = terminal.wait(LIMIT);
            stopped.go_on();
            assert_eq!(code, Some(0), "{end:?}");
        }
        let stopped = StoppedServer::stop(&server);
        let mut terminal = start();
        wait_until("it handles SIGINT", || {
            let status = fs::read_to_string(format!("/proc/{}/status", terminal.pid())).unwrap();
            let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & (1 << (libc::SIGINT - 1)) != 0
        });
        os::kill(terminal.pid(), libc::SIGINT);
        let code = terminal.wait(LIMIT);
        stopped.go_on();
        assert_eq!(code, Some(130), "{}", terminal.screen());
        server.stop().unwrap();
    }
}
