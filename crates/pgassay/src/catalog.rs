//! Finds studies by name (built-in studies) or by file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_lab::LoadedStudy;
use pgassay_model::study::StudySource;
use pgassay_script::Builtin;

use crate::input_file::read_text;
use crate::study_files;

/// The built-in studies, as `(name, text)`.
pub const STUDIES: [(&str, &str); 17] = [
    (
        "prepared-vs-simple",
        include_str!("../../../studies/prepared-vs-simple.toml"),
    ),
    (
        "partition-insert",
        include_str!("../../../studies/partition-insert.toml"),
    ),
    ("pipeline", include_str!("../../../studies/pipeline.toml")),
    ("sequence", include_str!("../../../studies/sequence.toml")),
    (
        "audit-logging",
        include_str!("../../../studies/audit-logging.toml"),
    ),
    (
        "synchronous-commit",
        include_str!("../../../studies/synchronous-commit.toml"),
    ),
    (
        "full-page-images",
        include_str!("../../../studies/full-page-images.toml"),
    ),
    (
        "connection-count",
        include_str!("../../../studies/connection-count.toml"),
    ),
    (
        "index-count",
        include_str!("../../../studies/index-count.toml"),
    ),
    (
        "fillfactor",
        include_str!("../../../studies/fillfactor.toml"),
    ),
    ("uuid-keys", include_str!("../../../studies/uuid-keys.toml")),
    ("jit", include_str!("../../../studies/jit.toml")),
    (
        "parallel-query",
        include_str!("../../../studies/parallel-query.toml"),
    ),
    ("tls-cost", include_str!("../../../studies/tls-cost.toml")),
    (
        "data-checksums",
        include_str!("../../../studies/data-checksums.toml"),
    ),
    (
        "settings-cost",
        include_str!("../../../studies/settings-cost.toml"),
    ),
    (
        "release-cost",
        include_str!("../../../studies/release-cost.toml"),
    ),
];

/// Finds and reads a study.
pub fn find(name: &str) -> Result<LoadedStudy> {
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str());
    load(stem.unwrap_or("study"), source(name)?)
}

/// Parses a study and loads the text of its scripts. `name` is the name under which results are listed.
pub fn load(name: &str, source: StudySource) -> Result<LoadedStudy> {
    let mut study = source.parse()?;
    let folder = Path::new(&source.file).parent().unwrap_or(Path::new("."));
    for (index, script) in study.script.iter_mut().enumerate() {
        let number = index.to_string();
        let sources = [
            script.text.is_some(),
            script.file.is_some(),
            script.builtin.is_some(),
        ];
        if sources.iter().filter(|is_given| **is_given).count() > 1 {
            let message = format!(
                "script \"{}\" has more than one of `text`, `file` and `builtin`",
                script.name
            );
            bail!(source.error_at(&["script", &number], message));
        }
        if let Some(file) = &script.file {
            let text = study_files::read(folder, file)
                .map_err(|message| source.error_at(&["script", &number, "file"], message))?;
            script.text = Some(text);
        }
        if let Some(builtin) = &script.builtin {
            let found = Builtin::find(builtin).map_err(|error| {
                source.error_at(&["script", &number, "builtin"], error.to_string())
            })?;
            script.text = Some(found.text.to_owned());
        }
    }
    LoadedStudy::new(name, source, study)
}

fn source(name: &str) -> Result<StudySource> {
    if let Some((known, text)) = STUDIES.iter().find(|(known, _)| *known == name) {
        return Ok(StudySource {
            file: format!("{known}.toml"),
            text: (*text).to_owned(),
        });
    }
    let looks_like_a_file = name.contains('/') || name.contains('.') || Path::new(name).exists();
    if !looks_like_a_file {
        let names: Vec<&str> = STUDIES.iter().map(|(name, _)| *name).collect();
        bail!(
            "unknown study \"{name}\"; specify the path of a study file or one of: {}",
            names.join(", ")
        );
    }
    let text = read_text(name).with_context(|| format!("cannot read the study file {name}"))?;
    Ok(StudySource {
        file: name.to_owned(),
        text,
    })
}
