//! Decodes the records of a perf ring buffer: samples and side-band records of processes.
//!
//! Pure: bytes in, borrowed structs out; a truncated record is an error, never a panic.
//! The layout follows `include/uapi/linux/perf_event.h` for the attributes set by `event.rs`: a
//! sample consists of ip, tid, time, CPU, period, call chain, user registers and stack, in this
//! order, and every other record ends in a `sample_id` of PID and TID, time, and CPU.

use crate::arch::REGS_COUNT;
use perf_event_open_sys::bindings as sys;

/// Size of `perf_event_header`.
pub(crate) const HEADER_BYTES: usize = 8;

/// One record.
#[derive(Debug, PartialEq)]
pub(crate) enum Record<'a> {
    Sample(Sample<'a>),
    Map(MapRecord<'a>),
    /// A process changed its name; `exec` if it executed a program.
    Comm {
        pid: u32,
        exec: bool,
    },
    Fork {
        pid: u32,
        parent_pid: u32,
        tid: u32,
        time_ns: u64,
    },
    Exit {
        pid: u32,
        tid: u32,
        time_ns: u64,
    },
    /// The ring was full, and `count` records were lost.
    Lost {
        count: u64,
    },
    /// The kernel throttled the event.
    Throttle,
    /// Any other record.
    Other,
}

/// One sample.
#[derive(Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    pub pid: u32,
    /// When it was taken.
    pub time_ns: u64,
    /// The CPU time that this sample represents.
    pub period_ns: u64,
    /// Kernel addresses and context markers, as the kernel wrote them.
    pub callchain: &'a [u8],
    /// User registers; absent for kernel threads and 32-bit programs.
    pub user_regs: Option<[u64; REGS_COUNT]>,
    /// The user stack from the stack pointer upward.
    pub stack: &'a [u8],
    /// The stack was longer than the copy.
    pub stack_is_full: bool,
}

impl Sample<'_> {
    /// The kernel stack, leaf first.
    pub fn kernel_chain(&self) -> impl Iterator<Item = u64> + '_ {
        let mut in_kernel = false;
        self.callchain
            .chunks_exact(8)
            .map(ne_u64)
            .filter(move |&address| {
                if address >= sys::PERF_CONTEXT_MAX {
                    in_kernel = address == sys::PERF_CONTEXT_KERNEL;
                    return false;
                }
                in_kernel
            })
    }
}

/// `PERF_RECORD_MMAP2`: a file was mapped as executable.
#[derive(Debug, PartialEq)]
pub(crate) struct MapRecord<'a> {
    pub pid: u32,
    pub start: u64,
    pub len: u64,
    pub file_offset: u64,
    pub executable: bool,
    pub device: (u32, u32),
    pub inode: u64,
    pub path: &'a [u8],
}

/// A truncated record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a perf record of type {kind} is truncated: {len} bytes")]
pub(crate) struct Malformed {
    pub kind: u32,
    pub len: usize,
}

impl Malformed {
    /// Whether the record is a sample.
    pub fn is_sample(&self) -> bool {
        self.kind == sys::PERF_RECORD_SAMPLE
    }
}

/// Splits a copy of a ring's contents into records with the layout of stack events.
pub(crate) struct Records<'a> {
    raw: RawRecords<'a>,
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let raw = RawRecords::new(bytes);
        Self { raw }
    }

    /// All records but the samples, with their times.
    pub fn side_band(self) -> impl Iterator<Item = Result<(u64, Record<'a>), Malformed>> {
        self.raw
            .filter(|raw| !matches!(raw, Ok(raw) if raw.kind == sys::PERF_RECORD_SAMPLE))
            .map(|raw| {
                let raw = raw?;
                let record = decode(raw.kind, raw.misc, raw.body());
                let record = record.ok_or(raw.malformed())?;
                Ok((raw.time_ns().unwrap_or_default(), record))
            })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let raw = match self.raw.next()? {
            Ok(raw) => raw,
            Err(malformed) => return Some(Err(malformed)),
        };
        Some(decode(raw.kind, raw.misc, raw.body()).ok_or(raw.malformed()))
    }
}

