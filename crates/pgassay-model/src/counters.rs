//! The counters of a trial: values by name.
//!
//! A trial has a hundred or more, with names of up to 60 bytes, and the next trial has the same names. So a
//! trial's counters are a list of names and a list of values, and the trials of a run share the lists of
//! names ([`SharedNames`]). As maps of their own, counters were more than three quarters of the memory of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values by name, stored as a map.
#[derive(Clone, Default, PartialEq)]
pub struct Counters {
    /// In order.
    names: Arc<[Arc<str>]>,
    /// One for each name.
    values: Box<[f64]>,
}

impl Counters {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The value of a counter, if it was read.
    pub fn get(&self, name: &str) -> Option<f64> {
        let found = self.names.binary_search_by(|it| (**it).cmp(name));
        found.ok().map(|at| self.values[at])
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|it| &**it)
    }

    /// Names and values, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.names().zip(self.values.iter().copied())
    }

    /// Sets one value. Copies all of them, so it is for a few.
    pub fn insert(&mut self, name: &str, value: f64) {
        let all = self.iter().map(|(name, value)| (name.to_owned(), value));
        let mut all: BTreeMap<String, f64> = all.collect();
        all.insert(name.to_owned(), value);
        *self = all.into();
    }
}

impl From<BTreeMap<String, f64>> for Counters {
    fn from(all: BTreeMap<String, f64>) -> Self {
        let (names, values): (Vec<Arc<str>>, Vec<f64>) = all
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .unzip();
        Self {
            names: names.into(),
            values: values.into(),
        }
    }
}

impl<const N: usize> From<[(&str, f64); N]> for Counters {
    fn from(all: [(&str, f64); N]) -> Self {
        let owned = all.map(|(name, value)| (name.to_owned(), value));
        BTreeMap::from(owned).into()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, f64>::deserialize(deserializer).map(Self::from)
    }
}

/// The names of the counters of a run's trials, each kept once.
#[derive(Debug, Default)]
pub struct SharedNames {
    names: BTreeSet<Arc<str>>,
    /// Few: a list changes when a view has another row.
    lists: BTreeSet<Arc<[Arc<str>]>>,
}

impl SharedNames {
    /// Replaces the names of these counters with equal ones that others have too.
    pub fn share(&mut self, counters: &mut Counters) {
        if let Some(known) = self.lists.get(&counters.names) {
            counters.names = Arc::clone(known);
            return;
        }
        let names = counters.names.iter().map(|name| {
            if let Some(known) = self.names.get(name) {
                return Arc::clone(known);
            }
            self.names.insert(Arc::clone(name));
            Arc::clone(name)
        });
        let names: Arc<[Arc<str>]> = names.collect();
        self.lists.insert(Arc::clone(&names));
        counters.names = names;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_stored_as_a_map_ordered_by_name() {
        let counters = Counters::from([("b", 2.5), ("a (x).y", 0.0)]);
        let text = serde_json::to_string(&counters).unwrap();
        assert_eq!(text, r#"{"a (x).y":0.0,"b":2.5}"#);
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
        assert_eq!((counters.get("b"), counters.get("c")), (Some(2.5), None));
        assert_eq!(format!("{counters:?}"), r#"{"a (x).y": 0.0, "b": 2.5}"#);
    }

    #[test]
    fn a_value_is_added_or_replaced() {
        let mut counters = Counters::from([("b", 2.0)]);
        counters.insert("a", 1.0);
        counters.insert("b", 3.0);
        assert_eq!(counters, Counters::from([("a", 1.0), ("b", 3.0)]));
    }

    #[test]
    fn equal_names_are_kept_once_also_in_different_lists() {
        let mut shared = SharedNames::default();
        let mut all: Vec<Counters> = (0..100)
            .map(|number| {
                let value = f64::from(number);
                let mut counters = Counters::from([("a", value), ("b", value)]);
                if number % 2 == 1 {
                    counters.insert("c", 0.0);
                }
                counters
            })
            .collect();
        let before = all.clone();
        for counters in &mut all {
            shared.share(counters);
        }
        assert_eq!(all, before);
        assert_eq!((shared.lists.len(), shared.names.len()), (2, 3));
        let of_list = |from: usize| all[from..].iter().step_by(2);
        assert!(of_list(0).all(|it| Arc::ptr_eq(&it.names, &all[0].names)));
        assert!(of_list(1).all(|it| Arc::ptr_eq(&it.names, &all[1].names)));
        assert!(Arc::ptr_eq(&all[0].names[1], &all[1].names[1]));
    }
}
