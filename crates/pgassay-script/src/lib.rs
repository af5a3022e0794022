//! pgbench's script language: lexer, parser, evaluator and its random numbers.

mod command;
mod error;
mod eval;
mod expr;
mod names;
mod number;
mod rng;
mod script;
mod seed;
mod template;
mod value;
mod variables;

pub use command::{
    Capture, Command, CommandKind, PARAMETERS_MAX, Protocol, Shell, Sleep, SqlCommand,
};
pub use error::{EvalError, ParseError, ParseErrorKind, Refusal, SyntaxError};
pub use eval::eval;
pub use expr::Expr;
pub use names::{InvalidName, Names, SlotId, is_valid_name};
pub use rng::Rng;
pub use script::{Compat, Note, Options, Script};
pub use seed::{Seeding, ThreadRngs, parse_seed};
pub use value::{Value, debug_line};
pub use variables::Variables;
