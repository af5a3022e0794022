//! Variable names, interned into slots.
//!
//! All scripts of a run share one table, so that a variable that one script sets is the variable
//! that another reads, as in pgbench, where a client's variables outlive its transactions. The
//! table is filled while scripts are parsed and then frozen in an `Arc`: a name that no script or
//! definition mentions can never be read, so it needs no slot.

use std::collections::HashMap;

/// The position of a variable in every [`Variables`](crate::Variables) of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The slot as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A name that is not a valid pgbench variable name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{context}: invalid variable name: \"{name}\"")]
pub struct InvalidName {
    /// The command or option that tried to define it: `option`, `set`, `gset`, `aset`, `setshell`.
    pub context: &'static str,
    /// The name.
    pub name: String,
}

#[derive(Debug)]
struct Name {
    text: Box<[u8]>,
    is_valid: bool,
}

/// The names of all variables that the scripts of one run mention.
#[derive(Debug)]
pub struct VariableNames {
    by_name: HashMap<Box<[u8]>, SlotId>,
    names: Vec<Name>,
}

impl VariableNames {
    /// `:scale`, the scale factor.
    pub const SCALE: SlotId = SlotId(0);
    /// `:client_id`, counted from 0.
    pub const CLIENT_ID: SlotId = SlotId(1);
    /// `:default_seed`, the default seed of `hash` and `permute`.
    pub const DEFAULT_SEED: SlotId = SlotId(2);
    /// `:random_seed`, the seed of the run.
    pub const RANDOM_SEED: SlotId = SlotId(3);

    /// Creates a table with pgbench's automatic variables in the slots of the constants.
    pub fn new() -> VariableNames {
        let mut names = VariableNames {
            by_name: HashMap::new(),
            names: Vec::new(),
        };
        for automatic in ["scale", "client_id", "default_seed", "random_seed"] {
            names.intern(automatic.as_bytes());
        }
        names
    }

    /// Returns the slot of `name`, creating it if needed. Invalid names get one too: a script may
    /// read them, and fails at run time.
    pub fn intern(&mut self, name: &[u8]) -> SlotId {
        if let Some(&slot) = self.by_name.get(name) {
            return slot;
        }
        let slot = SlotId(self.names.len() as u32);
        self.by_name.insert(name.into(), slot);
        self.names.push(Name {
            text: name.into(),
            is_valid: is_valid_name(name),
        });
        slot
    }

    /// Returns the slot of a variable that is defined outside a script, as `-D` does.
    pub fn define(&mut self, context: &'static str, name: &str) -> Result<SlotId, InvalidName> {
        if is_valid_name(name.as_bytes()) {
            Ok(self.intern(name.as_bytes()))
        } else {
            Err(InvalidName {
                context,
                name: name.to_owned(),
            })
        }
    }

    /// Returns the slot of `name`, if any script or definition mentions it.
    pub fn slot(&self, name: &[u8]) -> Option<SlotId> {
        self.by_name.get(name).copied()
    }

    /// Returns where `\gset prefix` stores the column `column`; `None` if no script reads it.
    pub fn capture_slot(
        &self,
        context: &'static str,
        prefix: &[u8],
        column: &[u8],
    ) -> Result<Option<SlotId>, InvalidName> {
        let joined;
        let name = if prefix.is_empty() {
            column
        } else {
            joined = [prefix, column].concat();
            &joined
        };
        if is_valid_name(name) {
            Ok(self.slot(name))
        } else {
            Err(InvalidName {
                context,
                name: String::from_utf8_lossy(name).into_owned(),
            })
        }
    }

    /// Returns the name of a slot of this table.
    pub fn name(&self, slot: SlotId) -> &[u8] {
        &self.names[slot.index()].text
    }

    /// Returns the name of a slot for a message.
    pub fn display(&self, slot: SlotId) -> String {
        String::from_utf8_lossy(self.name(slot)).into_owned()
    }

    /// Whether this variable's name is valid.
    pub fn is_valid(&self, slot: SlotId) -> bool {
        self.names[slot.index()].is_valid
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Always false: the automatic variables always exist.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl Default for VariableNames {
    fn default() -> VariableNames {
        VariableNames::new()
    }
}

/// Whether a byte can begin a variable's name: a letter, `_`, or any byte outside ASCII.
pub(crate) fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

/// Whether a byte can continue a variable's name.
pub(crate) fn is_name_continuation(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit()
}

/// Whether `name` is a valid variable name (see `valid_variable_name` in pgbench.c).
pub fn is_valid_name(name: &[u8]) -> bool {
    name.first().is_some_and(|&first| is_name_start(first))
        && name.iter().all(|&byte| is_name_continuation(byte))
}
