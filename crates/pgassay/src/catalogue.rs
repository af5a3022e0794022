//! Studies by name (those that come with pgassay) or by file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_core::study::{Study, StudySource};

/// The studies that come with pgassay, as `(name, text)`.
pub const STUDIES: [(&str, &str); 3] = [
    (
        "prepared-vs-simple",
        include_str!("../../../studies/prepared-vs-simple.toml"),
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

/// A study, ready to be planned.
pub struct Found {
    /// Its name: the file's without ending, or the built-in one.
    pub name: String,
    /// Its text and where it came from.
    pub source: StudySource,
    /// The study; scripts that name a file have their text.
    pub study: Study,
}

/// Finds and reads a study.
pub fn find(name: &str) -> Result<Found> {
    let source = source(name)?;
    let mut study = source.parse()?;
    let folder = Path::new(&source.file).parent().unwrap_or(Path::new("."));
    for (index, script) in study.script.iter_mut().enumerate() {
        let Some(file) = &script.file else { continue };
        let path = ["script", &index.to_string(), "file"];
        if script.text.is_some() {
            bail!(source.error_at(&path, "a script has either `text` or `file`, not both"));
        }
        let text = std::fs::read_to_string(folder.join(file)).map_err(|error| {
            source.error_at(
                &path,
                format!("cannot read {}: {error}", folder.join(file).display()),
            )
        })?;
        script.text = Some(text);
    }
    let name = Path::new(name)
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or("study");
    Ok(Found {
        name: name.to_owned(),
        source,
        study,
    })
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
            "there is no study \"{name}\"; known: {}; or give the path of a study file",
            names.join(", ")
        );
    }
    let text = std::fs::read_to_string(name)
        .with_context(|| format!("cannot read the study file {name}"))?;
    Ok(StudySource {
        file: name.to_owned(),
        text,
    })
}
