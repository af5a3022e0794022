//! Escape sequences of servers, studies and names do not reach the terminal, and hostile servers and
//! studies end every command with a clear error.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// What a terminal must not receive: the window's title, the screen, a color that hides text, an
/// operating system command in C1, and text from right to left.
const ATTACK: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{9b}8m\u{9d}0;x\u{9c}\u{202e}\r\u{8}\u{7f}";

pub fn pgassay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgassay"));
    command.args(arguments).env_remove("PGDATABASE");
    command
}

/// The control characters in a text, apart from newlines, tabs and those in `allowed`.
pub fn control_characters(bytes: &[u8], allowed: &[char]) -> Vec<char> {
    let text = String::from_utf8_lossy(bytes);
    let is_bad = |c: &char| {
        let is_plain = matches!(c, '\n' | '\t') || allowed.contains(c);
        !is_plain && (c.is_control() || *c == '\u{202e}')
    };
    text.chars().filter(is_bad).collect()
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

fn report(tag: u8, severity: &str) -> Vec<u8> {
    let text = format!("S{severity}\0V{severity}\0C22012\0Mattack {ATTACK}\0D{ATTACK}\0\0");
    message(tag, text.as_bytes())
}

/// What the server does after signing in.
#[derive(Clone, Copy)]
pub enum Mode {
    /// It refuses the connection with an error.
    Refuses,
    /// It answers every request with a notice and an error.
    Fails,
    /// It sends a notice now and then, and never answers.
    Notices,
    /// It never answers.
    Silent,
}

/// Serves connections in `directory` until the test process ends.
pub fn serve(directory: &Path, mode: Mode) {
    let listener = UnixListener::bind(directory.join(".s.PGSQL.5432")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 8192];
                let mut served = stream.read(&mut buffer).is_ok();
                let version = format!("server_version\x0018 {ATTACK}\0");
                let begin = match mode {
                    Mode::Refuses => report(b'E', "FATAL"),
                    _ => [
                        message(b'R', &[0; 4]),
                        message(b'S', version.as_bytes()),
                        report(b'N', "WARNING"),
                        message(b'Z', b"I"),
                    ]
                    .concat(),
                };
                served &= stream.write_all(&begin).is_ok();
                while served && matches!(stream.read(&mut buffer), Ok(1..)) {
                    let notice = report(b'N', "WARNING");
                    match mode {
                        Mode::Refuses => return,
                        Mode::Fails => {
                            let failed = report(b'E', "ERROR");
                            let reply = [notice, failed, message(b'Z', b"I")].concat();
                            served = stream.write_all(&reply).is_ok();
                        }
                        Mode::Silent => {}
                        Mode::Notices => {
                            while stream.write_all(&notice).is_ok() {
                                std::thread::sleep(Duration::from_millis(500));
                            }
                            return;
                        }
                    }
                }
            });
        }
    });
}

fn assert_clean(output: &Output, case: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{case}");
    assert!(stderr.contains("attack"), "{case}: {stderr}");
    for bytes in [&output.stderr, &output.stdout] {
        assert_eq!(
            control_characters(bytes, &[]),
            [char::MAX; 0],
            "{case}: {stderr:?}"
        );
    }
}

#[test]
fn escape_sequences_of_a_server_do_not_reach_the_terminal() {
    for mode in [Mode::Refuses, Mode::Fails] {
        let directory = tempfile::tempdir().unwrap();
        serve(directory.path(), mode);
        let host = directory.path().to_str().unwrap();
        let dsn = format!("host={host} user=me dbname=me");
        let study = directory.path().join("study.toml");
        std::fs::write(&study, STUDY.replace("NAME", "v")).unwrap();
        let study = study.to_str().unwrap();
        let script = directory.path().join("attack.sql");
        std::fs::write(&script, format!("select 1 -- {ATTACK}\n;\n")).unwrap();
        let script = script.to_str().unwrap();
        let results = directory.path().join("runs");
        let results = results.to_str().unwrap();
        let commands: [&[&str]; 5] = [
            &["profile", "--dsn", &dsn],
            &["bench", "-n", "-t", "1", "-h", host, "-U", "me", "me"],
            &["bench", "-i", "-h", host, "-U", "me", "me"],
            &[
                "bench", "-n", "-f", script, "-t", "1", "--debug", "-U", "me", "-h", host, "me",
            ],
            &[
                "run",
                study,
                "--dsn",
                &dsn,
                "--results",
                results,
                "--allow-writes",
                "--allow-superuser",
            ],
        ];
        for arguments in commands {
            let output = pgassay(arguments).output().unwrap();
            assert_clean(&output, &arguments.join(" "));
        }
    }
}

