//! Comments for a study that was written for the user: what each part is, and what else it can have.

use pgassay_model::study::StudySource;

/// What is said above the first line of each part.
const PARTS: [(&str, &str); 8] = [
    (
        "[conditions]",
        "Every combination of these lists is a condition with its own verdict. Also possible: script, version,\n\
         protocol, network, settings, session, parameters.",
    ),
    (
        "[data]",
        "SQL that runs once per database. `reset` is SQL that runs before each trial, for loads that write.",
    ),
    (
        "[length]",
        "Measuring time at most. A run ends as soon as it has its verdicts; `pairs = 12` fixes the number of pairs,\n\
         and `half_width = \"1%\"` measures until the 95% interval is within ±1%.",
    ),
    (
        "keep_cpus_awake = true",
        "Idle CPUs poll instead of sleeping: with few clients, waking them up is most of the noise (requires root).",
    ),
    (
        "[parameters]",
        "Values for ${name} in SQL, scripts and settings; --param NAME=VALUE overrides them.",
    ),
    (
        "[[script]]",
        "What every client runs repeatedly, in pgbench's script language.",
    ),
    (
        "[server]",
        "What all variants share; settings = { … } go to postgresql.conf.",
    ),
    (
        "[[variant]]",
        "The choices to compare. The first is the baseline; a variant sets only what differs.",
    ),
];

/// The text of a study with comments. They change nothing in what it says: if they did, because a line of its SQL
/// looks like a part, there are none.
pub fn commented(plain: &str, file: &str) -> String {
    let mut text = format!(
        "# pgassay study plan {file}    what a run does\n# pgassay run {file}\n# All keys: docs/study-file.md\n\n"
    );
    let mut left: Vec<(&str, &str)> = PARTS.to_vec();
    for line in plain.lines() {
        if let Some(at) = left.iter().position(|(header, _)| *header == line) {
            let (_, comment) = left.remove(at);
            for line in comment.lines() {
                text.extend(["# ", line, "\n"]);
            }
        }
        text += line;
        text.push('\n');
    }
    let parsed = |text: &str| {
        let source = StudySource {
            file: file.to_owned(),
            text: text.to_owned(),
        };
        source.parse()
    };
    if parsed(&text) == parsed(plain) {
        text
    } else {
        plain.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_change_nothing_in_a_study() {
        let study = "question = \"?\"\n[server]\nversion = \"18\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                     [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n";
        let text = commented(study, "s.toml");
        assert!(text.contains("# What all variants share"), "{text}");
        let without = text
            .lines()
            .filter(|it| !it.starts_with('#') && !it.is_empty());
        assert!(without.eq(study.lines()), "{text}");
        let tricky = study.replace("\"select 1\"", "'''\n[length]\n'''");
        assert_eq!(commented(&tricky, "s.toml"), tricky);
    }
}
