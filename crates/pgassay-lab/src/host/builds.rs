//! What a run's servers were built with: builds that differ, builds that are the same, and builds with assertions.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_model::plan::{Plan, PointId};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_server::BuildFacts;

use super::Host;

/// Settings whose values are compiled in. A Meson build, and one whose `configure` had no arguments, has them
/// nowhere else. They are asked with the role's `search_path`, so every name has its schema.
const COMPILED: &str = "select name, pg_catalog.current_setting(name) from pg_catalog.pg_settings \
    where name operator(pg_catalog.=) any ('{block_size, debug_assertions, segment_size, wal_block_size}')";
const ASSERTIONS: &str = "debug_assertions";
/// Digits of a SHA-256 that a message shows.
const DIGITS_SHOWN: usize = 12;

/// What is known of the build of one server.
struct ServerBuild<'a> {
    facts: &'a BuildFacts,
    compiled: BTreeMap<String, String>,
    /// The variants that use the server, quoted.
    variants: String,
}

/// The warnings about the builds of a plan's servers, in the plan's order.
pub fn warnings(plan: &Plan, hosts: &[Box<dyn Host>]) -> Vec<Warning> {
    let builds = hosts.iter().enumerate().map(|(index, host)| ServerBuild {
        facts: host.build(),
        compiled: compiled(host.as_ref()),
        variants: variants_of(plan, index),
    });
    let builds: Vec<ServerBuild<'_>> = builds.collect();
    let compared_with: Vec<usize> = (0..builds.len())
        .map(|it| compared_with(plan, it))
        .collect();
    let mut warnings = differences(&builds, &compared_with);
    warnings.extend(debug_builds(&builds));
    let executables = builds.iter().map(|it| it.facts.executable.clone());
    warnings.extend(same_executables(plan, &executables.collect::<Vec<_>>()));
    warnings
}

/// The names of the variants that use a server, quoted.
pub fn variants_of(plan: &Plan, server: usize) -> String {
    let points = plan.points.iter().filter(|it| it.server == server);
    let names: BTreeSet<&str> = points
        .map(|point| plan.variants[point.variant].as_str())
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    format!("\"{}\"", names.join("\", \""))
}

/// What is compiled into a server; empty if it does not answer.
fn compiled(host: &dyn Host) -> BTreeMap<String, String> {
    let connected = host.connect(host.database()).ok();
    let rows = connected.and_then(|mut it| it.query(COMPILED).ok());
    let pair = |row: Vec<Option<String>>| {
        let mut values = row.into_iter().flatten();
        values.next().zip(values.next())
    };
    rows.unwrap_or_default()
        .into_iter()
        .filter_map(pair)
        .collect()
}

/// The switch of `configure` that a compiled setting comes from.
fn switch_of(setting: &str) -> &'static str {
    match setting {
        "block_size" => "--with-blocksize",
        "segment_size" => "--with-segsize",
        "wal_block_size" => "--with-wal-blocksize",
        _ => "--enable-cassert",
    }
}

/// The server whose build is compared with that of a server: its baseline's under the same condition; itself if there
/// is none.
fn compared_with(plan: &Plan, server: usize) -> usize {
    let variants = plan.points.iter().filter(|it| it.server == server);
    let before = variants.filter(|it| it.variant > 0).map(|it| {
        let baseline = PointId::new(it.condition, plan.baseline_of(it.variant));
        plan.point(baseline).server
    });
    before
        .into_iter()
        .find(|it| *it != server)
        .unwrap_or(server)
}

