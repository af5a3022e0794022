//! Separate processes, and what servers leave behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory for servers that every user can write to, like /tmp.
pub fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    directory
}

/// Runs one ignored test of this program, `module::name`, in a separate process, with `directory` as its
/// temporary directory. Copies the program there, since another user may have no access to the
/// original.
pub fn helper(test: &str, directory: &Path, uid: Option<u32>) -> Command {
    let program = directory.join("helper");
    if !program.exists() {
        let copying = directory.join("helper.new");
        // Copied by another process: a file that this one has open for writing could not be executed
        // while a child of another thread still holds it between fork and exec.
        let mut copy = Command::new("cp");
        copy.arg(std::env::current_exe().unwrap()).arg(&copying);
        assert!(copy.status().unwrap().success());
        fs::set_permissions(&copying, Permissions::from_mode(0o755)).unwrap();
        fs::rename(&copying, &program).unwrap();
    }
    let mut command = Command::new(program);
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command
        .env("TMPDIR", directory)
        .current_dir("/")
        .stdin(Stdio::null());
    command.stdout(Stdio::null()).process_group(0);
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    command
}

/// The server directories left in a directory.
pub fn places(directory: &Path) -> Vec<PathBuf> {
    let is_place = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("pgassay-"))
    };
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(is_place)
        .collect()
}

/// The keepers of servers in a directory, which is an argument of theirs; they work in the root directory.
pub fn keepers_in(directory: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let title = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let of_keeper = format!("pgassay-keeper\0{}/", directory.display());
    pids.filter(|pid| title(pid).contains(&of_keeper)).collect()
}

/// The id of a server's System V segment: the second word of the seventh line of
/// `postmaster.pid`; see `src/include/utils/pidfile.h`.
pub fn segment(pid_file: &str) -> i32 {
    let line = pid_file.lines().nth(6).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub fn segment_exists(segment: i32) -> bool {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let number = segment.to_string();
    table
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().nth(1) == Some(&number))
}

/// The control file of a postmaster's dynamic shared memory.
pub fn control_segment(postmaster: i32) -> PathBuf {
    let maps = fs::read_to_string(format!("/proc/{postmaster}/maps")).unwrap();
    let path = maps
        .split_whitespace()
        .find(|word| word.starts_with("/dev/shm/PostgreSQL."));
    path.unwrap().into()
}

/// The files of shared memory that a server's processes use.
pub fn shared_files(data: &Path) -> Vec<PathBuf> {
    let maps = |pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut files: Vec<PathBuf> = pgassay_test_support::os::processes_in(data)
        .into_iter()
        .flat_map(|pid| {
            let maps = maps(pid);
            let words = maps.split_whitespace();
            let words = words.filter(|word| word.starts_with("/dev/shm/PostgreSQL."));
            words.map(PathBuf::from).collect::<Vec<_>>()
        })
        .collect();
    files.sort();
    files.dedup();
    files
}

/// Starts a query in a parallel worker, which has a segment of dynamic shared memory, and lets it
/// run until its server ends.
pub fn query_in_parallel(server: &pgassay_server::Server) {
    let mut busy = server.connect().unwrap();
    let is_new = server.installation().version.series().major() >= 16;
    let name = if is_new {
        "debug_parallel_query"
    } else {
        "force_parallel_mode"
    };
    busy.execute("set max_parallel_workers_per_gather = 2")
        .unwrap();
    busy.execute(&format!("set {name} = on")).unwrap();
    std::thread::spawn(move || busy.query("select pg_sleep(600)"));
}
