//! Values of settings as PostgreSQL prints and accepts them.

/// Bytes of a setting's value with its unit, such as `1GB`, `16384 8kB` or `64 MB`; `None` if it is none.
pub(crate) fn bytes(value: &str) -> Option<f64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = value.split_at(digits.unwrap_or(value.len()));
    let number: f64 = number.parse().ok()?;
    let unit = unit.trim();
    let multiple = unit.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let (multiple, unit) = unit.split_at(multiple);
    let multiple: f64 = if multiple.is_empty() {
        1.0
    } else {
        multiple.parse().ok()?
    };
    let unit = match unit {
        "" | "B" => 1.0,
        "kB" => 1024.0,
        "MB" => 1_048_576.0,
        "GB" => 1_073_741_824.0,
        "TB" => 1_099_511_627_776.0,
        _ => return None,
    };
    Some(number * multiple * unit)
}

/// Microseconds of a setting's value with its unit, such as `5min`, `300 s` or `1000ms`; `None` if it is
/// none. A value without a unit has that of no setting in particular, so it is none.
pub(crate) fn micros(value: &str) -> Option<f64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = value.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let unit = match unit.trim() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3600e6,
        "d" => 86_400e6,
        _ => return None,
    };
    Some(number * unit)
}
