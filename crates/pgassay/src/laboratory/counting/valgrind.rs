//! Valgrind: where it is, which it is, and the words that start a server under it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// Where programs are when there is no `PATH`.
const PROGRAMS: &str = "/usr/local/bin:/usr/bin:/bin";
/// What each process's file is called, but for its number.
const FILE: &str = "callgrind.out.";

/// What callgrind keeps apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Functions, by callgrind's names.
    Functions,
    /// Each instruction's address, for servers without names.
    Addresses,
    /// Functions by the whole chain of their callers, which takes half as long again.
    CallPaths,
}

/// Longer chains are cut: as deep as PostgreSQL goes for statements of a reasonable size.
const CALLERS_MAX: u32 = 250;

/// An installed valgrind.
pub struct Valgrind {
    program: PathBuf,
    /// What it says of itself, such as `valgrind-3.19.0`.
    pub version: String,
}

impl Valgrind {
    /// Finds it on the `PATH`.
    pub fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_else(|| PROGRAMS.into());
        let Some(program) = std::env::split_paths(&path)
            .map(|directory| directory.join("valgrind"))
            .find(|program| program.is_file())
        else {
            bail!(
                "counting instructions needs valgrind, and there is none on the PATH. Install the package \"valgrind\" (apt install valgrind, dnf install valgrind, apk add valgrind); no privilege is needed to use it"
            );
        };
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || !version.starts_with("valgrind-") {
            return Err(anyhow!(
                "{} does not say its version ({}): {}",
                program.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        Ok(Self { program, version })
    }

    /// The words before a server's own, for files in `directory`.
    ///
    /// A process begins with its parent's counts, and the postmaster's grow with every connection;
    /// so only what `PostgresMain` does is collected, where every backend spends its life; but for
    /// `pgstat_report_stat`, which hands statistics over once a second of real time: some ten thousand
    /// instructions that are a matter of how busy the machine is.
    /// Without `--vgdb=no` pipes stay behind in the temporary directory. `--smc-check` is for LLVM's
    /// code, which comes and goes where other code was.
    pub fn launcher(&self, directory: &Path, detail: Detail) -> Vec<OsString> {
        let mut file = OsString::from("--callgrind-out-file=");
        // Valgrind expands %p, and %% is a per cent sign.
        file.push(directory.to_string_lossy().replace('%', "%%"));
        file.push(format!("/{FILE}%p"));
        let mut words = vec![self.program.clone().into_os_string()];
        words.extend(
            [
                "--tool=callgrind",
                "--trace-children=yes",
                "--vgdb=no",
                "--collect-systime=yes",
                "--toggle-collect=PostgresMain",
                "--toggle-collect=pgstat_report_stat",
                "--smc-check=all-non-file",
                "--quiet",
            ]
            .map(OsString::from),
        );
        match detail {
            Detail::Functions => {}
            Detail::Addresses => words.push("--dump-instr=yes".into()),
            Detail::CallPaths => {
                words.push(format!("--separate-callers={CALLERS_MAX}").into());
                words.push("--separate-recs=1".into());
            }
        }
        words.push(file);
        words
    }
}

/// The name of a process's file.
pub fn file_of(pid: i32) -> String {
    format!("{FILE}{pid}")
}
