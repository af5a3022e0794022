//! Numbers of things, in words.

/// A number of things whose plural ends in `s`: `1 point`, `2 points`.
pub fn counted(count: usize, one: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {one}{s}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(1, "trial"), "1 trial");
        assert_eq!(counted(0, "trial"), "0 trials");
        assert_eq!(counted(2, "trial"), "2 trials");
    }
}
