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
use crate::expr::{ARGUMENTS_MAX, Expr, Function, Op};
use crate::rng::Rng;
use crate::value::Value;
use crate::variables::Variables;

/// How many values an expression can use at once without allocating.
const STACK: usize = 16;

/// The state that an evaluation can read and change.
struct Environment<'a> {
    variables: &'a mut Variables,
    rng: &'a mut Rng,
    debug: &'a mut dyn FnMut(Value),
}

/// Evaluates `expr`. `debug` receives the argument of every `debug()` that is evaluated; print it
/// with [`debug_line`](crate::debug_line).
#[inline]
pub fn eval(
    expr: &Expr,
    variables: &mut Variables,
    rng: &mut Rng,
    debug: &mut dyn FnMut(Value),
) -> Result<Value, EvalError> {
    // Most commands of real scripts are one draw from a constant range.
    if let ([Op::Uniform { min, span }], None) = (&expr.code[..], &expr.invalid_target) {
        return Ok(Value::Int(min.wrapping_add(rng.up_to(*span).cast_signed())));
    }
    eval_code(
        expr,
        &mut Environment {
            variables,
            rng,
            debug,
        },
    )
}

fn eval_code(expr: &Expr, environment: &mut Environment) -> Result<Value, EvalError> {
    let value = if expr.depth as usize <= STACK {
        run(&expr.code, &mut [Value::Null; STACK], environment)
    } else {
        run(
            &expr.code,
            &mut vec![Value::Null; expr.depth as usize],
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
    stack: &mut [Value],
    environment: &mut Environment,
) -> Result<Value, EvalError> {
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
                    Value::Int(min.wrapping_add(environment.rng.up_to(span).cast_signed()));
                height += 1;
            }
            Op::Call {
                function,
                arguments,
            } => {
                height -= arguments as usize;
                let arguments = &stack[height..height + arguments as usize];
                stack[height] = call(function, arguments, environment)?;
                height += 1;
            }
            Op::TooManyArguments => return Err(EvalError::TooManyArguments),
            Op::And { skip } => {
                let value = stack[height - 1];
                if value != Value::Null && value.to_bool()? {
                    height -= 1;
                } else {
                    next += skip as usize;
                }
            }
            Op::Or { skip } => {
                let value = stack[height - 1];
                if value != Value::Null && !value.to_bool()? {
                    height -= 1;
                } else {
                    next += skip as usize;
                }
            }
            Op::Truth => {
                if stack[height - 1] != Value::Null {
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

/// Calls a function that depends only on its arguments.
pub(crate) fn call_pure(function: Function, arguments: &[Value]) -> Result<Value, EvalError> {
    if arguments.contains(&Value::Null) && function != Function::Is {
        return Ok(Value::Null);
    }
    match function {
        Function::Add
        | Function::Sub
        | Function::Mul
        | Function::Div
        | Function::Equal
        | Function::NotEqual
        | Function::LessOrEqual
        | Function::Less => arithmetic(function, arguments[0], arguments[1]),
        Function::Mod => remainder(arguments[0].to_int()?, arguments[1].to_int()?),
        Function::BitAnd
        | Function::BitOr
        | Function::BitXor
        | Function::ShiftLeft
        | Function::ShiftRight => Ok(bitwise(
            function,
            arguments[0].to_int()?,
            arguments[1].to_int()?,
        )),
        Function::Not => Ok(Value::Bool(!arguments[0].to_bool()?)),
        // More lenient than SQL: values of different types are simply unequal.
        Function::Is => Ok(Value::Bool(arguments[0] == arguments[1])),
        Function::Abs => match arguments[0] {
            Value::Int(int) => Ok(Value::Int(int.wrapping_abs())),
            other => other.to_double().map(|double| {
                // Not `abs`: pgbench's comparison leaves -0 and NaN unchanged.
                Value::Double(if double < 0.0 { -double } else { double })
            }),
        },
        Function::Int => arguments[0].to_int().map(Value::Int),
        Function::Double => arguments[0].to_double().map(Value::Double),
        Function::Sqrt => arguments[0]
            .to_double()
            .map(|double| Value::Double(double.sqrt())),
        Function::Ln => arguments[0]
            .to_double()
            .map(|double| Value::Double(double.ln())),
        Function::Exp => arguments[0]
            .to_double()
            .map(|double| Value::Double(double.exp())),
        Function::Pi => Ok(Value::Double(std::f64::consts::PI)),
        Function::Power => {
            let (base, exponent) = (arguments[0].to_double()?, arguments[1].to_double()?);
            Ok(Value::Double(base.powf(exponent)))
        }
        Function::Least | Function::Greatest => extremum(function, arguments),
        Function::HashFnv1a => {
            let (value, seed) = (arguments[0].to_int()?, arguments[1].to_int()?);
            Ok(Value::Int(distribution::hash_fnv1a(value, seed)))
        }
        Function::HashMurmur2 => {
            let (value, seed) = (arguments[0].to_int()?, arguments[1].to_int()?);
            Ok(Value::Int(distribution::hash_murmur2(value, seed)))
        }
        Function::Permute => permute(arguments),
        Function::Debug
        | Function::Random
        | Function::RandomExponential
        | Function::RandomGaussian
        | Function::RandomZipfian => unreachable!("{function:?} is not pure"),
    }
}

fn call(
    function: Function,
    arguments: &[Value],
    environment: &mut Environment,
) -> Result<Value, EvalError> {
    if function.is_pure() {
        return call_pure(function, arguments);
    }
    if function == Function::Debug {
        (environment.debug)(arguments[0]);
        return Ok(arguments[0]);
    }
    if arguments.contains(&Value::Null) {
        return Ok(Value::Null);
    }
    let (min, max) = (arguments[0].to_int()?, arguments[1].to_int()?);
    check_range(min, max)?;
    let rng = &mut *environment.rng;
    if function == Function::Random {
        return Ok(Value::Int(rng.uniform(min, max)));
    }
    let value = arguments[2].to_double()?;
    // Written so that NaN passes where it does in pgbench, except for the Gaussian, where pgbench
    // would loop forever.
    let drawn = match function {
        Function::RandomGaussian if value < GAUSSIAN_PARAMETER_MIN || value.is_nan() => {
            return Err(EvalError::GaussianParameter { value });
        }
        Function::RandomGaussian => rng.gaussian(min, max, value),
        Function::RandomZipfian
            if !(ZIPFIAN_PARAMETER_MIN..=ZIPFIAN_PARAMETER_MAX).contains(&value) =>
        {
            return Err(EvalError::ZipfianParameter { value });
        }
        Function::RandomZipfian => rng.zipfian(min, max, value),
        _ if value <= 0.0 => return Err(EvalError::ExponentialParameter { value }),
        _ => rng.exponential(min, max, value),
    };
    Ok(Value::Int(drawn))
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

fn arithmetic(function: Function, left: Value, right: Value) -> Result<Value, EvalError> {
    if let (Value::Int(left), Value::Int(right)) = (left, right) {
        return int_arithmetic(function, left, right);
    }
    if !matches!((left, right), (Value::Double(_), _) | (_, Value::Double(_))) {
        // At least one is a boolean: pgbench then requires integers and reports an error.
        return int_arithmetic(function, left.to_int()?, right.to_int()?);
    }
    let (left, right) = (left.to_double()?, right.to_double()?);
    Ok(match function {
        Function::Add => Value::Double(left + right),
        Function::Sub => Value::Double(left - right),
        Function::Mul => Value::Double(left * right),
        Function::Div => Value::Double(left / right),
        Function::LessOrEqual => Value::Bool(left <= right),
        Function::Less => Value::Bool(left < right),
        // The script asks for an exact comparison of doubles.
        #[allow(clippy::float_cmp)]
        Function::Equal => Value::Bool(left == right),
        #[allow(clippy::float_cmp)]
        Function::NotEqual => Value::Bool(left != right),
        _ => unreachable!("{function:?} is not overloaded"),
    })
}

#[inline]
fn int_arithmetic(function: Function, left: i64, right: i64) -> Result<Value, EvalError> {
    let (operation, result) = match function {
        Function::Add => ("add", left.checked_add(right)),
        Function::Sub => ("sub", left.checked_sub(right)),
        Function::Mul => ("mul", left.checked_mul(right)),
        Function::Div if right == 0 => return Err(EvalError::DivisionByZero),
        Function::Div => ("div", left.checked_div(right)),
        Function::Equal => return Ok(Value::Bool(left == right)),
        Function::NotEqual => return Ok(Value::Bool(left != right)),
        Function::LessOrEqual => return Ok(Value::Bool(left <= right)),
        Function::Less => return Ok(Value::Bool(left < right)),
        _ => unreachable!("{function:?} is not overloaded"),
    };
    result
        .map(Value::Int)
        .ok_or(EvalError::IntegerOverflow { operation })
}

fn remainder(left: i64, right: i64) -> Result<Value, EvalError> {
    if right == 0 {
        return Err(EvalError::DivisionByZero);
    }
    // The remainder of -2^63 and -1 is 0, like that of any other number and -1.
    Ok(Value::Int(left.wrapping_rem(right)))
}

fn bitwise(function: Function, left: i64, right: i64) -> Value {
    Value::Int(match function {
        Function::BitAnd => left & right,
        Function::BitOr => left | right,
        Function::BitXor => left ^ right,
        // C leaves shifts by 64 or more, or by less than 0, undefined; x86 uses the low 6 bits.
        Function::ShiftLeft => left.wrapping_shl(right as u32),
        _ => left.wrapping_shr(right as u32),
    })
}

fn extremum(function: Function, arguments: &[Value]) -> Result<Value, EvalError> {
    let is_least = function == Function::Least;
    if arguments
        .iter()
        .any(|value| matches!(value, Value::Double(_)))
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
        return Ok(Value::Double(extremum));
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
    Ok(Value::Int(extremum))
}

fn permute(arguments: &[Value]) -> Result<Value, EvalError> {
    let (value, size) = (arguments[0].to_int()?, arguments[1].to_int()?);
    let seed = arguments[2].to_int()?;
    if size <= 0 {
        return Err(EvalError::PermuteSize);
    }
    Ok(Value::Int(distribution::permute(value, size, seed)))
}

const _: () = assert!(
    ARGUMENTS_MAX <= STACK,
    "a call with all its arguments must not allocate"
);
