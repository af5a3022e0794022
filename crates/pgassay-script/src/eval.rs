//! Evaluates compiled expressions.
//!
//! Operators and functions behave as in pgbench, including the order of evaluation, which affects
//! random draws and which error is reported. Arguments are evaluated from left to right, all of
//! them, before any NULL among them makes the result NULL. AND, OR and CASE evaluate only what
//! determines the result. See `evaluateExpr`, `evalLazyFunc` and `evalStandardFunc` in pgbench.c,
//! the same in 15 to 18. Evaluation does not allocate unless the expression needs more than
//! [`STACK`] values at once.

use crate::distribution::{
    self, GAUSSIAN_PARAMETER_MIN, ZIPFIAN_PARAMETER_MAX, ZIPFIAN_PARAMETER_MIN,
};
use crate::error::EvalError;
use crate::expr::{BuiltinFunction, Expr, Op};
use crate::limits::ARGUMENTS_MAX;
use crate::rng::Rng;
use crate::value::ScriptValue;
use crate::variables::Variables;

/// How many values an expression can use at once without allocating.
const STACK: usize = 16;

/// The state that an evaluation can read and change.
struct EvalState<'a> {
    variables: &'a mut Variables,
    rng: &'a mut Rng,
    debug: &'a mut dyn FnMut(ScriptValue),
}

/// Evaluates `expr`. `debug` receives the argument of every `debug()` that is evaluated; print it
/// with [`debug_line`](crate::debug_line).
#[inline]
pub fn eval(
    expr: &Expr,
    variables: &mut Variables,
    rng: &mut Rng,
    debug: &mut dyn FnMut(ScriptValue),
) -> Result<ScriptValue, EvalError> {
    // Most commands of real scripts are one draw from a constant range.
    if let ([Op::Uniform { min, span }], None) = (&expr.code[..], &expr.invalid_target) {
        return Ok(ScriptValue::Int(
            min.wrapping_add(rng.up_to(*span).cast_signed()),
        ));
    }
    eval_code(
        expr,
        &mut EvalState {
            variables,
            rng,
            debug,
        },
    )
}

fn eval_code(expr: &Expr, environment: &mut EvalState) -> Result<ScriptValue, EvalError> {
    let value = if expr.depth as usize <= STACK {
        run(&expr.code, &mut [ScriptValue::Null; STACK], environment)
    } else {
        run(
            &expr.code,
            &mut vec![ScriptValue::Null; expr.depth as usize],
            environment,
        )
    }?;
    match &expr.invalid_target {
        None => Ok(value),
        Some(invalid) => Err(EvalError::InvalidName((**invalid).clone())),
    }
}

fn run(
    code: &[Op],
    stack: &mut [ScriptValue],
    environment: &mut EvalState,
) -> Result<ScriptValue, EvalError> {
    let (mut next, mut height) = (0, 0);
    while let Some(op) = code.get(next) {
        next += 1;
        match *op {
            Op::Constant(value) => {
                stack[height] = value;
                height += 1;
            }
            Op::Variable(slot) => {
                stack[height] = environment.variables.value(slot)?;
                height += 1;
            }
            Op::Uniform { min, span } => {
                stack[height] =
                    ScriptValue::Int(min.wrapping_add(environment.rng.up_to(span).cast_signed()));
                height += 1;
            }
            Op::Call {
                function,
                arguments,
            } => {
                height -= arguments as usize;
                let arguments = &stack[height..height + arguments as usize];
                stack[height] = match of_integers(function, arguments, environment.rng) {
                    Some(value) => value,
                    None => call(function, arguments, environment)?,
                };
                height += 1;
            }
            Op::TooManyArguments => return Err(EvalError::TooManyArguments),
            Op::And { skip } => {
                let value = stack[height - 1];
                if value != ScriptValue::Null && value.to_bool()? {
                    height -= 1;
                } else {
                    next += skip as usize;
                }
            }
            Op::Or { skip } => {
                let value = stack[height - 1];
                if value != ScriptValue::Null && !value.to_bool()? {
                    height -= 1;
                } else {
                    next += skip as usize;
                }
            }
            Op::Truth => {
                if stack[height - 1] != ScriptValue::Null {
                    stack[height - 1].to_bool()?;
                }
            }
            Op::Unless { skip } => {
                height -= 1;
                if !stack[height].is_true() {
                    next += skip as usize;
                }
            }
            Op::Jump { skip } => next += skip as usize,
        }
    }
    Ok(stack[0])
}

