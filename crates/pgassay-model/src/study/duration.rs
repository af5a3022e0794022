//! A duration with a unit, in PostgreSQL's notation: `200ms`, `10s`, `2min`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::wording::QuotedText;

/// A duration; never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(Duration);

/// PostgreSQL's time units (`src/backend/utils/misc/guc.c`, `time_unit_conversion_table`), and `m` for
/// minutes. In files, a number without a unit is rejected: any default would be a guess.
const UNITS: [(&str, f64); 7] = [
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// The longest duration.
const MAX: Duration = Duration::from_hours(1000 * 24);

impl HumanDuration {
    /// A duration of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The duration as the standard library's type.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl From<Duration> for HumanDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    /// On the command line, a number without a unit is seconds, as for pgbench.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, Some(1.0))
    }
}

impl HumanDuration {
    /// Parses a duration of the command line that must not be zero.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse_positive(text: &str) -> Result<Self, String> {
        let parsed: Self = text.parse()?;
        if parsed.0.is_zero() {
            return Err("must be greater than zero".to_owned());
        }
        Ok(parsed)
    }

    /// `default_scale`: seconds that a number without a unit stands for; `None` if it is an error.
    fn parse(text: &str, default_scale: Option<f64>) -> Result<Self, String> {
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .map(|(_, scale)| *scale)
            .or(default_scale.filter(|_| unit.is_empty()));
        match (number.parse::<f64>(), scale) {
            (Ok(value), Some(scale)) => Duration::try_from_secs_f64(value * scale)
                .ok()
                .filter(|duration| *duration <= MAX)
                .map(Self)
                .ok_or_else(|| format!("duration \"{text}\" is too long: the maximum is 1000d")),
            _ => Err(format!(
                "invalid duration \"{text}\": write a number and a unit (us, ms, s, min, h, d{}), such as 10s",
                if default_scale.is_some() {
                    "; seconds without one"
                } else {
                    ""
                }
            )),
        }
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        for (unit, size) in [
            ("h", 3_600_000_000),
            ("min", 60_000_000),
            ("s", 1_000_000),
            ("ms", 1000),
        ] {
            if micros >= size && micros.is_multiple_of(size) {
                return write!(f, "{}{unit}", micros / size);
            }
        }
        write!(f, "{micros}us")
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = QuotedText("a duration in quotes, such as \"20s\"");
        let text = deserializer.deserialize_str(expected)?;
        Self::parse(&text, None).map_err(D::Error::custom)
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[0-9.]+ *(us|ms|s|min|m|h|d)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_units_are_parsed() {
        for (text, micros) in [
            ("200ms", 200_000),
            ("1.5s", 1_500_000),
            ("2min", 120_000_000),
            ("2m", 120_000_000),
        ] {
            assert_eq!(
                text.parse::<HumanDuration>()
                    .unwrap()
                    .duration()
                    .as_micros(),
                micros,
                "{text}"
            );
        }
    }

    #[test]
    fn a_number_without_a_unit_is_rejected_in_files_and_is_seconds_on_the_command_line() {
        let in_file = toml::from_str::<toml::Table>("length = \"10\"").unwrap();
        let message = in_file["length"].clone().try_into::<HumanDuration>();
        let message = message.unwrap_err().to_string();
        assert!(message.contains("a number and a unit"), "{message}");
        let typed: HumanDuration = "10".parse().unwrap();
        assert_eq!(typed.duration(), Duration::from_secs(10));
        assert!("".parse::<HumanDuration>().is_err());
        assert_eq!(HumanDuration::parse_positive("10"), Ok(typed));
        assert!(HumanDuration::parse_positive("0s").is_err());
    }

    #[test]
    fn durations_are_displayed_in_the_largest_exact_unit() {
        for text in ["1us", "200ms", "90s", "2min", "1h"] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), text);
        }
    }
}
