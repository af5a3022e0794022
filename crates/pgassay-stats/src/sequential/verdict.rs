//! The verdict of a sequential comparison.
//!
//! Unlike [`crate::verdict`], a difference that is real but within the margin is faster or slower here, and says
//! so; and a comparison whose intervals contradict each other is unstable.

use std::cmp::Ordering;

use super::comparison::SequentialPlan;
use super::path::LogRange;
use crate::verdict::{Direction, EquivalenceMargin, FigureVerdict};

/// The verdict of a sequential comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequentialVerdict {
    /// The interval excludes 1 on the better side.
    Faster {
        /// Whether the interval also lies within the equivalence margin.
        within_margin: bool,
    },
    /// The interval excludes 1 on the worse side.
    Slower {
        /// Whether the interval also lies within the equivalence margin.
        within_margin: bool,
    },
    /// The interval contains 1 and lies within the equivalence margin.
    Equivalent,
    /// None of these so far.
    Inconclusive,
    /// Intervals of different analyses contradict each other: the machine or the load changed.
    Unstable,
}

impl SequentialVerdict {
    /// Whether it is faster, slower or equivalent.
    pub fn is_conclusive(self) -> bool {
        !matches!(self, Self::Inconclusive | Self::Unstable)
    }

    /// Faster or slower.
    pub fn is_sign(self) -> bool {
        matches!(self, Self::Faster { .. } | Self::Slower { .. })
    }

    /// The verdict for a ratio above or below 1.
    pub(crate) fn of_sign(direction: Direction, above: bool, within_margin: bool) -> Self {
        if direction.verdict_for(above) == FigureVerdict::Faster {
            Self::Faster { within_margin }
        } else {
            Self::Slower { within_margin }
        }
    }

    /// The verdict on an interval of ln(B/A).
    pub(super) fn of(range: LogRange, plan: &SequentialPlan) -> Self {
        let within_margin = range.is_within(plan.margin.half_width_log());
        match range.side_of(0.0) {
            _ if range.is_empty() => Self::Unstable,
            Some(side) => Self::of_sign(plan.direction, side == Ordering::Greater, within_margin),
            None if within_margin => Self::Equivalent,
            None => Self::Inconclusive,
        }
    }

    /// This first verdict, given a later and narrower interval.
    pub(crate) fn updated(self, range: LogRange, margin: EquivalenceMargin) -> Self {
        let within_margin = range.is_within(margin.half_width_log());
        match self {
            _ if range.is_empty() => Self::Unstable,
            Self::Faster { .. } => Self::Faster { within_margin },
            Self::Slower { .. } => Self::Slower { within_margin },
            other => other,
        }
    }
}
