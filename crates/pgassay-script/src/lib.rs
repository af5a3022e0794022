//! pgbench's script language: parser, evaluator and random numbers, without I/O and without a
//! clock.
//!
//! **Scope.** Everything about a script that is independent of a server: its commands and the
//! targets of its conditionals, its variables interned into slots, its SQL as templates, its
//! expressions as code, and bit-exact random numbers. It accepts what pgbench 15 to 18 accept, and
//! rejects everything else with pgbench's messages. It also accepts `\setrandom` from scripts
//! before 9.6, with a note.
//!
//! **The caller** reads files, sends SQL, sleeps, runs shells, measures time and prints. At run
//! time it rejects commands that are not allowed with the messages of [`Refusal`], follows
//! conditionals as [`CommandKind`] describes, and gives each client its state from [`Seeding`].
//!
//! **Performance.** Names are looked up once, when the script is parsed. Evaluating an expression
//! and rendering a statement do not allocate; drawing a number from a constant range is one step.
//!
//! ```
//! use std::sync::Arc;
//! use pgassay_script::{CommandKind, VariableNames, ParseOptions, ParsedScript, Seeding, Variables, eval};
//!
//! let text = "\\set id random(1, 1000)\nSELECT :id;\n";
//! let mut names = VariableNames::new();
//! let script = ParsedScript::parse("example.sql", text, &ParseOptions::default(), &mut names)?;
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
//! Invariants: a parsed [`ParsedScript`] never changes and can be shared by all threads; slots mean the
//! same in all scripts parsed with one [`VariableNames`]; parsing never panics and never recurses deeper
//! than a fixed limit; evaluation never recurses.

mod builtin;
mod command;
mod compared;
mod conditions;
mod distribution;
mod error;
mod eval;
mod expr;
mod expr_lexer;
mod expr_parser;
mod fixed;
mod limits;
mod meta;
pub mod named_relations;
mod names;
mod normalize;
mod number;
mod protocol;
mod reach;
mod rng;
mod script;
mod seed;
pub mod sql;
mod sql_scanner;
pub mod statement_tokens;
mod template;
mod undefined;
mod value;
mod variables;

pub use builtin::{BUILTINS, Builtin, SCRIPTS_MAX, ScriptSet, SelectionError, split_weight};
pub use command::{Capture, CommandKind, ScriptCommand, Shell, Sleep, SqlCommand};
pub use compared::{ComparedForm, ComparedText, ConstantMark};
pub use distribution::{hash_fnv1a, hash_murmur2, permute};
pub use error::{EvalError, ParseError, ParseErrorKind, Refusal, SyntaxError};
pub use eval::eval;
pub use expr::Expr;
pub use fixed::with_fixed_variables;
pub use limits::{ARGUMENTS_MAX, PARAMETERS_MAX};
pub use names::{InvalidName, SlotId, VariableNames, is_valid_name};
pub use normalize::{NormalizedStatement, normalize};
pub use protocol::QueryProtocol;
pub use reach::{
    AssignedValue, RoleName, ServerChange, SettingChange, SettingScope, SqlReach, frees_session,
};
pub use rng::Rng;
pub use script::{Compat, Note, ParseOptions, ParsedScript};
pub use seed::{Seeding, ThreadRngs, parse_seed};
pub use sql_scanner::{SqlLexeme, lexemes};
pub use undefined::{UndefinedVariable, undefined_variable};
pub use value::{ScriptValue, debug_line};
pub use variables::Variables;
