//! Figures in at most five characters.

/// `935`, `3.5`, `12.3k`, `1.2M`: three significant digits.
pub(crate) fn short(value: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut scaled = value;
    let mut unit = 0;
    while scaled.abs() >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let is_whole = unit == 0 && (scaled.round() - scaled).abs() < 0.005;
    let digits = match scaled.abs() {
        _ if is_whole => 0,
        size if size < 9.95 && unit == 0 && size < 0.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_five_characters_at_most() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (3.25, "3.2"),
            (99.97, "100"),
            (935.0, "935"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (999_999.0, "1.0M"),
            (4.5e9, "4.5G"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
