//! Sums that must hold for any process, written in callgrind's format, parsed, subtracted and
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use pgassay_account::instructions::margin::Family;
use pgassay_account::instructions::{Build, Difference, Repeat, VariantCount};
use pgassay_count::{InstructionTally, OutFile, variant_count};
use proptest::prelude::*;

/// One execution of a function: its self instructions and the calls it made.
#[derive(Debug, Clone)]
struct Node {
    function: usize,
    own: u64,
    called: Vec<Node>,
}

const NAMES: [&str; 6] = [
    "PostgresMain",
    "exec_simple_query",
    "ExecInterpExpr",
    "palloc",
    "0x0000000000001230",
    "_bt_compare",
];

fn node() -> impl Strategy<Value = Node> {
    let leaf = (1..NAMES.len(), 0..1000_u64).prop_map(|(function, own)| Node {
        function,
        own,
        called: Vec::new(),
    });
    leaf.prop_recursive(5, 40, 4, |inner| {
        (
            1..NAMES.len(),
            0..1000_u64,
            prop::collection::vec(inner, 0..4),
        )
            .prop_map(|(function, own, called)| Node {
                function,
                own,
                called,
            })
    })
}

fn process() -> impl Strategy<Value = Node> {
    prop::collection::vec(node(), 0..6).prop_map(|called| Node {
        function: 0,
        own: 7,
        called,
    })
}

impl Node {
    fn total(&self) -> u64 {
        self.own + self.called.iter().map(Node::total).sum::<u64>()
    }

    fn collect(
        &self,
        own: &mut BTreeMap<usize, u64>,
        calls: &mut BTreeMap<(usize, usize), (u64, u64)>,
    ) {
        *own.entry(self.function).or_default() += self.own;
        for called in &self.called {
            let sums = calls.entry((self.function, called.function)).or_default();
            *sums = (sums.0 + 1, sums.1 + called.total());
            called.collect(own, calls);
        }
    }

    /// The inclusive cost of `function`, counting recursive calls once.
    fn inclusive(&self, function: usize) -> u64 {
        if self.function == function {
            self.total()
        } else {
            self.called
                .iter()
                .map(|called| called.inclusive(function))
                .sum()
        }
    }

    fn file(&self) -> String {
        let (mut own, mut calls) = (BTreeMap::new(), BTreeMap::new());
        self.collect(&mut own, &mut calls);
        let mut text =
            "version: 1\npid: 7\npositions: line\nevents: Ir sysCount\nob=(1) /bin/postgres\n"
                .to_owned();
        let mut defined = BTreeSet::new();
        let mut name = |function: usize| {
            if defined.insert(function) {
                format!("({function}) {}", NAMES[function])
            } else {
                format!("({function})")
            }
        };
        for (function, own) in own {
            writeln!(text, "\nfn={}\n0 {own}", name(function)).unwrap();
            for ((_, callee), (count, inclusive)) in
                calls.iter().filter(|((caller, _), _)| *caller == function)
            {
                writeln!(
                    text,
                    "cfn={}\ncalls={count} 0\n+1 {inclusive}",
                    name(*callee)
                )
                .unwrap();
            }
        }
        writeln!(text, "\ntotals: {}", self.total()).unwrap();
        text
    }
}

fn counted(few: &Node, many: &Node, transactions: u64) -> (VariantCount, InstructionTally) {
    let mut tally = InstructionTally::default();
    let parse = |node: &Node| OutFile::parse(&node.file()).unwrap();
    tally.add(&parse(few), &parse(many), transactions);
    let build = Build {
        version: "18.1".to_owned(),
        configure: String::new(),
        cflags: "-O2".to_owned(),
        compiler: "gcc".to_owned(),
    };
    let totals = [
        few.total(),
        few.total().midpoint(many.total()),
        many.total(),
    ];
    let repeats = vec![Repeat {
        instructions: totals,
        position: 1,
    }];
    let segments = [1, 1 + transactions / 2, 1 + transactions];
    (
        variant_count("v", build, BTreeMap::new(), segments, repeats, &tally),
        tally,
    )
}

proptest! {
    #[test]
    fn functions_add_up_to_the_process(process in process()) {
        let file = OutFile::parse(&process.file()).unwrap();
        let own: u64 = file.functions.iter().map(|function| function.own.instructions).sum();
        prop_assert_eq!(own, process.total());
        prop_assert_eq!(file.totals.instructions, process.total());
        // A truncated file is rejected; only the final newline may be missing.
        let text = process.file();
        let cut = &text[..text.len() - 2 - process.total().to_string().len()];
        prop_assert!(OutFile::parse(cut).is_err());
    }

    #[test]
    fn inclusive_costs_match_the_call_tree(process in process()) {
        let nothing = Node { function: 0, own: 0, called: Vec::new() };
        let (_, tally) = counted(&nothing, &process, 2);
        let cycles = tally.in_cycles();
        for (index, inclusive) in tally.inclusive().into_iter().enumerate() {
            let name = &tally.functions[index].name;
            let function = NAMES.iter().position(|known| known == name).unwrap();
            let expected = i64::try_from(process.inclusive(function)).unwrap();
            if cycles[index] {
                prop_assert!(inclusive >= expected, "{name}: {inclusive} < {expected}");
            } else {
                prop_assert_eq!(inclusive, expected, "{}", name);
            }
        }
    }

    #[test]
    fn differences_add_up_for_any_number_of_transactions(
        a in (process(), process(), 2..100_u64),
        b in (process(), process(), 2..100_u64),
    ) {
        let (a, tally) = counted(&a.0, &a.1, a.2);
        let (b, _) = counted(&b.0, &b.1, b.2);
        let functions: i64 = a.functions.iter().map(|row| row.instructions).sum();
        let subsystems: i64 = a.subsystems.iter().map(|row| row.instructions).sum();
        prop_assert_eq!((functions, subsystems), (tally.instructions, tally.instructions));
        let difference = Difference::between(&a, &b, &Family::default());
        let functions: i64 = difference.functions.iter().map(|row| row.instructions).sum();
        let subsystems: i64 = difference.subsystems.iter().map(|row| row.instructions).sum();
        prop_assert_eq!(functions, difference.instructions);
        prop_assert_eq!(subsystems, difference.instructions);
        let per_transaction = difference.per_transaction_of(difference.instructions);
        prop_assert!((per_transaction - difference.per_transaction).abs() < 1e-6);
    }
}
