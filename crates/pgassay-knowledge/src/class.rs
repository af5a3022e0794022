//! The subsystems, and the rules that assign source files and unknown names to them.
//!
//! The first match wins, so special files come before their directories. Directories are mostly
//! stable from 9.6 to 18; known moves: statistics to `utils/activity` (15), `tqual.c` to
//! `heapam_visibility.c` (12), partitioning out of `catalog` and `optimizer` (11–12),
//! `backend/backup` (15), `storage/aio` (18). Headers are assigned like the directory they belong to.
//!
//! Invariant: [`class_of_path`] has a rule for every path in the table except those intentionally left
//! to [`Subsystem::Other`]. General helpers (`src/port`, most of `src/common`) are attributed to their
//! caller, like libc; otherwise versions with their own `snprintf` (12 and later) would not be
//! comparable with older ones.

use std::fmt;

use FileClass::{Caller, Is};
use Subsystem as S;

/// A subsystem of PostgreSQL that time is attributed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subsystem {
    /// Sequences.
    Sequence,
    /// Just-in-time compilation.
    Jit,
    /// Messages to and from the client, TLS, authentication.
    Network,
    /// Saved plans and prepared statements.
    PlanCache,
    /// Partitions: routing, pruning, inheritance.
    Partitioning,
    /// System caches and their invalidation, name and permission lookups.
    CatalogCache,
    /// Snapshots and visibility.
    Snapshot,
    /// Transactions, their status, `SLRU`s, resource owners.
    Transaction,
    /// Write-ahead log.
    Wal,
    /// Locks on relations, rows and predicates.
    HeavyweightLock,
    /// Lightweight locks, spinlocks, semaphores.
    LwLock,
    /// Shared buffers, pages, free space.
    Buffer,
    /// Files, storage manager, asynchronous I/O.
    FileIo,
    /// Indexes.
    Index,
    /// Tables and tuples.
    Heap,
    /// Vacuum and analyze.
    Vacuum,
    /// Parsing, analysis and rewriting.
    Parse,
    /// Planning.
    Plan,
    /// The executor.
    Execute,
    /// Expressions, functions and data types.
    Expression,
    /// Sorting and hashing nodes.
    SortHash,
    /// Memory contexts and general data structures.
    Memory,
    /// Latches, shared memory, signals between processes.
    Ipc,
    /// Error reporting and the log.
    Logging,
    /// Cumulative statistics.
    Statistics,
    /// The main loop that handles a client's messages.
    ProtocolLoop,
    /// Replication and backup.
    Replication,
    /// Other parts of PostgreSQL.
    Other,
    /// The kernel, without a PostgreSQL function in the stack.
    Kernel,
    /// Libraries, without a PostgreSQL function in the stack.
    Libc,
    /// Nothing in the stack has a name.
    Unknown,
}

