//! Checks and unpacks a downloaded archive: a zip that contains a tar compressed with xz.
//!
//! An archive comes from another machine, so nothing of it is written before all its names and
//! links are checked. Then a thread of its own unpacks it; for root, the thread is confined to the
//! new directory and has the rights of the server's user.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufReader, Cursor, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::thread;

use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;
use pgassay_rights::{self as rights, Purpose};
use tar::{Entry, EntryType};
use zip::ZipArchive;

use crate::account::OsAccount;
use crate::fetch::FetchError;
use crate::os;

/// Limits of an archive. PostgreSQL's have 1,100 files and 60 MB, 15 MB compressed.
const ENTRIES_MAX: usize = 50_000;
const UNPACKED_BYTES_MAX: u64 = 512 << 20;
const PACKED_BYTES_MAX: u64 = 512 << 20;
/// Limit of the decoder's memory. The largest preset of xz needs 65 MiB.
const DECODER_BYTES_MAX: u64 = 128 << 20;

/// Checks an archive, and unpacks it into `into`, which must not exist. Its parent directory should
/// be closed to other users: the new directory belongs to the server's user, who could change the
/// files otherwise.
pub(crate) fn unpack(archive: &[u8], into: &Path, account: &OsAccount) -> Result<(), FetchError> {
    let packed = packed_tar(archive)?;
    check(&packed)?;
    let failed = |error: io::Error| FetchError::Unwritable {
        kind: error.kind(),
        words: error.to_string(),
    };
    DirBuilder::new().mode(0o700).create(into).map_err(failed)?;
    let (into, user) = (into.to_owned(), account.user.clone());
    let is_other = account.is_other();
    if is_other {
        let _raised = rights::raise(Purpose::Owners);
        lchown(&into, Some(user.uid), Some(user.gid)).map_err(failed)?;
    }
    let writing = thread::Builder::new().name("pgassay-unpack".to_owned());
    let writing = writing.spawn(move || {
        if is_other {
            os::confine_thread(&into, user.uid, user.gid)?;
            write(&packed, Path::new("/"))
        } else {
            write(&packed, &into)
        }
    });
    let ended = writing.map_err(failed)?.join();
    ended
        .unwrap_or_else(|_| Err(io::Error::other("the unpacking thread panicked")))
        .map_err(failed)
}

/// The compressed tar in the zip.
fn packed_tar(archive: &[u8]) -> Result<Vec<u8>, FetchError> {
    let failed =
        |error: &dyn std::fmt::Display| FetchError::Other(format!("not an archive: {error}"));
    let mut zip = ZipArchive::new(Cursor::new(archive)).map_err(|error| failed(&error))?;
    for at in 0..zip.len() {
        let file = zip.by_index(at).map_err(|error| failed(&error))?;
        let is_tar = file.name().is_ok_and(|name| name.ends_with(".txz"));
        if is_tar {
            let mut packed = Vec::new();
            let mut limited = file.take(PACKED_BYTES_MAX + 1);
            limited
                .read_to_end(&mut packed)
                .map_err(|error| failed(&error))?;
            if packed.len() as u64 > PACKED_BYTES_MAX {
                return Err(failed(&"its files are too large"));
            }
            return Ok(packed);
        }
    }
    Err(failed(&"it contains no file that ends with .txz"))
}

fn open_tar(packed: &[u8]) -> io::Result<tar::Archive<impl Read>> {
    let stream = Stream::new_stream_decoder(DECODER_BYTES_MAX, 0).map_err(io::Error::other)?;
    let decoder = XzDecoder::new_stream(BufReader::new(packed), stream);
    // One byte more than allowed, which `check` notices.
    Ok(tar::Archive::new(decoder.take(UNPACKED_BYTES_MAX + 1)))
}

/// What an archive's entry creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link,
}

/// Checks every entry: only files, directories and links, all of them inside the directory; no name
/// twice; and no name below a link, so that nothing is written through one.
fn check(packed: &[u8]) -> Result<(), FetchError> {
    let mut archive = open_tar(packed).map_err(unreadable)?;
    let mut seen: HashMap<PathBuf, Kind> = HashMap::new();
    let mut parents: HashSet<PathBuf> = HashSet::new();
    let mut bytes = 0_u64;
    for entry in archive.entries().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = name_of(&entry)?;
        let refused = |reason| FetchError::Unsafe {
            name: name.display().to_string(),
            reason,
        };
        bytes = bytes.saturating_add(entry.size());
        if seen.len() >= ENTRIES_MAX || bytes > UNPACKED_BYTES_MAX {
            return Err(refused("the archive is too large"));
        }
        let kind = checked_kind(&entry, &name, &seen).map_err(refused)?;
        if name.as_os_str().is_empty() {
            // The directory itself, `./`.
            if kind == Kind::Directory {
                continue;
            }
            return Err(refused("it has no name"));
        }
        for parent in name.ancestors().skip(1) {
            if seen
                .get(parent)
                .is_some_and(|kind| *kind != Kind::Directory)
            {
                return Err(refused("it is below a name that is not a directory"));
            }
            parents.insert(parent.to_owned());
        }
        if kind != Kind::Directory && parents.contains(&name) {
            return Err(refused("it replaces a directory"));
        }
        let before = seen.insert(name.clone(), kind);
        if before.is_some_and(|before| (before, kind) != (Kind::Directory, Kind::Directory)) {
            return Err(refused("its name occurs twice"));
        }
    }
    Ok(())
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "the form that map_err expects"
)]
fn unreadable(error: io::Error) -> FetchError {
    FetchError::Other(format!("cannot read the archive: {error}"))
}

