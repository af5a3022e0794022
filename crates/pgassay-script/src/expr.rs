//! Compiled expressions: postfix code in one flat slice.
//!
//! Code and not a tree: evaluation neither recurses nor chases pointers, so a very long expression
//! cannot overflow the stack, and dropping it is trivial. Each operation pops its arguments from
//! the stack and pushes one value. Jumps are relative and only forward, so that code can be moved
//! (`a > b` is `b < a`, right operand first, as in pgbench). Invariant: the code leaves exactly one
//! value and never needs more than `depth` values.

use crate::names::{InvalidName, SlotId};
use crate::value::ScriptValue;

/// An expression, ready to be evaluated by [`eval`](fn@crate::eval).
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    pub(crate) code: Box<[Op]>,
    /// The maximum stack depth.
    pub(crate) depth: u32,
    /// Set if the result is for a variable with an invalid name. Evaluation then fails, after the
    /// expression has been evaluated for its side effects.
    pub(crate) invalid_target: Option<Box<InvalidName>>,
}

impl Expr {
    /// The variables that its evaluation reads.
    pub(crate) fn reads(&self) -> Vec<SlotId> {
        let slot = |op: &Op| match op {
            Op::Variable(slot) => Some(*slot),
            _ => None,
        };
        self.code.iter().filter_map(slot).collect()
    }
}

/// One step of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Constant(ScriptValue),
    Variable(SlotId),
    Call {
        function: BuiltinFunction,
        arguments: u32,
    },
    /// Replaces a call with too many arguments, after the allowed number of them was evaluated.
    TooManyArguments,
    /// `random(min, max)` of constants, with its range checked at parse time.
    Uniform {
        min: i64,
        span: u64,
    },
    /// Left operand of AND: unless it is true, it is the result, and the right operand is skipped.
    And {
        skip: u32,
    },
    /// Left operand of OR: unless it is false, it is the result, and the right operand is skipped.
    Or {
        skip: u32,
    },
    /// After the right operand of AND or OR: it must be NULL or a boolean.
    Truth,
    /// Pops the condition of a WHEN and jumps over its branch unless it is true.
    Unless {
        skip: u32,
    },
    /// Jumps from the end of a branch over the rest of the CASE.
    Jump {
        skip: u32,
    },
}

/// Functions, and the operators that are evaluated like functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltinFunction {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Equal,
    NotEqual,
    LessOrEqual,
    Less,
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
    Not,
    Is,
    Abs,
    Debug,
    Double,
    Exp,
    Greatest,
    HashFnv1a,
    HashMurmur2,
    Int,
    Least,
    Ln,
    Permute,
    Pi,
    Power,
    Random,
    RandomExponential,
    RandomGaussian,
    RandomZipfian,
    Sqrt,
}

/// How many arguments a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    Exactly(usize),
    AtLeastOne,
    /// This many arguments, the last of which is an optional seed that defaults to `:default_seed`.
    SeedOptional(usize),
}

/// The functions that a script can call, in the order of the manual.
const FUNCTIONS: [(&str, BuiltinFunction, Arity); 21] = [
    ("abs", BuiltinFunction::Abs, Arity::Exactly(1)),
    ("debug", BuiltinFunction::Debug, Arity::Exactly(1)),
    ("double", BuiltinFunction::Double, Arity::Exactly(1)),
    ("exp", BuiltinFunction::Exp, Arity::Exactly(1)),
    ("greatest", BuiltinFunction::Greatest, Arity::AtLeastOne),
    ("hash", BuiltinFunction::HashMurmur2, Arity::SeedOptional(2)),
    (
        "hash_fnv1a",
        BuiltinFunction::HashFnv1a,
        Arity::SeedOptional(2),
    ),
    (
        "hash_murmur2",
        BuiltinFunction::HashMurmur2,
        Arity::SeedOptional(2),
    ),
    ("int", BuiltinFunction::Int, Arity::Exactly(1)),
    ("least", BuiltinFunction::Least, Arity::AtLeastOne),
    ("ln", BuiltinFunction::Ln, Arity::Exactly(1)),
    ("mod", BuiltinFunction::Mod, Arity::Exactly(2)),
    ("permute", BuiltinFunction::Permute, Arity::SeedOptional(3)),
    ("pi", BuiltinFunction::Pi, Arity::Exactly(0)),
    ("pow", BuiltinFunction::Power, Arity::Exactly(2)),
    ("power", BuiltinFunction::Power, Arity::Exactly(2)),
    ("random", BuiltinFunction::Random, Arity::Exactly(2)),
    (
        "random_exponential",
        BuiltinFunction::RandomExponential,
        Arity::Exactly(3),
    ),
    (
        "random_gaussian",
        BuiltinFunction::RandomGaussian,
        Arity::Exactly(3),
    ),
    (
        "random_zipfian",
        BuiltinFunction::RandomZipfian,
        Arity::Exactly(3),
    ),
    ("sqrt", BuiltinFunction::Sqrt, Arity::Exactly(1)),
];

/// Looks up a function by name; also returns pgbench's spelling of it for messages.
pub(crate) fn function(name: &[u8]) -> Option<(&'static str, BuiltinFunction, Arity)> {
    FUNCTIONS
        .into_iter()
        .find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(name))
}

impl BuiltinFunction {
    /// Whether a call with constants may be evaluated at parse time.
    pub(crate) fn is_pure(self) -> bool {
        !matches!(
            self,
            BuiltinFunction::Debug
                | BuiltinFunction::Random
                | BuiltinFunction::RandomExponential
                | BuiltinFunction::RandomGaussian
                | BuiltinFunction::RandomZipfian
        )
    }
}
