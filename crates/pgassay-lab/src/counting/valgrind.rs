//! Finds valgrind and builds the command line that starts a server under it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use pgassay_server::end_with_us;

/// Used if `PATH` is not set.
const PROGRAMS: &str = "/usr/local/bin:/usr/bin:/bin";
/// More than any version is long.
const VERSION_BYTES_MAX: u64 = 4096;
/// Name of each process's output file without its PID.
const FILE: &str = "callgrind.out.";

/// What callgrind attributes instructions to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Functions, with callgrind's names.
    Functions,
    /// Instruction addresses, for servers without symbols.
    Addresses,
    /// Functions with all their callers, which takes 50% longer.
    CallPaths,
}

/// Longer call chains are truncated. PostgreSQL's are shorter for statements of a reasonable size.
const CALLERS_MAX: u32 = 250;

/// An installed valgrind.
pub struct Valgrind {
    program: PathBuf,
    /// The output of `--version`, for example `valgrind-3.19.0`.
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
                "counting instructions requires valgrind, which is not on PATH. Install the package \"valgrind\" (apt install valgrind, dnf install valgrind, apk add valgrind); running it requires no privileges"
            );
        };
        let (status, version) =
            version_of(&program).with_context(|| format!("cannot run {}", program.display()))?;
        if !status.success() || !version.starts_with("valgrind-") {
            let program = program.display();
            return Err(anyhow!("{program} --version failed ({status}): {version}"));
        }
        Ok(Self { program, version })
    }

    /// The command line that precedes the server's own; output files go to `directory`.
    ///
    /// A process inherits its parent's counts, and the postmaster's grow with every connection. So
    /// only instructions in `PostgresMain` are counted, the main loop of every backend, without
    /// `pgstat_report_stat`: it reports statistics once per second, and these ten thousand or so
    /// instructions depend on how busy the machine is. Without `--vgdb=no`, pipes remain in the
    /// temporary directory. `--smc-check` is needed for JIT code, whose addresses are reused.
    pub fn launcher(&self, directory: &Path, detail: Detail) -> Vec<OsString> {
        let mut file = OsString::from("--callgrind-out-file=");
        // Valgrind replaces %p by the PID and %% by a percent sign.
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

/// How `program --version` ended, and its output. `Command::output` would panic if the system refused
/// to poll its two pipes.
fn version_of(program: &Path) -> io::Result<(ExitStatus, String)> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let _killing = end_with_us(&mut command);
    let mut child = command.spawn()?;
    let mut output = String::new();
    let read = match &mut child.stdout {
        Some(stdout) => stdout.take(VERSION_BYTES_MAX).read_to_string(&mut output),
        None => Ok(0),
    };
    // Its status counts, whether or not it could be read.
    drop(child.stdout.take());
    let status = child.wait()?;
    read?;
    Ok((status, output.trim().to_owned()))
}

/// The name of a process's output file.
pub fn file_of(pid: i32) -> String {
    format!("{FILE}{pid}")
}
