//! Keeps the data directory that `initdb` created, for later servers of the same kind: `initdb` takes about a second
//! of CPU time, a copy a tenth.
//!
//! `CACHE/initdb/18.6-x86_64-0123456789abcdef.tar`, next to the `CACHE/postgresql` of the installation. Invariants: a file
//! appears with all its contents on disk, and never changes. The server's user packs and unpacks it, so that root
//! neither reads nor writes through that user's links; root owns the file. Each user has files of their own: what one
//! could put into a data directory does not reach another's servers. It is only for servers without TCP: they accept
//! no password for the superuser, and so not the random one of the server that it was made for.
//!
//! Only for installations in the cache: others can change under the same name. The system identifier is that of the
//! template, as with PostgreSQL's own tests, which copy a directory too (`INITDB_TEMPLATE` in `src/test`, since 17).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use sha2::{Digest, Sha256};

use crate::account::{OsAccount, SHORT_TIMEOUT, run_large_program, run_program};
use crate::cache::create_open_to_all;
use crate::installation::{Installation, InstallationSource};

/// As `initdb`'s: on a busy disk, 40 MB can take a while.
const TIMEOUT: Duration = Duration::from_mins(2);
/// A data directory has 40 MB. What is larger is not kept.
const BYTES_MAX: u64 = 128 << 20;
/// Succeeds if `data` has what `initdb` writes first and last. `tar` accepts a file that ends between two members.
const IS_COMPLETE: &str = "test -s data/PG_VERSION && test -s data/global/pg_control";

/// What `initdb` creates with certain options.
#[derive(Debug)]
pub(crate) struct DataTemplate {
    file: PathBuf,
}

impl DataTemplate {
    /// The user's template for these arguments of `initdb`; `None` if the installation is not one of the cache.
    pub(crate) fn of(
        installation: &Installation,
        arguments: &[OsString],
        account: &OsAccount,
    ) -> Option<Self> {
        let kept = [InstallationSource::Cache, InstallationSource::Fetched];
        if !kept.contains(&installation.source) {
            return None;
        }
        let entry = installation.bin_dir.parent()?;
        let mut hash = Sha256::new();
        // `initdb` writes the time zone of its environment to postgresql.conf.
        let zone = std::env::var_os("TZ").unwrap_or_default();
        let local = fs::canonicalize("/etc/localtime").unwrap_or_default();
        let user = OsString::from(account.user.uid.to_string());
        let given = arguments.iter().map(OsString::as_os_str);
        for word in given.chain([zone.as_os_str(), local.as_os_str(), user.as_os_str()]) {
            hash.update(word.as_encoded_bytes());
            hash.update([0]);
        }
        let hash = u64::from_be_bytes(*hash.finalize().first_chunk()?);
        let name = format!("{}-{hash:016x}.tar", entry.file_name()?.to_str()?);
        let file = entry.parent()?.parent()?.join("initdb").join(name);
        Some(Self { file })
    }

    /// Unpacks it as `base/data`. False if there is none, or if it cannot be unpacked; then there is no `base/data`.
    pub(crate) fn unpack(&self, account: &OsAccount, base: &Path) -> bool {
        if !self.file.is_file() {
            return false;
        }
        let mut tar = account.command(Path::new("tar"));
        tar.arg("-xf").arg(&self.file).arg("-C").arg(base);
        let unpacked = run_program(tar, TIMEOUT).and_then(|output| succeeded(&output));
        let checked = unpacked.and_then(|()| {
            let output = account.run_script(IS_COMPLETE, &[], base, b"", SHORT_TIMEOUT)?;
            succeeded(&output)
        });
        let Err(reason) = checked else {
            return true;
        };
        tracing::debug!(file = %self.file.display(), %reason, "cannot unpack a data directory");
        let removed = account.run_script("rm -rf data", &[], base, b"", SHORT_TIMEOUT);
        if let Err(error) = removed {
            tracing::debug!(%error, "cannot remove an incomplete data directory");
        }
        false
    }