pub const STUDY: &str = r#"question = "ATTACK?"
[[script]]
name = "a"
text = "select 1;"
[[variant]]
name = "NAME"
[[variant]]
name = "w"
"#;

/// Control characters as TOML writes them.
fn in_toml(text: &str) -> String {
    let escaped = text.chars().map(|c| format!("\\u{:04x}", u32::from(c)));
    escaped.collect::<Vec<_>>().concat()
}

#[test]
fn escape_sequences_of_a_study_do_not_reach_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("study.toml");
    let attack = in_toml(ATTACK);
    let text = STUDY.replace("NAME", &attack).replace("ATTACK", &attack);
    // The error names the variant that is defined twice.
    let variant = format!("[[variant]]\nname = \"attack {attack}\"\n");
    std::fs::write(&path, text + &variant.repeat(2)).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [["study", "check", path], ["study", "plan", path]] {
        let output = pgassay(&arguments).output().unwrap();
        assert_clean(&output, arguments[1]);
    }
}

/// Runs a command whose terminal has this number of columns, and returns what the terminal received from
/// stdout.
pub fn on_a_terminal(command: &mut Command, columns: u16) -> Vec<u8> {
    let size = libc::winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: the pointers are to our own integers; the others may be null.
    let opened = unsafe {
        libc::openpty(
            &raw mut ours,
            &raw mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(opened, 0);
    // SAFETY: only system calls that are safe between fork and exec. The program becomes the leader of a
    // session whose terminal is its standard output.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(1, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    // SAFETY: both descriptors are open and not used elsewhere.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    let mut child = command
        .stdout(theirs)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    command.stdout(Stdio::null());
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    // At its end, reading fails with EIO.
    while let Ok(count @ 1..) = ours.read(&mut buffer) {
        received.extend_from_slice(&buffer[..count]);
    }
    child.wait().unwrap();
    received
}

#[test]
fn escape_sequences_do_not_reach_a_terminal_on_stdout() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("study.toml");
    let attack = in_toml(ATTACK);
    let text = STUDY
        .replace("NAME", &format!("v {attack}"))
        .replace("ATTACK", &attack);
    std::fs::write(&path, text).unwrap();
    let received = on_a_terminal(&mut pgassay(&["study", "plan", path.to_str().unwrap()]), 80);
    let shown = String::from_utf8_lossy(&received);
    assert!(shown.contains("\u{fffd}]0;pwned"), "{shown:?}");
    // The terminal itself ends lines with a carriage return.
    assert_eq!(
        control_characters(&received, &['\r']),
        [char::MAX; 0],
        "{shown:?}"
    );
    // Regression: a pipe to `cat` received them.
    let piped = pgassay(&["study", "plan", path.to_str().unwrap()]).output();
    let piped = piped.unwrap().stdout;
    assert!(String::from_utf8_lossy(&piped).contains("\u{fffd}]0;pwned"));
    assert_eq!(control_characters(&piped, &[]), [char::MAX; 0]);
}

/// Regression: the message was only "No space left on device", of whatever disk; of a help text, there was none, with
/// exit status 0.
#[test]
fn an_output_that_cannot_be_written_is_named() {
    for arguments in [
        &["studies"][..],
        &["--help"],
        &["compare", "--help"],
        &["--version"],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let ended = pgassay(arguments).stdout(full).output().unwrap();
        let words = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(
            words,
            "pgassay: cannot write to stdout: No space left on device\n"
        );
        assert_eq!(ended.status.code(), Some(1));
    }
}

/// Regression: the process was aborted, with a message about the stack of its main thread.
#[test]
fn a_small_limit_of_the_stack_does_not_end_the_program() {
    let script = "ulimit -s 128 && exec \"$0\" studies";
    let ended = Command::new("sh")
        .args(["-c", script, crate::PROGRAM])
        .output();
    let ended = ended.unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("prepared-vs-simple"));
}

/// Only `output.rs` prints.
#[test]
fn nothing_is_printed_around_the_filter() {
    fn sources(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    for path in found {
        if path.ends_with("src/output.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for printing in ["eprintln!", "eprint!", "stderr().lock()", "dbg!"] {
            assert!(!text.contains(printing), "{}: {printing}", path.display());
        }
    }
}
