//! How a server was built, read from its executable without running it.
//!
//! PostgreSQL compiles its build settings into the server as strings, for `version()` and the
//! view `pg_config` (see `src/common/config_info.c`; the view came with 9.6). Binary archives
//! do not include the program `pg_config`, and a plan is needed before any server runs, so the
//! strings are found in the executable by their form. `tests/` compares them with those of the
//! running server.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;

use pgassay_rights::UnopenedFile;
use sha2::{Digest, Sha256};

/// The part of an executable that is read. With debug information, servers have some 100 MB.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// What is known about a build. A field is `None` if it is not in the executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildFacts {
    /// `version()`, such as `PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc …, 64-bit`.
    pub banner: Option<String>,
    /// The arguments of `configure`, each in quotes. A Meson build has none.
    pub configure: Option<String>,
    /// The compiler flags.
    pub cflags: Option<String>,
    /// The compiler, from the banner.
    pub compiler: Option<String>,
    /// The SHA-256 of the executable. After a rebuild from another source, all else can be the same.
    pub executable: Option<String>,
}

impl BuildFacts {
    /// Reads a server executable, at most 1 GiB of it.
    pub fn of_program(program: &Path) -> io::Result<Self> {
        // A study can name the file.
        let file = UnopenedFile::at(program)?.open(OpenOptions::new().read(true))?;
        let mut image = Vec::new();
        file.take(IMAGE_BYTES_MAX).read_to_end(&mut image)?;
        Ok(Self {
            executable: Some(sha256(&image)),
            ..Self::of_image(&image)
        })
    }

    /// Reads an executable's bytes, in one pass, since there are ten million.
    pub(crate) fn of_image(image: &[u8]) -> Self {
        let mut facts = Self::default();
        for bytes in image.split(|&byte| byte == 0) {
            let starts = |start: &[u8]| bytes.starts_with(start);
            if facts.banner.is_none() && bytes.ends_with(b"-bit") {
                facts.banner = banner(bytes);
            } else if starts(b"'") || starts(b" '") {
                facts.configure = facts
                    .configure
                    .or_else(|| text(bytes).filter(|text| is_configure(text)));
            } else if starts(CFLAGS) {
                facts.cflags = facts.cflags.or_else(|| text(bytes));
            }
        }
        facts.compiler = facts
            .banner
            .as_deref()
            .and_then(compiler_of)
            .map(str::to_owned);
        facts
    }

    /// The facts that a running server reports: `version()`, and the view `pg_config` if it is
    /// readable.
    pub fn reported(banner: String, configure: Option<String>, cflags: Option<String>) -> Self {
        Self {
            compiler: compiler_of(&banner).map(str::to_owned),
            banner: Some(banner),
            configure,
            cflags,
            executable: None,
        }
    }

    /// Whether the compiler was not to optimize, as far as known. The last flag counts, and without one it does not;
    /// but a Meson build may not record how it optimizes (`-Og` of 18; `meson.build`, `common_builtin_flags`).
    pub fn is_unoptimized(&self) -> bool {
        let Some(cflags) = &self.cflags else {
            return false;
        };
        let mut flags = cflags.split_whitespace();
        let last = flags.rfind(|it| it.starts_with("-O"));
        last.map_or(self.configure.is_some(), |it| it == "-O0")
    }

    /// Whether the build was configured with a feature, by its name in `--with-…`: `lz4`, `zstd`,
    /// `openssl`, … `None` if the arguments of `configure` are not known.
    pub fn has_feature(&self, name: &str) -> Option<bool> {
        let argument = format!("--with-{name}");
        // Each argument is in quotes, and some have a value, such as '--with-ssl=openssl'.
        let mut given = self.configure.as_ref()?.split('\'');
        Some(given.any(|given| {
            let rest = given.strip_prefix(&argument);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        }))
    }
}

