//! Which functions can be compared by name if one side's programs have symbols that the other's lack.
//!
//! A stripped program has at most the names of its exported functions. Compared with an unstripped one,
//! its other functions would appear as removed (by address) and added (by name). So if the two sides
//! have names for different shares of an object, its functions that have a name on one side only share
//! one row with those that have none: that sum covers the same functions on both sides.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_model::profile::{Frame, Profile};

/// Smaller differences in the share of unnamed samples do not affect any important row.
const UNEVEN_SHARE: f64 = 0.05;
/// The difference must also be significant: this many standard errors.
const UNEVEN_ERRORS: f64 = 3.0;
/// Objects with a smaller share of the samples do not affect any important phase or subsystem.
const MATTERS_SHARE: f64 = 0.05;

/// A row's name and, for functions, its program or library.
pub(super) type Key = (String, String);

/// How functions are named in the rows of one comparison.
pub(super) struct Naming {
    /// Objects with more names on one side than on the other.
    uneven: BTreeSet<String>,
    /// Functions of these objects that appear on both sides.
    shared: BTreeSet<Key>,
    /// Whether stacks are assigned to phases and subsystems in the same way on both sides.
    pub(super) stacks_are_comparable: bool,
}

/// Number of samples of an object.
#[derive(Default, Clone, Copy)]
struct SampleCounts {
    all: u64,
    unnamed: u64,
}

impl Naming {
    /// Both sides run the same programs: their functions are named alike, whatever share of the samples has no name.
    pub(super) fn of_one_build() -> Self {
        Self {
            uneven: BTreeSet::new(),
            shared: BTreeSet::new(),
            stacks_are_comparable: true,
        }
    }

    /// Builds the naming from both profiles.
    pub(super) fn from_profiles(a: &Profile, b: &Profile) -> Self {
        let sides = [objects(a), objects(b)];
        let uneven: BTreeSet<String> = sides[0]
            .iter()
            .filter(|(object, seen)| sides[1].get(*object).is_some_and(|it| differ(seen, it)))
            .map(|(object, _)| object.clone())
            .collect();
        let names = |profile: &Profile| -> BTreeSet<Key> {
            let leaves = leaves(profile);
            let named =
                leaves.filter_map(|(leaf, _)| leaf.symbol.clone().map(|it| (it, &leaf.object)));
            named
                .filter(|(_, object)| uneven.contains(*object))
                .map(|(symbol, object)| (symbol, object.clone()))
                .collect()
        };
        let shared = names(a).intersection(&names(b)).cloned().collect();
        let matters = |side: &BTreeMap<String, SampleCounts>| {
            let all: u64 = side.values().map(|seen| seen.all).sum();
            let of_uneven = side.iter().filter(|(object, _)| uneven.contains(*object));
            let of_uneven: u64 = of_uneven.map(|(_, seen)| seen.all).sum();
            of_uneven as f64 > MATTERS_SHARE * all as f64
        };
        let stacks_are_comparable = !sides.iter().any(matters);
        Self {
            uneven,
            shared,
            stacks_are_comparable,
        }
    }

    /// The row of a stack's innermost function.
    pub(super) fn row(&self, stack: &[&Frame]) -> Key {
        let Some(leaf) = stack.last() else {
            return ("[no stack]".to_owned(), String::new());
        };
        let key = (leaf.label(), leaf.object.clone());
        if self.uneven.contains(&leaf.object) && !self.shared.contains(&key) {
            let name = "[functions without a name on one side]".to_owned();
            return (name, leaf.object.clone());
        }
        key
    }

    /// Objects with more names on one side than on the other.
    pub(super) fn partly_named(&self) -> Vec<String> {
        self.uneven.iter().cloned().collect()
    }
}

/// Innermost frames with their sample counts.
fn leaves(profile: &Profile) -> impl Iterator<Item = (&Frame, u64)> {
    let nodes = profile.nodes.iter().filter(|node| node.total() > 0);
    nodes.filter_map(|node| Some((profile.frames.get(node.frame as usize)?, node.total())))
}

fn objects(profile: &Profile) -> BTreeMap<String, SampleCounts> {
    let mut objects: BTreeMap<String, SampleCounts> = BTreeMap::new();
    for (leaf, samples) in leaves(profile) {
        let seen = objects.entry(leaf.object.clone()).or_default();
        seen.all += samples;
        seen.unnamed += if leaf.symbol.is_none() { samples } else { 0 };
    }
    objects
}

fn differ(a: &SampleCounts, b: &SampleCounts) -> bool {
    let (all_a, all_b) = (a.all as f64, b.all as f64);
    let difference = (a.unnamed as f64 / all_a - b.unnamed as f64 / all_b).abs();
    let share = (a.unnamed + b.unnamed) as f64 / (all_a + all_b);
    let std_err = (share * (1.0 - share) * (1.0 / all_a + 1.0 / all_b)).sqrt();
    difference > UNEVEN_SHARE.max(UNEVEN_ERRORS * std_err)
}