    /// Keeps `base/data`, which could not be unpacked: a file that is there is damaged, or another process was
    /// faster. A failure costs only the time of a later `initdb`.
    pub(crate) fn pack(&self, account: &OsAccount, base: &Path) {
        if let Err(error) = self.try_to_pack(account, base) {
            tracing::debug!(file = %self.file.display(), %error, "cannot keep a data directory");
        }
    }

    fn try_to_pack(&self, account: &OsAccount, base: &Path) -> io::Result<()> {
        let Some(directory) = self.file.parent() else {
            return Ok(());
        };
        create_open_to_all(directory)?;
        let mut tar = account.command(Path::new("tar"));
        tar.args(["-cf", "-", "-C"]).arg(base).arg("data");
        let output = run_large_program(tar, BYTES_MAX, TIMEOUT)?;
        succeeded(&output)?;
        if output.stdout.len() as u64 == BYTES_MAX {
            return Err(io::Error::other("it is too large"));
        }
        // Without a name until it is complete: a process that is killed leaves nothing.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(open(directory, flags, Mode::from_raw_mode(0o644))?);
        file.write_all(&output.stdout)?;
        // Whatever the umask is.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.sync_all()?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name_it = || linkat(CWD, &unnamed, CWD, &self.file, AtFlags::SYMLINK_FOLLOW);
        match name_it() {
            Err(rustix::io::Errno::EXIST) => {
                fs::remove_file(&self.file)?;
                Ok(name_it()?)
            }
            named => Ok(named?),
        }
    }
}

/// Whether `initdb`, by what it printed, chose the settings of a machine that has enough memory. Those of one that has
/// not are never kept: later servers, with more memory, would be measured with a small `shared_buffers`.
pub(crate) fn has_usual_settings(printed: &[u8]) -> bool {
    let printed = String::from_utf8_lossy(printed);
    let is_chosen = |name: &str, value: &str| {
        let mut lines = printed.lines().filter(|line| line.contains(name));
        lines.any(|line| line.trim_end().ends_with(&format!(" {value}")))
    };
    is_chosen("max_connections", "100") && is_chosen("shared_buffers", "128MB")
}