impl Subsystem {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Jit => "jit",
            Self::Network => "network",
            Self::PlanCache => "plan cache",
            Self::Partitioning => "partitioning",
            Self::CatalogCache => "catalog cache",
            Self::Snapshot => "snapshot",
            Self::Transaction => "transaction / SLRU",
            Self::Wal => "WAL",
            Self::HeavyweightLock => "heavyweight lock",
            Self::LwLock => "LWLock / spinlock",
            Self::Buffer => "buffer",
            Self::FileIo => "file I/O",
            Self::Index => "index",
            Self::Heap => "heap",
            Self::Vacuum => "vacuum",
            Self::Parse => "parse",
            Self::Plan => "plan",
            Self::Execute => "execute",
            Self::Expression => "expression",
            Self::SortHash => "sort/hash",
            Self::Memory => "memory",
            Self::Ipc => "ipc",
            Self::Logging => "logging",
            Self::Statistics => "statistics",
            Self::ProtocolLoop => "protocol loop",
            Self::Replication => "replication",
            Self::Other => "rest",
            Self::Kernel => "kernel",
            Self::Libc => "libc",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Subsystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What the time of a file is attributed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileClass {
    /// This subsystem.
    Is(Subsystem),
    /// The caller's subsystem.
    Caller,
}

/// Prefixes of paths, without `src/backend/`, `src/include/` or `src/`.
#[rustfmt::skip]
const PATHS: &[(FileClass, &[&str])] = &[
    (Is(S::Sequence), &["commands/sequence", "access/sequence/"]),
    (Is(S::Jit), &["jit/"]),
    (Is(S::Network), &["libpq/", "access/common/print", "tcop/dest", "common/scram", "common/saslprep",
        "common/hmac", "common/protocol_openssl", "common/ip.", "port/noblock", "port/getpeereid",
        "port/win32/socket"]),
    (Is(S::PlanCache), &["utils/cache/plancache", "commands/prepare"]),
    (Is(S::Partitioning), &["partitioning/", "executor/execPartition", "catalog/partition",
        "catalog/pg_inherits", "optimizer/util/inherit", "utils/cache/partcache", "utils/partcache"]),
    (Is(S::CatalogCache), &["utils/cache/", "storage/ipc/sinval", "catalog/namespace", "catalog/aclchk",
        "catalog/catalog.c", "utils/rel.h", "utils/relcache"]),
    (Is(S::Snapshot), &["storage/ipc/procarray", "utils/time/", "utils/snapmgr",
        "access/heap/heapam_visibility"]),
    (Is(S::Transaction), &["access/transam/xact.", "access/transam/clog", "access/transam/subtrans",
        "access/transam/multixact", "access/transam/slru", "access/transam/transam", "access/transam/varsup",
        "access/transam/twophase", "access/transam/commit_ts", "access/multixact", "access/slru",
        "access/transam.h", "utils/resowner"]),
    (Is(S::Execute), &["access/transam/parallel"]),
    (Is(S::Wal), &["access/transam/", "access/rmgr", "access/xlog", "postmaster/walwriter",
        "postmaster/checkpointer", "postmaster/walsummarizer", "postmaster/pgarch", "postmaster/startup",
        "archive/", "replication/syncrep", "common/blkreftable", "port/pg_crc32c", "utils/hash/pg_crc"]),
    (Is(S::HeavyweightLock), &["storage/lmgr/lock.", "storage/lmgr/lmgr", "storage/lmgr/deadlock",
        "storage/lmgr/proc.", "storage/lmgr/predicate"]),
    (Is(S::LwLock), &["storage/lmgr/", "port/posix_sema", "port/sysv_sema", "port/win32_sema",
        "port/atomics", "storage/s_lock", "storage/spin", "storage/proclist"]),
    (Is(S::FileIo), &["storage/smgr", "storage/file/", "storage/sync/", "storage/aio", "storage/fd.h", "common/file_utils", "port/pread", "port/pwrite", "port/pg_iovec"]),
    (Is(S::Buffer), &["storage/buf", "storage/page/", "storage/freespace/", "storage/itemptr",
        "storage/block", "storage/checksum", "postmaster/bgwriter", "postmaster/datachecksum"]),
    (Is(S::Vacuum), &["access/heap/vacuumlazy", "commands/vacuum", "commands/analyze",
        "postmaster/autovacuum", "access/common/tidstore", "lib/radixtree"]),
    (Is(S::Expression), &["access/hash/hashfunc"]),
    (Is(S::Index), &["access/nbtree", "access/gin", "access/gist", "access/brin", "access/hash",
        "access/spgist", "access/index/", "access/itup", "access/common/indextuple",
        "access/common/scankey"]),
    (Is(S::Execute), &["access/tablesample"]),
    (Is(S::Heap), &["access/", "varatt", "common/pg_lzcompress"]),
    (Is(S::Execute), &["nodes/tidbitmap", "nodes/params"]),
    (Is(S::Memory), &["nodes/list.", "nodes/pg_list", "nodes/bitmapset", "nodes/multibitmapset"]),
    (Is(S::Parse), &["parser/", "rewrite/", "nodes/", "common/kwlookup", "common/keywords",
        "utils/misc/queryjumble", "utils/queryjumble", "pl/plpgsql/src/pl_gram", "pl/plpgsql/src/pl_scanner",
        "pl/plpgsql/src/pl_comp"]),
    (Is(S::Plan), &["optimizer/", "statistics/", "utils/adt/selfuncs", "utils/adt/array_selfuncs",
        "utils/adt/rangetypes_selfuncs", "utils/adt/multirangetypes_selfuncs",
        "utils/adt/network_selfuncs", "tsearch/ts_selfuncs", "utils/adt/like_support"]),
    (Is(S::SortHash), &["utils/sort/", "utils/sortsupport", "executor/nodeHash",
        "executor/nodeSort", "executor/nodeIncrementalSort", "port/qsort", "lib/sort_template"]),
    (Is(S::Expression), &["executor/execExpr", "executor/execQual", "utils/adt/", "utils/fmgr/",
        "tsearch/", "regex/", "snowball/", "timezone/", "utils/mb/", "mb/", "common/wchar",
        "common/encnames", "common/unicode", "common/jsonapi", "common/f2s", "common/d2s",
        "common/ryu", "common/md5", "common/sha", "common/cryptohash", "common/base64", "common/hex",
        "utils/date", "utils/timestamp", "utils/float", "utils/numeric", "utils/json", "utils/range",
        "utils/multirange", "utils/varbit", "utils/xml", "utils/uuid", "utils/inet", "utils/geo",
        "utils/cash", "utils/array", "utils/xid8", "utils/pg_lsn", "utils/expanded"]),
    (Is(S::Execute), &["executor/", "commands/copy", "commands/trigger", "commands/portalcmds",
        "commands/createas", "commands/matview", "commands/explain", "foreign/", "pl/", "funcapi"]),
    (Is(S::ProtocolLoop), &["utils/mmgr/portalmem", "tcop/", "utils/misc/ps_status", "utils/ps_status",
        "utils/misc/timeout", "utils/misc/stack_depth"]),
    (Is(S::Memory), &["utils/mmgr/", "utils/hash/", "lib/", "utils/palloc", "utils/memutils",
        "utils/memdebug", "utils/relptr", "common/stringinfo", "common/psprintf", "common/hashfn",
        "common/binaryheap", "common/fe_memutils", "utils/hashutils"]),
    (Is(S::Replication), &["replication/", "backup/", "storage/ipc/standby"]),
    (Is(S::Ipc), &["storage/ipc/", "storage/pmsignal", "port/sysv_shmem", "port/win32_shmem"]),
    (Is(S::Logging), &["utils/error/", "postmaster/syslogger", "common/logging"]),
    (Is(S::Statistics), &["utils/activity/", "utils/pgstat", "utils/wait_event", "postmaster/pgstat",
        "pgstat", "contrib/pg_stat_statements/", "contrib/auto_explain/"]),
    (Caller, &["port/", "port.h", "common/", "portability/", "postgres.h", "fe_utils/", "utils/ascii"]),
];

/// Prefixes of names that are not in the table: from minor releases, extensions, newer versions.
#[rustfmt::skip]
const NAMES: &[(Subsystem, &[&str])] = &[
    (S::Jit, &["llvm_", "LLVM", "jit_"]),
    (S::Network, &["pq_", "be_tls_", "be_gssapi_", "secure_", "socket_", "printtup"]),
    (S::PlanCache, &["GetCachedPlan", "RevalidateCached", "BuildCachedPlan", "CachedPlan"]),
    (S::CatalogCache, &["SearchCatCache", "SearchSysCache", "RelationId", "RelationCache", "CatCache",
        "get_rel_", "get_att", "get_typ", "get_op", "get_func_"]),
    (S::Snapshot, &["GetSnapshot", "HeapTupleSatisfies", "XidInMVCC"]),
    (S::Wal, &["XLog", "xlog_", "Xlog"]),
    (S::LwLock, &["LWLock", "s_lock", "PGSemaphore", "perform_spin_delay"]),
    (S::HeavyweightLock, &["Lock", "ProcSleep", "FastPath"]),
    (S::Buffer, &["ReadBuffer", "PinBuffer", "UnpinBuffer", "Buffer", "Page"]),
    (S::FileIo, &["smgr", "md", "File", "BufFile", "pgaio_"]),
    (S::Index, &["_bt_", "bt", "gin", "gist", "brin", "spg", "_hash_", "index_"]),
    (S::Vacuum, &["lazy_", "vacuum_", "vac_", "autovac_"]),
    (S::Heap, &["heap_", "heapam_", "table_", "slot_", "tts_"]),
    (S::Parse, &["transform", "parse_", "coerce_", "makeA_"]),
    (S::Plan, &["create_", "cost_", "match_", "eval_const_", "generate_", "set_rel_"]),
    (S::Expression, &["ExecEval", "ExecInterp", "ExecExpr", "ExecInitExpr", "FunctionCall", "DirectFunctionCall"]),
    (S::SortHash, &["tuplesort_", "tuplestore_", "ExecHash", "ExecSort"]),
    (S::Execute, &["Exec", "SPI_", "plpgsql_", "exec_stmt"]),
    (S::Memory, &["AllocSet", "MemoryContext", "Generation", "Slab", "Bump", "palloc", "repalloc", "pfree",
        "hash_", "appendStringInfo", "enlargeStringInfo"]),
    (S::Logging, &["errstart", "errfinish", "errmsg", "errcode", "EmitErrorReport", "write_pipe_chunks"]),
    (S::Statistics, &["pgstat_", "pgss_"]),
];

/// A path without its `src/backend/`, `src/include/` or `src/` prefix.
fn relative_path(path: &str) -> &str {
    let path = path.strip_prefix("src/").unwrap_or(path);
    path.strip_prefix("backend/")
        .or_else(|| path.strip_prefix("include/"))
        .unwrap_or(path)
}

/// Helper functions attributed to their caller, regardless of their file: reading the clock is a cost of
/// the code that needs the time.
const HELPERS: &[&str] = &[
    "GetCurrentTimestamp",
    "TimestampDifference",
    "GetCurrentIntegerTimestamp",
];

/// Functions of `hashfunc.c` that are in `hashfn.c` since 12.
const HASHES: &[&str] = &["hash_any", "hash_uint32"];

/// The class of a function whose file is known.
pub(super) fn class_of_function(symbol: &str, path: &str) -> FileClass {
    if HELPERS.iter().any(|helper| symbol.starts_with(helper)) {
        Caller
    } else if path.ends_with("/hashfunc.c") && HASHES.iter().any(|hash| symbol.starts_with(hash)) {
        Is(S::Memory)
    } else {
        class_of_path(path)
    }
}

/// The class of a source file.
pub(super) fn class_of_path(path: &str) -> FileClass {
    let inside = relative_path(path);
    let starts = |(_, beginnings): &&(FileClass, &[&str])| {
        beginnings.iter().any(|start| inside.starts_with(start))
    };
    PATHS
        .iter()
        .find(starts)
        .map_or(Is(S::Other), |(class, _)| *class)
}

/// The likely class of a name that is not in the table.
pub(super) fn class_of_name(symbol: &str) -> Option<Subsystem> {
    let starts = |(_, beginnings): &&(Subsystem, &[&str])| {
        beginnings.iter().any(|start| symbol.starts_with(start))
    };
    NAMES.iter().find(starts).map(|(subsystem, _)| *subsystem)
}

#[cfg(test)]
mod tests {
    use super::super::symbols::{SourceFile, Symbols};
    use super::*;

