//! A row of a catalog query.

use pgassay_record::activity::{ActivityWait, RelationName};

/// More than any server counts; sums of some of this many stay far from the limit of 64 bits.
const COUNT_MAX: i64 = 1 << 53;

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

    /// A whole number that is neither negative nor above [`COUNT_MAX`]; 0 if it is null.
    pub fn count(&self, at: usize) -> u64 {
        self.number(at).clamp(0, COUNT_MAX) as u64
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: sums of a server's counts of written rows overflowed.
    #[test]
    fn counts_beyond_any_server_can_be_added() {
        let row = CatalogRow::new(vec![Some(i64::MAX.to_string()), Some(i64::MIN.to_string())]);
        let sum = (0..100).try_fold(0_u64, |sum, _| sum.checked_add(row.count(0)));
        assert!(sum.is_some());
        assert_eq!(row.count(1), 0);
        assert_eq!(row.number(0), i64::MAX, "an identifier may be any number");
    }
}
