//! Sizes as PostgreSQL prints and accepts them in settings.

/// Bytes of a value such as `1GB`, `16384 8kB` or `64 MB`. A number without a unit has this one, in bytes; 1
/// for a count. `None` if it is no size.
pub(crate) fn setting_size(value: &str, plain_unit: f64) -> Option<f64> {
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
        "" => plain_unit,
        "B" => 1.0,
        "kB" => 1024.0,
        "MB" => 1_048_576.0,
        "GB" => 1_073_741_824.0,
        "TB" => 1_099_511_627_776.0,
        _ => return None,
    };
    Some(number * multiple * unit)
}
