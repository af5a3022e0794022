//! Runs `pgbench`, pgassay's or the real one, in a directory with scripts.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pgassay_test_support::BareServer;

use crate::PROGRAM;

/// A directory with scripts, and pgassay under the name pgbench.
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("pgbench");
        std::os::unix::fs::symlink(PROGRAM, link).unwrap();
        Self { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn script(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// The texts of the files whose names begin with this.
    pub fn files_that_begin_with(&self, prefix: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_one = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(prefix)
        };
        let texts = paths.filter(is_one).map(std::fs::read_to_string);
        texts.map(Result::unwrap).collect()
    }

    pub fn command(&self, program: &Path, compat: &str, server: Option<&BareServer>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
            .arg0("pgbench")
            .env("PGASSAY_PGBENCH_COMPAT", compat)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .current_dir(self.path());
        if let Some(server) = server {
            command
                .env("PGHOST", server.socket_directory())
                .env("PGUSER", "tester")
                .env("PGDATABASE", "postgres");
        }
        command
    }

    pub fn ours(&self, server: Option<&BareServer>, arguments: &str) -> Finished {
        self.ours_as("18", server, arguments)
    }

    pub fn ours_as(&self, compat: &str, server: Option<&BareServer>, arguments: &str) -> Finished {
        self.run(&self.path().join("pgbench"), compat, server, arguments)
    }

    pub fn run(
        &self,
        program: &Path,
        compat: &str,
        server: Option<&BareServer>,
        arguments: &str,
    ) -> Finished {
        let words = arguments.split_whitespace();
        let output = self
            .command(program, compat, server)
            .args(words)
            .output()
            .unwrap();
        Finished::from(&output)
    }
}

#[derive(Debug, PartialEq)]
pub struct Finished {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<&Output> for Finished {
    fn from(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Finished {
    pub fn has(&self, code: i32, out: &[&str], err: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for line in out {
            assert!(self.out.contains(line), "no {line:?} in {self:?}");
        }
        for line in err {
            assert!(self.err.contains(line), "no {line:?} in {self:?}");
        }
    }

    /// Replaces every number and removes lines with the program's own version.
    pub fn without_numbers(mut self) -> Self {
        for text in [&mut self.out, &mut self.err] {
            let lines = text.lines().filter(|line| {
                let begins = |word| line.starts_with(word);
                !begins("pgbench (") && !begins("client-limited") && !begins("saturated")
            });
            // The C library prints the path by which the program was started.
            let nameless = |line: &str| match line.split_once("/pgbench: ") {
                Some((path, rest)) if !path.contains(' ') => format!("pgbench: {rest}"),
                _ => line.to_owned(),
            };
            *text = lines
                .map(|line| numberless(&nameless(line)) + "\n")
                .collect();
        }
        self
    }
}

fn numberless(line: &str) -> String {
    let mut out = String::new();
    let mut was_number = false;
    for letter in line.chars() {
        let is_number =
            letter.is_ascii_digit() || was_number && letter == '.' || letter == ' ' && was_number;
        if !is_number {
            out.push(letter);
        } else if !was_number {
            // Padding belongs to the number.
            out.truncate(out.trim_end().len());
            out.push('N');
        }
        was_number = is_number;
    }
    out
}
