//! Bars by wait class, and their legend.

use maud::{Markup, html};

use crate::activity::{ClassLoads, WaitClass, load};

/// The classes that occur, with their colors.
pub(super) fn legend(loads: &[ClassLoads]) -> Markup {
    let is_seen = |class: &WaitClass| loads.iter().any(|it| it.0[*class as usize] > 0.0);
    html! {
        p.legend {
            @for class in WaitClass::ALL.into_iter().filter(is_seen) {
                span {
                    svg.swatch width="12" height="12" viewBox="0 0 12 12" aria-hidden="true" {
                        rect class=(class.css()) width="12" height="12" {}
                    }
                    (class.title())
                }
            }
        }
    }
}

/// A bar of these loads, on a scale where `whole` fills the cell.
pub(super) fn bar(loads: &ClassLoads, whole: f64) -> Markup {
    let scale = 100.0 / whole.max(f64::MIN_POSITIVE);
    let mut left = 0.0;
    let parts: Vec<(WaitClass, f64, f64)> = WaitClass::ALL
        .into_iter()
        .zip(loads.0)
        .filter(|(_, load)| *load > 0.0)
        .map(|(class, load)| {
            let part = (class, left, load * scale);
            left += load * scale;
            part
        })
        .collect();
    html! {
        svg.bar viewBox="0 0 100 8" preserveAspectRatio="none" role="img"
            aria-label=(words(loads)) {
            @for (class, x, width) in parts {
                rect class=(class.css()) x=(format!("{x:.2}")) width=(format!("{width:.2}"))
                    height="8" {
                    title { (class.title()) " " (load(loads.0[class as usize])) }
                }
            }
        }
    }
}

/// `lock 4.83, CPU 1.37`.
pub(super) fn words(loads: &ClassLoads) -> String {
    let seen = WaitClass::ALL.into_iter().zip(loads.0);
    let seen = seen.filter(|(_, load)| *load > 0.0);
    seen.map(|(class, sessions)| format!("{} {}", class.title(), load(sessions)))
        .collect::<Vec<_>>()
        .join(", ")
}
