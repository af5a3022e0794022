//! Lists the runs of a store.

use crate::directories::directories;
use crate::error::StoreError;
use crate::index::{self, Filter, RunLine};
use crate::{Store, repair, unfinished};

impl Store {
    /// Every run, newest first, unfinished ones included.
    pub fn list(&self) -> Result<Vec<RunLine>, StoreError> {
        self.list_where(&Filter::default())
    }

    /// The runs that match a filter, newest first.
    pub fn list_where(&self, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
        let mut lines = repair::list(&self.root, filter)?;
        for line in lines.iter_mut().filter(|line| !line.complete) {
            line.resumable = unfinished::is_resumable(&self.root, &line.id);
        }
        lines.extend(index::unfinished(&self.root, filter)?);
        lines.sort_by(|a, b| (b.started_us, &b.id).cmp(&(a.started_us, &a.id)));
        if let Some(limit) = filter.limit {
            lines.truncate(limit as usize);
        }
        Ok(lines)
    }

    /// Rebuilds the index from the directories.
    pub fn rebuild_index(&self) -> Result<(), StoreError> {
        repair::rebuild(&self.root)
    }

    /// Names of the runs' directories, oldest first: an id starts with its time.
    pub(crate) fn ids(&self) -> Result<Vec<String>, StoreError> {
        directories(&self.root)
    }
}
