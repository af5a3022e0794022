//! What code outside PostgreSQL was doing for the function that called it.
//!
//! The frames of a stack after its last PostgreSQL function are examined from the caller to the leaf.
//! Kernel names take precedence over library names, because a page fault inside `memcpy` is a page
//! fault. Names are those of Linux 3.10 to 6.x on x86-64 and arm64, and of glibc.
//!
//! Invariant: a tag never changes the subsystem of a stack.

use std::fmt;

/// What code outside PostgreSQL was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tag {
    /// Copying, comparing and searching memory and strings.
    Memcpy,
    /// The C library's allocator, and the kernel's memory maps.
    Malloc,
    /// Page faults.
    PageFault,
    /// Futexes and semaphores.
    Futex,
    /// Sockets, including waits on them.
    Socket,
    /// Flushing files to disk.
    Fsync,
    /// Pipes.
    Pipe,
    /// Reading the clock.
    Clock,
    /// Reading and writing files.
    File,
    /// Process start and exit.
    Fork,
    /// Interrupts, which hit any running process.
    Interrupt,
    /// TLS, including the cryptography that it uses.
    Tls,
    /// Cryptography for other purposes, such as hashes and random numbers.
    Cryptography,
    /// A function of PostgreSQL (stripped) or of an extension without a name.
    Unnamed,
    /// None of these.
    Other,
}

