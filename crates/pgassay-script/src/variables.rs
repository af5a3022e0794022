//! The variables of one client.
//!
//! A variable holds a typed value, or text from `-D`, `\gset` or `\aset` that gets a type when an
//! expression first reads it. Text keeps its form: `010` from a query stays `010` in SQL although
//! an expression sees 10. An undefined variable is not NULL: in SQL text `:name` stays unchanged, a
//! bound parameter is NULL, and an expression reports an error. Source: `Variable`,
//! `makeVariableValue`, `putVariable` and `getVariable` in pgbench.c.

use std::sync::Arc;

use crate::error::EvalError;
use crate::names::{InvalidName, SlotId, VariableNames};
use crate::number;
use crate::value::ScriptValue;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Undefined,
    /// No expression has read the text in `Slot::text` yet.
    Untyped,
    /// An expression has read the text and typed it; SQL still uses `Slot::text`.
    TypedText(ScriptValue),
    Typed(ScriptValue),
}

#[derive(Clone, Debug)]
struct VariableSlot {
    content: Content,
    text: Vec<u8>,
}

/// The variables of one client, indexed by slot.
#[derive(Clone, Debug)]
pub struct Variables {
    names: Arc<VariableNames>,
    slots: Box<[VariableSlot]>,
}

impl Variables {
    /// Creates all variables of `names`, undefined.
    pub fn new(names: &Arc<VariableNames>) -> Variables {
        let undefined = VariableSlot {
            content: Content::Undefined,
            text: Vec::new(),
        };
        Variables {
            names: Arc::clone(names),
            slots: vec![undefined; names.len()].into_boxed_slice(),
        }
    }

    /// Returns the table that names the slots.
    pub fn names(&self) -> &Arc<VariableNames> {
        &self.names
    }

    /// Returns the variables' address, for prefetching.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.slots.as_ptr().cast()
    }

    /// Sets a typed value.
    #[inline]
    pub fn set(&mut self, slot: SlotId, value: ScriptValue) {
        self.slots[slot.index()].content = Content::Typed(value);
    }

    /// Sets a typed value if the name is valid; `context` is the beginning of the error message.
    pub fn assign(
        &mut self,
        context: &'static str,
        slot: SlotId,
        value: ScriptValue,
    ) -> Result<(), EvalError> {
        if self.names.is_valid(slot) {
            self.set(slot, value);
            Ok(())
        } else {
            Err(InvalidName {
                context,
                name: self.names.display(slot),
            }
            .into())
        }
    }

    /// Sets text that gets a type when an expression reads it. Reuses the slot's buffer.
    pub fn set_text(&mut self, slot: SlotId, text: &[u8]) {
        let slot = &mut self.slots[slot.index()];
        slot.content = Content::Untyped;
        slot.text.clear();
        slot.text.extend_from_slice(text);
    }

    /// Returns the value for an expression; the first read determines a text's type.
    #[inline]
    pub fn value(&mut self, slot: SlotId) -> Result<ScriptValue, EvalError> {
        match self.slots[slot.index()].content {
            Content::Typed(value) | Content::TypedText(value) => Ok(value),
            Content::Undefined => Err(EvalError::UndefinedVariable {
                name: self.names.display(slot),
            }),
            Content::Untyped => self.typed_text(slot),
        }
    }

    /// Appends the variable's text and returns true, or returns false if it is undefined. NULL is
    /// the text `NULL`, as in pgbench even for bound parameters.
    #[inline]
    pub fn write_text(&self, slot: SlotId, out: &mut Vec<u8>) -> bool {
        let slot = &self.slots[slot.index()];
        match slot.content {
            Content::Undefined => return false,
            Content::Typed(value) => value.write_text(out),
            Content::Untyped | Content::TypedText(_) => out.extend_from_slice(&slot.text),
        }
        true
    }

    #[cold]
    fn typed_text(&mut self, slot: SlotId) -> Result<ScriptValue, EvalError> {
        let text = &self.slots[slot.index()].text;
        let value =
            type_text(text).map_err(|problem| problem.into_error(text, &self.names, slot))?;
        self.slots[slot.index()].content = Content::TypedText(value);
        Ok(value)
    }
}

enum TextProblem {
    NotInteger,
    OutOfRange,
    Malformed,
}

impl TextProblem {
    fn into_error(self, text: &[u8], names: &VariableNames, slot: SlotId) -> EvalError {
        let value = String::from_utf8_lossy(text).into_owned();
        match self {
            TextProblem::NotInteger => EvalError::NotInteger { value },
            TextProblem::OutOfRange => EvalError::IntegerOutOfRange { value },
            TextProblem::Malformed => EvalError::MalformedVariable {
                name: names.display(slot),
                value,
            },
        }
    }
}

/// Determines a text's type as pgbench does: `null`; any prefix of `true`, `yes`, `false`, `no`,
/// and `on`, `off`, `of`, in any case; an integer; a double.
fn type_text(text: &[u8]) -> Result<ScriptValue, TextProblem> {
    let is_prefix_of =
        |word: &[u8]| text.len() <= word.len() && word[..text.len()].eq_ignore_ascii_case(text);
    let is = |word: &[u8]| text.eq_ignore_ascii_case(word);
    if text.is_empty() {
        // pgbench aborts the client without a message here.
        Err(TextProblem::Malformed)
    } else if is(b"null") {
        Ok(ScriptValue::Null)
    } else if is_prefix_of(b"true") || is_prefix_of(b"yes") || is(b"on") {
        Ok(ScriptValue::Bool(true))
    } else if is_prefix_of(b"false") || is_prefix_of(b"no") || is(b"off") || is(b"of") {
        Ok(ScriptValue::Bool(false))
    } else if number::looks_like_integer(text) {
        number::parse_integer(text)
            .map(ScriptValue::Int)
            .map_err(|problem| match problem {
                number::Problem::Syntax => TextProblem::NotInteger,
                number::Problem::Range => TextProblem::OutOfRange,
            })
    } else {
        number::parse_double(text)
            .map(ScriptValue::Double)
            .map_err(|_| TextProblem::Malformed)
    }
}
