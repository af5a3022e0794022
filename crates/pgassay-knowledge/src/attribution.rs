//! Attributes stacks to subsystems: to that of the leaf, or of the nearest caller that has one.
//!
//! Invariants: a leaf in libc, libssl or the kernel is attributed to the PostgreSQL function that called
//! it, with a [`Tag`] for what it did; a PostgreSQL function without a name is attributed to its nearest
//! named caller, because in a stripped server only static functions have no name, and their callers are
//! in the same file.

use super::class::{FileClass, class_of_function, class_of_name, class_of_path};
use super::symbols::stem;
use super::{Subsystem, Symbols, Tag};

/// The names of a stack frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameName<'a> {
    /// The function, if known.
    pub symbol: Option<&'a str>,
    /// File name of the program or library (`postgres`, `libc.so.6`, `[vdso]`).
    pub object: &'a str,
    /// Whether it belongs to the kernel.
    pub kernel: bool,
}

/// The subsystem of a stack, and what code outside PostgreSQL was doing for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribution {
    /// The subsystem.
    pub subsystem: Subsystem,
    /// The tag; `None` if the leaf is a named function of PostgreSQL.
    pub tag: Option<Tag>,
}

/// The owner of a frame's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameOwner {
    /// The server, or a module loaded by it.
    PostgreSql,
    /// Any other library, or the vDSO.
    Library,
    Kernel,
}

impl FrameName<'_> {
    fn owner(&self) -> FrameOwner {
        let file = self.object.rsplit('/').next().unwrap_or(self.object);
        if self.kernel || file == "[kernel]" {
            FrameOwner::Kernel
        } else if file.starts_with("libpqwalreceiver") {
            FrameOwner::PostgreSql
        } else if file.starts_with("lib")
            || file.starts_with("ld-")
            || file.starts_with("ld.so")
            || file.starts_with('[')
        {
            FrameOwner::Library
        } else {
            FrameOwner::PostgreSql
        }
    }
}