/// Splits a copy of a ring's contents into records of any layout.
pub(crate) struct RawRecords<'a> {
    bytes: &'a [u8],
}

/// A record's header and body.
pub(crate) struct RawRecord<'a> {
    pub kind: u32,
    pub misc: u16,
    pub bytes: &'a [u8],
}

impl<'a> RawRecord<'a> {
    pub fn body(&self) -> RecordCursor<'a> {
        RecordCursor { bytes: self.bytes }
    }

    /// When it was written; not of samples, which have no `sample_id`.
    fn time_ns(&self) -> Option<u64> {
        let at = self.bytes.len().checked_sub(16)?;
        RecordCursor {
            bytes: &self.bytes[at..],
        }
        .u64()
    }

    pub fn malformed(&self) -> Malformed {
        Malformed {
            kind: self.kind,
            len: self.bytes.len() + HEADER_BYTES,
        }
    }
}

impl<'a> RawRecords<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = Result<RawRecord<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut header = RecordCursor { bytes: self.bytes };
        let parsed = (|| Some((header.u32()?, header.u16()?, header.u16()?)))();
        let Some((kind, misc, size)) = parsed
            .filter(|p| usize::from(p.2) >= HEADER_BYTES && usize::from(p.2) <= self.bytes.len())
        else {
            // Without a valid size the next record cannot be found.
            let len = self.bytes.len();
            self.bytes = &[];
            return Some(Err(Malformed { kind: 0, len }));
        };
        let (record, rest) = self.bytes.split_at(usize::from(size));
        self.bytes = rest;
        Some(Ok(RawRecord {
            kind,
            misc,
            bytes: &record[HEADER_BYTES..],
        }))
    }
}

fn decode(kind: u32, misc: u16, mut body: RecordCursor<'_>) -> Option<Record<'_>> {
    Some(match kind {
        sys::PERF_RECORD_SAMPLE => Record::Sample(decode_sample(body)?),
        sys::PERF_RECORD_MMAP2 => Record::Map(decode_map(body)?),
        sys::PERF_RECORD_COMM => {
            let exec = u32::from(misc) & sys::PERF_RECORD_MISC_COMM_EXEC != 0;
            Record::Comm {
                pid: body.u32()?,
                exec,
            }
        }
        sys::PERF_RECORD_FORK | sys::PERF_RECORD_EXIT => {
            let (pid, parent_pid, tid) = (body.u32()?, body.u32()?, body.u32()?);
            body.u32()?; // the parent's tid
            let time_ns = body.u64()?;
            if kind == sys::PERF_RECORD_FORK {
                Record::Fork {
                    pid,
                    parent_pid,
                    tid,
                    time_ns,
                }
            } else {
                Record::Exit { pid, tid, time_ns }
            }
        }
        sys::PERF_RECORD_LOST => {
            body.u64()?; // the event's id
            Record::Lost { count: body.u64()? }
        }
        sys::PERF_RECORD_THROTTLE => Record::Throttle,
        _ => Record::Other,
    })
}

fn decode_sample(mut body: RecordCursor<'_>) -> Option<Sample<'_>> {
    body.u64()?; // ip: also the call chain's first address
    let pid = body.u32()?;
    body.u32()?; // tid
    let time_ns = body.u64()?;
    body.u64()?; // cpu, reserved
    let period_ns = body.u64()?;
    let chain_len = usize::try_from(body.u64()?).ok()?;
    let callchain = body.take(chain_len.checked_mul(8)?)?;
    let mut user_regs = None;
    body.user_regs(&mut user_regs)?;
    let size = usize::try_from(body.u64()?).ok()?;
    let mut stack: &[u8] = &[];
    let mut stack_is_full = false;
    if size > 0 {
        let room = body.take(size)?;
        // The space always has the configured size; the size of its used part follows it.
        let filled = usize::try_from(body.u64()?).ok()?;
        stack = room.get(..filled)?;
        stack_is_full = filled == size;
    }
    Some(Sample {
        pid,
        time_ns,
        period_ns,
        callchain,
        user_regs,
        stack,
        stack_is_full,
    })
}

fn decode_map(mut body: RecordCursor<'_>) -> Option<MapRecord<'_>> {
    let pid = body.u32()?;
    body.u32()?; // tid
    let (start, len, file_offset) = (body.u64()?, body.u64()?, body.u64()?);
    let device = (body.u32()?, body.u32()?);
    let inode = body.u64()?;
    body.u64()?; // the inode's generation
    let protection = body.u32()?;
    body.u32()?; // flags
    let path_end = body.bytes.iter().position(|&b| b == 0)?;
    let executable = protection & libc::PROT_EXEC.cast_unsigned() != 0;
    let path = &body.bytes[..path_end];
    Some(MapRecord {
        pid,
        start,
        len,
        file_offset,
        executable,
        device,
        inode,
        path,
    })
}

/// Reads numbers from the front of bytes.
pub(crate) struct RecordCursor<'a> {
    bytes: &'a [u8],
}

impl<'a> RecordCursor<'a> {
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).map(ne_u64)
    }

    /// The user registers, `None` if there are none of a known ABI.
    pub fn user_regs(&mut self, into: &mut Option<[u64; REGS_COUNT]>) -> Option<()> {
        let abi = u32::try_from(self.u64()?).ok()?;
        if abi == sys::PERF_SAMPLE_REGS_ABI_NONE {
            return Some(());
        }
        let mut regs = [0; REGS_COUNT];
        for reg in &mut regs {
            *reg = self.u64()?;
        }
        *into = (abi == sys::PERF_SAMPLE_REGS_ABI_64).then_some(regs);
        Some(())
    }
}