    #[test]
    fn the_examples_of_every_class_are_in_it() {
        let table: &[(Subsystem, &[&str])] = &[
            (S::Sequence, &["nextval_internal", "read_seq_tuple"]),
            (S::Jit, &["llvm_compile_expr", "slot_compile_deform"]),
            (
                S::Network,
                &[
                    "pq_getmessage",
                    "secure_read",
                    "be_tls_write",
                    "ReadyForQuery",
                    "printtup",
                ],
            ),
            (
                S::PlanCache,
                &[
                    "GetCachedPlan",
                    "RevalidateCachedQuery",
                    "AcquireExecutorLocks",
                ],
            ),
            (
                S::Partitioning,
                &["ExecFindPartition", "find_inheritance_children"],
            ),
            (
                S::CatalogCache,
                &[
                    "SearchCatCacheInternal",
                    "RelationIdGetRelation",
                    "AcceptInvalidationMessages",
                ],
            ),
            (S::Snapshot, &["GetSnapshotData", "XidInMVCCSnapshot"]),
            (
                S::Transaction,
                &["CommitTransaction", "SimpleLruReadPage_ReadOnly"],
            ),
            (S::Wal, &["XLogInsertRecord", "XLogFlush"]),
            (S::HeavyweightLock, &["LockAcquireExtended", "ProcSleep"]),
            (
                S::LwLock,
                &["LWLockAttemptLock", "s_lock", "perform_spin_delay"],
            ),
            (
                S::Buffer,
                &["BufferAlloc", "PinBuffer", "StrategyGetBuffer"],
            ),
            (S::FileIo, &["mdread", "FileRead", "BufFileWrite"]),
            (S::Index, &["_bt_search", "_bt_compare"]),
            (
                S::Heap,
                &["heap_hot_search_buffer", "RelationGetBufferForTuple"],
            ),
            (S::Vacuum, &["lazy_scan_heap"]),
            (
                S::Parse,
                &["raw_parser", "transformStmt", "base_yyparse", "core_yylex"],
            ),
            (S::Plan, &["standard_planner", "eval_const_expressions"]),
            (S::Execute, &["IndexNext", "InitPlan"]),
            (S::Expression, &["ExecInterpExpr"]),
            (S::SortHash, &["tuplesort_performsort"]),
            (S::Memory, &["AllocSetAlloc", "hash_search_with_hash_value"]),
            (S::Ipc, &["WaitEventSetWait"]),
            (S::Logging, &["write_pipe_chunks"]),
            (S::Statistics, &["pgstat_report_stat"]),
            (S::ProtocolLoop, &["exec_bind_message"]),
        ];
        for (class, symbols) in table {
            for symbol in *symbols {
                let home = Symbols::for_major("15").path(symbol, None);
                let Some(SourceFile::At(path)) = home else {
                    panic!("{symbol}: {home:?}")
                };
                assert_eq!(class_of_path(path), Is(*class), "{symbol} in {path}");
            }
        }
    }