impl Subsystem {
    /// The subsystem of a stack, outermost frame first; see [`Attribution::of`].
    pub fn of(symbols: &Symbols, frames: &[FrameName<'_>]) -> Self {
        Attribution::of(symbols, frames).subsystem
    }
}

impl Attribution {
    /// Attributes a stack, outermost frame first.
    pub fn of(symbols: &Symbols, frames: &[FrameName<'_>]) -> Self {
        let last_own = frames
            .iter()
            .rposition(|frame| frame.owner() == FrameOwner::PostgreSql);
        let outside = &frames[last_own.map_or(0, |index| index + 1)..];
        let tag = tag_of(outside);
        let Some(last_own) = last_own else {
            return Self {
                subsystem: without_postgresql(outside),
                tag,
            };
        };
        let own: Vec<&FrameName<'_>> = frames[..=last_own]
            .iter()
            .filter(|frame| frame.owner() == FrameOwner::PostgreSql)
            .collect();
        let subsystem = own_subsystem(symbols, &own);
        let unnamed = own.last().is_some_and(|leaf| leaf.symbol.is_none());
        Self {
            subsystem,
            tag: tag.or(unnamed.then_some(Tag::Unnamed)),
        }
    }
}

/// The tag of the frames after PostgreSQL's; `None` without such frames.
fn tag_of(outside: &[FrameName<'_>]) -> Option<Tag> {
    let kernel = outside
        .iter()
        .filter(|frame| frame.owner() == FrameOwner::Kernel)
        .find_map(|frame| Tag::of_kernel(stem(frame.symbol?)));
    let library = || {
        outside
            .iter()
            .filter(|frame| frame.owner() == FrameOwner::Library)
            .find_map(|frame| Tag::of_library(frame.symbol.map(stem), frame.object))
    };
    let other = || (!outside.is_empty()).then_some(Tag::Other);
    kernel.or_else(library).or_else(other)
}

fn without_postgresql(outside: &[FrameName<'_>]) -> Subsystem {
    match outside.last() {
        Some(leaf) if leaf.owner() == FrameOwner::Kernel => Subsystem::Kernel,
        Some(leaf) if leaf.symbol.is_some() || !leaf.object.is_empty() => Subsystem::Libc,
        _ => Subsystem::Unknown,
    }
}

/// The subsystem of the innermost function that has one.
fn own_subsystem(symbols: &Symbols, own: &[&FrameName<'_>]) -> Subsystem {
    let mut any_name = false;
    for (depth, frame) in own.iter().enumerate().rev() {
        any_name |= frame.symbol.is_some();
        match function_class(symbols, frame, &own[..depth]) {
            Some(FileClass::Is(subsystem)) => return subsystem,
            Some(FileClass::Caller) | None => {}
        }
    }
    if any_name {
        Subsystem::Other
    } else {
        Subsystem::Unknown
    }
}

/// The class of a function; `None` if unknown.
fn function_class(
    symbols: &Symbols,
    frame: &FrameName<'_>,
    callers: &[&FrameName<'_>],
) -> Option<FileClass> {
    let by_module = module_class(frame.object).map(FileClass::Is);
    let Some(symbol) = frame.symbol else {
        return by_module;
    };
    let Some(home) = symbols.path(symbol, None) else {
        return by_module.or_else(|| class_of_name(stem(symbol)).map(FileClass::Is));
    };
    let mut classes: Vec<FileClass> = home
        .paths()
        .iter()
        .map(|path| class_of_function(stem(symbol), path))
        .collect();
    classes.dedup();
    if let [only] = classes[..] {
        return Some(only);
    }
    // A static function that several files define: it is in the caller's file, if that is one of them.
    let caller = callers
        .iter()
        .rev()
        .find_map(|caller| symbols.path(caller.symbol?, None))?;
    let shared = home
        .paths()
        .iter()
        .find(|path| caller.paths().contains(path));
    let similar = || {
        let of_caller = class_of_path(caller.paths().first()?);
        classes.contains(&of_caller).then_some(of_caller)
    };
    shared.map(|path| class_of_path(path)).or_else(similar)
}

/// The class of a loadable module as a whole.
fn module_class(object: &str) -> Option<Subsystem> {
    let file = object.rsplit('/').next().unwrap_or(object);
    match file.strip_suffix(".so")? {
        "llvmjit" => Some(Subsystem::Jit),
        "plpgsql" => Some(Subsystem::Execute),
        "pg_stat_statements" | "auto_explain" => Some(Subsystem::Statistics),
        "pgoutput" | "libpqwalreceiver" | "test_decoding" => Some(Subsystem::Replication),
        "dict_snowball" => Some(Subsystem::Expression),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name`, `name@object` or `name@k` for the kernel; `?` is a function without a name.
    fn stack(frames: &'static str) -> Vec<FrameName<'static>> {
        frames
            .split(';')
            .map(|frame| {
                let (symbol, object) = frame.split_once('@').unwrap_or((frame, "postgres"));
                let kernel = object == "k";
                let object = if kernel { "[kernel]" } else { object };
                FrameName {
                    symbol: (symbol != "?").then_some(symbol),
                    object,
                    kernel,
                }
            })
            .collect()
    }

    fn credit(major: &str, frames: &'static str) -> (Subsystem, Option<Tag>) {
        let found = Attribution::of(&Symbols::for_major(major), &stack(frames));
        (found.subsystem, found.tag)
    }

    #[test]
    fn leaves_of_postgresql_are_credited_to_themselves() {
        let server = "_start;main;PostmasterMain;ServerLoop;PostgresMain;exec_simple_query;pg_parse_query;raw_parser;base_yyparse";
        assert_eq!(credit("18", server), (Subsystem::Parse, None));
        let frames = "main;PostgresMain;exec_execute_message;PortalRun;ExecScan;IndexNext;index_getnext_slot;btgettuple;_bt_first;_bt_search.isra.0";
        assert_eq!(credit("15", frames), (Subsystem::Index, None));
        assert_eq!(
            credit("15", "main;PostgresMain;PortalRun;tuplehash_insert"),
            (Subsystem::Execute, None)
        );
    }

    #[test]
    fn leaves_outside_are_credited_to_their_caller() {
        for (frames, subsystem, tag) in [
            (
                "main;PostgresMain;PortalRun;heap_form_tuple;__memmove_avx_unaligned_erms@libc.so.6",
                Subsystem::Heap,
                Tag::Memcpy,
            ),
            (
                "main;AllocSetAlloc;malloc@libc.so.6;_int_malloc@libc.so.6;asm_exc_page_fault@k;exc_page_fault@k;clear_page_erms@k",
                Subsystem::Memory,
                Tag::PageFault,
            ),
            (
                "main;LWLockAcquire;PGSemaphoreLock;__new_sem_wait_slow64@libc.so.6;entry_SYSCALL_64_after_hwframe@k;do_syscall_64@k;__x64_sys_futex@k;schedule@k",
                Subsystem::LwLock,
                Tag::Futex,
            ),
            (
                "main;PostgresMain;secure_write;__send@libc.so.6;entry_SYSCALL_64@k;do_syscall_64@k;__x64_sys_sendto@k;sock_sendmsg@k;unix_stream_sendmsg@k;try_to_wake_up@k",
                Subsystem::Network,
                Tag::Socket,
            ),
            (
                "main;XLogWrite;issue_xlog_fsync;fdatasync@libc.so.6;do_syscall_64@k;__x64_sys_fdatasync@k;ext4_sync_file@k",
                Subsystem::Wal,
                Tag::Fsync,
            ),
            (
                "main;errfinish;EmitErrorReport;send_message_to_server_log;write_pipe_chunks;write@libc.so.6;do_syscall_64@k;__x64_sys_write@k;ksys_write@k;vfs_write@k;pipe_write@k",
                Subsystem::Logging,
                Tag::Pipe,
            ),
            (
                "main;PostgresMain;InstrStartNode;clock_gettime@libc.so.6;?@[vdso]",
                Subsystem::Execute,
                Tag::Clock,
            ),
            (
                "main;be_tls_write;SSL_write@libssl.so.3;?@libcrypto.so.3",
                Subsystem::Network,
                Tag::Tls,
            ),
            (
                "main;PostgresMain;ExecInterpExpr;asm_sysvec_apic_timer_interrupt@k;irq_exit_rcu@k",
                Subsystem::Expression,
                Tag::Interrupt,
            ),
            (
                "main;llvm_compile_expr@llvmjit.so;?@libLLVM-14.so.1",
                Subsystem::Jit,
                Tag::Other,
            ),
        ] {
            assert_eq!(credit("15", frames), (subsystem, Some(tag)), "{frames}");
        }
    }

    /// Regression: `md5()` was tagged as TLS.
    #[test]
    fn sql_functions_that_use_libcrypto_are_expressions_and_not_tls() {
        for function in [
            "md5_text;pg_md5_hash;pg_cryptohash_update",
            "gen_random_uuid;pg_strong_random",
            "sha256_bytea;cryptohash_internal;pg_cryptohash_update",
        ] {
            let frames = format!(
                "main;PostgresMain;ExecInterpExpr;{function};EVP_DigestUpdate@libcrypto.so.3;?@libcrypto.so.3"
            );
            assert_eq!(
                credit("18", frames.leak()),
                (Subsystem::Expression, Some(Tag::Cryptography)),
                "{function}"
            );
        }
    }

    #[test]
    fn helpers_are_attributed_to_their_caller() {
        assert_eq!(
            credit("15", "main;elog_start;errmsg;pg_vsnprintf;dopr").0,
            Subsystem::Logging
        );
        assert_eq!(
            credit("15", "main;PostgresMain;numeric_out;pg_snprintf;dopr").0,
            Subsystem::Expression
        );
    }

    #[test]
    fn unnamed_functions_are_attributed_to_their_named_caller() {
        assert_eq!(
            credit("15", "main;PostgresMain;standard_planner;?;?"),
            (Subsystem::Plan, Some(Tag::Unnamed))
        );
        assert_eq!(
            credit("15", "main;XLogInsert;?;memcpy@libc.so.6"),
            (Subsystem::Wal, Some(Tag::Memcpy))
        );
        assert_eq!(
            credit("15", "?;?"),
            (Subsystem::Unknown, Some(Tag::Unnamed))
        );
        assert_eq!(
            Attribution::of(&Symbols::for_major("15"), &[]),
            Attribution {
                subsystem: Subsystem::Unknown,
                tag: None
            }
        );
    }

    #[test]
    fn stacks_without_postgresql_are_kernel_or_libc() {
        assert_eq!(
            credit("15", "ret_from_fork@k;do_exit@k"),
            (Subsystem::Kernel, Some(Tag::Fork))
        );
        assert_eq!(
            credit("15", "?@libc.so.6"),
            (Subsystem::Libc, Some(Tag::Other))
        );
    }

    #[test]
    fn ambiguous_static_names_follow_their_caller() {
        // Many stemmers define r_mark_regions; all of them have the same class.
        let symbols = Symbols::for_major("15");
        assert!(matches!(
            symbols.path("r_mark_regions", None),
            Some(crate::SourceFile::OneOf(_))
        ));
        assert_eq!(
            credit("15", "main;PortalRun;german_UTF_8_stem;r_mark_regions").0,
            Subsystem::Expression
        );
        let all = symbols
            .path("main", None)
            .expect("several files define main");
        assert!(all.paths().len() > 1);
        assert_eq!(credit("15", "main").0, Subsystem::Other);
    }

    /// Stacks recorded with perf on an embedded 18.6 and on Debian's stripped 15.
    #[test]
    fn stacks_of_real_servers_are_credited() {
        const EMBEDDED: &str = "_start;__libc_start_main_impl@libc.so.6;__libc_start_call_main@libc.so.6;main;PostmasterMain;ServerLoop;postmaster_child_launch;BackendMain;PostgresMain";
        const DEBIAN: &str = "_start;__libc_start_main_impl@libc.so.6;__libc_start_call_main@libc.so.6;main;PostmasterMain;?;PostgresMain";
        for (server, frames, subsystem, tag) in [
            (EMBEDDED, "set_ps_display", Subsystem::ProtocolLoop, None),
            (
                EMBEDDED,
                "exec_simple_query;start_xact_command;StartTransactionCommand;StartTransaction;ResourceOwnerCreate;MemoryContextAllocZero",
                Subsystem::Memory,
                None,
            ),
            (
                EMBEDDED,
                "exec_simple_query;GetTransactionSnapshot;GetSnapshotData;LWLockAcquire;LWLockAttemptLock",
                Subsystem::LwLock,
                None,
            ),
            (
                EMBEDDED,
                "pgstat_report_activity;GetCurrentTimestamp;__vdso_gettimeofday@[vdso]",
                Subsystem::Statistics,
                Some(Tag::Clock),
            ),
            (
                EMBEDDED,
                "ReadyForQuery;socket_flush;internal_flush_buffer;secure_write;__libc_send@libc.so.6;entry_SYSCALL_64_after_hwframe@k;do_syscall_64@k;switch_fpu_return@k",
                Subsystem::Network,
                Some(Tag::Socket),
            ),
            (
                EMBEDDED,
                "pg_any_to_server;pg_verify_mbstr;pg_utf8_verifystr",
                Subsystem::Expression,
                None,
            ),
            (
                DEBIAN,
                "GetTransactionSnapshot;GetSnapshotData;LWLockAcquire;?",
                Subsystem::LwLock,
                Some(Tag::Unnamed),
            ),
            (
                DEBIAN,
                "OidInputFunctionCall;?",
                Subsystem::Expression,
                Some(Tag::Unnamed),
            ),
            (
                DEBIAN,
                "PortalRun;?;standard_ExecutorRun;?;?;fmgr_sql;pg_analyze_and_rewrite_withcb;parse_analyze_withcb;transformStmt;transformFromClause;?;addRangeTableEntry;table_openrv_extended;relation_openrv_extended;RangeVarGetRelidExtended",
                Subsystem::CatalogCache,
                None,
            ),
            (
                DEBIAN,
                "pgstat_report_activity;__strlen_evex@libc.so.6",
                Subsystem::Statistics,
                Some(Tag::Memcpy),
            ),
            (
                DEBIAN,
                "InitPostgres;ApplySetting;asm_exc_page_fault@k;exc_page_fault@k;handle_mm_fault@k",
                Subsystem::Other,
                Some(Tag::PageFault),
            ),
        ] {
            let frames: &'static str = format!("{server};{frames}").leak();
            let major = if server == EMBEDDED { "18" } else { "15" };
            assert_eq!(credit(major, frames), (subsystem, tag), "{frames}");
        }
    }

    #[test]
    fn modules_and_unknown_names_have_a_fallback() {
        assert_eq!(
            credit(
                "15",
                "main;fmgr_security_definer;secret_function@plpgsql.so"
            )
            .0,
            Subsystem::Execute
        );
        assert_eq!(
            credit("15", "main;exec_execute_message;LWLockAnyHeldByMe").0,
            Subsystem::LwLock
        );
        assert_eq!(
            credit("15", "main;ExecutorRun_hook_of@pgaudit.so").0,
            Subsystem::Execute
        );
        assert_eq!(credit("15", "zzz@pgaudit.so").0, Subsystem::Other);
    }
}
