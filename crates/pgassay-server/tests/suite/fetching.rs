//! Downloads from a local repository: complete, damaged, slow, concurrent and failing ones.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgassay_server::{
    FetchError, FindError, Finder, FinderProgress, Installation, InstallationSource, VersionRequest,
};
use pgassay_test_support::{SmallDisk, skip_comparison, wait_until};
use sha2::{Digest, Sha512};
use zip::write::SimpleFileOptions;

use crate::common;

/// None of these archives is in the table of known ones, except the last.
const VERSIONS: [&str; 5] = ["9.6.23", "10.22.0", "18.2.0", "18.10.0", LISTED];
const LISTED: &str = "18.6.0";

/// How a repository answers a request for an archive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behavior {
    Proper,
    /// The connection breaks after half of the archive.
    CutOff,
    /// One byte of the archive is wrong.
    Damaged,
    /// There is no response.
    Silent,
    /// The archive arrives slowly.
    Slow,
    /// The archive contains more entries than it should.
    Hostile(Trap),
    /// The first request for an archive gets no response, later ones do.
    FirstStuck,
}

/// Entries of an archive: name, type, and the target of a link.
type Trap = &'static [(&'static str, tar::EntryType, &'static str)];

/// A small Maven repository on its own port. Its thread ends with the test process.
struct Repository {
    address: String,
    archive_requests: Arc<AtomicU32>,
}

impl Repository {
    fn start(manner: Behavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/maven", listener.local_addr().unwrap());
        let archive_requests = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&archive_requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let count = Arc::clone(&count);
                thread::spawn(move || serve(&mut stream.unwrap(), manner, &count));
            }
        });
        Self {
            address,
            archive_requests,
        }
    }

    fn finder(&self, cache: &Path) -> Finder {
        let mut finder = Finder::new(cache);
        finder.mirror = Some(self.address.clone());
        finder.use_installed = false;
        finder
    }
}