impl Tag {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Malloc => "malloc",
            Self::PageFault => "page fault",
            Self::Futex => "futex",
            Self::Socket => "socket",
            Self::Fsync => "fsync",
            Self::Pipe => "pipe",
            Self::Clock => "clock",
            Self::File => "file",
            Self::Fork => "fork",
            Self::Interrupt => "interrupt",
            Self::Tls => "tls",
            Self::Cryptography => "cryptography",
            Self::Unnamed => "unnamed",
            Self::Other => "other",
        }
    }

    /// The tag of a kernel function; `None` for entry code and helpers.
    pub(super) fn of_kernel(symbol: &str) -> Option<Self> {
        find(KERNEL, symbol)
    }

    /// The tag of a library function, from its name and the library's file name.
    pub(super) fn of_library(symbol: Option<&str>, object: &str) -> Option<Self> {
        // Under TLS, a frame of libssl comes first.
        if object.starts_with("libssl") {
            return Some(Self::Tls);
        }
        if object.starts_with("libcrypto") {
            return Some(Self::Cryptography);
        }
        if object.starts_with("[vdso]") {
            return Some(Self::Clock);
        }
        // glibc's own variants: __memmove_avx_unaligned_erms, __GI___libc_write.
        let bare = symbol?.trim_start_matches('_');
        let bare = bare
            .strip_prefix("GI_")
            .unwrap_or(bare)
            .trim_start_matches('_');
        find(LIBRARY, bare.strip_prefix("libc_").unwrap_or(bare))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

fn find(rules: &[(Tag, &[&str])], symbol: &str) -> Option<Tag> {
    let starts = |(_, beginnings): &&(Tag, &[&str])| {
        beginnings.iter().any(|start| symbol.starts_with(start))
    };
    rules.iter().find(starts).map(|(tag, _)| *tag)
}

/// Prefixes of kernel function names. System calls come first in a stack and take precedence.
#[rustfmt::skip]
const KERNEL: &[(Tag, &[&str])] = &[
    (Tag::PageFault, &["asm_exc_page_fault", "exc_page_fault", "page_fault", "do_page_fault",
        "do_user_addr_fault", "__do_page_fault", "handle_mm_fault", "el0_da", "do_mem_abort",
        "do_translation_fault"]),
    (Tag::Interrupt, &["asm_sysvec_", "sysvec_", "asm_common_interrupt", "common_interrupt",
        "apic_timer_interrupt", "reschedule_interrupt", "call_function_", "ret_from_intr", "do_IRQ",
        "el0_irq", "el1_irq", "el0t_64_irq", "el1h_64_irq", "irq_exit", "asm_exc_nmi", "__irq_"]),
    (Tag::Futex, &["__x64_sys_futex", "__arm64_sys_futex", "__se_sys_futex", "sys_futex", "do_futex", "futex_",
        "__x64_sys_semop", "__x64_sys_semtimedop", "sys_sem", "do_semtimedop", "__do_semtimedop"]),
    (Tag::Socket, &["__x64_sys_send", "__x64_sys_recv", "__sys_send", "__sys_recv", "__arm64_sys_send",
        "__arm64_sys_recv", "SyS_send", "SyS_recv", "SYSC_send", "SYSC_recv", "sys_send", "sys_recv",
        "sock_", "__sock_", "unix_stream_", "tcp_", "inet_", "inet6_", "____sys_", "___sys_", "ip_",
        "__x64_sys_epoll", "__arm64_sys_epoll", "SyS_epoll", "sys_epoll", "do_epoll", "ep_", "eventpoll",
        "__x64_sys_poll", "__x64_sys_ppoll", "__arm64_sys_ppoll", "SyS_poll", "sys_poll", "do_sys_poll",
        "do_poll", "__x64_sys_select", "do_select", "__x64_sys_accept", "__x64_sys_connect"]),
    (Tag::Fsync, &["__x64_sys_fsync", "__x64_sys_fdatasync", "__x64_sys_sync_file_range", "__arm64_sys_f",
        "SyS_fsync", "SyS_fdatasync", "sys_fsync", "sys_fdatasync", "sys_sync_file_range", "do_fsync",
        "vfs_fsync"]),
    (Tag::Pipe, &["pipe_", "anon_pipe_", "__x64_sys_pipe", "do_pipe"]),
    (Tag::Clock, &["__x64_sys_clock_gettime", "__x64_sys_gettimeofday", "__arm64_sys_clock", "sys_clock",
        "SyS_clock", "SyS_gettimeofday", "sys_gettimeofday", "do_gettimeofday", "getnstimeofday",
        "ktime_get", "read_hpet", "acpi_pm_read", "posix_get_"]),
    (Tag::Malloc, &["__x64_sys_brk", "__x64_sys_mmap", "__x64_sys_munmap", "__x64_sys_mremap",
        "__x64_sys_madvise", "__arm64_sys_m", "__arm64_sys_brk", "SyS_brk", "SyS_mmap", "SyS_munmap",
        "sys_brk", "sys_mmap", "sys_munmap", "ksys_mmap", "vm_mmap", "__vm_munmap"]),
    (Tag::Fork, &["__x64_sys_clone", "__x64_sys_fork", "__do_sys_clone", "kernel_clone", "_do_fork",
        "do_fork", "__x64_sys_exit", "do_exit", "do_group_exit", "__x64_sys_execve", "do_execve",
        "ret_from_fork"]),
    // File system functions come last. `sys_read` and `sys_write` are not listed: frames below them
    // distinguish files, sockets and pipes.
    (Tag::File, &["ext4_", "xfs_", "btrfs_", "overlay", "ovl_", "shmem_file", "generic_file_",
        "generic_perform_write", "filemap_", "page_cache", "ondemand_readahead", "do_sys_open",
        "do_sys_openat2", "do_filp_open", "__x64_sys_open", "__x64_sys_close", "__x64_sys_lseek",
        "__x64_sys_newfstat", "vfs_fstat", "vfs_statx", "vfs_unlink", "io_uring", "__x64_sys_io_uring",
        "iomap_", "blkdev_", "submit_bio"]),
];

/// Prefixes of library function names, without leading underscores.
#[rustfmt::skip]
const LIBRARY: &[(Tag, &[&str])] = &[
    (Tag::Memcpy, &["mem", "str", "bcmp", "bcopy", "bzero", "wmem", "wcs", "rawmemchr"]),
    (Tag::Malloc, &["malloc", "free", "calloc", "realloc", "int_malloc", "int_free", "cfree",
        "unlink_chunk", "sysmalloc", "systrim", "brk", "sbrk", "mmap", "munmap", "madvise", "tcache_",
        "posix_memalign", "aligned_alloc"]),
    (Tag::Futex, &["sem_", "new_sem_", "old_sem_", "futex", "pthread_mutex", "pthread_cond", "semop", "semtimedop",
        "lll_lock"]),
    (Tag::Socket, &["send", "recv", "epoll_", "poll", "ppoll", "select", "accept", "connect"]),
    (Tag::Fsync, &["fsync", "fdatasync", "sync_file_range"]),
    (Tag::Clock, &["clock_gettime", "gettimeofday", "vdso_", "kernel_clock", "kernel_gettimeofday"]),
    (Tag::File, &["read", "write", "pread", "pwrite", "open", "close", "lseek", "stat", "fstat", "unlink",
        "ftruncate", "posix_fa"]),
    (Tag::Fork, &["fork", "clone", "exit", "execve", "wait"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_functions_have_their_tag() {
        for (symbol, tag) in [
            ("asm_exc_page_fault", Some(Tag::PageFault)),
            ("__x64_sys_futex", Some(Tag::Futex)),
            ("unix_stream_sendmsg", Some(Tag::Socket)),
            ("__x64_sys_epoll_wait", Some(Tag::Socket)),
            ("__x64_sys_fdatasync", Some(Tag::Fsync)),
            ("pipe_write", Some(Tag::Pipe)),
            ("read_hpet", Some(Tag::Clock)),
            ("asm_sysvec_apic_timer_interrupt", Some(Tag::Interrupt)),
            ("ext4_file_read_iter", Some(Tag::File)),
            ("do_syscall_64", None),
            ("__x64_sys_write", None),
        ] {
            assert_eq!(Tag::of_kernel(symbol), tag, "{symbol}");
        }
    }

    #[test]
    fn library_functions_have_their_tag() {
        for (symbol, object, tag) in [
            (
                Some("__memmove_avx_unaligned_erms"),
                "libc.so.6",
                Some(Tag::Memcpy),
            ),
            (Some("__strlen_avx2"), "libc.so.6", Some(Tag::Memcpy)),
            (Some("_int_malloc"), "libc.so.6", Some(Tag::Malloc)),
            (Some("__GI___libc_write"), "libc-2.17.so", Some(Tag::File)),
            (Some("__libc_send"), "libc.so.6", Some(Tag::Socket)),
            (Some("__new_sem_wait_fast"), "libc.so.6", Some(Tag::Futex)),
            (None, "libssl.so.3", Some(Tag::Tls)),
            (None, "libcrypto.so.3", Some(Tag::Cryptography)),
            (None, "[vdso]", Some(Tag::Clock)),
            (None, "libc.so.6", None),
            (Some("qsort_r"), "libc.so.6", None),
        ] {
            assert_eq!(Tag::of_library(symbol, object), tag, "{symbol:?} {object}");
        }
    }
}
