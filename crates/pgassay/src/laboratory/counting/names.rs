//! Names for functions of stripped programs and libraries.
//!
//! Callgrind takes a jump into code without a name for more of the function that jumped: a twentieth
//! of what a stripped server does would stand under a wrong name. So for these callgrind writes every
//! instruction's address, and we look up its function ourselves.

use std::collections::HashMap;
use std::path::Path;

use pgassay_profile::{FunctionAt, ObjectFunctions};

/// Functions of the objects seen so far.
#[derive(Default)]
pub struct Names {
    /// None for what cannot be read, such as code that is made while running.
    objects: HashMap<String, Option<ObjectFunctions>>,
}

impl Names {
    /// Whether the server's program has to be read by address.
    pub fn are_missing(&mut self, program: &Path) -> bool {
        let object = self.object(&program.to_string_lossy());
        object.is_some_and(ObjectFunctions::is_stripped)
    }

    /// The name, or the beginning, of the function at an address.
    pub fn at(&mut self, object: &str, address: u64) -> Option<String> {
        Some(match self.object(object)?.at(address)? {
            FunctionAt::Named(name) => name.to_owned(),
            FunctionAt::Unnamed(start) => format!("{start:#018x}"),
        })
    }

    fn object(&mut self, path: &str) -> Option<&ObjectFunctions> {
        if !self.objects.contains_key(path) {
            let read = ObjectFunctions::read(Path::new(path)).ok();
            self.objects.insert(path.to_owned(), read);
        }
        self.objects.get(path)?.as_ref()
    }
}