fn ne_u64(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("callers pass exactly eight bytes"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record's bytes from its type, flags and body, padded to eight bytes as by the kernel.
    pub(crate) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(8);
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(u16::try_from(HEADER_BYTES + padded).unwrap().to_ne_bytes());
        bytes.extend(body);
        bytes.resize(HEADER_BYTES + padded, 0);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    fn pair(low: u32, high: u32) -> u64 {
        let mut bytes = low.to_ne_bytes().to_vec();
        bytes.extend(high.to_ne_bytes());
        ne_u64(&bytes)
    }

    fn sample_body(stack_len: usize, filled: u64) -> Vec<u8> {
        let mut body = words(&[0xffff_0010, pair(42, 43), 1, 0, 1_000_000, 4]);
        body.extend(words(&[sys::PERF_CONTEXT_KERNEL, 0xffff_0010, 0xffff_0020]));
        body.extend(words(&[sys::PERF_CONTEXT_USER]));
        body.extend(words(&[2]));
        body.extend(words(&(1..=REGS_COUNT as u64).collect::<Vec<_>>()));
        body.extend(words(&[stack_len as u64]));
        body.extend((0..stack_len).map(|i| i as u8));
        if stack_len > 0 {
            body.extend(words(&[filled]));
        }
        body
    }

    fn only(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
        let mut records = Records::new(bytes);
        let first = records.next().expect("a record");
        assert!(records.next().is_none());
        first
    }

    #[test]
    fn a_sample_has_its_kernel_chain_registers_and_stack() {
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &sample_body(64, 40));
        let Ok(Record::Sample(sample)) = only(&bytes) else {
            panic!("not a sample")
        };
        assert_eq!(sample.pid, 42);
        assert_eq!(sample.period_ns, 1_000_000);
        assert_eq!(
            sample.kernel_chain().collect::<Vec<_>>(),
            [0xffff_0010, 0xffff_0020]
        );
        assert_eq!(sample.user_regs.unwrap()[0], 1);
        assert_eq!(sample.stack.len(), 40);
        assert!(!sample.stack_is_full);
    }

    #[test]
    fn a_copy_that_fills_its_space_is_full() {
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &sample_body(64, 64));
        let Ok(Record::Sample(sample)) = only(&bytes) else {
            panic!("not a sample")
        };
        assert!(sample.stack_is_full);
    }

    #[test]
    fn a_kernel_thread_has_neither_registers_nor_stack() {
        let body = words(&[0xffff_0010, pair(7, 7), 1, 0, 5, 1, 0xffff_0010, 0, 0]);
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &body);
        let Ok(Record::Sample(sample)) = only(&bytes) else {
            panic!("not a sample")
        };
        assert_eq!(sample.user_regs, None);
        // Without a context marker the address is not known to be the kernel's.
        assert_eq!(sample.kernel_chain().count(), 0);
    }

    #[test]
    fn a_mapping_path_ends_at_the_first_zero() {
        let mut body = words(&[
            pair(9, 9),
            0x7f00,
            0x1000,
            0x2000,
            pair(8, 1),
            77,
            0,
            pair(5, 0),
        ]);
        body.extend(b"/lib/plpgsql.so\0\0");
        let bytes = record(sys::PERF_RECORD_MMAP2, 0, &body);
        let Ok(Record::Map(map)) = only(&bytes) else {
            panic!("not a map")
        };
        assert_eq!(
            (map.pid, map.start, map.len, map.file_offset),
            (9, 0x7f00, 0x1000, 0x2000)
        );
        assert!(map.executable);
        assert_eq!((map.device, map.inode), ((8, 1), 77));
        assert_eq!(map.path, b"/lib/plpgsql.so");
    }

    #[test]
    fn side_band_records_are_decoded() {
        let mut bytes = record(
            sys::PERF_RECORD_FORK,
            0,
            &words(&[pair(2, 1), pair(2, 1), 0]),
        );
        bytes.extend(record(
            sys::PERF_RECORD_EXIT,
            0,
            &words(&[pair(2, 1), pair(2, 1), 0]),
        ));
        bytes.extend(record(
            sys::PERF_RECORD_COMM,
            8192,
            &words(&[pair(2, 2), 0]),
        ));
        bytes.extend(record(sys::PERF_RECORD_LOST, 0, &words(&[1, 12])));
        bytes.extend(record(sys::PERF_RECORD_THROTTLE, 0, &words(&[1, 12, 0])));
        let all: Result<Vec<_>, _> = Records::new(&bytes).collect();
        assert_eq!(
            all.unwrap(),
            [
                Record::Fork {
                    pid: 2,
                    parent_pid: 1,
                    tid: 2,
                    time_ns: 0
                },
                Record::Exit {
                    pid: 2,
                    tid: 2,
                    time_ns: 0
                },
                Record::Comm { pid: 2, exec: true },
                Record::Lost { count: 12 },
                Record::Throttle,
            ]
        );
    }

    #[test]
    fn a_truncated_record_is_an_error_and_the_next_is_still_read() {
        let body = sample_body(64, 65);
        let mut bytes = record(sys::PERF_RECORD_SAMPLE, 0, &body);
        bytes.extend(record(sys::PERF_RECORD_SAMPLE, 0, &body[..64]));
        bytes.extend(record(sys::PERF_RECORD_THROTTLE, 0, &[]));
        let all: Vec<_> = Records::new(&bytes).collect();
        assert!(all[0].is_err(), "more used than there is space");
        assert!(all[1].is_err());
        assert_eq!(all[2], Ok(Record::Throttle));
    }

    #[test]
    fn an_invalid_size_ends_the_reading() {
        let bytes = [1, 0, 0, 0, 0, 0, 4, 0, 9, 9];
        assert_eq!(Records::new(&bytes).count(), 1);
        assert!(Records::new(&bytes).next().unwrap().is_err());
    }
}
