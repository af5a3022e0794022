//! `\gset` and `\aset`: rows into variables.
//!
//! Source: `readCommandResponse` in pgbench.c: `\gset` wants exactly one row of the last query,
//! `\aset` takes the last row of every query that has one. A null becomes an empty text.

use pgassay_script::{Capture, Names, SlotId, Variables};
use pgassay_wire::{Row, RowDescription};

use crate::error::AbortCause;

/// The rows of the statement that is being answered.
#[derive(Default)]
pub(crate) struct Captured {
    /// Where each column of the current query goes; `None` where nobody reads it.
    slots: Vec<Option<SlotId>>,
    /// The last row, one text after the other, and where each ends.
    values: Vec<u8>,
    ends: Vec<usize>,
    rows: u64,
    /// Whether the current query has rows at all, and no command such as `CREATE TABLE`.
    is_query: bool,
}

impl Captured {
    /// A statement begins.
    pub fn begin(&mut self) {
        self.is_query = false;
        self.rows = 0;
        self.ends.clear();
    }

    /// The columns of a query's rows.
    pub fn describe(
        &mut self,
        capture: &Capture,
        names: &Names,
        columns: &RowDescription<'_>,
    ) -> Result<(), AbortCause> {
        self.begin();
        self.is_query = true;
        self.slots.clear();
        let (context, prefix) = match capture {
            Capture::None => return Ok(()),
            Capture::Gset { prefix } => ("gset", prefix),
            Capture::Aset { prefix } => ("aset", prefix),
        };
        for column in columns.names()? {
            let slot = names
                .capture_slot(context, prefix, column.as_bytes())
                .map_err(|invalid| AbortCause::Capture { invalid })?;
            self.slots.push(slot);
        }
        Ok(())
    }

    /// A row: it replaces the one before.
    pub fn row(&mut self, row: &Row<'_>) -> Result<(), AbortCause> {
        self.rows += 1;
        self.values.clear();
        self.ends.clear();
        for value in row.values() {
            self.values.extend_from_slice(value?.unwrap_or_default());
            self.ends.push(self.values.len());
        }
        Ok(())
    }

    /// A query or command is complete. `\aset` stores now; of `\gset` only the last one counts,
    /// which is known at the end.
    pub fn complete(&mut self, capture: &Capture, variables: &mut Variables) {
        if !self.is_query {
            self.begin();
        }
        self.is_query = false;
        if matches!(capture, Capture::Aset { .. }) && self.rows > 0 {
            self.store(variables);
            self.begin();
        }
    }

    /// The statement is answered.
    pub fn end(&mut self, capture: &Capture, variables: &mut Variables) -> Result<(), AbortCause> {
        if matches!(capture, Capture::Gset { .. }) {
            if self.rows != 1 {
                return Err(AbortCause::Rows { rows: self.rows });
            }
            self.store(variables);
        }
        Ok(())
    }

    fn store(&self, variables: &mut Variables) {
        let mut start = 0;
        for (slot, &end) in self.slots.iter().zip(&self.ends) {
            if let Some(slot) = slot {
                variables.set_text(*slot, &self.values[start..end]);
            }
            start = end;
        }
    }
}
