//! Files that commands write; `-` is stdout.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes the content to a file, or to `out` if the file is `-`; returns whether it wrote to `out`.
pub fn write_to(file: &Path, content: &[u8], out: &mut impl Write) -> Result<bool> {
    if file == Path::new("-") {
        out.write_all(content)?;
        return Ok(true);
    }
    std::fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(false)
}
