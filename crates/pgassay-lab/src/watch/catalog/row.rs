//! A row of a catalog query.

use pgassay_record::activity::{ActivityWait, RelationName};

/// The values of a row, as text or null.
pub(super) struct CatalogRow(Vec<Option<String>>);

impl CatalogRow {
    pub fn new(values: Vec<Option<String>>) -> Self {
        Self(values)
    }

    /// A value; `None` if it is null.
    pub fn get(&self, at: usize) -> Option<&str> {
        self.0.get(at)?.as_deref()
    }

    /// A text; empty if it is null.
    pub fn text(&self, at: usize) -> String {
        self.get(at).unwrap_or_default().to_owned()
    }

    /// A whole number; 0 if it is null.
    pub fn number(&self, at: usize) -> i64 {
        self.get(at).and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// A whole number that cannot be negative; 0 if it is null.
    pub fn count(&self, at: usize) -> u64 {
        self.number(at).max(0) as u64
    }

    /// A number with a fraction; `None` if it is null.
    pub fn real(&self, at: usize) -> Option<f64> {
        self.get(at)?.parse().ok()
    }

    /// A duration that clocks may have made negative; `None` if it is null.
    pub fn duration(&self, at: usize) -> Option<f64> {
        self.real(at).map(|it| it.max(0.0))
    }

    pub fn is_true(&self, at: usize) -> bool {
        self.get(at) == Some("t")
    }

    /// A relation from its OID and the next two columns: schema and name.
    pub fn relation(&self, at: usize, database: &str) -> RelationName {
        RelationName {
            oid: self.number(at) as u32,
            database: database.to_owned(),
            schema: self.text(at + 1),
            name: self.text(at + 2),
        }
    }

    /// A wait from its type and, in the next column, its name; `None` if either is null.
    pub fn wait(&self, at: usize) -> Option<ActivityWait> {
        let (kind, name) = self.get(at).zip(self.get(at + 1))?;
        Some(ActivityWait {
            kind: kind.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The elements of a JSON array of texts.
    pub fn texts(&self, at: usize) -> Vec<String> {
        let json = self.get(at).unwrap_or("[]");
        serde_json::from_str(json).unwrap_or_default()
    }
}
