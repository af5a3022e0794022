//! Limits of pgbench.

/// The maximum number of parameters in a statement: pgbench's `MAX_ARGS` minus the statement
/// itself.
pub const PARAMETERS_MAX: usize = 255;

/// The maximum number of arguments that pgbench passes to a function; more are an error when it is
/// called.
pub const ARGUMENTS_MAX: usize = 16;
