//! Compiled expressions: postfix code in one flat slice.
//!
//! Code and not a tree: evaluation neither recurses nor chases pointers, so a very long expression
//! cannot overflow the stack, and dropping it is trivial. Each operation pops its arguments from
//! the stack and pushes one value. Jumps are relative and only forward, so that code can be moved
//! (`a > b` is `b < a`, right operand first, as in pgbench). Invariant: the code leaves exactly one
//! value and never needs more than `depth` values.

use crate::names::{InvalidName, SlotId};
use crate::value::Value;

/// The maximum number of arguments that pgbench passes to a function; more are an error when it is
/// called.
pub const ARGUMENTS_MAX: usize = 16;

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

/// One step of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Constant(Value),
    Variable(SlotId),
    Call {
        function: Function,
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
pub(crate) enum Function {
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
const FUNCTIONS: [(&str, Function, Arity); 21] = [
    ("abs", Function::Abs, Arity::Exactly(1)),
    ("debug", Function::Debug, Arity::Exactly(1)),
    ("double", Function::Double, Arity::Exactly(1)),
    ("exp", Function::Exp, Arity::Exactly(1)),
    ("greatest", Function::Greatest, Arity::AtLeastOne),
    ("hash", Function::HashMurmur2, Arity::SeedOptional(2)),
    ("hash_fnv1a", Function::HashFnv1a, Arity::SeedOptional(2)),
    (
        "hash_murmur2",
        Function::HashMurmur2,
        Arity::SeedOptional(2),
    ),
    ("int", Function::Int, Arity::Exactly(1)),
    ("least", Function::Least, Arity::AtLeastOne),
    ("ln", Function::Ln, Arity::Exactly(1)),
    ("mod", Function::Mod, Arity::Exactly(2)),
    ("permute", Function::Permute, Arity::SeedOptional(3)),
    ("pi", Function::Pi, Arity::Exactly(0)),
    ("pow", Function::Power, Arity::Exactly(2)),
    ("power", Function::Power, Arity::Exactly(2)),
    ("random", Function::Random, Arity::Exactly(2)),
    (
        "random_exponential",
        Function::RandomExponential,
        Arity::Exactly(3),
    ),
    (
        "random_gaussian",
        Function::RandomGaussian,
        Arity::Exactly(3),
    ),
    ("random_zipfian", Function::RandomZipfian, Arity::Exactly(3)),
    ("sqrt", Function::Sqrt, Arity::Exactly(1)),
];

/// Looks up a function by name; also returns pgbench's spelling of it for messages.
pub(crate) fn function(name: &[u8]) -> Option<(&'static str, Function, Arity)> {
    FUNCTIONS
        .into_iter()
        .find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(name))
}

impl Function {
    /// Whether a call with constants may be evaluated at parse time.
    pub(crate) fn is_pure(self) -> bool {
        !matches!(
            self,
            Function::Debug
                | Function::Random
                | Function::RandomExponential
                | Function::RandomGaussian
                | Function::RandomZipfian
        )
    }
}
