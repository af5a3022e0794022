//! Replication slots that keep WAL.

use pgassay_record::activity::SlotState;
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::names;
use super::signature::OperatorSignature;

/// A smaller limit on what a slot may keep is rarely wanted.
const LIMIT_MIN_BYTES: f64 = 51_200.0 * 1_048_576.0;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "slot-wal",
    title: "A replication slot keeps WAL",
    manual: "High Availability: Replication Slots",
    detect: slot_wal,
}];

fn slot_wal(view: &LiveView<'_>) -> Vec<Detection> {
    let own = view.max_wal_size();
    let slots = view.catalog.slots.iter();
    slots
        .filter_map(|slot| {
            let status = slot.wal_status.as_deref().unwrap_or_default();
            let kept = slot.retained_bytes.unwrap_or(0) as f64;
            let is_losing = matches!(status, "unreserved" | "lost");
            (is_losing || kept > own).then(|| detection(view, slot, own))
        })
        .collect()
}

/// Whether it is a failover slot that this standby copies from the primary.
pub(super) fn is_copy(view: &LiveView<'_>, slot: &SlotState) -> bool {
    view.catalog.is_standby && slot.is_synced
}

/// The fix for such a slot: the standby cannot drop it.
pub(super) fn look_at_primary(detection: Detection) -> Detection {
    detection
        .fix(
            "Look at the slot on the primary: this one is its copy for a failover, follows it, and cannot be dropped \
             here. If it stays behind, see the server's log for messages of the slot sync worker.",
        )
        .risk("None; it only reads.")
}

fn detection(view: &LiveView<'_>, slot: &SlotState, own: f64) -> Detection {
    let kept = slot.retained_bytes.map(|it| it as f64);
    let status = slot.wal_status.as_deref().unwrap_or_default();
    let is_lost = status == "lost";
    let is_copy = is_copy(view, slot);
    let receiver = if is_copy {
        "it is synchronized from the primary"
    } else if slot.is_active {
        "its receiver is connected, but behind"
    } else {
        "no receiver is connected"
    };
    let detection = Detection::of(ObjectKind::Slot, &slot.name)
        .title(is_lost.then_some("A replication slot is invalid"))
        .urgent(if status == "unreserved" { 9 } else { 7 })
        .extent(kept.unwrap_or(0.0))
        // Which WAL an invalid slot would need is no longer known.
        .with(kept.filter(|_| !is_lost), |it, kept| {
            it.figure("WAL that it keeps", kept, FactUnit::Bytes)
                .figure("max_wal_size", own, FactUnit::Bytes)
        })
        .state(receiver)
        .with(slot.inactive_us.filter(|_| !is_copy), |it, us| {
            it.figure("time since its receiver left", us, FactUnit::Micros)
        })
        .with(slot.wal_status.as_ref(), |it, status| {
            it.state(format!("wal_status {status}"))
        });
    if is_copy {
        return look_at_primary(detection);
    }
    with_fix(view, detection, slot)
}

fn with_fix(view: &LiveView<'_>, detection: Detection, slot: &SlotState) -> Detection {
    let name = names::literal(&slot.name);
    let drop = format!("select pg_drop_replication_slot({name})");
    // Below what a slot keeps already, it would be invalidated at once.
    let slots = view.catalog.slots.iter();
    let most = slots.filter_map(|it| it.retained_bytes).max().unwrap_or(0);
    let limit = (2.0 * most as f64).max(LIMIT_MIN_BYTES);
    match (slot.is_active, slot.wal_status.as_deref().unwrap_or_default()) {
        (_, "lost") => detection
            .fix(
                "Drop the slot. It keeps nothing anymore, and its receiver cannot continue from it: \
                 build the standby or subscription again, unless an archive has the WAL.",
            )
            .sql(drop)
            .risk("None for this server; a receiver cannot use the slot in any case."),
        (true, _) => {
            let detection = detection.fix(
                "Find out why the receiver is slow: network, its disk, or a long transaction on a \
                 subscriber. Limit what a slot may keep, so that the disk does not fill up.",
            );
            let present = view.setting("max_slot_wal_keep_size");
            if view.major >= 13 && present == Some("-1") {
                detection
                    .sql(format!(
                        "alter system set max_slot_wal_keep_size = '{}'",
                        names::memory(limit)
                    ))
                    .risk(
                        "It takes effect after pg_reload_conf(). A slot that keeps more WAL than this is \
                         invalidated at the next checkpoint, and its standby or subscriber must be built \
                         again.",
                    )
            } else {
                detection.risk("None; a full disk stops the server.")
            }
        }
        (false, _) => detection
            .fix(
                "Start the receiver. If there is none anymore, drop the slot. Until then the disk \
                 fills with WAL.",
            )
            .sql(drop)
            .risk("A standby or subscriber that still needs the slot must be built again."),
    }
}
