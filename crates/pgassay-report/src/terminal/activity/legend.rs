//! What the letters of bars mean.

use crate::activity::{ClassLoads, WaitClass};

/// The letters of bars that occur in these loads.
pub(super) fn legend<'a>(loads: impl Iterator<Item = &'a ClassLoads>) -> String {
    let mut sum = ClassLoads::default();
    for loads in loads {
        for (sum, load) in sum.0.iter_mut().zip(loads.0) {
            *sum += load;
        }
    }
    let seen = WaitClass::ALL.into_iter().zip(sum.0);
    let seen = seen.filter(|(_, load)| *load > 0.0);
    seen.map(|(class, _)| format!("{} {}", class.letter(), class.title()))
        .collect::<Vec<_>>()
        .join(", ")
}
