//! Decodes the records of context switches and wake-ups.
//!
//! Pure, like `record.rs`. At a switch the kernel writes three records, all on the CPU of the
//! switch: a sample of the thread switched out (tid, time, user registers),
//! `PERF_RECORD_SWITCH_CPU_WIDE` for it, and another one for the thread switched in. A wake-up is a
//! sample of the waker with the raw data of the tracepoint `sched_wakeup`, which contains the woken
//! thread at an offset given in the tracepoint's `format` file.

use crate::arch::REGS_COUNT;
use crate::perf::record::{Malformed, RawRecord, RawRecords, RecordCursor};
use perf_event_open_sys::bindings as sys;

/// A scheduler event of a thread, identified by its tid. A process's PID is the tid of its main
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchedEvent {
    pub time_ns: u64,
    pub tid: u32,
    pub what: SchedEventKind,
}

/// See [`SchedEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchedEventKind {
    /// Switched in.
    In,
    /// Switched out while runnable.
    Preempted,
    /// Switched out to wait, with its user registers.
    Waits { regs: Option<[u64; REGS_COUNT]> },
    /// Woken: became runnable.
    Woken,
    /// Exited.
    Ended,
}

/// The scheduler events of some rings.
#[derive(Debug, Default)]
pub(crate) struct SchedEvents {
    pub all: Vec<SchedEvent>,
    /// Lost records.
    pub lost: u64,
    pub malformed: u64,
}

/// The number of switches in one CPU's ring.
pub(crate) fn count_switches(ring: &[u8]) -> u64 {
    let samples = RawRecords::new(ring).flatten();
    samples
        .filter(|it| it.kind == sys::PERF_RECORD_SAMPLE)
        .count() as u64
}

impl SchedEvents {
    /// Adds the records of one CPU's ring of switches.
    pub fn add_switches(&mut self, ring: &[u8]) {
        // The thread about to be switched out, from its sample.
        let mut leaver = None;
        for record in RawRecords::new(ring) {
            let record = record.and_then(|raw| match raw.kind {
                sys::PERF_RECORD_SAMPLE => {
                    leaver = Some(decode_leaver(raw.body()).ok_or(raw.malformed())?);
                    Ok(())
                }
                sys::PERF_RECORD_SWITCH_CPU_WIDE => {
                    let switch = decode_switch(raw.misc, raw.body(), leaver.take());
                    let (pid, switch) = switch.ok_or(raw.malformed())?;
                    // A process's account is that of its main thread.
                    if pid == switch.tid {
                        self.all.push(switch);
                    }
                    Ok(())
                }
                _ => self.other(&raw),
            });
            self.malformed += u64::from(record.is_err());
        }
    }

    /// Adds the records of one CPU's ring of wake-ups; `pid_offset` is the offset of the woken
    /// thread in the raw data.
    pub fn add_wake_ups(&mut self, ring: &[u8], pid_offset: usize) {
        for record in RawRecords::new(ring) {
            let record = record.and_then(|raw| match raw.kind {
                sys::PERF_RECORD_SAMPLE => {
                    let woken = decode_wake_up(raw.body(), pid_offset);
                    self.all.push(woken.ok_or(raw.malformed())?);
                    Ok(())
                }
                _ => self.other(&raw),
            });
            self.malformed += u64::from(record.is_err());
        }
    }

    fn other(&mut self, raw: &RawRecord<'_>) -> Result<(), Malformed> {
        if raw.kind == sys::PERF_RECORD_LOST {
            let mut body = raw.body();
            body.u64().ok_or(raw.malformed())?; // the event's id
            self.lost += body.u64().ok_or(raw.malformed())?;
        }
        Ok(())
    }
}

/// The thread switched out, and its registers.
fn decode_leaver(mut body: RecordCursor<'_>) -> Option<(u32, Option<[u64; REGS_COUNT]>)> {
    body.u32()?; // pid
    let tid = body.u32()?;
    body.u64()?; // time: the switch record has its own
    let mut regs = None;
    body.user_regs(&mut regs)?;
    Some((tid, regs))
}

