//! Fixes that raise a setting. One that the study or the server has set higher is left alone: the fix would
//! lower it.

use pgassay_record::remedy::RemedyVariant;

use crate::evidence::Evidence;
use crate::setting_size::setting_size;

/// Bytes of a block (`BLCKSZ`), the unit of some settings.
pub(super) const BLOCK: f64 = 8192.0;
/// Bytes of a megabyte.
pub(super) const MIB: f64 = 1_048_576.0;

/// A server's setting raised to this value. `unit` is that of a value without one, in bytes; 1 for a count.
pub(super) fn raised(e: &Evidence, name: &str, wanted: &str, unit: f64) -> Option<RemedyVariant> {
    let is_chosen_by_server = |value: &&str| matches!(*value, "-1" | "0");
    let now = e.setting(name).filter(|value| !is_chosen_by_server(value));
    let is_higher = now.is_none_or(|now| setting_size(now, unit) < setting_size(wanted, unit));
    let is_known = now.is_none_or(|now| setting_size(now, unit).is_some());
    (is_higher && is_known).then(|| RemedyVariant::settings(&[(name, wanted)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_never_lowers_a_setting() {
        let with = |name: &str, value: &str| Evidence {
            settings: [(name.to_owned(), value.to_owned())].into(),
            ..Evidence::default()
        };
        for (name, wanted, unit, lower, higher) in [
            ("wal_buffers", "64MB", BLOCK, "2048", "128MB"),
            ("max_locks_per_transaction", "1024", 1.0, "64", "2048"),
            ("subtransaction_buffers", "8MB", BLOCK, "32", "1024"),
        ] {
            let is_raised = |e: &Evidence| raised(e, name, wanted, unit).is_some();
            assert!(is_raised(&Evidence::default()), "{name}");
            assert!(is_raised(&with(name, lower)), "{name}");
            assert!(!is_raised(&with(name, higher)), "{name}");
            assert!(!is_raised(&with(name, wanted)), "{name}");
            assert!(!is_raised(&with(name, "some")), "{name}");
        }
        assert!(raised(&with("wal_buffers", "-1"), "wal_buffers", "64MB", BLOCK).is_some());
    }
}
