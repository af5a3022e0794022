//! How a server was built, read from its program without running it.
//!
//! PostgreSQL compiles its own build settings into the server as strings, for `version()` and the
//! view `pg_config` (see `src/common/config_info.c`; the view came with 9.6). Archives of binaries
//! leave the program `pg_config` out, and a plan is wanted before any server runs, so the strings
//! are looked up in the program file by their shape. `tests/` compares them with what the running
//! server says.

use std::fs;
use std::io;
use std::path::Path;

/// What is known of a build. A field is `None` where the program does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildFacts {
    /// `version()`, such as `PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc …, 64-bit`.
    pub banner: Option<String>,
    /// The arguments of `configure`, each in quotes. A build by Meson has none.
    pub configure: Option<String>,
    /// The compiler's flags.
    pub cflags: Option<String>,
    /// The compiler, out of the banner.
    pub compiler: Option<String>,
}

impl BuildFacts {
    /// Reads the server program.
    pub fn of_program(program: &Path) -> io::Result<Self> {
        Ok(Self::of_image(&fs::read(program)?))
    }

    /// Reads a program's bytes, in one pass: they are ten million.
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

    /// What a running server says of itself: `version()`, and the view `pg_config` where that may be
    /// read.
    pub fn told(banner: String, configure: Option<String>, cflags: Option<String>) -> Self {
        Self {
            compiler: compiler_of(&banner).map(str::to_owned),
            banner: Some(banner),
            configure,
            cflags,
        }
    }

    /// Whether `configure` was asked for a feature, by the name that `--with-…` has for it: `lz4`,
    /// `zstd`, `openssl`, … `None` where its arguments are not known.
    pub fn has_feature(&self, name: &str) -> Option<bool> {
        let argument = format!("--with-{name}");
        // Each stands in quotes, and some have a value, as '--with-ssl=openssl'.
        let mut given = self.configure.as_ref()?.split('\'');
        Some(given.any(|given| {
            let rest = given.strip_prefix(&argument);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        }))
    }

    /// The flag that says how hard the compiler optimised (the last one counts).
    pub fn optimisation(&self) -> Option<&str> {
        self.cflags
            .as_deref()?
            .split_whitespace()
            .rfind(|flag| flag.starts_with("-O"))
    }
}

/// A sentence on how two builds differ in what may change their speed, if they do. What either does
/// not tell is not compared.
pub fn differ(a: &BuildFacts, b: &BuildFacts) -> Option<String> {
    let mut parts = Vec::new();
    if a.compiler != b.compiler {
        parts.push(format!(
            "compiler {} against {}",
            shown(a.compiler.as_ref()),
            shown(b.compiler.as_ref())
        ));
    }
    let (only_a, only_b) = (flags_beyond(a, b), flags_beyond(b, a));
    let have_flags = a.cflags.is_some() && b.cflags.is_some();
    if have_flags && !(only_a.is_empty() && only_b.is_empty()) {
        parts.push(format!(
            "flags {} against {}",
            listed(&only_a),
            listed(&only_b)
        ));
    }
    let are_configured = a.configure.is_some() && b.configure.is_some();
    for switch in SWITCHES.iter().filter(|_| are_configured) {
        let has = |facts: &BuildFacts| {
            facts
                .configure
                .as_deref()
                .is_some_and(|text| text.contains(switch))
        };
        if has(a) != has(b) {
            parts.push(format!(
                "{switch} in {} only",
                if has(a) { "the first" } else { "the second" }
            ));
        }
    }
    if parts.is_empty() {
        return None;
    }
    Some(format!(
        "The builds differ: {}. Part of a difference between the servers may come from that.",
        parts.join("; ")
    ))
}

/// The flags begin with those that PostgreSQL's own build adds.
const CFLAGS: &[u8] = b"-Wall -Wmissing-prototypes ";

/// Switches of `configure` that change the speed of the server beyond the compiler's flags.
const SWITCHES: [&str; 4] = [
    "--enable-cassert",
    "--enable-profiling",
    "--enable-coverage",
    "--disable-spinlocks",
];

/// The flags that change the code and that the other build has not. Warnings and debug
/// information do not change it.
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

fn shown(text: Option<&String>) -> &str {
    text.map_or("unknown", String::as_str)
}

fn listed(flags: &[&str]) -> String {
    if flags.is_empty() {
        "none of them".to_owned()
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

/// The linker may leave other bytes before a string, so the banner counts from its first word on.
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

    /// The strings of the embedded 9.6.24 as they lie in the file, and a shortened 18.6.
    const OLD: &[u8] = b"\x7fELF\0\x01?PostgreSQL 9.6.24 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 4.4.7, 64-bit\0\
        PostgreSQL does not say more\0'--enable-debug' '--prefix=/mnt'\0-Wall -Wmissing-prototypes -fwrapv -g -O2\0";
    const NEW: &[u8] = b"PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (Ubuntu) 7.5.0, 64-bit\0\
        '%s' is long enough for 'it'\0 'CFLAGS=-Os' '--prefix=/usr'\0-Wall -Wmissing-prototypes -Wshadow -fwrapv -Os\0";

    #[test]
    fn strings_are_found_by_their_shape() {
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
        assert_eq!(facts.optimisation(), Some("-O2"));
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
    fn the_difference_names_compiler_and_flags_but_no_warnings() {
        let (old, new) = (BuildFacts::of_image(OLD), BuildFacts::of_image(NEW));
        let sentence = differ(&old, &new).unwrap();
        assert!(
            sentence.contains("gcc (GCC) 4.4.7 against gcc (Ubuntu) 7.5.0"),
            "{sentence}"
        );
        assert!(sentence.contains("flags -O2 against -Os"), "{sentence}");
        assert!(
            !sentence.contains("-Wshadow") && !sentence.contains("-g"),
            "{sentence}"
        );
        assert_eq!(differ(&old, &old), None);
    }

    #[test]
    fn what_a_build_does_not_tell_makes_no_difference() {
        let whole = BuildFacts::of_image(NEW);
        let banner = whole.banner.clone().unwrap();
        let silent = BuildFacts::told(banner, None, None);
        assert_eq!(silent.compiler, whole.compiler);
        assert_eq!(differ(&whole, &silent), None);
        assert_eq!(silent.has_feature("lz4"), None);
    }

    #[test]
    fn assertions_in_one_build_are_worth_a_warning() {
        let plain = BuildFacts::of_image(OLD);
        let mut checked = plain.clone();
        checked.configure = Some("'--enable-cassert'".to_owned());
        assert!(
            differ(&plain, &checked)
                .unwrap()
                .contains("--enable-cassert in the second only")
        );
    }
}
