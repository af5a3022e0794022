//! The cost of transactions: the difference between a longer and a shorter run of the same work.
//!
//! Startup and first accesses are in both runs and cancel out; the remainder belongs to the
//! additional transactions of the longer run. All figures are whole instructions over whole
//! transactions, so that sums stay exact; only output divides them.
//!
//! Invariants: the functions' self costs add up to the total; a function's inclusive cost counts
//! each call once, except direct recursion. In a cycle of several functions a part is counted more
//! than once, because callgrind records calls by pairs of functions; such functions are marked.

use std::collections::{BTreeMap, HashMap};

use pgassay_account::instructions::CallTally;

use crate::cycle;
use crate::outfile::OutFile;

/// A function of a tally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTally {
    /// Path of the program or library.
    pub object: String,
    /// Its name, or `0x` and its address.
    pub name: String,
    /// The source file, if the object has debug information.
    pub file: Option<String>,
    /// Self instructions, over all transactions.
    pub own: i64,
    /// Self system calls.
    pub system_calls: i64,
}

/// The cost of some transactions, over one or more repeats.
#[derive(Debug, Clone, Default)]
pub struct InstructionTally {
    /// The number of transactions that all figures are summed over.
    pub transactions: u64,
    /// Their instructions.
    pub instructions: i64,
    /// Their system calls.
    pub system_calls: i64,
    /// Their functions.
    pub functions: Vec<FunctionTally>,
    index: HashMap<(String, String), usize>,
    calls: BTreeMap<(usize, usize), (i64, i64)>,
}

impl InstructionTally {
    /// Adds the difference of `many` and `few`; `many` executed `transactions` more.
    pub fn add(&mut self, few: &OutFile, many: &OutFile, transactions: u64) {
        self.transactions += transactions;
        self.accumulate(few, -1);
        self.accumulate(many, 1);
    }

    fn accumulate(&mut self, file: &OutFile, sign: i64) {
        self.instructions += sign * signed(file.totals.instructions);
        self.system_calls += sign * signed(file.totals.system_calls);
        let mut at = Vec::with_capacity(file.functions.len());
        for function in &file.functions {
            let key = (function.object.clone(), function.name.clone());
            let index = *self.index.entry(key).or_insert_with(|| {
                self.functions.push(FunctionTally {
                    object: function.object.clone(),
                    name: function.name.clone(),
                    file: function.file.clone(),
                    own: 0,
                    system_calls: 0,
                });
                self.functions.len() - 1
            });
            self.functions[index].own += sign * signed(function.own.instructions);
            self.functions[index].system_calls += sign * signed(function.own.system_calls);
            at.push(index);
        }
        for call in &file.calls {
            let sums = self
                .calls
                .entry((at[call.caller], at[call.callee]))
                .or_default();
            sums.0 += sign * signed(call.count);
            sums.1 += sign * signed(call.inclusive.instructions);
        }
    }

    /// The calls made by the transactions.
    pub fn calls(&self) -> impl Iterator<Item = CallTally> {
        let counted = self.calls.iter().filter(|(_, sums)| **sums != (0, 0));
        counted.map(|(&(caller, callee), &(count, inclusive))| CallTally {
            caller,
            callee,
            count,
            inclusive,
        })
    }

    /// Inclusive instructions of every function, in the order of `functions`.
    pub fn inclusive(&self) -> Vec<i64> {
        let mut inclusive: Vec<i64> = self.functions.iter().map(|function| function.own).collect();
        for call in self.calls().filter(|call| call.caller != call.callee) {
            inclusive[call.caller] += call.inclusive;
        }
        inclusive
    }

    /// How often each function was called.
    pub fn call_counts(&self) -> Vec<i64> {
        let mut counts = vec![0; self.functions.len()];
        for call in self.calls() {
            counts[call.callee] += call.count;
        }
        counts
    }

    /// Which functions are indirectly recursive.
    pub fn in_cycles(&self) -> Vec<bool> {
        let mut callees = vec![Vec::new(); self.functions.len()];
        for call in self.calls().filter(|call| call.caller != call.callee) {
            callees[call.caller].push(call.callee);
        }
        cycle::members(&callees)
    }

    /// For every function, the caller that spends most in it.
    pub fn heaviest_callers(&self) -> Vec<Option<usize>> {
        let mut heaviest: Vec<Option<(i64, usize)>> = vec![None; self.functions.len()];
        for call in self.calls().filter(|call| call.caller != call.callee) {
            let best = &mut heaviest[call.callee];
            if best.is_none_or(|(most, _)| call.inclusive > most) {
                *best = Some((call.inclusive, call.caller));
            }
        }
        heaviest
            .into_iter()
            .map(|best| best.map(|(_, caller)| caller))
            .collect()
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).expect("a process does not execute 2^63 instructions")
}