fn serve(stream: &mut TcpStream, manner: Behavior, archive_requests: &AtomicU32) {
    let mut request = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    reader.read_line(&mut request).unwrap();
    let mut header = String::from("-");
    while !header.trim().is_empty() {
        header.clear();
        reader.read_line(&mut header).unwrap();
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    if manner == Behavior::Silent {
        thread::sleep(Duration::from_mins(1));
    }
    let answer = answer(&path, manner);
    let is_archive = Path::new(&path).extension().is_some_and(|end| end == "jar");
    if manner == Behavior::Slow && is_archive {
        thread::sleep(Duration::from_millis(700));
    }
    let is_first_archive = is_archive && archive_requests.fetch_add(1, Ordering::Relaxed) == 0;
    if manner == Behavior::FirstStuck && is_first_archive {
        thread::sleep(Duration::from_mins(1));
    }
    let Some(mut body) = answer else {
        stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        return;
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if is_archive {
        let middle = body.len() / 2;
        match manner {
            Behavior::CutOff => body.truncate(middle),
            Behavior::Damaged => body[middle] ^= 1,
            _ => {}
        }
    }
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
}

fn answer(path: &str, manner: Behavior) -> Option<Vec<u8>> {
    let (_, rest) = path.split_once("/maven/io/zonky/test/postgres/")?;
    let (artefact, file) = rest.split_once('/')?;
    if file == "maven-metadata.xml" {
        return Some(metadata(artefact).into_bytes());
    }
    let version = VERSIONS
        .into_iter()
        .find(|version| file.starts_with(version))?;
    let name = format!("{version}/{artefact}-{version}.jar");
    match file.strip_prefix(name.as_str())? {
        "" => Some(archive(version, manner)),
        ".sha512" => {
            let mut text = String::new();
            for byte in Sha512::digest(archive(version, manner)) {
                write!(text, "{byte:02x}").unwrap();
            }
            Some(text.into_bytes())
        }
        _ => None,
    }
}

fn metadata(artefact: &str) -> String {
    let versions = VERSIONS
        .map(|version| format!("<version>{version}</version>"))
        .concat();
    format!(
        "<?xml version=\"1.0\"?><metadata><groupId>io.zonky.test.postgres</groupId>\
         <artifactId>{artefact}</artifactId><versioning><latest>18.2.0</latest><release>18.2.0</release>\
         <versions>{versions}</versions><lastUpdated>20260101000000</lastUpdated></versioning></metadata>"
    )
}

/// An archive in the real format: a zip that contains a compressed tar.
fn archive(version: &str, manner: Behavior) -> Vec<u8> {
    let printed = version.strip_suffix(".0").unwrap_or(version);
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["postgres", "initdb"] {
        let script = format!("#!/bin/sh\necho '{name} (PostgreSQL) {printed}'\n");
        let mut header = tar::Header::new_gnu();
        header.set_size(script.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        tar.append_data(&mut header, format!("bin/{name}"), script.as_bytes())
            .unwrap();
    }
    if let Behavior::Hostile(trap) = manner {
        for (name, kind, target) in trap {
            append_raw(&mut tar, name, *kind, target);
        }
    }
    let mut packed = Vec::new();
    let tar = tar.into_inner().unwrap();
    liblzma::read::XzEncoder::new(&tar[..], 0)
        .read_to_end(&mut packed)
        .unwrap();
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("postgres-linux-x86_64.txz", options)
        .unwrap();
    zip.write_all(&packed).unwrap();
    zip.finish().unwrap().into_inner()
}

/// Appends an entry with any name, which the library refuses to write.
fn append_raw(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, target: &str) {
    let mut header = tar::Header::new_gnu();
    let fields = header.as_gnu_mut().unwrap();
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    let text: &[u8] = if kind.is_file() { b"trapped" } else { b"" };
    header.set_size(text.len() as u64);
    header.set_mode(0o4755);
    header.set_cksum();
    tar.append(&header, text).unwrap();
}

fn find(finder: &Finder, version: &str) -> Result<Installation, FindError> {
    finder.find(&VersionRequest::parse(version).unwrap(), &mut |_| ())
}

/// The cache's entries, without locks.
fn entries(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache.join("postgresql")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| Path::new(name).extension().is_none_or(|end| end != "lock"))
        .collect()
}

#[test]
fn the_newest_of_a_series_is_fetched_once_and_then_cached() {
    let repository = Repository::start(Behavior::Proper);
    let cache = tempfile::tempdir().unwrap();
    let mut finder = repository.finder(cache.path());
    let fetched = find(&finder, "18").unwrap();
    assert_eq!(
        (fetched.version.to_string().as_str(), &fetched.source),
        ("18.10", &InstallationSource::Fetched)
    );
    finder.offline = true;
    assert_eq!(
        find(&finder, "18").unwrap().source,
        InstallationSource::Cache
    );
    finder.offline = false;
    assert_eq!(find(&finder, "18").unwrap().bin_dir, fetched.bin_dir);
    assert_eq!(repository.archive_requests.load(Ordering::Relaxed), 1);
    assert_eq!(find(&finder, "18.2").unwrap().version.to_string(), "18.2");
    assert_eq!(find(&finder, "9.6").unwrap().version.to_string(), "9.6.23");
}

/// Regression: with only 9.6 in the cache, `latest` was 9.6.
#[test]
fn the_latest_version_is_not_merely_the_newest_in_the_cache() {
    let repository = Repository::start(Behavior::Proper);
    let cache = tempfile::tempdir().unwrap();
    let mut finder = repository.finder(cache.path());
    find(&finder, "9.6").unwrap();
    finder.mirror = Some("http://127.0.0.1:1/maven".to_owned());
    assert_eq!(
        find(&finder, "latest").unwrap().version.to_string(),
        "9.6.23"
    );
    finder.mirror = Some(repository.address.clone());
    assert_eq!(
        find(&finder, "latest").unwrap().version.to_string(),
        "18.10"
    );
}

#[test]
fn the_error_for_an_unknown_version_lists_the_available_ones() {
    let repository = Repository::start(Behavior::Proper);
    let cache = tempfile::tempdir().unwrap();
    for version in ["42", "10.99", "19beta1"] {
        let error = find(&repository.finder(cache.path()), version).unwrap_err();
        assert!(matches!(error, FindError::Unknown { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(version) && text.contains("18.10, 10.22, 9.6.23"),
            "{text}"
        );
    }
    assert!(entries(cache.path()).is_empty());
}

#[test]
fn a_truncated_or_damaged_download_is_an_error_and_leaves_nothing() {
    for manner in [Behavior::CutOff, Behavior::Damaged] {
        let repository = Repository::start(manner);
        let cache = tempfile::tempdir().unwrap();
        let error = find(&repository.finder(cache.path()), "18").unwrap_err();
        let FindError::NotFetched { cause, .. } = &error else {
            panic!("{error}")
        };
        let is_checksum = matches!(**cause, FetchError::Checksum { .. });
        assert_eq!(is_checksum, manner == Behavior::Damaged, "{cause}");
        assert!(
            entries(cache.path()).is_empty(),
            "{:?}",
            entries(cache.path())
        );
        // The next attempt succeeds.
        let proper = Repository::start(Behavior::Proper);
        find(&proper.finder(cache.path()), "18").unwrap();
    }
}

/// Regression: the advice was to check the network.
#[test]
fn a_full_disk_of_the_cache_is_reported_as_such_and_leaves_nothing() {
    // Room for one of the archive's two files.
    let Some(disk) = SmallDisk::mount("4k") else {
        return;
    };
    let repository = Repository::start(Behavior::Proper);
    let error = find(&repository.finder(disk.path()), "18").unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, FindError::Cache { .. }), "{words}");
    assert!(
        words.contains("No space left on device") && !words.contains("network"),
        "{words}"
    );
    assert!(
        entries(disk.path()).is_empty(),
        "{:?}",
        entries(disk.path())
    );
}

/// Regression test: an archive could write anywhere as root, by its names and through its links.
#[test]
fn an_archive_that_leads_out_of_its_directory_is_refused_and_writes_nothing() {
    use tar::EntryType as T;
    // Nothing can create it.
    const OUT: &str = "/proc/pgassay-test-escaped";
    let traps: [Trap; 14] = [
        &[("../../../../escaped", T::Regular, "")],
        &[("bin/../../../../../escaped", T::Regular, "")],
        &[(OUT, T::Regular, "")],
        &[("out", T::Symlink, "/etc")],
        &[
            ("out", T::Symlink, "../../.."),
            ("out/escaped", T::Regular, ""),
        ],
        &[("in", T::Symlink, "bin"), ("in/escaped", T::Regular, "")],
        &[("up", T::Symlink, "."), ("out", T::Symlink, "up/..")],
        &[("bin/postgres", T::Symlink, "initdb")],
        &[("bin", T::Symlink, "share")],
        &[("shadow", T::Link, "/etc/shadow")],
        &[("shadow", T::Link, "../../../../escaped")],
        &[("device", T::Char, "")],
        &[("fifo", T::Fifo, "")],
        &[("./", T::Symlink, "bin")],
    ];
    for trap in traps {
        let repository = Repository::start(Behavior::Hostile(trap));
        let directory = common::open_directory();
        let cache = directory.path().join("cache");
        let error = find(&repository.finder(&cache), "18").unwrap_err();
        let FindError::NotFetched { cause, .. } = &error else {
            panic!("{trap:?}: {error}")
        };
        assert!(
            matches!(**cause, FetchError::Unsafe { .. }),
            "{trap:?}: {cause}"
        );
        assert!(
            entries(&cache).is_empty(),
            "{trap:?}: {:?}",
            entries(&cache)
        );
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "{trap:?}"
        );
    }
    // The same with names and links that stay inside is unpacked.
    let harmless: Trap = &[
        ("lib", T::Directory, ""),
        ("lib/a.so.1", T::Regular, ""),
        ("lib/a.so", T::Symlink, "a.so.1"),
        ("lib/postgres", T::Symlink, "../bin/postgres"),
        ("lib/b.so", T::Link, "lib/a.so.1"),
    ];
    let repository = Repository::start(Behavior::Hostile(harmless));
    let directory = common::open_directory();
    let installation = find(&repository.finder(directory.path()), "18").unwrap();
    let lib = installation.bin_dir.parent().unwrap().join("lib");
    for name in ["a.so", "a.so.1", "b.so"] {
        assert_eq!(fs::read(lib.join(name)).unwrap(), b"trapped", "{name}");
    }
    // It belongs to the current user, although another one unpacked it, and is not setuid.
    let file = fs::metadata(lib.join("a.so.1")).unwrap();
    // SAFETY: geteuid takes nothing and cannot fail.
    assert_eq!(file.uid(), unsafe { libc::geteuid() });
    assert_eq!(file.permissions().mode() & 0o7777, 0o755);
}

/// Regression test: the checksum came from the same host as the archive.
#[test]
fn an_archive_that_was_replaced_is_refused_whatever_the_repository_says() {
    let repository = Repository::start(Behavior::Proper);
    let cache = common::open_directory();
    let error = find(&repository.finder(cache.path()), "18.6").unwrap_err();
    let FindError::NotFetched { cause, .. } = &error else {
        panic!("{error}")
    };
    let is_replaced = matches!(&**cause, FetchError::Replaced { version, .. } if version == LISTED);
    assert!(is_replaced, "{cause}");
    assert!(
        error.to_string().contains("Do not use this repository"),
        "{error}"
    );
    assert!(entries(cache.path()).is_empty());
}

#[test]
fn an_archive_that_is_not_in_the_table_is_reported() {
    let repository = Repository::start(Behavior::Proper);
    let cache = common::open_directory();
    let mut unlisted = Vec::new();
    let request = VersionRequest::parse("18.10").unwrap();
    let found = repository.finder(cache.path()).find(&request, &mut |step| {
        if let FinderProgress::Unlisted { version } = step {
            unlisted.push(version.to_string());
        }
    });
    found.unwrap();
    assert_eq!(unlisted, ["18.10"]);
}

#[test]
fn a_mirror_without_tls_is_refused_unless_it_is_on_this_machine() {
    let cache = tempfile::tempdir().unwrap();
    let mut finder = Finder::new(cache.path());
    finder.use_installed = false;
    finder.mirror = Some("http://mirror.test/maven".to_owned());
    let text = find(&finder, "18").unwrap_err().to_string();
    assert!(text.contains("does not begin with https://"), "{text}");
    for password in ["s3cret", "s3cret/x", "s3cret#?"] {
        finder.mirror = Some(format!("http://me:{password}@mirror.test/maven"));
        let text = find(&finder, "18").unwrap_err().to_string();
        assert!(
            text.contains("\"http://mirror.test/maven\"") && !text.contains("s3cret"),
            "{text}"
        );
    }
}

#[test]
fn no_response_and_no_network_time_out_with_advice() {
    let repository = Repository::start(Behavior::Silent);
    let cache = tempfile::tempdir().unwrap();
    let mut finder = repository.finder(cache.path());
    finder.network_timeout = Duration::from_secs(1);
    let start = Instant::now();
    let mut heard = 0;
    let request = VersionRequest::parse("18").unwrap();
    let progress =
        &mut |progress| heard += u32::from(matches!(progress, FinderProgress::Asking { .. }));
    let error = finder.find(&request, progress).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20) && heard > 1);
    let text = error.to_string();
    for part in [
        "no response within 1 s",
        "which is empty",
        "PGASSAY_MIRROR",
        &repository.address,
    ] {
        assert!(text.contains(part), "{text}");
    }
    // No server listens at this port; the library tries a few times. Regression: the password was in the message.
    finder.mirror = Some("http://me:s3cret@127.0.0.1:1".to_owned());
    finder.network_timeout = Duration::from_secs(30);
    let error = find(&finder, "18").unwrap_err();
    assert!(matches!(error, FindError::NotFetched { .. }));
    let text = error.to_string();
    assert!(
        text.contains("http://127.0.0.1:1") && !text.contains("s3cret"),
        "{text}"
    );
    finder.offline = true;
    let text = find(&finder, "18").unwrap_err().to_string();
    assert!(
        text.contains("--offline") && text.contains("which is empty"),
        "{text}"
    );
}

