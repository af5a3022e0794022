//! SQL text with variables in it.
//!
//! pgbench substitutes `:name` in the whole text of a statement, including quotes and comments. A
//! sequence of colons (`::int`) is skipped, and `:name` directly after a name (`:a:b`) counts.
//! Substituted text is not scanned again. In simple mode text is substituted when the statement is
//! sent; in the other modes `$n` replaces each occurrence. See `parseVariable`, `assignVariables`
//! and `parseQuery` in pgbench.c, the same in 15 to 18.

use crate::names::{SlotId, VariableNames, is_name_continuation, is_name_start};
use crate::sql_scanner::{SqlLexeme, lexemes};
use crate::variables::Variables;

/// A `:name` in the text at bytes `start..end`, including the colon.
#[derive(Clone, Copy, Debug)]
struct VariableReference {
    start: u32,
    end: u32,
}

/// A statement's text and the positions of its variables.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    source: Box<[u8]>,
    references: Box<[VariableReference]>,
    /// The variables of `references`, in the same order.
    parameters: Box<[SlotId]>,
    statement: Box<[u8]>,
}

impl Template {
    /// Finds the variables of `source` and interns them.
    pub fn new(source: &[u8], names: &mut VariableNames) -> Template {
        let (mut references, mut parameters) = (Vec::new(), Vec::new());
        let mut position = 0;
        while position < source.len() {
            if source[position] != b':' {
                position += 1;
                continue;
            }
            let start = position;
            position += 1;
            if source
                .get(position)
                .is_some_and(|&byte| is_name_start(byte))
            {
                while source
                    .get(position)
                    .is_some_and(|&byte| is_name_continuation(byte))
                {
                    position += 1;
                }
                references.push(VariableReference {
                    start: start as u32,
                    end: position as u32,
                });
                parameters.push(names.intern(&source[start + 1..position]));
            } else {
                while source.get(position) == Some(&b':') {
                    position += 1;
                }
            }
        }
        let mut template = Template {
            source: source.into(),
            references: references.into_boxed_slice(),
            parameters: parameters.into_boxed_slice(),
            statement: Box::default(),
        };
        template.statement = template.numbered().into_boxed_slice();
        template
    }

    pub fn source(&self) -> &[u8] {
        &self.source
    }

    pub fn statement(&self) -> &[u8] {
        &self.statement
    }

    pub fn parameters(&self) -> &[SlotId] {
        &self.parameters
    }

    pub fn render(&self, variables: &Variables, out: &mut Vec<u8>) {
        let mut copied = 0;
        for (reference, &slot) in self.references.iter().zip(&self.parameters) {
            let (start, end) = (reference.start as usize, reference.end as usize);
            out.extend_from_slice(&self.source[copied..start]);
            // An undefined variable's name stays, and is copied with the text after it.
            copied = if variables.write_text(slot, out) {
                end
            } else {
                start
            };
        }
        out.extend_from_slice(&self.source[copied..]);
    }

    /// The variables outside of quotes, comments and brackets, each with the number of lines before it.
    pub fn reads(&self) -> Vec<(u32, SlotId)> {
        let Ok(source) = std::str::from_utf8(&self.source) else {
            return Vec::new();
        };
        let references = || self.references.iter().zip(&self.parameters);
        let (mut found, mut position, mut brackets) = (Vec::new(), 0, 0_u32);
        for (lexeme, text) in lexemes(source) {
            match text {
                "[" => brackets += 1,
                "]" => brackets = brackets.saturating_sub(1),
                _ if lexeme == SqlLexeme::Word && brackets == 0 => {
                    let is_here = |start: u32| start as usize + 1 == position;
                    let here = references().find(|(reference, _)| is_here(reference.start));
                    let lines = source[..position].matches('\n').count() as u32;
                    found.extend(here.map(|(_, &slot)| (lines, slot)));
                }
                _ => {}
            }
            position += text.len();
        }
        found
    }

    fn numbered(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.source.len());
        let mut copied = 0;
        for (number, reference) in self.references.iter().enumerate() {
            text.extend_from_slice(&self.source[copied..reference.start as usize]);
            text.extend_from_slice(format!("${}", number + 1).as_bytes());
            copied = reference.end as usize;
        }
        text.extend_from_slice(&self.source[copied..]);
        text
    }
}
