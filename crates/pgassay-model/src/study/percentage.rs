//! A percentage, as in `half_width = "1%"`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::wording::QuotedText;

/// The wanted half-width of an interval, in percent: from [`Percentage::MIN`] to [`Percentage::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Percentage(f64);

impl Percentage {
    /// Latencies have a resolution of 0.1%, and no machine is quiet enough for less than a tenth of that.
    pub const MIN: f64 = 0.01;
    /// A wider interval says nothing that is worth two stages.
    pub const MAX: f64 = 50.0;

    /// 1 for 1%.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Percentage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().strip_suffix('%').map(str::trim_end);
        let Some(percent) = number.and_then(|it| it.parse::<f64>().ok()) else {
            return Err(format!(
                "invalid percentage \"{text}\": write a number and %, such as 1%"
            ));
        };
        if !(Self::MIN..=Self::MAX).contains(&percent) {
            let (min, max) = (Self::MIN, Self::MAX);
            return Err(format!(
                "percentage \"{text}\" is out of range: it must be between {min}% and {max}%"
            ));
        }
        Ok(Self(percent))
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}%", self.0)
    }
}

impl Serialize for Percentage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Percentage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = QuotedText("a percentage in quotes, such as \"1%\"");
        let text = deserializer.deserialize_str(expected)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Percentage {
    fn schema_name() -> Cow<'static, str> {
        "Percentage".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$",
            "examples": ["1%"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Percentage;

    #[test]
    fn a_percentage_has_its_sign_and_is_in_range() {
        for (text, percent) in [("1%", 1.0), ("0.5 %", 0.5), (" 50%", 50.0)] {
            let found: Percentage = text.parse().unwrap();
            assert!((found.percent() - percent).abs() < 1e-12);
            assert_eq!(found.to_string().parse::<Percentage>().unwrap(), found);
        }
        for text in ["1", "%", "-1%", "0%", "51%", "NaN%", "inf%", "one%"] {
            assert!(text.parse::<Percentage>().is_err(), "{text}");
        }
    }
}
