//! Whether a step kept its rows in memory.

use crate::plan::{MemoryUse, QueryPlan};

/// Memory and disk of a step, over all its processes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpillState {
    /// `quicksort`, `external merge`.
    sort_methods: Vec<String>,
    /// The largest of any process.
    memory_kb: f64,
    /// The sum of all processes.
    disk_kb: f64,
    batches: Option<f64>,
    exact_blocks: f64,
    lossy_blocks: f64,
    /// Storage of rows that are read again, since 18.
    storage: Option<bool>,
}

/// The state of the nodes of a step. `None` if they neither sort nor hash nor store rows, or did not run.
pub(crate) fn spill_state(plan: &QueryPlan, members: &[usize]) -> Option<SpillState> {
    let mut state = SpillState::default();
    let mut is_known = false;
    for node in members.iter().map(|&at| &plan.nodes[at]) {
        let of_workers = node.workers.iter().map(|it| &it.memory);
        for memory in [&node.memory].into_iter().chain(of_workers) {
            is_known |= add(memory, &mut state);
        }
    }
    is_known.then_some(state)
}

fn add(memory: &MemoryUse, state: &mut SpillState) -> bool {
    let before = state.clone();
    let is_on_disk = |kind: &Option<String>| kind.as_deref() == Some("Disk");
    let mut method = |it: &String| {
        if !state.sort_methods.contains(it) && it != "still in progress" {
            state.sort_methods.push(it.clone());
            state.sort_methods.sort();
        }
    };
    memory.sort_method.iter().for_each(&mut method);
    let groups = &memory.sort_groups;
    groups
        .iter()
        .flat_map(|it| &it.methods)
        .for_each(&mut method);
    let space_kb = memory.sort_space_kb.unwrap_or(0.0);
    let (mut memory_kb, mut disk_kb) = if is_on_disk(&memory.sort_space_type) {
        (0.0, space_kb)
    } else {
        (space_kb, 0.0)
    };
    for group in groups {
        memory_kb = memory_kb.max(group.memory_kb.unwrap_or(0.0));
        disk_kb += group.disk_kb.unwrap_or(0.0);
    }
    memory_kb = memory_kb.max(memory.peak_kb.unwrap_or(0.0));
    disk_kb += memory.disk_kb.unwrap_or(0.0);
    if memory.storage.is_some() {
        let is_stored = is_on_disk(&memory.storage);
        let kb = memory.storage_kb.unwrap_or(0.0);
        state.storage = Some(is_stored || state.storage == Some(true));
        if is_stored {
            disk_kb += kb;
        } else {
            memory_kb = memory_kb.max(kb);
        }
    }
    state.memory_kb = state.memory_kb.max(memory_kb);
    state.disk_kb += disk_kb;
    let batches = memory.hash_batches.or(memory.aggregate_batches);
    if let Some(batches) = batches.filter(|it| *it > 0.0) {
        let known = state.batches.unwrap_or(0.0);
        // Each process has a number, and 1 says that everything fitted into memory.
        state.batches = Some(known.max(batches));
    }
    state.exact_blocks += memory.exact_blocks.unwrap_or(0.0);
    state.lossy_blocks += memory.lossy_blocks.unwrap_or(0.0);
    *state != before || memory.exact_blocks.is_some()
}

impl SpillState {
    /// Whether some of the rows did not fit into memory.
    pub(crate) fn is_spilled(&self) -> bool {
        self.disk_kb > 0.0 || self.batches.is_some_and(|it| it > 1.0) || self.is_lossy()
    }

    /// Whether a bitmap lacked memory: some of its pages stay exact (`tbm_lossify`, `tidbitmap.c`). One of a BRIN index
    /// has no exact pages.
    fn is_lossy(&self) -> bool {
        self.lossy_blocks > 0.0 && self.exact_blocks > 0.0
    }

    /// Whether two states differ in what a version-independent reader would call the method. What only
    /// one of the versions prints is not compared.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        let is_stored = self.storage.is_some() || other.storage.is_some();
        if is_stored && self.storage.is_some() != other.storage.is_some() {
            return false;
        }
        let both = self.batches.is_some() && other.batches.is_some();
        self.is_spilled() != other.is_spilled()
            || self.sort_methods != other.sort_methods
            || (both && self.is_spilled() && self.batches_differ(other))
    }

    fn batches_differ(&self, other: &Self) -> bool {
        let [a, b] = [self.batches, other.batches].map(|it| it.unwrap_or(0.0));
        (a - b).abs() >= 1.0
    }
}

