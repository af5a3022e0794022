//! `\gset` and `\aset`: store result columns in variables.
//!
//! Source: `readCommandResponse` in pgbench.c. `\gset` requires exactly one row from the last
//! query; `\aset` stores the last row of every query that returns rows. Only the names of columns
//! that are stored have to be valid. A null becomes an empty string.

use pgassay_script::{Capture, InvalidName, SlotId, VariableNames, Variables};
use pgassay_wire::{DataRow, RowDescription};

use crate::error::AbortCause;

/// The rows of the statement in progress.
#[derive(Default)]
pub(crate) struct Captured {
    /// The variable for each column of the current query; `None` if the column is discarded.
    slots: Vec<Option<SlotId>>,
    /// The first column's name that is not valid; the columns from there on have no slot.
    invalid: Option<InvalidName>,
    /// The values of the last row, concatenated, and where each ends.
    values: Vec<u8>,
    ends: Vec<usize>,
    rows: u64,
    /// Whether the current command returns rows, unlike, say, `CREATE TABLE`.
    is_query: bool,
}

impl Captured {
    /// Resets the state at the start of a statement.
    pub fn begin(&mut self) {
        self.is_query = false;
        self.rows = 0;
        self.ends.clear();
    }

    /// Receives the columns of a query.
    pub fn describe(
        &mut self,
        capture: &Capture,
        names: &VariableNames,
        columns: &RowDescription<'_>,
    ) -> Result<(), AbortCause> {
        self.begin();
        self.is_query = true;
        self.slots.clear();
        self.invalid = None;
        let (context, prefix) = match capture {
            Capture::None => return Ok(()),
            Capture::Gset { prefix } => ("gset", prefix),
            Capture::Aset { prefix } => ("aset", prefix),
        };
        for column in columns.names()? {
            match names.capture_slot(context, prefix, column.as_bytes()) {
                Ok(slot) => self.slots.push(slot),
                Err(invalid) => {
                    self.invalid = Some(invalid);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Receives a row, which replaces the previous one.
    pub fn row(&mut self, row: &DataRow<'_>) -> Result<(), AbortCause> {
        self.rows += 1;
        self.values.clear();
        self.ends.clear();
        for value in row.values() {
            self.values.extend_from_slice(value?.unwrap_or_default());
            self.ends.push(self.values.len());
        }
        Ok(())
    }

    /// Handles the end of a query or command. `\aset` stores the row now. For `\gset` only the last
    /// query counts, and which one that is becomes known at the end.
    pub fn complete(
        &mut self,
        capture: &Capture,
        variables: &mut Variables,
    ) -> Result<(), AbortCause> {
        if !self.is_query {
            self.begin();
        }
        self.is_query = false;
        if matches!(capture, Capture::Aset { .. }) && self.rows > 0 {
            self.store(variables)?;
            self.begin();
        }
        Ok(())
    }

    /// Handles the end of the statement.
    pub fn end(&mut self, capture: &Capture, variables: &mut Variables) -> Result<(), AbortCause> {
        if matches!(capture, Capture::Gset { .. }) {
            if self.rows != 1 {
                return Err(AbortCause::Rows { rows: self.rows });
            }
            self.store(variables)?;
        }
        Ok(())
    }

    fn store(&self, variables: &mut Variables) -> Result<(), AbortCause> {
        if let Some(invalid) = self.invalid.clone() {
            return Err(AbortCause::Capture { invalid });
        }
        let mut start = 0;
        for (slot, &end) in self.slots.iter().zip(&self.ends) {
            if let Some(slot) = slot {
                variables.set_text(*slot, &self.values[start..end]);
            }
            start = end;
        }
        Ok(())
    }
}
