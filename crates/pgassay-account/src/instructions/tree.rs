//! Instruction counts by call path, for flame graphs.
//!
//! These are counts, not estimates: callgrind separates all call chains. It does so in a separate round,
//! because that slows the server, so the total differs from the variant's by the variation between
//! repeats. Invariants: callers come before callees; the own instructions of all paths add up to
//! [`CallTree::instructions`]; paths without any executed instructions are omitted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Instructions of a number of transactions, by call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTree {
    /// Number of transactions that all figures are summed over.
    pub transactions: u64,
    /// The functions on the paths.
    pub functions: Vec<PathFunction>,
    /// The paths.
    pub paths: Vec<CallPath>,
}

/// A function on a call path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathFunction {
    /// Function name, or `0x` and the address in the object.
    pub name: String,
    /// File name of the program or library.
    pub object: String,
}

/// A function with its chain of callers. Direct recursion does not lengthen the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallPath {
    /// Index of the caller's path; `None` for the outermost function.
    pub parent: Option<u32>,
    /// Index of the function.
    pub function: u32,
    /// Number of calls on this path.
    pub calls: i64,
    /// Own instructions on this path.
    pub instructions: i64,
}

impl CallTree {
    /// Instructions of all paths.
    pub fn instructions(&self) -> i64 {
        self.paths.iter().map(|path| path.instructions).sum()
    }

    /// Converts a sum over all transactions to instructions per transaction.
    pub fn per_transaction(&self, sum: i64) -> f64 {
        sum as f64 / self.transactions as f64
    }

    /// Indexes of the functions on a path, outermost first.
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
