//! A difference in words.

use std::fmt;

use crate::change::{PlanChange, PlanChangeKind, PlanPlace};

/// The most tables that are named.
const TABLES_MAX: usize = 4;

/// Characters of a longer condition that are shown, from its beginning and from its end.
const CONDITION_BEGINNING: usize = 150;
const CONDITION_END: usize = 50;

impl fmt::Display for PlanChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = [&self.before, &self.after].map(|it| it.as_deref().unwrap_or("none"));
        let place = [&self.b, &self.a].into_iter().flatten().next();
        let place = place.map_or_else(String::new, described);
        match self.kind {
            PlanChangeKind::Method => {
                let before = self.a.as_ref().map_or_else(|| before.to_owned(), described);
                write!(f, "Method: {before} → {after}")
            }
            PlanChangeKind::JoinOrder => write!(f, "Join order: {before} → {after}"),
            PlanChangeKind::NodeAdded => write!(f, "Added: {after}"),
            PlanChangeKind::NodeRemoved => write!(f, "Removed: {before}"),
            PlanChangeKind::Trigger => match (&self.before, &self.after) {
                (None, _) => write!(f, "Trigger added: {after}"),
                (_, None) => write!(f, "Trigger removed: {before}"),
                (Some(_), Some(_)) => write!(f, "Trigger: {before} → {after}"),
            },
            PlanChangeKind::Condition => self.write_condition(f),
            PlanChangeKind::Estimate => write!(f, "Estimate of {place}: {before} → {after}"),
            PlanChangeKind::Spill => write!(f, "Memory of {place}: {before} → {after}"),
            PlanChangeKind::Buffers => write!(f, "Buffers of {place}: {before} → {after}"),
            PlanChangeKind::Rows => write!(f, "Rows of {place}: {before} → {after}"),
        }
    }
}

/// A step with the tables below, unless its label names one: `Hash Join (a, b)`.
fn described(place: &PlanPlace) -> String {
    if place.tables.is_empty() || place.label.contains(" on ") {
        return place.label.clone();
    }
    let mut tables = place
        .tables
        .iter()
        .take(TABLES_MAX)
        .cloned()
        .collect::<Vec<_>>();
    if place.tables.len() > TABLES_MAX {
        tables.push("…".to_owned());
    }
    format!("{} ({})", place.label, tables.join(", "))
}

/// The beginning and the end of a long condition: a list may have thousands of values.
fn shortened(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let Some(end) = chars.len().checked_sub(CONDITION_END) else {
        return text.to_owned();
    };
    if end <= CONDITION_BEGINNING {
        return text.to_owned();
    }
    let part = |of: &[char]| of.iter().collect::<String>();
    format!(
        "{} … {}",
        part(&chars[..CONDITION_BEGINNING]),
        part(&chars[end..])
    )
}

impl PlanChange {
    /// Conditions are stored as `Filter: (t.k = 5)`.
    fn write_condition(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = |it: &Option<String>| {
            let (kind, text) = it.as_deref()?.split_once(": ")?;
            Some((kind.to_owned(), shortened(text)))
        };
        let [a, b] = [&self.a, &self.b].map(|it| it.as_ref().map_or_else(String::new, described));
        match (parts(&self.before), parts(&self.after)) {
            (Some((kind, text)), Some((other, changed))) if kind == other && a == b => {
                write!(f, "{kind} of {b}: {text} → {changed}")
            }
            (Some((kind, _)), Some((other, text))) => {
                write!(f, "Condition moved: {kind} of {a} → {other} of {b}: {text}")
            }
            (Some((kind, text)), None) => {
                write!(f, "Condition removed: {kind} of {a}: {text}")
            }
            (None, Some((kind, text))) => write!(f, "Condition added: {kind} of {b}: {text}"),
            (None, None) => write!(f, "Condition of {b}"),
        }
    }
}
