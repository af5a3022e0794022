//! Parses numbers on the command line as C does.
//!
//! Source: `option_parse_int` in `src/fe_utils/option_utils.c`; `atof` and `atoi` parse a prefix of
//! the text and ignore the rest.

use super::message::{Exit, fatal};

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t'..='\r')
}

/// Parses an option's integer and checks its range.
pub fn integer(text: &str, option: &str, min: i32, max: i32) -> Result<i32, Exit> {
    let trimmed = text.trim_matches(is_blank);
    let out_of_range = || fatal(&format!("{option} must be in range {min}..{max}"));
    match trimmed.parse::<i32>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Ok(_) => Err(out_of_range()),
        Err(error)
            if matches!(
                error.kind(),
                std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow
            ) =>
        {
            Err(out_of_range())
        }
        Err(_) => Err(fatal(&format!(
            "invalid value \"{text}\" for option {option}"
        ))),
    }
}

/// `atoi`: the integer at the start of a text, or 0.
pub fn leading_integer(text: &str) -> i32 {
    let text = text.trim_start_matches(is_blank);
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let signs = text.len() - digits.len();
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(digits.len());
    // Overflow, which is undefined in C, saturates.
    text[..signs + end].parse::<i64>().map_or(0, |number| {
        number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    })
}

/// `atof`: the longest number at the start of a text, or 0.
pub fn leading_double(text: &str) -> f64 {
    let text = text.trim_start_matches(is_blank);
    (1..=text.len())
        .rev()
        .filter(|&end| text.is_char_boundary(end))
        .find_map(|end| text[..end].parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "the same digits give the same number")]
    fn numbers_are_read_as_c_reads_them() {
        for (text, number) in [("12", 12.0), (" 1.5tps", 1.5), ("1e3x", 1000.0), ("x", 0.0)] {
            assert_eq!(leading_double(text), number, "{text}");
        }
        for (text, number) in [("12", 12), (" -10", -10), ("7x", 7), ("x", 0), ("", 0)] {
            assert_eq!(leading_integer(text), number, "{text}");
        }
        assert_eq!(integer(" 5 ", "-x", 1, 9).ok(), Some(5));
        assert!(integer("5x", "-x", 1, 9).is_err() && integer("10", "-x", 1, 9).is_err());
    }
}
