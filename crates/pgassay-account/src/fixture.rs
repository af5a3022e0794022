//! What several unit tests start from.

use pgassay_model::cpu::CpuTotals;
use pgassay_model::trial::{Trial, TrialKind};

/// A timed trial of one second with 100 transactions.
pub(crate) fn trial() -> Trial {
    Trial {
        window_us: 1e6,
        transactions: 100,
        transactions_total: 100,
        server: Some(CpuTotals::default()),
        ..Trial::empty(TrialKind::Timed)
    }
}
