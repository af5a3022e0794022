//! Values of expressions, their coercions and their text.
//!
//! pgbench has four types. Other variables hold text that gets a type when an expression first
//! reads it (`variables`). Source: `coerceTo*`, `valueTruth` and `getVariable` in pgbench.c, the
//! same in 15 to 18.

use crate::error::EvalError;
use crate::number;

/// The value of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScriptValue {
    /// SQL NULL.
    Null,
    /// A truth value.
    Bool(bool),
    /// A 64-bit integer; overflow is an error.
    Int(i64),
    /// A double; arithmetic follows IEEE 754, so infinities and NaN are possible.
    Double(f64),
}

impl ScriptValue {
    /// Returns this type's name in pgbench's messages.
    pub fn type_name(self) -> &'static str {
        match self {
            ScriptValue::Null => "null",
            ScriptValue::Bool(_) => "boolean",
            ScriptValue::Int(_) => "int",
            ScriptValue::Double(_) => "double",
        }
    }

    /// Whether `\if` and `CASE WHEN` treat this as true: a nonzero number, or `true`.
    pub fn is_true(self) -> bool {
        match self {
            ScriptValue::Null => false,
            ScriptValue::Bool(truth) => truth,
            ScriptValue::Int(int) => int != 0,
            ScriptValue::Double(double) => double != 0.0,
        }
    }

    /// Returns the value of a boolean; numbers are not coerced.
    pub fn to_bool(self) -> Result<bool, EvalError> {
        match self {
            ScriptValue::Bool(truth) => Ok(truth),
            _ => Err(self.cannot_coerce("boolean")),
        }
    }

    /// Returns the integer, or the double rounded to the nearest integer, ties to even.
    #[inline]
    pub fn to_int(self) -> Result<i64, EvalError> {
        match self {
            ScriptValue::Int(int) => Ok(int),
            ScriptValue::Double(double) => double_to_int(double),
            _ => Err(self.cannot_coerce("int")),
        }
    }

    /// Returns the number as a double.
    #[inline]
    pub fn to_double(self) -> Result<f64, EvalError> {
        match self {
            ScriptValue::Int(int) => Ok(int as f64),
            ScriptValue::Double(double) => Ok(double),
            _ => Err(self.cannot_coerce("double")),
        }
    }

    /// Appends this value's text in SQL, as in pgbench, without allocating.
    pub fn write_text(self, out: &mut Vec<u8>) {
        match self {
            ScriptValue::Null => out.extend_from_slice(b"NULL"),
            ScriptValue::Bool(truth) => {
                out.extend_from_slice(if truth { b"true" } else { b"false" });
            }
            ScriptValue::Int(int) => {
                out.extend_from_slice(itoa::Buffer::new().format(int).as_bytes());
            }
            ScriptValue::Double(double) => number::write_double(double, out),
        }
    }

    /// Returns what `debug()` prints after its `debug(script=S,command=N): `, without a newline.
    pub fn debug_text(self) -> String {
        let mut text = self.type_name().as_bytes().to_vec();
        if self != ScriptValue::Null {
            text.push(b' ');
            self.write_text(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn cannot_coerce(self, to: &'static str) -> EvalError {
        EvalError::CannotCoerce {
            from: self.type_name(),
            to,
        }
    }
}

fn double_to_int(double: f64) -> Result<i64, EvalError> {
    // 2^63 is the first double that does not fit; NaN fails both comparisons.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let rounded = double.round_ties_even();
    if (-LIMIT..LIMIT).contains(&rounded) {
        Ok(rounded as i64)
    } else {
        Err(EvalError::DoubleToInt { value: rounded })
    }
}

/// Returns the line, without a newline, that `debug(value)` prints in command `command` (from 1) of
/// script `script` (from 0).
pub fn debug_line(script: usize, command: usize, value: ScriptValue) -> String {
    format!(
        "debug(script={script},command={command}): {}",
        value.debug_text()
    )
}
