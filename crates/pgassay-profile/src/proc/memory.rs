//! Reads another process's memory: `process_vm_readv(2)`.

use std::io;

/// In no process: it is the kernel's.
const LAST_PAGE: u64 = !0xfff;

/// Whether the memory of a process may be read. It touches none of it: a page can be of a file in a file system of
/// the process's user, which need not answer.
pub(crate) fn may_read(pid: u32) -> io::Result<()> {
    match read(pid, LAST_PAGE, &mut [0; 8]) {
        // Permission is checked before the address is.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        other => other,
    }
}

/// Fills the buffer from an address.
pub(crate) fn read(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    match read_some(pid, address, into)? {
        read if read == into.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads up to the buffer's size from an address, as far as memory is mapped.
pub(crate) fn read_some(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the local vector is our buffer with its size; the kernel checks the remote one.
    let read = unsafe {
        libc::process_vm_readv(
            pid.cast_signed(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Fills the buffer from several addresses with their lengths, in this order and in one call; at most
/// 1024 (`UIO_MAXIOV`).
pub(crate) fn read_parts(pid: u32, parts: &[(u64, usize)], into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = parts.iter().map(|&(address, length)| libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    });
    let remote: Vec<libc::iovec> = remote.collect();
    // SAFETY: the local vector is our buffer with its size, which the kernel does not exceed; it checks
    // the remote ones.
    let read = unsafe {
        libc::process_vm_readv(
            pid.cast_signed(),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    match usize::try_from(read) {
        Ok(read) if read == into.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_an_error_and_partly_mapped_memory_is_short() {
        let own = std::process::id();
        let page = 4096;
        // SAFETY: a new mapping of two pages, of which the second is unmapped at once.
        let base = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            libc::munmap(base.byte_add(page), page);
            base
        };
        let mut buffer = [1; 64];
        let near_its_end = base as u64 + page as u64 - 16;
        assert_eq!(read_some(own, near_its_end, &mut buffer[..16]).unwrap(), 16);
        assert_eq!(buffer[..16], [0; 16]);
        assert!(read(own, near_its_end + 16, &mut buffer).is_err());
        // SAFETY: only this test uses the first page.
        unsafe { libc::munmap(base, page) };
    }
}