#[test]
fn two_processes_that_fetch_the_same_version_both_succeed() {
    let repository = Repository::start(Behavior::Slow);
    let directory = common::open_directory();
    let cache = directory.path().join("cache");
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            let mut command =
                common::helper("fetching::a_process_that_fetches", directory.path(), None);
            command
                .env("PGASSAY_CACHE", &cache)
                .env("PGASSAY_MIRROR", &repository.address);
            command.spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(entries(&cache).len(), 1);
    assert_eq!(
        repository.archive_requests.load(Ordering::Relaxed),
        1,
        "one process waits for the other"
    );
}

#[test]
fn a_killed_download_leaves_no_entry_and_does_not_block_the_next() {
    let repository = Repository::start(Behavior::FirstStuck);
    let directory = common::open_directory();
    let cache = directory.path().join("cache");
    let mut command = common::helper("fetching::a_process_that_fetches", directory.path(), None);
    command
        .env("PGASSAY_CACHE", &cache)
        .env("PGASSAY_MIRROR", &repository.address);
    let mut child = command.spawn().unwrap();
    wait_until("the archive is requested", || {
        repository.archive_requests.load(Ordering::Relaxed) > 0
    });
    assert!(!entries(&cache).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    let mut finder = repository.finder(&cache);
    finder.offline = true;
    assert!(matches!(
        find(&finder, "18"),
        Err(FindError::Offline { .. })
    ));
    finder.offline = false;
    assert_eq!(
        find(&finder, "18").unwrap().source,
        InstallationSource::Fetched
    );
    assert_eq!(entries(&cache).len(), 1, "{:?}", entries(&cache));
}

#[test]
#[ignore = "run by other tests in a separate process"]
fn a_process_that_fetches() {
    let mut finder = Finder::from_environment().unwrap();
    finder.use_installed = false;
    let installation = find(&finder, "18").unwrap();
    assert_eq!(installation.version.to_string(), "18.10");
}

#[test]
fn the_error_for_a_cache_that_is_not_writable_includes_its_path() {
    let repository = Repository::start(Behavior::Proper);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let error = find(&repository.finder(&file.join("cache")), "18").unwrap_err();
    assert!(matches!(error, FindError::Cache { .. }), "{error}");
    assert!(error.to_string().contains("file/cache"), "{error}");
}

#[test]
fn an_installed_version_is_the_last_resort_and_comes_with_a_note() {
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = Some("/usr/lib/postgresql".into());
    let Ok(installed) = find(&finder, "latest") else {
        skip_comparison(
            "an installed PostgreSQL",
            "there is none in /usr/lib/postgresql",
        );
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let mut finder = Finder::new(cache.path());
    finder.offline = true;
    let series = installed.version.series().to_string();
    let found = find(&finder, &series).unwrap();
    assert_eq!(found.version, installed.version);
    let InstallationSource::Installed { note } = found.source else {
        panic!("{:?}", found.source)
    };
    assert!(
        note.contains("is not in the cache") && note.contains("--offline"),
        "{note}"
    );
    finder.use_installed = false;
    assert!(find(&finder, &series).is_err());
}
