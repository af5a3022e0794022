//! What a blocked backend waits for, by its stack first, then by its wait event.
//!
//! Stacks are needed for old servers, whose wait events are coarse (9.6 has none for the client or
//! for files), and for waits without an event: writing to the logging pipe has none up to 18, so
//! samplers of `pg_stat_activity` report it as CPU. Events are needed without stacks, and to name the
//! particular lock if the stack only shows its type.
//!
//! Sources: `src/backend/storage/lmgr/{lwlock,proc}.c`, `libpq/be-secure.c`,
//! `utils/error/elog.c` (`write_pipe_chunks`), `access/transam/{xlog,parallel}.c`,
//! `postmaster/bgworker.c`, `storage/ipc/shm_mq.c`, `executor/nodeGather.c`; wait classes in
//! `utils/activity/wait_event_names.txt`.

use pgassay_knowledge::{FrameName, present_spelling};

use super::row::{Nature, Part};

/// Why a backend was blocked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason {
    /// [`Part::Blocked`], [`Part::Client`], [`Part::Running`] or [`Part::Unexplained`].
    pub part: Part,
    /// Service of a device, or queueing.
    pub nature: Nature,
    /// The name in reports, such as `LWLock WALWrite`.
    pub mechanism: String,
}

/// What a function in a blocked stack implies.
enum WaitRule {
    /// The whole reason.
    Is(Nature, &'static str),
    /// It waits for a lock of this `wait_event_type`; the event names the lock.
    Lock(&'static str),
    /// It waits with this `wait_event_type` and `wait_event`, even if no sample caught it. A sampled
    /// event takes precedence: it has the name used in this release.
    Event(&'static str, &'static str),
    /// It waits for the client.
    Client,
}

use Nature::{Queueing, Service, Think};
use WaitRule::{Client, Event, Is, Lock};

/// The first match wins, so specific entries come before general ones: waiting for a lock before
/// writing the file that the lock protects.
#[rustfmt::skip]
const STACKS: &[(WaitRule, &[&str])] = &[
    (Is(Queueing, "logging pipe"), &["write_pipe_chunks", "pipe_write", "anon_pipe_write", "pipe_wait_writable"]),
    (Lock("LWLock"), &["LWLockAcquire", "LWLockAcquireOrWait", "LWLockWaitForVar", "LWLockAcquireCommon"]),
    (Lock("Lock"), &["ProcSleep", "WaitOnLock"]),
    (Is(Queueing, "buffer pin"), &["LockBufferForCleanup"]),
    (Is(Queueing, "synchronous replication"), &["SyncRepWaitForLSN"]),
    (Client, &["secure_read", "pq_recvbuf", "ReadCommand", "SocketBackend"]),
    (Is(Queueing, "client not reading"), &["secure_write", "internal_flush", "internal_flush_buffer"]),
    (Is(Service, "WAL sync"), &["issue_xlog_fsync"]),
    (Is(Service, "WAL write"), &["XLogWrite", "XLogFileInit", "XLogFileInitInternal", "XLogBackgroundFlush"]),
    (Is(Service, "SLRU read and write"), &["SlruPhysicalReadPage", "SlruPhysicalWritePage"]),
    (Is(Service, "temporary file"), &["BufFileRead", "BufFileWrite", "BufFileReadCommon", "BufFileLoadBuffer", "BufFileDumpBuffer"]),
    (Is(Service, "data file extension"), &["mdextend", "mdzeroextend"]),
    (Is(Service, "data file write"), &["mdwrite", "mdwritev", "mdwriteback"]),
    (Is(Service, "data file sync"), &["mdimmedsync", "mdsyncfiletag", "register_dirty_segment"]),
    (Is(Service, "data file read"), &["mdread", "mdreadv", "mdprefetch", "pgaio_wref_wait", "WaitReadBuffers", "WaitIO"]),
    (Event("IPC", "BgworkerStartup"), &["WaitForBackgroundWorkerStartup", "WaitForParallelWorkersToAttach"]),
    (Event("IPC", "BgworkerShutdown"), &["WaitForBackgroundWorkerShutdown"]),
    (Event("IPC", "ParallelFinish"), &["WaitForParallelWorkersToFinish"]),
    (Event("IPC", "MessageQueueReceive"), &["shm_mq_receive_bytes"]),
    (Event("IPC", "MessageQueueSend"), &["shm_mq_send_bytes"]),
    (Is(Think, "sleep"), &["pg_sleep", "vacuum_delay_point"]),
    (Is(Queueing, "spinlock delay"), &["perform_spin_delay", "s_lock"]),
    (Is(Service, "page fault"), &["asm_exc_page_fault", "exc_page_fault", "page_fault", "do_page_fault"]),
    // Compilers inline `gather_readnext` into its caller, which also runs the leader's own part.
    (Event("IPC", "ExecuteGather"), &["gather_readnext", "ExecGather"]),
];

/// Wait events of files, by prefix of their present names; other `IO` events keep those.
#[rustfmt::skip]
const FILES: &[(&str, &[&str])] = &[
    ("WAL sync", &["WalSync"]),
    ("WAL write", &["WalWrite", "WalInit"]),
    ("data file sync", &["DataFileSync", "DataFileImmediateSync"]),
    ("data file read", &["DataFileRead", "DataFilePrefetch", "AioIo"]),
    ("data file extension", &["DataFileExtend"]),
    ("data file write", &["DataFileWrite", "DataFileFlush", "DataFileTruncate"]),
    ("temporary file", &["Buffile"]),
    ("SLRU read and write", &["Slru"]),
];

/// The present names of waits that had others, apart from their spelling: of lightweight locks up to 12 (`lwlock.c`;
/// the suffix `Lock` is left out), of other waits up to 12 and 15 (`pgstat.c`, `wait_event.c`). When releases are
/// compared, a wait has one row.
#[rustfmt::skip]
const RENAMED: &[(&str, &str)] = &[
    ("speculative token", "spectoken"), ("AsyncCtl", "NotifySLRU"), ("AsyncQueue", "NotifyQueue"),
    ("CLogControl", "XactSLRU"), ("CLogTruncation", "XactTruncation"), ("ClogGroupUpdate", "XactGroupUpdate"),
    ("CommitTsControl", "CommitTsSLRU"), ("MultiXactMemberControl", "MultiXactMemberSLRU"),
    ("MultiXactOffsetControl", "MultiXactOffsetSLRU"), ("OldSerXid", "SerialSLRU"),
    ("SerializablePredicateLockList", "SerializablePredicateList"), ("SubtransControl", "SubtransSLRU"),
    ("async", "NotifyBuffer"), ("clog", "XactBuffer"), ("commit_timestamp", "CommitTsBuffer"),
    ("multixact_member", "MultiXactMemberBuffer"), ("multixact_offset", "MultiXactOffsetBuffer"),
    ("oldserxid", "SerialBuffer"), ("proc", "LockFastPath"), ("replication_origin", "ReplicationOriginState"),
    ("serializable_xact", "PerXactPredicateList"), ("session_dsa", "PerSessionDSA"),
    ("session_record_table", "PerSessionRecordType"), ("session_typmod_table", "PerSessionRecordTypmod"),
    ("subtrans", "SubtransBuffer"), ("tbm", "SharedTidBitmap"),
    ("Hash/Batch/Allocating", "HashBatchAllocate"), ("Hash/Batch/Electing", "HashBatchElect"),
    ("Hash/Batch/Loading", "HashBatchLoad"), ("Hash/Build/Allocating", "HashBuildAllocate"),
    ("Hash/Build/Electing", "HashBuildElect"), ("Hash/Build/HashingInner", "HashBuildHashInner"),
    ("Hash/Build/HashingOuter", "HashBuildHashOuter"),
    ("Hash/GrowBatches/Allocating", "HashGrowBatchesReallocate"),
    ("Hash/GrowBatches/Deciding", "HashGrowBatchesDecide"), ("Hash/GrowBatches/Electing", "HashGrowBatchesElect"),
    ("Hash/GrowBatches/Finishing", "HashGrowBatchesFinish"),
    ("Hash/GrowBatches/Repartitioning", "HashGrowBatchesRepartition"),
    ("Hash/GrowBuckets/Allocating", "HashGrowBucketsReallocate"),
    ("Hash/GrowBuckets/Electing", "HashGrowBucketsElect"),
    ("Hash/GrowBuckets/Reinserting", "HashGrowBucketsReinsert"),
    ("HashGrowBatchesAllocate", "HashGrowBatchesReallocate"),
    ("HashGrowBucketsAllocate", "HashGrowBucketsReallocate"),
];

/// The present name of a wait event.
fn present_name<'a>(kind: &str, event: &'a str) -> &'a str {
    let renamed = RENAMED.iter().find(|(before, _)| *before == event);
    renamed.map_or_else(|| present_spelling(kind, event), |(_, name)| name)
}