/// An entry's name, without `.` in it. Refuses absolute names and `..`.
fn name_of<R: Read>(entry: &Entry<'_, R>) -> Result<PathBuf, FetchError> {
    let path = entry.path().map_err(unreadable)?;
    plain(&path).ok_or_else(|| FetchError::Unsafe {
        name: path.display().to_string(),
        reason: "its name leads out of the directory",
    })
}

/// A relative path without `.`. `None` if it is absolute or contains `..`.
fn plain(path: &Path) -> Option<PathBuf> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect()
}

fn checked_kind<R: Read>(
    entry: &Entry<'_, R>,
    name: &Path,
    seen: &HashMap<PathBuf, Kind>,
) -> Result<Kind, &'static str> {
    let target = entry.link_name().map_err(|_| "its link cannot be read")?;
    match entry.header().entry_type() {
        EntryType::Directory => Ok(Kind::Directory),
        EntryType::Regular | EntryType::Continuous => Ok(Kind::File),
        EntryType::Symlink => {
            let target = target.ok_or("it is a link to nothing")?;
            let depth = name.components().count().saturating_sub(1);
            if stays_inside(&target, depth) {
                Ok(Kind::Link)
            } else {
                Err("it is a link that leads out of the directory")
            }
        }
        EntryType::Link => {
            let target = target.and_then(|target| plain(&target));
            let is_file = |target: PathBuf| seen.get(&target) == Some(&Kind::File);
            if target.is_some_and(is_file) {
                Ok(Kind::File)
            } else {
                Err("it is a hard link to something other than an earlier file")
            }
        }
        _ => Err("it is neither a file, a directory nor a link"),
    }
}

/// Whether a symbolic link in a directory `depth` levels below the top stays below the top: only
/// leading `..`, at most `depth`. A `..` after a name could follow another link and leave.
fn stays_inside(target: &Path, depth: usize) -> bool {
    let mut up = 0;
    let mut has_name = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if !has_name && up < depth => up += 1,
            Component::Normal(_) => has_name = true,
            _ => return false,
        }
    }
    has_name
}

/// Writes all entries of a checked archive below `top`.
fn write(packed: &[u8], top: &Path) -> io::Result<()> {
    let mut archive = open_tar(packed)?;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let again = || io::Error::other("the archive changed after its check");
        let name = plain(&entry.path()?).ok_or_else(again)?;
        let path = top.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let target = entry.link_name()?.map(std::borrow::Cow::into_owned);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&path)?,
            EntryType::Symlink => symlink(target.ok_or_else(again)?, &path)?,
            EntryType::Link => {
                let target = plain(&target.ok_or_else(again)?).ok_or_else(again)?;
                fs::hard_link(top.join(target), &path)?;
            }
            _ => {
                // No setuid and no setgid.
                let mode = entry.header().mode()? & 0o777;
                let mut file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&path)?;
                io::copy(&mut entry, &mut file)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_that_stay_inside_are_allowed() {
        for (target, depth) in [("a", 0), ("../a", 1), ("./../a/b", 1), ("../../a", 2)] {
            assert!(
                stays_inside(Path::new(target), depth),
                "{target} at {depth}"
            );
        }
        let outside = ["..", "../a", "/a", "a/../b", "a/..", "", ".", "../../a"];
        for target in outside {
            assert!(!stays_inside(Path::new(target), 0), "{target}");
        }
        assert!(!stays_inside(Path::new("../../a"), 1));
    }

    #[test]
    fn names_are_relative_and_go_down() {
        assert_eq!(plain(Path::new("./a/./b")), Some(PathBuf::from("a/b")));
        assert_eq!(plain(Path::new("./")), Some(PathBuf::new()));
        for name in ["/a", "..", "a/../b", "../a"] {
            assert_eq!(plain(Path::new(name)), None, "{name}");
        }
    }
}
