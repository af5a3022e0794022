//! The load of the statements that name a table.

use pgassay_record::activity::{Activity, LoadBy, RelationName};
use pgassay_script::named_relations::{RelationMention, named_relations};
use pgassay_script::statement_tokens::tokens;

/// The load of active sessions whose statements name tables: each table that a statement names has the statement's
/// whole load.
pub(crate) struct NamedTables(Vec<(f64, Vec<RelationMention>)>);

impl NamedTables {
    pub fn of(activity: &Activity) -> Self {
        let rows = activity.load_by(LoadBy::Statement).into_iter();
        let named = rows.filter_map(|row| {
            let statement = activity.statements.get(row.index? as usize)?;
            let tokens = tokens(statement.text.as_ref()?);
            Some((row.load, named_relations(&tokens)))
        });
        Self(named.collect())
    }

    /// The load of the statements that name this table.
    pub fn load(&self, table: &RelationName) -> f64 {
        let is_it = |it: &RelationMention| {
            it.name == table.name && it.schema.as_ref().is_none_or(|it| *it == table.schema)
        };
        let loads = self.0.iter().filter(|(_, tables)| tables.iter().any(is_it));
        loads.map(|(load, _)| load).sum()
    }
}
