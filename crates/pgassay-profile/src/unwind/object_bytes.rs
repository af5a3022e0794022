//! What is read of an object file, in bounded memory.
//!
//! The file belongs to the server's user, and a table of symbols in it can be as long as it likes: a sparse file of a
//! terabyte takes no space on disk.

use object::read::{ReadCache, ReadRef};
use std::cell::Cell;
use std::fs::File;
use std::ops::Range;

/// At most this much of one file is read. The symbols and unwind tables of a debug build of PostgreSQL 18 take 3 MB,
/// those of `libLLVM` with its debug file about 60 MB.
pub(crate) const READ_BYTES_MAX: u64 = 128 << 20;

/// A file of which a bounded part can be read.
pub(crate) struct ObjectBytes {
    cache: ReadCache<File>,
    left: Cell<u64>,
    is_too_large: Cell<bool>,
}

impl ObjectBytes {
    pub fn new(file: File) -> Self {
        Self {
            cache: ReadCache::new(file),
            left: Cell::new(READ_BYTES_MAX),
            is_too_large: Cell::new(false),
        }
    }

    /// Whether a read was refused because of the limit.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large.get()
    }

    fn take(&self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().checked_sub(bytes);
        self.is_too_large
            .set(self.is_too_large.get() || left.is_none());
        self.left.set(left.ok_or(())?);
        Ok(())
    }
}

impl<'data> ReadRef<'data> for &'data ObjectBytes {
    fn len(self) -> Result<u64, ()> {
        ReadRef::len(&self.cache)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        // Outside of the file nothing is read: it is damaged rather than large.
        let end = offset.checked_add(size).ok_or(())?;
        if end > ReadRef::len(&self.cache)? {
            return Err(());
        }
        self.take(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        let bytes = self.cache.read_bytes_at_until(range, delimiter)?;
        self.take(bytes.len() as u64)?;
        Ok(bytes)
    }
}