impl std::fmt::Display for SpillState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if !self.sort_methods.is_empty() {
            parts.push(self.sort_methods.join(" and "));
        }
        match self.batches {
            Some(batches) if batches < 1.5 => parts.push("1 batch".to_owned()),
            Some(batches) => parts.push(format!("{batches:.0} batches")),
            None => {}
        }
        if self.memory_kb > 0.0 {
            parts.push(format!("{} memory", kilobytes(self.memory_kb)));
        }
        if self.disk_kb > 0.0 {
            parts.push(format!("{} disk", kilobytes(self.disk_kb)));
        }
        if self.lossy_blocks > 0.0 {
            parts.push(format!("{:.0} lossy heap blocks", self.lossy_blocks));
        } else if parts.is_empty() {
            parts.push("exact heap blocks".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

/// `25kB`, `7.1MB`, as PostgreSQL writes memory.
pub(crate) fn kilobytes(kb: f64) -> String {
    if kb < 1024.0 {
        format!("{kb:.0}kB")
    } else if kb < 1024.0 * 1024.0 {
        format!("{:.1}MB", kb / 1024.0)
    } else {
        format!("{:.1}GB", kb / 1024.0 / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(json: &str) -> SpillState {
        let plan = QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap();
        spill_state(&plan, &[0]).unwrap()
    }

    #[test]
    fn a_worker_that_spills_is_seen() {
        let sort = state(
            r#"{"Node Type": "Sort", "Sort Method": "quicksort", "Sort Space Used": 25,
                "Sort Space Type": "Memory", "Workers": [{"Worker Number": 0,
                "Sort Method": "external merge", "Sort Space Used": 2048, "Sort Space Type": "Disk"}]}"#,
        );
        assert!(sort.is_spilled());
        let text = "external merge and quicksort, 25kB memory, 2.0MB disk";
        assert_eq!(sort.to_string(), text);
    }

    #[test]
    fn batches_and_lossy_blocks_are_spills() {
        let one = state(r#"{"Node Type": "Hash", "Hash Batches": 1, "Peak Memory Usage": 649}"#);
        let many = state(
            r#"{"Node Type": "Hash", "Hash Batches": 16, "Peak Memory Usage": 64,
                "Workers": [{"Worker Number": 0, "Hash Batches": 16}]}"#,
        );
        assert!(!one.is_spilled() && many.is_spilled() && one.differs_from(&many));
        assert_eq!(one.to_string(), "1 batch, 649kB memory");
        assert_eq!(many.to_string(), "16 batches, 64kB memory");
        // Regression: a parallel aggregate in memory had "3 batches", a spill.
        let parallel = state(
            r#"{"Node Type": "Aggregate", "HashAgg Batches": 1, "Peak Memory Usage": 24, "Workers": [
                {"Worker Number": 0, "HashAgg Batches": 1, "Peak Memory Usage": 32},
                {"Worker Number": 1, "HashAgg Batches": 1, "Peak Memory Usage": 32}]}"#,
        );
        assert!(!parallel.is_spilled());
        assert_eq!(parallel.to_string(), "1 batch, 32kB memory");
        let exact = state(
            r#"{"Node Type": "Bitmap Heap Scan", "Exact Heap Blocks": 5, "Lossy Heap Blocks": 0}"#,
        );
        let lossy = state(
            r#"{"Node Type": "Bitmap Heap Scan", "Exact Heap Blocks": 5, "Lossy Heap Blocks": 7}"#,
        );
        assert!(exact.differs_from(&lossy));
        assert_eq!(lossy.to_string(), "7 lossy heap blocks");
        assert_eq!(exact.to_string(), "exact heap blocks");
        // Regression: "Memory of Bitmap Heap Scan: none → 58 lossy heap blocks" of a BRIN index, whatever the memory.
        let brin = state(
            r#"{"Node Type": "Bitmap Heap Scan", "Exact Heap Blocks": 0, "Lossy Heap Blocks": 58}"#,
        );
        assert!(!brin.is_spilled() && !brin.differs_from(&exact));
        assert_eq!(brin.to_string(), "58 lossy heap blocks");
        let aggregate = state(
            r#"{"Node Type": "Aggregate", "HashAgg Batches": 5, "Disk Usage": 900, "Peak Memory Usage": 70}"#,
        );
        assert_eq!(aggregate.to_string(), "5 batches, 70kB memory, 900kB disk");
    }

    #[test]
    fn storage_is_compared_only_if_both_versions_print_it() {
        let disk =
            state(r#"{"Node Type": "WindowAgg", "Storage": "Disk", "Maximum Storage": 900}"#);
        let memory =
            state(r#"{"Node Type": "WindowAgg", "Storage": "Memory", "Maximum Storage": 17}"#);
        assert!(disk.differs_from(&memory));
        assert!(!disk.differs_from(&SpillState::default()));
        let plan = QueryPlan::parse(r#"[{"Plan": {"Node Type": "WindowAgg"}}]"#).unwrap();
        assert_eq!(spill_state(&plan, &[0]), None);
    }
}