fn decode_switch(
    misc: u16,
    mut body: RecordCursor<'_>,
    leaver: Option<(u32, Option<[u64; REGS_COUNT]>)>,
) -> Option<(u32, SchedEvent)> {
    body.u64()?; // pid and tid of the other thread
    let pid = body.u32()?;
    let tid = body.u32()?;
    let time_ns = body.u64()?;
    let misc = u32::from(misc);
    let what = if misc & sys::PERF_RECORD_MISC_SWITCH_OUT == 0 {
        SchedEventKind::In
    } else if misc & sys::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0 {
        SchedEventKind::Preempted
    } else {
        let regs = leaver.filter(|it| it.0 == tid).and_then(|it| it.1);
        SchedEventKind::Waits { regs }
    };
    Some((pid, SchedEvent { time_ns, tid, what }))
}

fn decode_wake_up(mut body: RecordCursor<'_>, pid_offset: usize) -> Option<SchedEvent> {
    body.u64()?; // pid and tid of the waker
    let time_ns = body.u64()?;
    let size = usize::try_from(body.u32()?).ok()?;
    let raw = body.take(size)?;
    let tid = raw.get(pid_offset..)?.first_chunk::<4>()?;
    Some(SchedEvent {
        time_ns,
        tid: u32::from_ne_bytes(*tid),
        what: SchedEventKind::Woken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::tests::record;

    fn leaver(tid: u32, regs: [u64; REGS_COUNT]) -> Vec<u8> {
        let mut body = [tid, tid].map(u32::to_ne_bytes).concat();
        body.extend(5_u64.to_ne_bytes());
        body.extend(u64::from(sys::PERF_SAMPLE_REGS_ABI_64).to_ne_bytes());
        body.extend(regs.map(u64::to_ne_bytes).concat());
        record(sys::PERF_RECORD_SAMPLE, 0, &body)
    }

    fn switch(misc: u32, tid: u32, time_ns: u64) -> Vec<u8> {
        let mut body = [9, 9, tid, tid].map(u32::to_ne_bytes).concat();
        body.extend(time_ns.to_ne_bytes());
        let misc = u16::try_from(misc).unwrap();
        record(sys::PERF_RECORD_SWITCH_CPU_WIDE, misc, &body)
    }

    #[test]
    fn a_wait_has_the_registers_of_the_thread_switched_out() {
        const OUT: u32 = sys::PERF_RECORD_MISC_SWITCH_OUT;
        let regs = [7; REGS_COUNT];
        let ring = [
            leaver(4, regs),
            switch(OUT, 4, 10),
            switch(0, 5, 11),
            leaver(5, regs),
            switch(OUT | sys::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT, 5, 12),
            switch(0, 6, 13),
            leaver(4, regs),
            switch(OUT, 6, 14),
        ]
        .concat();
        let mut found = SchedEvents::default();
        found.add_switches(&ring);
        let whats: Vec<_> = found
            .all
            .iter()
            .map(|it| (it.tid, it.time_ns, it.what))
            .collect();
        assert_eq!(
            whats,
            [
                (4, 10, SchedEventKind::Waits { regs: Some(regs) }),
                (5, 11, SchedEventKind::In),
                (5, 12, SchedEventKind::Preempted),
                (6, 13, SchedEventKind::In),
                (6, 14, SchedEventKind::Waits { regs: None }),
            ],
            "another thread's registers are not used"
        );
        assert_eq!((found.lost, found.malformed), (0, 0));
    }

    #[test]
    fn a_wake_up_gives_the_woken_thread_and_lost_records_are_counted() {
        let mut body = [3, 3].map(u32::to_ne_bytes).concat();
        body.extend(77_u64.to_ne_bytes());
        let raw = [[0; 8], 42_u64.to_ne_bytes()].concat();
        body.extend(16_u32.to_ne_bytes());
        body.extend(raw);
        let ring = [
            record(sys::PERF_RECORD_SAMPLE, 0, &body),
            record(
                sys::PERF_RECORD_LOST,
                0,
                &[1_u64, 12].map(u64::to_ne_bytes).concat(),
            ),
            record(sys::PERF_RECORD_SAMPLE, 0, &body[..20]),
        ]
        .concat();
        let mut found = SchedEvents::default();
        found.add_wake_ups(&ring, 8);
        let woken = SchedEvent {
            time_ns: 77,
            tid: 42,
            what: SchedEventKind::Woken,
        };
        assert_eq!(found.all, [woken]);
        assert_eq!((found.lost, found.malformed), (12, 1));
    }
}
