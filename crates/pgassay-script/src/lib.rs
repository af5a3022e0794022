//! pgbench's script language: parser, evaluator and random numbers, without I/O and without a clock.
//!
//! **Scope.** Everything of a script that can be known before it meets a server: its commands and
//! where its conditionals lead, its variables interned into slots, its SQL as templates, its
//! expressions as code, its random numbers to the bit. What pgbench 15 to 18 accept is accepted,
//! and refused in its words. `\setrandom` of the scripts before 9.6 is accepted too, with a note.
//!
//! **Your part.** Reading files, sending SQL, sleeping, running shells, timing, printing; asking
//! [`Refusal`] for the words when a script does at run time what it may not; following control as
//! [`CommandKind`] describes; giving each client its state from [`Seeding`].
//!
//! **Why it is fast.** Names are looked up once, when the script is parsed. Evaluating an
//! expression and rendering a statement don't allocate; drawing a number from a constant range is
//! one step.
//!
//! ```
//! use std::sync::Arc;
//! use pgassay_script::{CommandKind, Names, Options, Script, Seeding, Variables, eval};
//!
//! let text = "\\set id random(1, 1000)\nSELECT :id;\n";
//! let mut names = Names::new();
//! let script = Script::parse("example.sql", text, &Options::default(), &mut names)?;
//!
//! let mut variables = Variables::new(&Arc::new(names));
//! let mut rng = Seeding::new(5432, 1, 1, false).clients[0];
//! let mut message = Vec::new();
//! for command in script.commands() {
//!     match &command.kind {
//!         CommandKind::Set { slot, expr } => {
//!             let value = eval(expr, &mut variables, &mut rng, &mut |_debugged| ())?;
//!             variables.set(*slot, value);
//!         }
//!         CommandKind::Sql(sql) => sql.render(&variables, &mut message),
//!         _ => {}
//!     }
//! }
//! assert!(message.starts_with(b"SELECT ") && message.ends_with(b";"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants: a parsed [`Script`] never changes and is shared by all threads; slots mean the same
//! in all scripts parsed with one [`Names`]; parsing never panics and never recurses deeper than a
//! fixed bound; evaluating never recurses.

mod builtin;
mod command;
mod conditions;
mod distribution;
mod error;
mod eval;
mod expr;
mod expr_lexer;
mod expr_parser;
mod meta;
mod names;
mod number;
mod rng;
mod script;
mod seed;
pub mod sql;
mod sql_scanner;
mod template;
mod value;
mod variables;

pub use builtin::{BUILTINS, Builtin, SCRIPTS_MAX, ScriptSet, SelectionError, split_weight};
pub use command::{
    Capture, Command, CommandKind, PARAMETERS_MAX, Protocol, Shell, Sleep, SqlCommand,
};
pub use distribution::{hash_fnv1a, hash_murmur2, permute};
pub use error::{EvalError, ParseError, ParseErrorKind, Refusal, SyntaxError};
pub use eval::eval;
pub use expr::{ARGUMENTS_MAX, Expr};
pub use names::{InvalidName, Names, SlotId, is_valid_name};
pub use rng::Rng;
pub use script::{Compat, Note, Options, Script};
pub use seed::{Seeding, ThreadRngs, parse_seed};
pub use value::{Value, debug_line};
pub use variables::Variables;
