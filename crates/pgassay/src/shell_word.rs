//! Words of command lines that are printed for users to copy.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_=.,/:".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A path as a shell takes it. One that is not UTF-8 has escapes, which bash, zsh and ksh understand.
pub fn quoted_path(path: &Path) -> String {
    if let Some(text) = path.to_str() {
        return quoted(text);
    }
    let escaped = path.as_os_str().as_bytes().iter().map(|&byte| match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    });
    format!("$'{}'", escaped.collect::<Vec<_>>().concat())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("work_mem=64MB"), "work_mem=64MB");
        assert_eq!(quoted("select 'a'"), r"'select '\''a'\'''");
        assert_eq!(quoted(""), "''");
    }

    /// Regression: `compare --save` printed a command with a replacement character, which named no file.
    #[test]
    fn a_path_that_is_not_utf_8_is_escaped() {
        let path = |bytes| quoted_path(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(path(b"/tmp/a b"), "'/tmp/a b'");
        assert_eq!(path(b"/tmp/a\xff'.toml"), r"$'/tmp/a\xff\'.toml'");
    }
}
