//! Parsing and printing numbers as PostgreSQL's programs do.
//!
//! pgbench parses with its own `strtoint64` and C's `strtod`, and prints doubles with
//! `%.*g` of `DBL_DIG` (15) digits; scripts and tests depend on the exact text.

use std::io::Write as _;

/// Why a text is not a valid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Syntax,
    Range,
}

/// C's `isspace` in the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn skip_space(text: &[u8]) -> &[u8] {
    let count = text.iter().take_while(|&&byte| is_space(byte)).count();
    &text[count..]
}

fn skip_sign(text: &[u8]) -> (bool, &[u8]) {
    match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn digits(text: &[u8]) -> &[u8] {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    &text[..count]
}

/// Whether pgbench treats the text as an integer: blanks, a sign, digits and nothing else. As in
/// pgbench, the digits may be missing; `parse_integer` then reports it.
pub(crate) fn looks_like_integer(text: &[u8]) -> bool {
    let (_, rest) = skip_sign(skip_space(text));
    digits(rest).len() == rest.len()
}

/// pgbench's `strtoint64`: leading and trailing blanks are allowed.
pub(crate) fn parse_integer(text: &[u8]) -> Result<i64, Problem> {
    let (is_negative, rest) = skip_sign(skip_space(text));
    let digits = digits(rest);
    if digits.is_empty() {
        return Err(Problem::Syntax);
    }
    // Accumulates negative values, because -2^63 has no positive counterpart.
    let mut value: i64 = 0;
    for digit in digits {
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_sub(i64::from(digit - b'0')))
            .ok_or(Problem::Range)?;
    }
    if !skip_space(&rest[digits.len()..]).is_empty() {
        return Err(Problem::Syntax);
    }
    if is_negative {
        Ok(value)
    } else {
        value.checked_neg().ok_or(Problem::Range)
    }
}

/// C's `atoi`, but saturating: the leading integer of the text, or 0.
pub(crate) fn leading_integer(text: &[u8]) -> i64 {
    let (is_negative, rest) = skip_sign(skip_space(text));
    let magnitude = digits(rest).iter().fold(0_i64, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
    });
    if is_negative { -magnitude } else { magnitude }
}

/// Parses the first line of output of `\setshell`'s command: an integer, optionally surrounded by
/// blanks, truncated to 32 bits, and 0 if there are no digits, as with `strtol`.
pub(crate) fn parse_shell_integer(output: &[u8]) -> Option<i64> {
    let end = output
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(output.len(), |end| end + 1);
    // pgbench reads into 64 bytes, the last of which terminates the string.
    let line = &output[..end.min(63)];
    let (_, rest) = skip_sign(skip_space(line));
    let digits = digits(rest);
    let is_blank_after = |text: &[u8]| skip_space(text).is_empty();
    let whole = if digits.is_empty() {
        line
    } else {
        &rest[digits.len()..]
    };
    (!line.is_empty() && is_blank_after(whole)).then(|| i64::from(leading_integer(line) as i32))
}

/// C's `strtod` of a whole text; a value that overflows, or underflows inexactly, is out of range.
pub(crate) fn parse_double(text: &[u8]) -> Result<f64, Problem> {
    let (is_negative, rest) = skip_sign(skip_space(text));
    let is_hexadecimal = rest.len() > 2 && rest[..2].eq_ignore_ascii_case(b"0x");
    let magnitude = if is_hexadecimal {
        parse_hexadecimal(&rest[2..])?
    } else {
        parse_decimal(rest)?
    };
    Ok(if is_negative { -magnitude } else { magnitude })
}

fn parse_decimal(text: &[u8]) -> Result<f64, Problem> {
    // Rust's parser must not see a second sign.
    if matches!(text.first(), Some(b'+' | b'-')) {
        return Err(Problem::Syntax);
    }
    let text = std::str::from_utf8(text).map_err(|_| Problem::Syntax)?;
    let value: f64 = text.parse().map_err(|_| Problem::Syntax)?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let is_word = !text.contains(|c: char| c.is_ascii_digit());
    let is_zero = !mantissa.contains(|c: char| ('1'..='9').contains(&c));
    let is_out_of_range = value.is_infinite() || (value < f64::MIN_POSITIVE && !is_zero);
    if is_out_of_range && !is_word {
        Err(Problem::Range)
    } else {
        Ok(value)
    }
}

