//! Evaluates compiled expressions.

use crate::error::EvalError;
use crate::expr::Expr;
use crate::rng::Rng;
use crate::value::Value;
use crate::variables::Variables;

/// The value of `expr`. `debug` is given the argument of every `debug()` that is evaluated; print
/// it with [`debug_line`](crate::debug_line).
#[inline]
pub fn eval(
    expr: &Expr,
    variables: &mut Variables,
    rng: &mut Rng,
    debug: &mut dyn FnMut(Value),
) -> Result<Value, EvalError> {
    let _ = (expr, variables, rng, debug);
    todo!()
}
