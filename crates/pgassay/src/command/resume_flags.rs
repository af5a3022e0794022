//! The flags that `pgassay resume` needs to continue a run, as words of its command line.

use std::path::Path;

use crate::args::{ExternalArgs, GateAnswerArgs, ResultsArgs, ServerArgs};
use crate::shell_word::{quoted, quoted_path};

/// The flag without which another command would not find a run, with a space before it; empty if it is not needed.
pub fn results_flag(results: &ResultsArgs) -> String {
    let path = results.results.as_deref();
    let path = path.filter(|it| is_new(it, "PGASSAY_RESULTS"));
    path.map(|path| of_path("--results", path))
        .unwrap_or_default()
}

/// Whether the environment does not say the same.
fn is_new(path: &Path, variable: &str) -> bool {
    std::env::var_os(variable).as_deref() != Some(path.as_os_str())
}

/// Those of a run with these flags. What the environment says, it will say again.
pub fn resume_flags(results: &ResultsArgs, server: &ServerArgs, external: ExternalArgs) -> String {
    let directory = |flag: &str, path: Option<&Path>, variable: &str| {
        let path = path.filter(|it| is_new(it, variable));
        path.map(|path| of_path(flag, path)).unwrap_or_default()
    };
    let user = server.run_as.as_ref();
    let parts = [
        results_flag(results),
        directory("--cache", server.cache.as_deref(), "PGASSAY_CACHE"),
        user.map(|it| format!(" --run-as {}", quoted(it)))
            .unwrap_or_default(),
        directory("--data-parent", server.data_parent.as_deref(), ""),
        server
            .mirror
            .as_ref()
            .filter(|it| {
                std::env::var("PGASSAY_MIRROR").ok().as_ref() != Some(it) && !it.contains('@')
            })
            .map(|it| format!(" --mirror {}", quoted(it)))
            .unwrap_or_default(),
        alone(" --offline", server.offline),
        alone(" --allow-writes", external.allow_writes),
        alone(" --allow-superuser", external.allow_superuser),
        alone(" --allow-passwords", external.allow_passwords),
    ];
    parts.concat()
}

impl GateAnswerArgs {
    /// The same, of a gate.
    pub fn resume_flags(&self) -> String {
        let file = |flag: &str, path: &Option<std::path::PathBuf>| {
            let path = path.as_deref();
            path.map(|path| of_path(flag, path)).unwrap_or_default()
        };
        let parts = [
            alone(" --bisect", self.bisect),
            alone(" --strict", self.strict),
            file("--junit", &self.junit),
            file("--markdown", &self.markdown),
        ];
        parts.concat()
    }
}

/// A path as a run stores it, to be continued from another directory.
pub fn absolute_text(path: Option<&Path>) -> Option<String> {
    let path = std::path::absolute(path?).ok()?;
    path.to_str().map(str::to_owned)
}

fn alone(flag: &str, is_given: bool) -> String {
    if is_given {
        flag.to_owned()
    } else {
        String::new()
    }
}

/// The command may be pasted in another directory.
fn of_path(flag: &str, path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    format!(" {flag} {}", quoted_path(path))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Regression: `pgassay resume ID` did not find a run with `--results`, or refused to continue it.
    #[test]
    fn the_command_that_continues_a_run_has_its_flags() {
        let results = ResultsArgs {
            results: Some(PathBuf::from("/r s")),
        };
        let server = ServerArgs {
            offline: true,
            mirror: Some("https://m".to_owned()),
            cache: Some(PathBuf::from("/c")),
            run_as: Some("bob".to_owned()),
            data_parent: Some(PathBuf::from("/d")),
        };
        let external = ExternalArgs {
            allow_writes: true,
            allow_superuser: false,
            allow_passwords: true,
        };
        assert_eq!(
            resume_flags(&results, &server, external),
            " --results '/r s' --cache /c --run-as bob --data-parent /d --mirror https://m --offline --allow-writes \
             --allow-passwords"
        );
        let gate = GateAnswerArgs {
            strict: true,
            junit: Some(PathBuf::from("/j.xml")),
            ..GateAnswerArgs::default()
        };
        assert_eq!(gate.resume_flags(), " --strict --junit /j.xml");
    }
}
