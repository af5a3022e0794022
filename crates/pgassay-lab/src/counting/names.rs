//! Function names for stripped programs and libraries.
//!
//! Callgrind attributes a jump into unnamed code to the function that jumped: 5% of what a stripped
//! server executes would have a wrong name. For such servers callgrind writes instruction addresses,
//! and pgassay looks up their functions.

use std::collections::HashMap;
use std::path::Path;

use pgassay_profile::{FunctionAt, ObjectFunctions};

/// Functions of the objects seen so far.
#[derive(Default)]
pub struct ObjectSymbols {
    /// `None` for objects that cannot be read, for example JIT code.
    objects: HashMap<String, Option<ObjectFunctions>>,
}

impl ObjectSymbols {
    /// Whether the server's program has no symbols.
    pub fn are_missing(&mut self, program: &Path) -> bool {
        let object = self.object(&program.to_string_lossy());
        object.is_some_and(ObjectFunctions::is_stripped)
    }

    /// The name of the function at an address, or its start address if it has no name.
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