fn succeeded(output: &Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::BuildFacts;
    use crate::version::Version;

    fn installation(bin_dir: &Path, source: InstallationSource) -> Installation {
        Installation {
            bin_dir: bin_dir.to_owned(),
            version: Version::parse("18.6").unwrap(),
            source,
            build: BuildFacts::default(),
        }
    }

    fn template(cache: &Path, arguments: &[&str]) -> DataTemplate {
        template_of(cache, arguments, &OsAccount::choose(None).unwrap())
    }

    fn template_of(cache: &Path, arguments: &[&str], account: &OsAccount) -> DataTemplate {
        let bin_dir = cache.join("postgresql/18.6-x86_64/bin");
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        DataTemplate::of(
            &installation(&bin_dir, InstallationSource::Cache),
            &arguments,
            account,
        )
        .unwrap()
    }

    /// A directory of the server's user in one that it can enter.
    fn directories() -> (tempfile::TempDir, PathBuf, OsAccount) {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let account = OsAccount::choose(None).unwrap();
        let base = root.path().join("base");
        fs::create_dir(&base).unwrap();
        if account.is_other() {
            let (uid, gid) = (account.user.uid, account.user.gid);
            std::os::unix::fs::chown(&base, Some(uid), Some(gid)).unwrap();
        }
        (root, base, account)
    }

    fn in_base(account: &OsAccount, base: &Path, script: &str) -> String {
        let output = account.run_script(script, &[], base, b"", SHORT_TIMEOUT);
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    #[test]
    fn a_copy_has_the_contents_and_the_permissions() {
        let (root, base, account) = directories();
        let template = template(root.path(), &["-k"]);
        assert!(!template.unpack(&account, &base), "there is none yet");
        in_base(
            &account,
            &base,
            "umask 077; mkdir -p data/base data/global; echo 18 >data/base/a; \
             echo 18 >data/PG_VERSION; echo 18 >data/global/pg_control",
        );
        template.pack(&account, &base);
        template.pack(&account, &base);
        in_base(&account, &base, "rm -rf data");
        assert!(template.unpack(&account, &base));
        let seen = in_base(
            &account,
            &base,
            "cat data/base/a; stat -c %a data data/base/a",
        );
        assert_eq!(seen, "18\n700\n600\n");
        let kept = fs::metadata(&template.file).unwrap().permissions();
        assert_eq!(kept.mode() & 0o777, 0o644);
        let files = fs::read_dir(root.path().join("initdb")).unwrap();
        assert_eq!(files.count(), 1, "nothing else is left");
    }

    #[test]
    fn a_damaged_file_leaves_no_data_directory() {
        let (root, base, account) = directories();
        let template = template(root.path(), &[]);
        in_base(
            &account,
            &base,
            "mkdir data; head -c 100000 /dev/zero >data/a",
        );
        template.pack(&account, &base);
        let whole = fs::read(&template.file).unwrap();
        fs::write(&template.file, &whole[..whole.len() / 2]).unwrap();
        in_base(&account, &base, "rm -rf data");
        assert!(!template.unpack(&account, &base));
        assert!(!base.join("data").exists());
    }

    /// `tar` does not notice that the rest is missing.
    #[test]
    fn a_file_that_ends_between_two_members_is_not_used_and_replaced() {
        let (root, base, account) = directories();
        let template = template(root.path(), &[]);
        let first = "mkdir -p data/global; echo 18 >data/PG_VERSION";
        in_base(&account, &base, first);
        template.pack(&account, &base);
        in_base(&account, &base, "rm -rf data");
        assert!(!template.unpack(&account, &base));
        assert!(!base.join("data").exists());
        let all = format!("{first}; echo 18 >data/global/pg_control");
        in_base(&account, &base, &all);
        template.pack(&account, &base);
        in_base(&account, &base, "rm -rf data");
        assert!(template.unpack(&account, &base), "it was replaced");
    }

    /// A process of the user `nobody` can write to the data directory that is packed.
    #[test]
    fn a_servers_user_gets_no_data_directory_of_another_user() {
        let account = OsAccount::choose(None).unwrap();
        let mut other = account.clone();
        other.user.uid += 1;
        let cache = Path::new("/c");
        let file = |account| template_of(cache, &[], account).file;
        assert_eq!(file(&account), file(&account));
        assert_ne!(file(&account), file(&other));
    }

    #[test]
    fn settings_of_a_machine_with_little_memory_are_not_kept() {
        let printed = |version: &str, connections: &str, buffers: &str| {
            let quote = if version == "18" { "\"" } else { "" };
            format!(
                "selecting dynamic shared memory implementation ... posix\n\
                 selecting default {quote}max_connections{quote} ... {connections}\n\
                 selecting default {quote}shared_buffers{quote} ... {buffers}\n\
                 selecting default time zone ... Etc/UTC\n"
            )
        };
        for version in ["9.6", "18"] {
            let is_kept = |connections, buffers| {
                has_usual_settings(printed(version, connections, buffers).as_bytes())
            };
            assert!(is_kept("100", "128MB"));
            assert!(!is_kept("100", "64MB"));
            assert!(!is_kept("20", "400kB"));
            assert!(!is_kept("20", "128MB"));
        }
        assert!(!has_usual_settings(b""));
    }

    #[test]
    fn other_options_and_other_versions_have_other_files() {
        let cache = Path::new("/c");
        let file = |arguments: &[&str]| template(cache, arguments).file;
        assert_eq!(file(&["-k"]), file(&["-k"]));
        assert_ne!(file(&["-k"]), file(&[]));
        assert_ne!(file(&["-k", "-n"]), file(&["-k-n"]));
        let name = file(&[]);
        assert!(name.to_str().unwrap().starts_with("/c/initdb/18.6-x86_64-"));
    }

    /// What a user builds changes under the same name, and `initdb` with it.
    #[test]
    fn a_users_installation_has_no_template() {
        let bin_dir = Path::new("/c/postgresql/18.6-x86_64/bin");
        let named = installation(bin_dir, InstallationSource::Named);
        let account = OsAccount::choose(None).unwrap();
        assert!(DataTemplate::of(&named, &[], &account).is_none());
    }
}