/// Parses the part of a C99 hexadecimal floating-point number after `0x`.
fn parse_hexadecimal(text: &[u8]) -> Result<f64, Problem> {
    let (mut mantissa, mut exponent, mut is_fraction, mut has_digits) =
        (0_u64, 0_i64, false, false);
    let mut position = 0;
    for &byte in text {
        if let Some(digit) = char::from(byte).to_digit(16) {
            has_digits = true;
            if mantissa >> 60 == 0 {
                mantissa = mantissa << 4 | u64::from(digit);
                exponent -= if is_fraction { 4 } else { 0 };
            } else {
                // Beyond 60 bits a digit only decides on which side of a tie the value is.
                mantissa |= u64::from(digit != 0);
                exponent += if is_fraction { 0 } else { 4 };
            }
        } else if byte == b'.' && !is_fraction {
            is_fraction = true;
        } else {
            break;
        }
        position += 1;
    }
    let rest = &text[position..];
    if !has_digits {
        return Err(Problem::Syntax);
    }
    if matches!(rest.first(), Some(b'p' | b'P')) {
        let (is_negative, power) = skip_sign(&rest[1..]);
        if power.is_empty() || digits(power).len() != power.len() {
            return Err(Problem::Syntax);
        }
        let power = leading_integer(power).min(1 << 32);
        exponent += if is_negative { -power } else { power };
    } else if !rest.is_empty() {
        return Err(Problem::Syntax);
    }
    let exponent = exponent.clamp(-4000, 4000) as i32;
    if mantissa == 0 {
        return Ok(0.0);
    }
    let value = scale(mantissa as f64, exponent);
    // C reports an error for a tiny value only if bits of it were lost.
    let is_exact = scale(value, -exponent) as u64 == mantissa;
    let is_underflow = value < f64::MIN_POSITIVE && !is_exact;
    if value.is_infinite() || is_underflow {
        Err(Problem::Range)
    } else {
        Ok(value)
    }
}

/// Returns `value * 2^exponent`, computed in two steps so that neither power exceeds the range of
/// doubles before the product does.
fn scale(value: f64, exponent: i32) -> f64 {
    value * 2_f64.powi(exponent / 2) * 2_f64.powi(exponent - exponent / 2)
}

/// Returns the text for an infinity or NaN. PostgreSQL's own `printf` uses these names, which
/// differ from C's (see `fmtfloat` in `src/port/snprintf.c`).
pub(crate) fn special_name(value: f64) -> &'static str {
    if value.is_nan() {
        "NaN"
    } else if value < 0.0 {
        "-Infinity"
    } else {
        "Infinity"
    }
}

/// Significant digits of a printed double: C's `DBL_DIG`.
const DIGITS: i32 = 15;

/// Appends a double as `%.15g` prints it.
pub(crate) fn write_double(value: f64, out: &mut Vec<u8>) {
    if !value.is_finite() {
        out.extend_from_slice(special_name(value).as_bytes());
        return;
    }
    // "-d.dddddddddddddde-308" is the longest.
    let mut buffer = [0_u8; 32];
    let mut cursor = &mut buffer[..];
    write!(cursor, "{value:.*e}", DIGITS as usize - 1).expect("32 bytes hold any double");
    let left = cursor.len();
    let text = &buffer[..buffer.len() - left];
    let split = text
        .iter()
        .position(|&byte| byte == b'e')
        .expect("the format has an exponent");
    let exponent = leading_integer(&text[split + 1..]) as i32;
    let mut mantissa = &text[..split];
    if let [b'-', rest @ ..] = mantissa {
        out.push(b'-');
        mantissa = rest;
    }
    // The digits without the point and without the zeros that %g drops.
    let mut digits = [b'0'; DIGITS as usize];
    digits[0] = mantissa[0];
    digits[1..].copy_from_slice(&mantissa[2..]);
    let significant = digits
        .iter()
        .rposition(|&digit| digit != b'0')
        .map_or(1, |last| last + 1);
    if (-4..DIGITS).contains(&exponent) {
        write_fixed(&digits[..significant], exponent, out);
    } else {
        out.push(digits[0]);
        if significant > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..significant]);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "e{sign}{:02}", exponent.abs()).expect("a vector takes any text");
    }
}

/// Appends `digits` with the point after `exponent + 1` of them, padded with zeros.
fn write_fixed(digits: &[u8], exponent: i32, out: &mut Vec<u8>) {
    if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
        out.extend_from_slice(digits);
        return;
    }
    let whole = exponent as usize + 1;
    out.extend_from_slice(&digits[..whole.min(digits.len())]);
    out.extend(std::iter::repeat_n(
        b'0',
        whole.saturating_sub(digits.len()),
    ));
    if digits.len() > whole {
        out.push(b'.');
        out.extend_from_slice(&digits[whole..]);
    }
}
