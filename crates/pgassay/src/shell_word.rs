//! Words of command lines that are printed for users to copy.

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_=.,/:".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("work_mem=64MB"), "work_mem=64MB");
        assert_eq!(quoted("select 'a'"), r"'select '\''a'\'''");
        assert_eq!(quoted(""), "''");
    }
}
