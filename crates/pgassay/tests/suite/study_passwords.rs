//! A server that a study names, and the passwords of the user who runs the study.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use pgassay_test_support::os::kill;
use pgassay_test_support::{Finished, Scratch, wait_for_exit, wait_until};

use crate::PROGRAM;
use crate::external_changes::{self, sleepers, start};
use crate::external_server::{ALLOWED, Theirs};

/// A server that asks each client for its password in clear text, and sends what it gets here.
struct CuriousServer {
    port: u16,
    passwords: Receiver<Vec<u8>>,
}

impl CuriousServer {
    fn start() -> Self {
        Self::at(0)
    }

    fn at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, passwords) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if sender.send(ask(stream).unwrap_or_default()).is_err() {
                    return;
                }
            }
        });
        Self { port, passwords }
    }
}

fn ask(mut stream: TcpStream) -> std::io::Result<Vec<u8>> {
    let mut startup = [0; 1024];
    // A request for TLS has eight bytes.
    if stream.read(&mut startup)? == 8 {
        stream.write_all(b"N")?;
        let _ = stream.read(&mut startup)?;
    }
    stream.write_all(b"R\0\0\0\x08\0\0\0\x03")?;
    let mut answer = Vec::new();
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
    stream
        .take(u64::from(length) - 4)
        .read_to_end(&mut answer)?;
    answer.pop();
    Ok(answer)
}

fn study(dsn: &str) -> String {
    format!(
        "question = \"?\"\n[server]\ndsn = \"{dsn}\"\n[[script]]\nname = \"s\"\ntext = \"select 1\"\n\
         [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nprotocol = \"prepared\"\n"
    )
}

/// Regression: it got the password of whatever entry the study named, at any address and in clear text.
#[test]
fn a_server_that_a_study_names_gets_no_password_of_the_user() {
    let scratch = Scratch::new(PROGRAM);
    let server = CuriousServer::start();
    let pgpass = scratch.path().join(".pgpass");
    fs::write(&pgpass, "prod.internal:*:shop:admin:of_file\n").unwrap();
    fs::set_permissions(&pgpass, fs::Permissions::from_mode(0o600)).unwrap();
    let services = "[prod]\nhost=prod.internal\nuser=admin\npassword=of_service\n";
    fs::write(scratch.path().join(".pg_service.conf"), services).unwrap();
    let run = |dsn: &str, arguments: &[&str], password: Option<&str>| {
        let path = scratch.study(&study(dsn));
        let mut command = scratch.command();
        command.env("HOME", scratch.path()).env_remove("PGPASSWORD");
        command.envs(password.map(|it| ("PGPASSWORD", it)));
        let output = command.arg("run").arg(path).args(arguments).output();
        let finished = Finished::of(&output.unwrap());
        assert_eq!(finished.code, Some(1), "{finished:?}");
        finished
    };
    let port = server.port;
    let place = format!("hostaddr=127.0.0.1 port={port} dbname=shop");
    let entry = format!("host=prod.internal user=admin {place}");
    let service = format!("service=prod {place}");
    let received = || String::from_utf8(server.passwords.recv().unwrap()).unwrap();
    for (dsn, password, sent) in [
        (&entry, None, "of_file"),
        (&service, None, "of_service"),
        (&place, Some("of_environment"), "of_environment"),
    ] {
        let refused = run(dsn, &[], password);
        let said = refused.error_message();
        assert!(said.contains("add --allow-passwords"), "{said}");
        // This one is refused before it connects.
        if dsn != &service {
            assert_eq!(received(), "");
            assert!(said.contains("The study names this server"), "{said}");
        }
        run(dsn, &["--allow-passwords"], password);
        assert_eq!(received(), sent);
    }
    // The user names it.
    run("host=/nowhere", &["--dsn", &entry], None);
    assert_eq!(received(), "of_file");
    // The study has its own.
    run(
        &format!("{entry} password=of_study"),
        &[],
        Some("of_environment"),
    );
    assert_eq!(received(), "of_study");
    let refused = run(&format!("{entry} passfile=/dev/zero"), &[], None);
    let said = refused.error_message();
    assert!(said.contains("passfile in the `dsn` of a study"), "{said}");
}

/// Regression: every later run, of any server, sent its `PGPASSWORD` to the server of a killed run.
#[test]
fn the_server_of_a_killed_run_gets_no_password_of_another_server() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let setup = "alter system set work_mem = '66MB';\nselect pg_sleep(600);\n";
    let sleeping = external_changes::study("host=/nowhere", setup);
    let dsn = theirs.superuser();
    let mut child = start(&scratch, &sleeping, &["--dsn", &dsn]);
    wait_until("the setup sleeps", || sleepers(&theirs) == "1");
    kill(child.id().cast_signed(), libc::SIGKILL);
    wait_for_exit(&mut child, Duration::from_mins(1));
    let port = theirs.port();
    theirs.server.stop().unwrap();

    let server = CuriousServer::at(port);
    let received = || String::from_utf8(server.passwords.recv().unwrap()).unwrap();
    let run = |dsn: &str| {
        let path = scratch.study(&external_changes::study("host=/nowhere", ""));
        let mut command = scratch.command();
        command.env("HOME", scratch.path());
        command.env("PGPASSWORD", "of_another");
        command.arg("run").arg(path).args(ALLOWED);
        let output = command.args(["--dsn", dsn]).output();
        let finished = Finished::of(&output.unwrap());
        assert_eq!(finished.code, Some(1), "{finished:?}");
        finished.stderr
    };
    let said = run("host=/nowhere user=x");
    assert_eq!(received(), "");
    assert!(
        said.contains("PGPASSWORD is for the servers of this run only"),
        "{said}"
    );
    let (shown, _) = dsn.rsplit_once(" password=").unwrap();
    run(shown);
    assert_eq!(received(), "of_another");
}

/// Regression: it waited for the pipe, and ignored the first Ctrl-C.
#[test]
fn a_pipe_in_place_of_the_password_file_does_not_hold_up_a_run() {
    let scratch = Scratch::new(PROGRAM);
    let server = CuriousServer::start();
    let pipe = scratch.path().join(".pgpass");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let dsn = format!("host=127.0.0.1 port={} user=x dbname=x", server.port);
    let mut command = scratch.command();
    command.env("HOME", scratch.path()).env_remove("PGPASSWORD");
    let output = command
        .args([
            "compare", "--setup", "", "select 1", "select 2", "--dsn", &dsn,
        ])
        .output();
    let finished = Finished::of(&output.unwrap());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("is not a plain file"),
        "{finished:?}"
    );
    assert!(
        finished.error_message().contains("requires a password"),
        "{finished:?}"
    );
}