/// The differences between two builds, the first and the second, that may affect performance, if there are any.
/// Facts that are unknown for one of them are not compared.
pub fn differ(a: &BuildFacts, b: &BuildFacts) -> Option<String> {
    let mut parts = Vec::new();
    if a.compiler != b.compiler {
        parts.push(format!(
            "compiler {} vs {}",
            shown(a.compiler.as_ref()),
            shown(b.compiler.as_ref())
        ));
    }
    let (only_a, only_b) = (flags_beyond(a, b), flags_beyond(b, a));
    let have_flags = a.cflags.is_some() && b.cflags.is_some();
    if have_flags && !(only_a.is_empty() && only_b.is_empty()) {
        parts.push(format!("flags {} vs {}", listed(&only_a), listed(&only_b)));
    }
    let are_configured = a.configure.is_some() && b.configure.is_some();
    if are_configured {
        let (of_a, of_b) = (switches(a), switches(b));
        let only = |given: &BTreeSet<&str>, other: &BTreeSet<&str>, which: &str| -> Vec<String> {
            let given = given.difference(other);
            given
                .map(|it| format!("{it} only in the {which}"))
                .collect()
        };
        parts.extend(only(&of_a, &of_b, "first"));
        parts.extend(only(&of_b, &of_a, "second"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The arguments of `configure` that are or set one of the [`SWITCHES`].
fn switches(facts: &BuildFacts) -> BTreeSet<&str> {
    let given = facts.configure.as_deref().unwrap_or_default().split('\'');
    given
        .filter(|it| SWITCHES.contains(&it.split('=').next().unwrap_or_default()))
        .collect()
}

/// The flags begin with those that PostgreSQL's build adds.
const CFLAGS: &[u8] = b"-Wall -Wmissing-prototypes ";

/// Options of `configure` that affect the server's performance besides compiler flags.
const SWITCHES: [&str; 7] = [
    "--with-blocksize",
    "--with-segsize",
    "--with-wal-blocksize",
    "--enable-cassert",
    "--enable-profiling",
    "--enable-coverage",
    "--disable-spinlocks",
];

/// The flags that the other build does not have, except those that do not change the code: for
/// warnings and debug information.
fn flags_beyond<'a>(facts: &'a BuildFacts, other: &BuildFacts) -> Vec<&'a str> {
    let flags = |facts: &'a BuildFacts| -> Vec<&'a str> {
        let all = facts
            .cflags
            .as_deref()
            .unwrap_or_default()
            .split_whitespace();
        all.filter(|flag| !flag.starts_with("-W") && !flag.starts_with("-g"))
            .collect()
    };
    let theirs = other.cflags.as_deref().unwrap_or_default();
    let has = |flag: &str| theirs.split_whitespace().any(|their| their == flag);
    flags(facts).into_iter().filter(|flag| !has(flag)).collect()
}

/// The SHA-256 in hexadecimal digits.
fn sha256(image: &[u8]) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(image) {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn shown(text: Option<&String>) -> &str {
    text.map_or("unknown", String::as_str)
}

fn listed(flags: &[&str]) -> String {
    if flags.is_empty() {
        "(none)".to_owned()
    } else {
        flags.join(" ")
    }
}

fn compiler_of(banner: &str) -> Option<&str> {
    let (_, rest) = banner.split_once(" compiled by ")?;
    Some(
        rest.strip_suffix(", 64-bit")
            .or_else(|| rest.strip_suffix(", 32-bit"))
            .unwrap_or(rest),
    )
}

/// The linker may leave other bytes before the string, so the banner begins at its first word.
fn banner(bytes: &[u8]) -> Option<String> {
    let start = bytes
        .windows(11)
        .rposition(|window| window == b"PostgreSQL ")?;
    text(&bytes[start..]).filter(|text| text.contains(" compiled by "))
}

/// Arguments of `configure`, as `config.status` quotes them: `'--with-icu' 'CFLAGS=-O2'`.
fn is_configure(text: &str) -> bool {
    let whole = text.starts_with('\'') && text.ends_with('\'') && !text.contains('\n');
    whole && (text.starts_with("'--") || text.contains(" '--"))
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes)
        .ok()
        .map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings of the embedded 9.6.24 as in the file, and a shortened 18.6.
    const OLD: &[u8] = b"\x7fELF\0\x01?PostgreSQL 9.6.24 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 4.4.7, 64-bit\0\
        PostgreSQL does not say more\0'--enable-debug' '--prefix=/mnt'\0-Wall -Wmissing-prototypes -fwrapv -g -O2\0";
    const NEW: &[u8] = b"PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (Ubuntu) 7.5.0, 64-bit\0\
        '%s' is long enough for 'it'\0 'CFLAGS=-Os' '--prefix=/usr'\0-Wall -Wmissing-prototypes -Wshadow -fwrapv -Os\0";

    #[test]
    fn strings_are_found_by_their_form() {
        let facts = BuildFacts::of_image(OLD);
        assert!(
            facts
                .banner
                .as_deref()
                .unwrap()
                .starts_with("PostgreSQL 9.6.24 on ")
        );
        assert_eq!(facts.compiler.as_deref(), Some("gcc (GCC) 4.4.7"));
        assert_eq!(
            facts.configure.as_deref(),
            Some("'--enable-debug' '--prefix=/mnt'")
        );
        let facts = BuildFacts::of_image(NEW);
        assert_eq!(
            facts.configure.as_deref(),
            Some("'CFLAGS=-Os' '--prefix=/usr'")
        );
        assert_eq!(
            BuildFacts::of_image(b"\x7fELF\0nothing to see here at all\0"),
            BuildFacts::default()
        );
    }

    #[test]
    fn the_difference_includes_compiler_and_flags_but_not_warning_flags() {
        let (old, new) = (BuildFacts::of_image(OLD), BuildFacts::of_image(NEW));
        let sentence = differ(&old, &new).unwrap();
        assert!(
            sentence.contains("gcc (GCC) 4.4.7 vs gcc (Ubuntu) 7.5.0"),
            "{sentence}"
        );
        assert!(sentence.contains("flags -O2 vs -Os"), "{sentence}");
        assert!(
            !sentence.contains("-Wshadow") && !sentence.contains("-g"),
            "{sentence}"
        );
        assert_eq!(differ(&old, &old), None);
    }

    #[test]
    fn unknown_facts_are_not_compared() {
        let whole = BuildFacts::of_image(NEW);
        let banner = whole.banner.clone().unwrap();
        let silent = BuildFacts::reported(banner, None, None);
        assert_eq!(silent.compiler, whole.compiler);
        assert_eq!(differ(&whole, &silent), None);
        assert_eq!(silent.has_feature("lz4"), None);
    }

    #[test]
    fn the_last_flag_for_optimization_counts() {
        let with = |cflags: &str| BuildFacts {
            cflags: Some(cflags.to_owned()),
            configure: Some("'--prefix=/a'".to_owned()),
            ..BuildFacts::default()
        };
        assert!(with("-Wall -O2 -fwrapv -O0").is_unoptimized());
        assert!(with("-Wall -g").is_unoptimized());
        let of_meson = BuildFacts {
            configure: None,
            ..with("-Wall -g")
        };
        assert!(!of_meson.is_unoptimized());
        assert!(!with("-O0 -O2").is_unoptimized());
        assert!(!with("-Og").is_unoptimized());
        assert!(!BuildFacts::default().is_unoptimized());
    }

    #[test]
    fn assertions_in_one_build_are_a_difference() {
        let plain = BuildFacts::of_image(OLD);
        let mut checked = plain.clone();
        checked.configure = Some("'--enable-cassert'".to_owned());
        assert!(
            differ(&plain, &checked)
                .unwrap()
                .contains("--enable-cassert only in the second")
        );
    }

    #[test]
    fn block_sizes_are_a_difference() {
        let with = |configure: &str| BuildFacts {
            configure: Some(configure.to_owned()),
            ..BuildFacts::of_image(OLD)
        };
        let (plain, large) = (
            with("'--prefix=/a'"),
            with("'--with-blocksize=32' '--prefix=/b'"),
        );
        assert_eq!(
            differ(&plain, &large).as_deref(),
            Some("--with-blocksize=32 only in the second")
        );
        let medium = with("'--with-blocksize=16'");
        let sentence = differ(&large, &medium).unwrap();
        assert!(
            sentence.ends_with("--with-blocksize=16 only in the second"),
            "{sentence}"
        );
    }
}