/// One warning for each way in which a build differs from the one that it is compared with.
fn differences(builds: &[ServerBuild<'_>], compared_with: &[usize]) -> Vec<Warning> {
    let mut known = BTreeSet::new();
    let mut warnings = Vec::new();
    for (other, &first) in builds.iter().zip(compared_with) {
        let Some(first) = builds.get(first) else {
            continue;
        };
        let mut parts: Vec<String> = pgassay_server::differ(first.facts, other.facts)
            .into_iter()
            .collect();
        let configured = parts.concat();
        let both = first.compiled.iter().filter_map(|(name, value)| {
            let other = other.compiled.get(name)?;
            let is_new = other != value && !configured.contains(switch_of(name));
            is_new.then(|| format!("{name} {value} vs {other}"))
        });
        parts.extend(both);
        let differences = parts.join("; ");
        if differences.is_empty() || !known.insert(differences.clone()) {
            continue;
        }
        let message = format!(
            "The builds of {} and {} differ: {differences}. This may explain part of a difference between \
             the servers.",
            first.variants, other.variants
        );
        warnings.push(Warning {
            kind: WarningKind::BuildsDiffer,
            variant: None,
            message,
        });
    }
    warnings
}

/// A warning for each way in which servers were built for debugging.
fn debug_builds(builds: &[ServerBuild<'_>]) -> Vec<Warning> {
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for build in builds {
        if let Some(reason) = build.for_debugging() {
            by_reason.entry(reason).or_default().push(&build.variants);
        }
    }
    let warning = |(reason, names): (String, Vec<&str>)| {
        let servers = match names.len() {
            1 => "The server of",
            _ => "The servers of",
        };
        let verb = if names.len() == 1 { "was" } else { "were" };
        Warning {
            kind: WarningKind::DebugBuild,
            variant: None,
            message: format!(
                "{servers} {} {verb} built {reason}: the figures are not those of a production build.",
                names.join(" and ")
            ),
        }
    };
    by_reason.into_iter().map(warning).collect()
}

impl ServerBuild<'_> {
    /// How the build is one for debugging, if it is.
    fn for_debugging(&self) -> Option<String> {
        let has_assertions = self.compiled.get(ASSERTIONS).is_some_and(|it| it == "on");
        let assertions = has_assertions.then_some("with assertions (--enable-cassert)");
        let reasons = assertions.into_iter().chain(
            self.facts
                .is_unoptimized()
                .then_some("without optimization (-O0)"),
        );
        let reasons: Vec<&str> = reasons.collect();
        (!reasons.is_empty()).then(|| reasons.join(" and "))
    }
}

/// A warning for each variant that differs from what it is compared with in the directory or version of its server
/// only, where both have the same executable.
pub(crate) fn same_executables(plan: &Plan, executables: &[Option<String>]) -> Vec<Warning> {
    let compared = (1..plan.variants.len()).map(|it| [plan.baseline_of(it), it]);
    let same = compared.filter_map(|[baseline, variant]| {
        let servers = plan.only_builds_differ([baseline, variant])?;
        let digests = servers.map(|it| executables.get(it)?.as_deref());
        let digest = digests[0].filter(|_| digests[0] == digests[1])?;
        let is_built = plan.servers[servers[1]].binaries.is_some();
        let message = format!(
            "\"{}\" and \"{}\" have the same executable (SHA-256 {}): unless their libraries or extensions differ, \
             this is an A/A comparison, and any difference is noise.{}",
            plan.variants[baseline],
            plan.variants[variant],
            digest.get(..DIGITS_SHOWN).unwrap_or(digest),
            if is_built {
                " Was the new build installed?"
            } else {
                ""
            }
        );
        Some(Warning {
            kind: WarningKind::SameBuild,
            variant: Some(plan.variants[variant].clone()),
            message,
        })
    });
    same.collect()
}

#[cfg(test)]
mod tests {
    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;

    use super::*;

    fn facts(executable: &str) -> BuildFacts {
        BuildFacts {
            executable: Some(executable.to_owned()),
            ..BuildFacts::default()
        }
    }

    fn build<'a>(facts: &'a BuildFacts, name: &str, assertions: &str) -> ServerBuild<'a> {
        let compiled = [("block_size", "8192"), (ASSERTIONS, assertions)];
        ServerBuild {
            facts,
            compiled: compiled
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            variants: format!("\"{name}\""),
        }
    }

    /// Regression: `configure` without arguments, and Meson, leave none in the executable, and a build with assertions
    /// was compared with one without as if both were equal.
    #[test]
    fn assertions_are_named_if_the_executable_has_no_arguments_of_configure() {
        let facts = facts("0123");
        let builds = [build(&facts, "old", "off"), build(&facts, "new", "on")];
        let found = differences(&builds, &[0, 0]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].message.contains("debug_assertions off vs on."),
            "{found:?}"
        );
        let found = debug_builds(&builds);
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .message
                .starts_with("The server of \"new\" was built with assertions"),
            "{found:?}"
        );
        assert!(debug_builds(&builds[..1]).is_empty());
    }

    /// Regression: after a forgotten `make install`, a build was compared with itself without a word.
    #[test]
    fn the_same_executable_in_two_directories_is_an_a_a_comparison() {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n[server]\nbinaries = \"/old\"\n\
                   [[variant]]\nname = \"old\"\n[[variant]]\nname = \"new\"\nbinaries = \"/new\"\n\
                   [[variant]]\nname = \"set\"\nbinaries = \"/new\"\nsettings = { jit = \"off\" }\n"
                .to_owned(),
        };
        let study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        let found = |executables: [&str; 3]| {
            let facts = executables.map(facts);
            let builds: Vec<ServerBuild<'_>> =
                facts.iter().map(|it| build(it, "", "off")).collect();
            let executables = builds.iter().map(|it| it.facts.executable.clone());
            same_executables(&plan, &executables.collect::<Vec<_>>())
        };
        let same = found(["0123456789abcdef"; 3]);
        assert_eq!(same.len(), 1, "another setting is a difference: {same:?}");
        assert_eq!(same[0].variant.as_deref(), Some("new"));
        assert!(
            same[0]
                .message
                .contains("the same executable (SHA-256 0123456789ab): "),
            "{same:?}"
        );
        assert!(found(["01", "23", "23"]).is_empty());
    }

    /// Regression: with `--stepwise`, each build was compared with the first, its variant with the one before.
    #[test]
    fn with_stepwise_a_build_is_compared_with_the_one_before() {
        let source = |stepwise: bool| StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\nstepwise = {stepwise}\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                 [[variant]]\nname = \"a\"\nbinaries = \"/a\"\n[[variant]]\nname = \"b\"\nbinaries = \"/b\"\n\
                 [[variant]]\nname = \"c\"\nbinaries = \"/c\"\n"
            ),
        };
        let with = |stepwise: bool| -> Vec<usize> {
            let source = source(stepwise);
            let study = source.parse().unwrap();
            let plan = plan(&study, &source, &Overrides::default()).unwrap();
            (0..3).map(|it| compared_with(&plan, it)).collect()
        };
        assert_eq!(with(false), [0, 0, 0]);
        assert_eq!(with(true), [0, 0, 1]);
        // Regression: "The builds of "a", "b" and "a", "b" differ", of two versions that are conditions.
        let source = StudySource {
            file: String::new(),
            text: "question = \"?\"\n[conditions]\nversion = [\"17\", \"18\"]\n[[script]]\nname = \"a\"\n\
                   text = \"select 1\"\n[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n\
                   settings = { jit = \"off\" }\n"
                .to_owned(),
        };
        let of_versions = plan(&source.parse().unwrap(), &source, &Overrides::default()).unwrap();
        let compared: Vec<usize> = (0..4).map(|it| compared_with(&of_versions, it)).collect();
        assert_eq!(compared, [0, 0, 2, 2]);
        let facts = facts("0123");
        let assertions = [("a", "off"), ("b", "on"), ("c", "on")];
        let builds = assertions.map(|(name, it)| build(&facts, name, it));
        let found = differences(&builds, &with(true));
        assert_eq!(found.len(), 1, "{found:?}");
        let names = "The builds of \"a\" and \"b\" differ";
        assert!(found[0].message.starts_with(names), "{found:?}");
    }

    /// Regression: two builds with assertions were compared without a word.
    #[test]
    fn assertions_in_both_builds_are_named() {
        let facts = facts("0123");
        let builds = [build(&facts, "old", "on"), build(&facts, "new", "on")];
        assert!(differences(&builds, &[0, 0]).is_empty());
        let found = debug_builds(&builds);
        assert!(
            found[0]
                .message
                .starts_with("The servers of \"old\" and \"new\" were built"),
            "{found:?}"
        );
    }

    #[test]
    fn assertions_are_a_difference_once() {
        let with = |configure: &str| BuildFacts {
            configure: Some(configure.to_owned()),
            cflags: Some("-Wall -O2 -O0".to_owned()),
            ..facts("0123")
        };
        let (plain, checked) = (with("'--prefix=/a'"), with("'--enable-cassert'"));
        let builds = [build(&plain, "old", "off"), build(&checked, "new", "on")];
        let found = &differences(&builds, &[0, 0])[0].message;
        assert!(
            found.contains("differ: --enable-cassert only in the second. This"),
            "{found}"
        );
        let found = debug_builds(&builds);
        assert_eq!(found.len(), 2);
        assert!(
            found[0]
                .message
                .contains("with assertions (--enable-cassert) and without optimization (-O0)"),
            "{found:?}"
        );
    }
}