/// The result of the most frequent functions for two integers, with few instructions; `None` for any
/// others, and where there is an error to report.
#[inline]
fn of_integers(
    function: BuiltinFunction,
    arguments: &[ScriptValue],
    rng: &mut Rng,
) -> Option<ScriptValue> {
    let &[ScriptValue::Int(left), ScriptValue::Int(right)] = arguments else {
        return None;
    };
    let result = match function {
        BuiltinFunction::Add => left.checked_add(right),
        BuiltinFunction::Sub => left.checked_sub(right),
        BuiltinFunction::Mul => left.checked_mul(right),
        BuiltinFunction::Random if left <= right && right.checked_sub(left)? < i64::MAX => {
            Some(rng.uniform(left, right))
        }
        _ => None,
    };
    result.map(ScriptValue::Int)
}

/// Calls a function that depends only on its arguments.
pub(crate) fn call_pure(
    function: BuiltinFunction,
    arguments: &[ScriptValue],
) -> Result<ScriptValue, EvalError> {
    if arguments.contains(&ScriptValue::Null) && function != BuiltinFunction::Is {
        return Ok(ScriptValue::Null);
    }
    match function {
        BuiltinFunction::Add
        | BuiltinFunction::Sub
        | BuiltinFunction::Mul
        | BuiltinFunction::Div
        | BuiltinFunction::Equal
        | BuiltinFunction::NotEqual
        | BuiltinFunction::LessOrEqual
        | BuiltinFunction::Less => arithmetic(function, arguments[0], arguments[1]),
        BuiltinFunction::Mod => remainder(arguments[0].to_int()?, arguments[1].to_int()?),
        BuiltinFunction::BitAnd
        | BuiltinFunction::BitOr
        | BuiltinFunction::BitXor
        | BuiltinFunction::ShiftLeft
        | BuiltinFunction::ShiftRight => Ok(bitwise(
            function,
            arguments[0].to_int()?,
            arguments[1].to_int()?,
        )),
        BuiltinFunction::Not => Ok(ScriptValue::Bool(!arguments[0].to_bool()?)),
        // More lenient than SQL: values of different types are simply unequal.
        BuiltinFunction::Is => Ok(ScriptValue::Bool(arguments[0] == arguments[1])),
        BuiltinFunction::Abs => match arguments[0] {
            ScriptValue::Int(int) => Ok(ScriptValue::Int(int.wrapping_abs())),
            other => other.to_double().map(|double| {
                // Not `abs`: pgbench's comparison leaves -0 and NaN unchanged.
                ScriptValue::Double(if double < 0.0 { -double } else { double })
            }),
        },
        BuiltinFunction::Int => arguments[0].to_int().map(ScriptValue::Int),
        BuiltinFunction::Double => arguments[0].to_double().map(ScriptValue::Double),
        BuiltinFunction::Sqrt => arguments[0]
            .to_double()
            .map(|double| ScriptValue::Double(double.sqrt())),
        BuiltinFunction::Ln => arguments[0]
            .to_double()
            .map(|double| ScriptValue::Double(double.ln())),
        BuiltinFunction::Exp => arguments[0]
            .to_double()
            .map(|double| ScriptValue::Double(double.exp())),
        BuiltinFunction::Pi => Ok(ScriptValue::Double(std::f64::consts::PI)),
        BuiltinFunction::Power => {
            let (base, exponent) = (arguments[0].to_double()?, arguments[1].to_double()?);
            Ok(ScriptValue::Double(base.powf(exponent)))
        }
        BuiltinFunction::Least | BuiltinFunction::Greatest => extremum(function, arguments),
        BuiltinFunction::HashFnv1a => {
            let (value, seed) = (arguments[0].to_int()?, arguments[1].to_int()?);
            Ok(ScriptValue::Int(distribution::hash_fnv1a(value, seed)))
        }
        BuiltinFunction::HashMurmur2 => {
            let (value, seed) = (arguments[0].to_int()?, arguments[1].to_int()?);
            Ok(ScriptValue::Int(distribution::hash_murmur2(value, seed)))
        }
        BuiltinFunction::Permute => permute(arguments),
        BuiltinFunction::Debug
        | BuiltinFunction::Random
        | BuiltinFunction::RandomExponential
        | BuiltinFunction::RandomGaussian
        | BuiltinFunction::RandomZipfian => unreachable!("{function:?} is not pure"),
    }
}

