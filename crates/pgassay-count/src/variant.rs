//! A variant's figures from its tally: callgrind's counts with names, subsystems and sums.

use std::collections::BTreeMap;

use pgassay_account::instructions::{
    Build, CallTally, FunctionCount, Repeat, SubsystemCount, VariantCount,
};
use pgassay_knowledge::Subsystem;

use crate::tally::InstructionTally;
use crate::{credit, system_call};

/// Adds names, subsystems and sums to a tally.
pub fn variant_count(
    name: &str,
    build: Build,
    settings: BTreeMap<String, String>,
    segments: [u64; 3],
    repeats: Vec<Repeat>,
    tally: &InstructionTally,
) -> VariantCount {
    let subsystems = credit::subsystems(tally, &build.version);
    let (functions, calls) = functions(tally, &subsystems);
    let mut by_subsystem = BTreeMap::new();
    for (function, subsystem) in tally.functions.iter().zip(&subsystems) {
        *by_subsystem.entry(*subsystem).or_insert(0) += function.own;
    }
    let mut subsystems: Vec<SubsystemCount> = by_subsystem
        .into_iter()
        .filter(|(_, instructions)| *instructions != 0)
        .map(|(subsystem, instructions)| SubsystemCount {
            name: subsystem_name(subsystem).to_owned(),
            instructions,
        })
        .collect();
    subsystems.sort_by_key(|row| std::cmp::Reverse(row.instructions));
    VariantCount {
        name: name.to_owned(),
        build,
        settings,
        load: None,
        segments,
        repeats,
        transactions: tally.transactions,
        instructions: tally.instructions,
        system_calls: tally.system_calls,
        system_calls_by_name: system_call::by_name(tally),
        subsystems,
        functions,
        calls,
        tree: None,
    }
}

fn functions(
    tally: &InstructionTally,
    subsystems: &[Subsystem],
) -> (Vec<FunctionCount>, Vec<CallTally>) {
    let (inclusive, calls, cycles) = (tally.inclusive(), tally.call_counts(), tally.in_cycles());
    let mut order: Vec<usize> = (0..tally.functions.len())
        .filter(|&index| (tally.functions[index].own, inclusive[index], calls[index]) != (0, 0, 0))
        .collect();
    let key = |index: usize| {
        let function = &tally.functions[index];
        (
            -function.own,
            -inclusive[index],
            function.name.clone(),
            function.object.clone(),
        )
    };
    order.sort_by_cached_key(|&index| key(index));
    let mut new_index = vec![None; tally.functions.len()];
    let functions = order
        .iter()
        .enumerate()
        .map(|(position, &index)| {
            new_index[index] = Some(position);
            let function = &tally.functions[index];
            FunctionCount {
                name: function.name.clone(),
                object: function.object.clone(),
                subsystem: subsystem_name(subsystems[index]).to_owned(),
                calls: calls[index],
                instructions: function.own,
                inclusive: inclusive[index],
                recursive: cycles[index],
            }
        })
        .collect();
    let calls = tally
        .calls()
        .filter_map(|call| {
            let (caller, callee) = (new_index[call.caller]?, new_index[call.callee]?);
            Some(CallTally {
                caller,
                callee,
                ..call
            })
        })
        .collect();
    (functions, calls)
}

fn subsystem_name(subsystem: Subsystem) -> &'static str {
    match subsystem {
        // Includes TLS, the dynamic loader and other libraries.
        Subsystem::Libc => "libraries",
        other => other.name(),
    }
}
