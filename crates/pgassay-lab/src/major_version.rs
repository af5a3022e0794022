//! Major versions of PostgreSQL.

/// `9.6.24` → `9.6`, `18.1` → `18`: since version 10, the major version is the first number only.
pub fn major_of(version: &str) -> String {
    let mut parts = version.split('.');
    let first = parts.next().unwrap_or_default();
    let major: String = first.chars().take_while(char::is_ascii_digit).collect();
    match (major.parse::<u32>(), parts.next()) {
        (Ok(number), Some(second)) if number < 10 => format!("{major}.{second}"),
        _ => major,
    }
}

#[cfg(test)]
mod tests {
    use super::major_of;

    #[test]
    fn a_major_version_is_one_number_since_ten() {
        for (version, major) in [
            ("9.6.24", "9.6"),
            ("10.23", "10"),
            ("18.1", "18"),
            ("19devel", "19"),
            ("18beta1", "18"),
        ] {
            assert_eq!(major_of(version), major);
        }
    }
}
