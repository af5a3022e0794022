//! JSON as PostgreSQL writes it, with repeated keys.
//!
//! Before 13, a Sort of a parallel plan has two keys `Workers`: one with the sort of each worker
//! (`show_sort_info`) and one with its rows and buffers (`ExplainNode`, `src/backend/commands/explain.c`
//! of 12). A map would keep only the second.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Levels of arrays and objects; a node of a plan takes two. `serde_json` stops at 128, which 60 nested
/// joins exceed.
const LEVELS_MAX: usize = 600;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    /// Null, a flag, a number or a text.
    Scalar(Value),
    Array(Vec<Json>),
    Object(Fields),
}

/// The fields of an object, in the order of the text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fields(pub(crate) Vec<(String, Json)>);

impl Json {
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        // `JsonVisitor` has its own limit.
        deserializer.disable_recursion_limit();
        let json = deserializer.deserialize_any(JsonVisitor { levels: LEVELS_MAX })?;
        deserializer.end()?;
        Ok(json)
    }

    /// The same as a value of `serde_json`. Of repeated keys the last one remains.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::Array(items) => items.into_iter().map(Self::into_value).collect(),
            Self::Object(fields) => Value::Object(fields.into_map()),
        }
    }

    fn into_number(self) -> Option<f64> {
        match self {
            Self::Scalar(Value::Number(number)) => number.as_f64(),
            _ => None,
        }
    }

    fn into_text(self) -> Option<String> {
        match self {
            Self::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

impl Fields {
    /// Removes all fields with this key.
    pub(crate) fn take_all(&mut self, key: &str) -> Vec<Json> {
        let fields = std::mem::take(&mut self.0).into_iter();
        let (taken, kept) = fields.partition(|(name, _)| name == key);
        self.0 = kept;
        let taken: Vec<(String, Json)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Removes the first field with this key for which `read` has a result. Others remain.
    fn take<T>(&mut self, key: &str, read: impl Fn(Json) -> Option<T>) -> Option<T> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        let found = read(self.0[at].1.clone())?;
        self.0.remove(at);
        Some(found)
    }

    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        self.take(key, Json::into_text)
    }

    pub(crate) fn number(&mut self, key: &str) -> Option<f64> {
        self.take(key, Json::into_number)
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        self.take(key, |json| match json {
            Json::Scalar(Value::Bool(flag)) => Some(flag),
            _ => None,
        })
    }

    pub(crate) fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        self.take(key, |json| match json {
            Json::Array(items) => items.into_iter().map(Json::into_text).collect(),
            _ => None,
        })
    }

    pub(crate) fn object(&mut self, key: &str) -> Option<Fields> {
        self.take(key, |json| match json {
            Json::Object(fields) => Some(fields),
            _ => None,
        })
    }

    /// All objects in all arrays with this key.
    pub(crate) fn objects(&mut self, key: &str) -> Vec<Fields> {
        let arrays = self.take_all(key).into_iter();
        let items = arrays.flat_map(|json| match json {
            Json::Array(items) => items,
            other => vec![other],
        });
        items
            .filter_map(|json| match json {
                Json::Object(fields) => Some(fields),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn into_map(self) -> Map<String, Value> {
        let fields = self.0.into_iter();
        fields
            .map(|(name, json)| (name, json.into_value()))
            .collect()
    }
}

/// Reads a value with at most this many levels below.
#[derive(Clone, Copy)]
struct JsonVisitor {
    levels: usize,
}

impl JsonVisitor {
    fn below<E: Error>(self) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1);
        levels.map(|levels| Self { levels }).ok_or_else(|| {
            E::custom(format!(
                "more than {LEVELS_MAX} nested levels: the plan is too deep to compare"
            ))
        })
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for JsonVisitor {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Scalar(Value::Null))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Scalar(Value::Bool(flag)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Scalar(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Scalar(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Json, E> {
        let number = Number::from_f64(number).map_or(Value::Null, Value::Number);
        Ok(Json::Scalar(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Scalar(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            found.push(item);
        }
        Ok(Json::Array(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut found = Vec::new();
        while let Some(key) = fields.next_key()? {
            found.push((key, fields.next_value_seed(below)?));
        }
        Ok(Json::Object(Fields(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_all_kept() {
        let text = r#"{"Workers": [{"a": 1}], "x": 2.50, "Workers": [{"a": 3}]}"#;
        let Json::Object(mut fields) = Json::parse(text).unwrap() else {
            panic!("an object");
        };
        let mut workers = fields.objects("Workers");
        let numbers: Vec<_> = workers.iter_mut().map(|it| it.number("a")).collect();
        assert_eq!(numbers, [Some(1.0), Some(3.0)]);
        assert_eq!(fields.number("x"), Some(2.5));
        assert!(fields.0.is_empty());
    }

    #[test]
    fn a_value_of_an_unexpected_kind_remains() {
        let Json::Object(mut fields) = Json::parse(r#"{"Alias": 7}"#).unwrap() else {
            panic!("an object");
        };
        assert_eq!(fields.text("Alias"), None);
        assert_eq!(fields.number("Alias"), Some(7.0));
    }

    #[test]
    fn deep_text_is_an_error_and_not_a_crash() {
        let deep = "[".repeat(100_000);
        let error = Json::parse(&deep).unwrap_err().to_string();
        assert!(error.contains("too deep"), "{error}");
        let fits = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert!(Json::parse(&fits).is_ok());
        assert!(Json::parse("[] []").is_err());
    }
}
