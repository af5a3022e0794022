//! Names of runs: `20261121-234351-prepared-vs-simple`, in UTC, with `-2` appended if one is taken.

use jiff::Timestamp;

use crate::error::StoreError;
use crate::{Store, names};

/// Longer names of studies are cut: an id is typed and printed in tables.
const STUDY_LENGTH_MAX: usize = 60;

impl Store {
    /// Reserves a name for a run of `study` that started `started_us` microseconds after 1970. No other
    /// process gets the same name, even before the run is saved.
    pub fn new_id(&self, started_us: i64, study: &str) -> Result<String, StoreError> {
        let base = base(started_us, study);
        names::reserve(&self.root, &base)
    }
}

pub(crate) fn base(started_us: i64, study: &str) -> String {
    let time = Timestamp::from_microsecond(started_us).unwrap_or(Timestamp::UNIX_EPOCH);
    let words: Vec<&str> = study
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let mut name = words.join("-");
    name.truncate(STUDY_LENGTH_MAX);
    if name.is_empty() {
        "study".clone_into(&mut name);
    }
    format!("{}-{name}", time.strftime("%Y%m%d-%H%M%S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_time_in_utc_and_the_study() {
        let id = base(1_795_304_631_000_000, "prepared-vs-simple");
        assert_eq!(id, "20261121-234351-prepared-vs-simple");
    }

    #[test]
    fn a_study_may_be_called_anything() {
        assert_eq!(base(0, "../a b/ü"), "19700101-000000-a-b");
        assert_eq!(base(0, "研究"), "19700101-000000-study");
        assert_eq!(base(i64::MAX, "x"), "19700101-000000-x");
    }
}
