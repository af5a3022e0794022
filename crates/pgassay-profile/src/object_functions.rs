//! Functions of a program or library on disk, by the addresses that the file itself states.
//!
//! For whoever has addresses from elsewhere than our sampler, such as callgrind's. The same
//! invariant holds: a name counts only inside the extent that its symbol states; other code is
//! known by where its function begins, as far as `.eh_frame` tells.

use crate::object_file::ObjectFile;
use std::io;
use std::path::Path;

/// Functions of one file.
#[derive(Debug)]
pub struct ObjectFunctions {
    object: ObjectFile,
}

/// What is known of the function that an address lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionAt<'a> {
    /// Its name.
    Named(&'a str),
    /// It has no name; it begins at this address.
    Unnamed(u64),
}

impl ObjectFunctions {
    /// Reads a file, and the debug file that belongs to it if one is installed.
    pub fn read(path: &Path) -> io::Result<Self> {
        let object = ObjectFile::read(path).map_err(io::Error::other)?;
        Ok(Self { object })
    }

    /// Whether names of functions that other files do not need were removed, and are not to be had.
    pub fn is_stripped(&self) -> bool {
        self.object.is_stripped
    }

    /// The function at an address; none if the file does not tell.
    pub fn at(&self, address: u64) -> Option<FunctionAt<'_>> {
        if let Some((name, _)) = self.object.symbols.lookup(address) {
            return Some(FunctionAt::Named(name));
        }
        let extent = self.object.extent(address)?;
        extent
            .contains(&address)
            .then_some(FunctionAt::Unnamed(extent.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_functions_have_names() {
        let path = std::env::current_exe().unwrap();
        let functions = ObjectFunctions::read(&path).unwrap();
        assert!(!functions.is_stripped());
        assert_eq!(functions.at(0), None);
        let main = (0..u64::MAX)
            .step_by(16)
            .take(1 << 22)
            .find(|address| functions.at(*address) == Some(FunctionAt::Named("main")));
        assert!(main.is_some(), "a program has a main");
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert!(ObjectFunctions::read(Path::new("/proc/self/status")).is_err());
        assert!(ObjectFunctions::read(Path::new("/nonexistent")).is_err());
    }
}
