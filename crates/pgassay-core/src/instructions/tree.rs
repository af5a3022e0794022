//! Instructions by call path: what a flame graph of counts is drawn from.
//!
//! Counted, not estimated: callgrind kept every chain of callers apart. It did so in a round of its
//! own, because that makes a server slower, so its sum differs from the variant's by what repeating
//! changes. Invariants: callers stand before what they call; all paths' own instructions add up to
//! [`CallTree::instructions`]; paths below which nothing was executed are left out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What some transactions executed, by call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTree {
    /// The transactions that all figures are the sum of.
    pub transactions: u64,
    /// Functions that the paths are made of.
    pub functions: Vec<PathFunction>,
    /// The paths.
    pub paths: Vec<CallPath>,
}

/// A function of call paths.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathFunction {
    /// Its name, or `0x` and its address in the object.
    pub name: String,
    /// File name of the program or library.
    pub object: String,
}

/// A function called by its callers in this order. One that calls itself directly is one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallPath {
    /// Index of its caller's path; none for the outermost function.
    pub parent: Option<u32>,
    /// Index of the function.
    pub function: u32,
    /// How often it was called this way.
    pub calls: i64,
    /// Its own instructions this way.
    pub instructions: i64,
}

impl CallTree {
    /// Instructions of all paths.
    pub fn instructions(&self) -> i64 {
        self.paths.iter().map(|path| path.instructions).sum()
    }

    /// A sum over all transactions as instructions per transaction.
    pub fn per_transaction(&self, sum: i64) -> f64 {
        sum as f64 / self.transactions as f64
    }

    /// The functions of a path, outermost first, by their indexes.
    pub fn stack(&self, path: usize) -> Vec<u32> {
        let mut functions = Vec::new();
        let mut at = self.paths.get(path);
        while let Some(path) = at {
            functions.push(path.function);
            at = path
                .parent
                .and_then(|parent| self.paths.get(parent as usize));
        }
        functions.reverse();
        functions
    }
}