fn call(
    function: BuiltinFunction,
    arguments: &[ScriptValue],
    environment: &mut EvalState,
) -> Result<ScriptValue, EvalError> {
    if function.is_pure() {
        return call_pure(function, arguments);
    }
    if function == BuiltinFunction::Debug {
        (environment.debug)(arguments[0]);
        return Ok(arguments[0]);
    }
    if arguments.contains(&ScriptValue::Null) {
        return Ok(ScriptValue::Null);
    }
    let (min, max) = (arguments[0].to_int()?, arguments[1].to_int()?);
    check_range(min, max)?;
    let rng = &mut *environment.rng;
    if function == BuiltinFunction::Random {
        return Ok(ScriptValue::Int(rng.uniform(min, max)));
    }
    let value = arguments[2].to_double()?;
    // Written so that NaN passes where it does in pgbench, except for the Gaussian, where pgbench
    // would loop forever.
    let drawn = match function {
        BuiltinFunction::RandomGaussian if value < GAUSSIAN_PARAMETER_MIN || value.is_nan() => {
            return Err(EvalError::GaussianParameter { value });
        }
        BuiltinFunction::RandomGaussian => rng.gaussian(min, max, value),
        BuiltinFunction::RandomZipfian
            if !(ZIPFIAN_PARAMETER_MIN..=ZIPFIAN_PARAMETER_MAX).contains(&value) =>
        {
            return Err(EvalError::ZipfianParameter { value });
        }
        BuiltinFunction::RandomZipfian => rng.zipfian(min, max, value),
        _ if value <= 0.0 => return Err(EvalError::ExponentialParameter { value }),
        _ => rng.exponential(min, max, value),
    };
    Ok(ScriptValue::Int(drawn))
}

/// Checks that a random function can draw from `[min, max]`: the width must fit a signed 64-bit
/// integer.
pub(crate) fn check_range(min: i64, max: i64) -> Result<(), EvalError> {
    if min > max {
        return Err(EvalError::EmptyRange);
    }
    match max.checked_sub(min).and_then(|delta| delta.checked_add(1)) {
        Some(_) => Ok(()),
        None => Err(EvalError::RangeTooLarge),
    }
}

fn arithmetic(
    function: BuiltinFunction,
    left: ScriptValue,
    right: ScriptValue,
) -> Result<ScriptValue, EvalError> {
    if let (ScriptValue::Int(left), ScriptValue::Int(right)) = (left, right) {
        return int_arithmetic(function, left, right);
    }
    if !matches!(
        (left, right),
        (ScriptValue::Double(_), _) | (_, ScriptValue::Double(_))
    ) {
        // At least one is a boolean: pgbench then requires integers and reports an error.
        return int_arithmetic(function, left.to_int()?, right.to_int()?);
    }
    let (left, right) = (left.to_double()?, right.to_double()?);
    Ok(match function {
        BuiltinFunction::Add => ScriptValue::Double(left + right),
        BuiltinFunction::Sub => ScriptValue::Double(left - right),
        BuiltinFunction::Mul => ScriptValue::Double(left * right),
        BuiltinFunction::Div => ScriptValue::Double(left / right),
        BuiltinFunction::LessOrEqual => ScriptValue::Bool(left <= right),
        BuiltinFunction::Less => ScriptValue::Bool(left < right),
        // The script asks for an exact comparison of doubles.
        #[allow(clippy::float_cmp)]
        BuiltinFunction::Equal => ScriptValue::Bool(left == right),
        #[allow(clippy::float_cmp)]
        BuiltinFunction::NotEqual => ScriptValue::Bool(left != right),
        _ => unreachable!("{function:?} is not overloaded"),
    })
}