impl Reason {
    /// Lock types whose waits a stack shows without naming the lock.
    pub(super) const LOCKS: [&str; 2] = ["Lock", "LWLock"];

    /// Whether it is a particular lock of this type.
    pub(super) fn is_lock_of(&self, kind: &str) -> bool {
        let name = self.mechanism.strip_prefix(kind);
        self.part == Part::Blocked && name.is_some_and(|name| name.starts_with(' '))
    }

    /// The reason given by a stack, outermost frame first, and the wait event at that time
    /// (`wait_event_type` and `wait_event`, both empty if the backend reported none).
    pub fn of_stack(frames: &[FrameName<'_>], kind: &str, event: &str) -> Self {
        let named = |names: &[&str]| {
            frames.iter().any(|frame| {
                frame
                    .symbol
                    .is_some_and(|symbol| names.contains(&bare(symbol)))
            })
        };
        let says = STACKS.iter().find(|(_, names)| named(names));
        match says.map(|(says, _)| says) {
            Some(Is(nature, mechanism)) => Self::blocked(*nature, mechanism),
            Some(Client) => Self::client(),
            Some(Event(class, name)) if matches!(kind, "" | "not known") => {
                Self::blocked(Queueing, &format!("{class} {name}"))
            }
            Some(Lock(class)) if kind.starts_with(class) => Self::of_event(kind, event),
            Some(Lock(class)) => Self::blocked(Queueing, class),
            Some(Event(..)) | None => Self::of_event(kind, event),
        }
    }

    /// The reason given by a wait event alone, both empty if the backend reported none.
    pub fn of_event(kind: &str, event: &str) -> Self {
        match kind {
            "Client" if event == "ClientRead" => Self::client(),
            "Client" if event == "ClientWrite" => Self::blocked(Queueing, "client not reading"),
            "IO" => {
                let event = present_name(kind, event);
                let known = FILES
                    .iter()
                    .find(|(_, starts)| starts.iter().any(|start| event.starts_with(start)));
                let own = || format!("IO {event}");
                Self::blocked(
                    Service,
                    &known.map_or_else(own, |(name, _)| (*name).to_owned()),
                )
            }
            // What a script or a cost limit asks for; the others wait for something that is busy.
            "Timeout" if matches!(event, "PgSleep" | "VacuumDelay") => {
                Self::blocked(Think, &format!("Timeout {event}"))
            }
            "Timeout" if event == "SpinDelay" => Self::blocked(Queueing, "spinlock delay"),
            // 19 has locks of contents there, too, and names the type `Buffer`.
            "BufferPin" | "Buffer"
                if event.starts_with("BufferShare") || event == "BufferExclusive" =>
            {
                Self::blocked(Queueing, "LWLock BufferContent")
            }
            "BufferPin" | "Buffer" => Self::blocked(Queueing, "buffer pin"),
            // For the read of another backend: a lightweight lock up to 13, and `BufferIo` from 17 on.
            _ if matches!(
                event,
                "BufferIO" | "BufferIo" | "buffer_io" | "BufferIOLock"
            ) =>
            {
                Self::blocked(Service, "data file read")
            }
            // 9.6 distinguishes two types of lightweight locks.
            "LWLockNamed" | "LWLockTranche" | "LWLock" => {
                let name = event.strip_suffix("Lock").unwrap_or(event);
                let name = present_name(kind, name);
                let name = name.strip_suffix("Lock").unwrap_or(name);
                Self::blocked(Queueing, &format!("LWLock {name}"))
            }
            "" | "not known" => Self {
                part: Part::Unexplained,
                nature: Nature::Unknown,
                mechanism: "blocked, reason unknown".to_owned(),
            },
            _ => Self::blocked(Queueing, &format!("{kind} {}", present_name(kind, event))),
        }
    }

    /// The server waits for its client.
    pub fn client() -> Self {
        Self {
            part: Part::Client,
            nature: Queueing,
            mechanism: "client".to_owned(),
        }
    }

    /// In a statement without a reported wait, and nothing else is known.
    pub fn running() -> Self {
        Self {
            part: Part::Running,
            nature: Nature::Unknown,
            mechanism: "on CPU or in run queue".to_owned(),
        }
    }

    fn blocked(nature: Nature, mechanism: &str) -> Self {
        Self {
            part: Part::Blocked,
            nature,
            mechanism: mechanism.to_owned(),
        }
    }
}

/// The name without a compiler-added suffix such as `.isra.0`.
fn bare(symbol: &str) -> &str {
    symbol.split('.').next().unwrap_or(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_knowledge::wait_number;

    fn of(stack: &str, kind: &str, event: &str) -> String {
        let frame = |symbol| FrameName {
            symbol: Some(symbol),
            object: "postgres",
            kernel: false,
        };
        let frames: Vec<_> = stack.split(';').map(frame).collect();
        Reason::of_stack(&frames, kind, event).mechanism
    }

    #[test]
    fn the_stack_names_what_has_no_event() {
        let log = "PostgresMain;exec_simple_query;EmitErrorReport;send_message_to_server_log;\
                   write_pipe_chunks;write;pipe_write";
        assert_eq!(of(log, "", ""), "logging pipe");
        assert_eq!(
            of("PostgresMain;ReadCommand;pq_recvbuf;secure_read", "", ""),
            "client"
        );
        assert_eq!(
            of(
                "XLogFlush;XLogWrite;issue_xlog_fsync.isra.0;fdatasync",
                "",
                ""
            ),
            "WAL sync"
        );
    }

    #[test]
    fn a_leader_without_samples_waits_for_its_workers() {
        let end = "DestroyParallelContext;WaitForParallelWorkersToExit;\
                   WaitForBackgroundWorkerShutdown;WaitLatch;epoll_wait";
        assert_eq!(of(end, "", ""), "IPC BgworkerShutdown");
        assert_eq!(of(end, "IPC", "BgWorkerShutdown"), "IPC BgworkerShutdown");
        let tuples = "gather_readnext;TupleQueueReaderNext;shm_mq_receive_bytes;WaitLatch";
        assert_eq!(of(tuples, "", ""), "IPC MessageQueueReceive");
    }

    #[test]
    fn the_event_names_the_lock_that_the_stack_only_shows() {
        let waits = "CommitTransaction;XLogFlush;LWLockAcquireOrWait;PGSemaphoreLock";
        assert_eq!(of(waits, "LWLock", "WALWrite"), "LWLock WALWrite");
        assert_eq!(of(waits, "LWLockNamed", "WALWriteLock"), "LWLock WALWrite");
        assert_eq!(of(waits, "", ""), "LWLock");
        let row = "heap_update;XactLockTableWait;LockAcquire;ProcSleep;WaitLatch";
        assert_eq!(of(row, "Lock", "transactionid"), "Lock transactionid");
        // An event that does not fit the stack was read too late, and does not name its lock.
        assert_eq!(of(row, "Client", "ClientRead"), "Lock");
    }

    #[test]
    fn events_name_waits_without_stacks() {
        let of = |kind, event| Reason::of_event(kind, event);
        assert_eq!(of("Client", "ClientRead").part, Part::Client);
        for event in ["WALSync", "WalSync"] {
            assert_eq!(of("IO", event).mechanism, "WAL sync");
            assert_eq!(of("IO", event).nature, Nature::Service);
        }
        assert_eq!(of("IO", "RelationMapRead").mechanism, "IO RelationMapRead");
        assert_eq!(of("Lock", "tuple").nature, Nature::Queueing);
        assert_eq!(of("", "").part, Part::Unexplained);
        assert_eq!(of("Timeout", "PgSleep").nature, Nature::Think);
        // Regression: spinlock contention was "think", as if the script asked for it.
        let spins = of("Timeout", "SpinDelay");
        assert_eq!(
            (spins.nature, spins.mechanism.as_str()),
            (Nature::Queueing, "spinlock delay")
        );
        assert_eq!(
            of("Timeout", "RegisterSyncRequest").nature,
            Nature::Queueing
        );
    }

    /// Regression: of 19, waits for pages were `Buffer BufferExclusive` and `Buffer BufferCleanup`, which no finding knows.
    #[test]
    fn a_page_that_is_locked_or_pinned_has_one_name_in_all_releases() {
        let of = |kind, event| Reason::of_event(kind, event).mechanism;
        for kind in ["BufferPin", "Buffer"] {
            for event in ["BufferShared", "BufferShareExclusive", "BufferExclusive"] {
                assert_eq!(of(kind, event), of("LWLock", "BufferContent"));
            }
            for event in ["BufferPin", "BufferCleanup"] {
                assert_eq!(of(kind, event), "buffer pin");
            }
        }
    }

    /// Regression: 12 vs 13 showed the same wait as one row that is gone and another that is new.
    #[test]
    fn a_wait_has_one_name_in_all_releases() {
        let of = |kind, event| Reason::of_event(kind, event).mechanism;
        for (kind, before, after) in [
            ("LWLock", "buffer_content", "BufferContent"),
            ("LWLock", "CLogControlLock", "XactSLRU"),
            ("LWLock", "proc", "LockFastPath"),
            ("LWLock", "replication_origin", "ReplicationOriginState"),
            (
                "LWLock",
                "SerializablePredicateLockListLock",
                "SerializablePredicateList",
            ),
            ("LWLock", "session_dsa", "PerSessionDSA"),
            ("LWLock", "WALWriteLock", "WALWrite"),
            ("IO", "BaseBackupRead", "BasebackupRead"),
            ("IO", "BufFileTruncate", "BuffileTruncate"),
            ("IO", "DSMFillZeroWrite", "DsmFillZeroWrite"),
            ("IO", "SLRURead", "SlruRead"),
            ("IO", "WALRead", "WalRead"),
            ("IPC", "BgWorkerStartup", "BgworkerStartup"),
            ("IPC", "Hash/GrowBuckets/Electing", "HashGrowBucketsElect"),
            (
                "IPC",
                "HashGrowBatchesAllocate",
                "HashGrowBatchesReallocate",
            ),
            ("Client", "SSLOpenServer", "SslOpenServer"),
        ] {
            assert_eq!(of(kind, before), of(kind, after), "{before}");
        }
        // Every name that has become another one is of some release, and its present name of the newest.
        for (before, after) in RENAMED {
            let is_known = |name: &str, majors: &[&str]| {
                majors.iter().any(|major| {
                    ["LWLock", "LWLockNamed", "LWLockTranche", "IPC", "Lock"]
                        .iter()
                        .any(|kind| {
                            wait_number(major, kind, name).is_some()
                                || wait_number(major, kind, &format!("{name}Lock")).is_some()
                        })
                })
            };
            assert!(
                is_known(before, &["9.6", "10", "11", "12", "15"]),
                "{before}"
            );
            assert!(is_known(after, &["18"]), "{after}");
        }
    }

    /// Regression: a table that grows was "Backends write dirty buffers themselves".
    #[test]
    fn extending_a_table_is_not_writing_dirty_buffers() {
        assert_eq!(
            of("heap_insert;mdextend;pwrite", "", ""),
            "data file extension"
        );
        let of = |event| Reason::of_event("IO", event).mechanism;
        assert_eq!(of("DataFileExtend"), "data file extension");
        assert_eq!(of("DataFileWrite"), "data file write");
    }
}
