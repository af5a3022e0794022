//! The subsystem of every function of a tally.
//!
//! A function belongs to its source file's subsystem. If the name does not identify the file
//! (helpers that serve their callers, static functions with the same name in several files), the
//! function is assigned to the caller that spends most in it. Libraries are a subsystem of their
//! own: this keeps their costs exact, whereas dividing them among callers would be an estimate.

use pgassay_account::instructions::{base_name, is_address};
use pgassay_knowledge::{FrameName, Subsystem, Symbols};

use crate::tally::{FunctionTally, InstructionTally};

/// Maximum number of callers followed.
const CALLERS_MAX: usize = 8;

/// The subsystem of each function, in the tally's order.
pub(crate) fn subsystems(tally: &InstructionTally, major: &str) -> Vec<Subsystem> {
    let symbols = Symbols::for_major(major);
    let callers = tally.heaviest_callers();
    (0..tally.functions.len())
        .map(|index| {
            let function = &tally.functions[index];
            if is_unknown(function) {
                return Subsystem::Unknown;
            }
            if is_library(function) {
                return Subsystem::Libc;
            }
            let mut chain = vec![index];
            while let Some(caller) = callers[chain[chain.len() - 1]] {
                let is_outside =
                    is_library(&tally.functions[caller]) || is_unknown(&tally.functions[caller]);
                if is_outside || chain.contains(&caller) || chain.len() > CALLERS_MAX {
                    break;
                }
                chain.push(caller);
            }
            let frames: Vec<FrameName<'_>> = chain
                .iter()
                .rev()
                .map(|&index| frame(&tally.functions[index]))
                .collect();
            Subsystem::of(&symbols, &frames)
        })
        .collect()
}

fn frame(function: &FunctionTally) -> FrameName<'_> {
    FrameName {
        symbol: (!is_address(&function.name)).then_some(function.name.as_str()),
        object: base_name(&function.object),
        kernel: false,
    }
}

fn is_unknown(function: &FunctionTally) -> bool {
    function.object == "???" || function.object.is_empty()
}

fn is_library(function: &FunctionTally) -> bool {
    let file = base_name(&function.object);
    (file.starts_with("lib") && !file.starts_with("libpqwalreceiver"))
        || file.starts_with("ld-")
        || file.starts_with("ld.so")
}