#[inline]
fn int_arithmetic(
    function: BuiltinFunction,
    left: i64,
    right: i64,
) -> Result<ScriptValue, EvalError> {
    let (operation, result) = match function {
        BuiltinFunction::Add => ("add", left.checked_add(right)),
        BuiltinFunction::Sub => ("sub", left.checked_sub(right)),
        BuiltinFunction::Mul => ("mul", left.checked_mul(right)),
        BuiltinFunction::Div if right == 0 => return Err(EvalError::DivisionByZero),
        BuiltinFunction::Div => ("div", left.checked_div(right)),
        BuiltinFunction::Equal => return Ok(ScriptValue::Bool(left == right)),
        BuiltinFunction::NotEqual => return Ok(ScriptValue::Bool(left != right)),
        BuiltinFunction::LessOrEqual => return Ok(ScriptValue::Bool(left <= right)),
        BuiltinFunction::Less => return Ok(ScriptValue::Bool(left < right)),
        _ => unreachable!("{function:?} is not overloaded"),
    };
    result
        .map(ScriptValue::Int)
        .ok_or(EvalError::IntegerOverflow { operation })
}

fn remainder(left: i64, right: i64) -> Result<ScriptValue, EvalError> {
    if right == 0 {
        return Err(EvalError::DivisionByZero);
    }
    // The remainder of -2^63 and -1 is 0, like that of any other number and -1.
    Ok(ScriptValue::Int(left.wrapping_rem(right)))
}

fn bitwise(function: BuiltinFunction, left: i64, right: i64) -> ScriptValue {
    ScriptValue::Int(match function {
        BuiltinFunction::BitAnd => left & right,
        BuiltinFunction::BitOr => left | right,
        BuiltinFunction::BitXor => left ^ right,
        // C leaves shifts by 64 or more, or by less than 0, undefined; x86 uses the low 6 bits.
        BuiltinFunction::ShiftLeft => left.wrapping_shl(right as u32),
        _ => left.wrapping_shr(right as u32),
    })
}

fn extremum(
    function: BuiltinFunction,
    arguments: &[ScriptValue],
) -> Result<ScriptValue, EvalError> {
    let is_least = function == BuiltinFunction::Least;
    if arguments
        .iter()
        .any(|value| matches!(value, ScriptValue::Double(_)))
    {
        let mut extremum = arguments[0].to_double()?;
        for argument in &arguments[1..] {
            let value = argument.to_double()?;
            // As C's macros: the second of the two, unless the first is strictly beyond it.
            let keeps = if is_least {
                extremum < value
            } else {
                extremum > value
            };
            extremum = if keeps { extremum } else { value };
        }
        return Ok(ScriptValue::Double(extremum));
    }
    let mut extremum = arguments[0].to_int()?;
    for argument in &arguments[1..] {
        let value = argument.to_int()?;
        extremum = if is_least {
            extremum.min(value)
        } else {
            extremum.max(value)
        };
    }
    Ok(ScriptValue::Int(extremum))
}

fn permute(arguments: &[ScriptValue]) -> Result<ScriptValue, EvalError> {
    let (value, size) = (arguments[0].to_int()?, arguments[1].to_int()?);
    let seed = arguments[2].to_int()?;
    if size <= 0 {
        return Err(EvalError::PermuteSize);
    }
    Ok(ScriptValue::Int(distribution::permute(value, size, seed)))
}

const _: () = assert!(
    ARGUMENTS_MAX <= STACK,
    "a call with all its arguments must not allocate"
);