    #[test]
    fn every_rule_matches_a_file() {
        let paths = Symbols::known_paths();
        for (_, beginnings) in PATHS {
            for start in *beginnings {
                let meets = |path: &&str| relative_path(path).starts_with(start);
                assert!(paths.iter().any(meets), "no path starts with {start}");
            }
        }
        // The rest is DDL, settings and the postmaster, none of which is a hot path.
        let rest = paths
            .iter()
            .filter(|path| class_of_path(path) == Is(S::Other))
            .count();
        assert!(rest * 8 < paths.len(), "{rest} of {}", paths.len());
    }

    #[test]
    fn moved_files_keep_their_class() {
        for (older, newer, symbol) in [
            ("11", "12", "HeapTupleSatisfiesMVCC"),
            ("14", "15", "pgstat_report_stat"),
            ("17", "18", "WaitEventSetWait"),
            ("9.6", "18", "find_inheritance_children"),
            ("9.6", "18", "pg_checksum_page"),
            ("9.6", "18", "appendStringInfo"),
            ("9.6", "18", "ScanKeywordLookup"),
            // Regression: up to 11, computing a hash was a cost of indexes.
            ("11", "12", "hash_any"),
            ("9.6", "12", "hash_uint32"),
            ("9.6", "18", "hashint4"),
            ("9.6", "18", "hashtext"),
        ] {
            let class = |major: &str| {
                let home = Symbols::for_major(major).path(symbol, None);
                home.unwrap_or_else(|| panic!("{symbol} in {major}"))
                    .paths()
                    .iter()
                    .map(|p| class_of_function(symbol, p))
                    .collect::<Vec<_>>()
            };
            assert_eq!(class(older), class(newer), "{symbol}");
            assert!(!class(older).contains(&Is(S::Index)), "{symbol}");
        }
    }

    #[test]
    fn helpers_are_attributed_to_their_caller() {
        assert_eq!(class_of_path("src/port/snprintf.c"), Caller);
        assert_eq!(class_of_path("src/common/string.c"), Caller);
        assert_eq!(
            class_of_path("src/backend/port/posix_sema.c"),
            Is(S::LwLock)
        );
        assert_eq!(
            class_of_path("src/backend/postmaster/postmaster.c"),
            Is(S::Other)
        );
    }

    #[test]
    fn unknown_names_are_classified_by_prefix() {
        assert_eq!(
            class_of_name("pgstat_lock_entry_shared"),
            Some(S::Statistics)
        );
        assert_eq!(class_of_name("LWLockAnyHeldByMe"), Some(S::LwLock));
        assert_eq!(class_of_name("zzz"), None);
    }
}
