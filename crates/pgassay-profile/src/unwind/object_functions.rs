//! Functions of a program or library on disk, by addresses in the file.
//!
//! For addresses from other sources than our sampler, such as callgrind. The same invariant holds:
//! a symbol names only addresses inside its own extent; other code is identified by the start of its
//! function in `.eh_frame`, if known.

use crate::unwind::object_file::ObjectFile;
use std::io;
use std::path::Path;

/// The functions of one file.
#[derive(Debug)]
pub struct ObjectFunctions {
    object: ObjectFile,
}

/// The function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionAt<'a> {
    /// Its name.
    Named(&'a str),
    /// It has no name and begins at this address.
    Unnamed(u64),
}

impl ObjectFunctions {
    /// Reads a file, and its debug file if one is installed.
    pub fn read(path: &Path) -> io::Result<Self> {
        let object = ObjectFile::read(path).map_err(io::Error::other)?;
        Ok(Self { object })
    }

    /// Whether the file is stripped and has no debug file.
    pub fn is_stripped(&self) -> bool {
        self.object.is_stripped
    }

    /// The function at an address, if known.
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
    fn an_invalid_object_file_is_an_error() {
        assert!(ObjectFunctions::read(Path::new("/proc/self/status")).is_err());
        assert!(ObjectFunctions::read(Path::new("/nonexistent")).is_err());
    }
}
