//! Which relations the sessions wait for: readings of the sessions show only that they wait for a lock, and readings of
//! the locks, once a second, show of which relation.

use std::collections::HashMap;

use super::{LoadAttribution, LoadKey, LoadSums, SessionActivity, Sighting};

/// A difference of sums below this is none, in microseconds.
const ROUNDING_US: f64 = 1e-3;

/// Time and number of readings.
type Spent = (f64, u64);

/// The sessions' waits for locks.
#[derive(Debug, Default)]
pub(super) struct LockWaits {
    /// By PID.
    waits: HashMap<u32, LockWait>,
}

/// A session's wait for one kind of lock, by one execution of a statement.
#[derive(Debug)]
struct LockWait {
    /// Session, start of the execution, and kind of lock.
    of: (u32, i64, u32),
    /// `None` until a reading of the locks shows it.
    relation: Option<u32>,
    /// What is in the sums without a relation.
    unnamed: Vec<(SessionActivity, Spent)>,
}

impl LockWaits {
    /// Gives a sighting the relation that it waits for, if it is known.
    pub fn complete(&mut self, sighting: &mut Sighting) {
        let Some(of) = identity(sighting) else {
            // Its next wait may be for another relation, even in the same execution, such as that of a function.
            self.waits.remove(&sighting.pid);
            return;
        };
        let new = || LockWait {
            of,
            relation: None,
            unnamed: Vec::new(),
        };
        let wait = self.waits.entry(sighting.pid).or_insert_with(new);
        if wait.of != of {
            *wait = new();
        }
        sighting.activity.relation = wait.relation;
    }

    /// Remembers what was added to the sums for a sighting without a relation.
    pub fn note(&mut self, sighting: &Sighting, (time_us, samples): Spent) {
        let Some(of) = identity(sighting).filter(|_| sighting.activity.relation.is_none()) else {
            return;
        };
        let wait = self.waits.get_mut(&sighting.pid);
        let Some(wait) = wait.filter(|it| it.of == of && it.relation.is_none()) else {
            return;
        };
        let same = |it: &&mut (SessionActivity, Spent)| it.0 == sighting.activity;
        match wait.unnamed.iter_mut().find(same) {
            Some((_, sum)) => *sum = (sum.0 + time_us, sum.1 + samples),
            None => wait.unnamed.push((sighting.activity, (time_us, samples))),
        }
    }

    /// A reading of the locks found the relation that a session waits for, in the execution that started then. Returns
    /// what is in the sums without it.
    fn name(&mut self, pid: u32, started_us: Option<i64>, relation: u32) -> Vec<(LoadKey, Spent)> {
        let wait = self.waits.get_mut(&pid);
        let is_its = |it: &&mut LockWait| started_us.is_none_or(|started_us| started_us == it.of.1);
        let Some(wait) = wait.filter(is_its) else {
            return Vec::new();
        };
        wait.relation = Some(relation);
        let unnamed = std::mem::take(&mut wait.unnamed).into_iter();
        let session = wait.of.0;
        let unnamed = unnamed.map(|(activity, spent)| ((session, activity), spent));
        unnamed.collect()
    }

    /// The sums begin anew.
    pub fn forget_sums(&mut self) {
        for wait in self.waits.values_mut() {
            wait.unnamed.clear();
        }
    }

    /// Forgets sessions that have ended, if there are many.
    pub fn prune(&mut self, present: &[Sighting]) {
        if self.waits.len() > 4 * present.len() + 1024 {
            let is_present = |pid: &u32| present.iter().any(|it| it.pid == *pid);
            self.waits.retain(|pid, _| is_present(pid));
        }
    }
}

impl LoadAttribution {
    /// A reading of the locks found the relation whose lock a session waits for, in the execution that started then
    /// (`None` if that is hidden). Its wait so far is for the same, as far as the sums have it.
    pub fn name_lock(&mut self, pid: u32, started_us: Option<i64>, relation: u32) {
        for (key, spent) in self.lock_waits.name(pid, started_us, relation) {
            self.sums.name_relation(key, spent, relation);
        }
        let last = self.previous.iter_mut().flat_map(|(_, last)| last);
        for sighting in last.filter(|it| it.pid == pid) {
            self.lock_waits.complete(sighting);
        }
    }
}

impl LoadSums {
    /// Moves a part of a cell's sums to the cell of a relation.
    fn name_relation(&mut self, key: LoadKey, (time_us, samples): Spent, relation: u32) {
        // Without room, they are elsewhere.
        let Some(sum) = self.cells.get_mut(&key) else {
            return;
        };
        let moved = (time_us.min(sum.0), samples.min(sum.1));
        *sum = (sum.0 - moved.0, sum.1 - moved.1);
        if sum.1 == 0 && sum.0 < ROUNDING_US {
            self.cells.remove(&key);
        }
        let activity = SessionActivity {
            relation: Some(relation),
            ..key.1
        };
        let sum = self.cell((key.0, activity));
        *sum = (sum.0 + moved.0, sum.1 + moved.1);
    }
}

/// What distinguishes the wait of a sighting; `None` if it waits for no lock.
fn identity(sighting: &Sighting) -> Option<(u32, i64, u32)> {
    let lock = sighting.lock?;
    Some((sighting.session, sighting.activity_started_us, lock))
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::SessionStatus;

    use super::*;

    fn waiting(pid: u32, started_us: i64) -> Sighting {
        Sighting {
            session: pid,
            pid,
            is_worker: false,
            activity: SessionActivity {
                statement: Some(7),
                state: SessionStatus::Active,
                wait: 1,
                wait_kind: 1,
                relation: None,
            },
            lock: Some(1),
            activity_started_us: started_us,
            transaction_started_us: 1,
            state_changed_us: started_us,
        }
    }

    fn working(pid: u32, started_us: i64) -> Sighting {
        let mut working = waiting(pid, started_us);
        working.lock = None;
        (working.activity.wait, working.activity.wait_kind) = (0, 0);
        working
    }

    /// Seconds and readings of waits for this relation.
    fn waited(sums: &LoadSums, relation: Option<u32>) -> (f64, u64) {
        let waits = sums
            .cells
            .iter()
            .filter(|((_, activity), _)| (activity.wait, activity.relation) == (1, relation));
        let spent = waits.fold((0.0, 0), |sum, (_, it)| (sum.0 + it.0, sum.1 + it.1));
        ((spent.0 / 1e3).round() / 1e3, spent.1)
    }

    /// Regression: waits for locks had no relation, so the load by relation was empty.
    #[test]
    fn a_wait_has_its_relation_from_its_beginning_once_the_locks_are_read() {
        let mut attribution = LoadAttribution::default();
        attribution.add(0.0, vec![working(1, 5), waiting(2, 5)]);
        attribution.add(1e6, vec![waiting(1, 5), waiting(2, 5)]);
        attribution.add(2e6, vec![waiting(1, 5), waiting(2, 5)]);
        assert_eq!(waited(&attribution.sums, None), (3.5, 5));
        attribution.name_lock(1, Some(5), 4);
        assert_eq!(waited(&attribution.sums, Some(4)), (1.5, 2));
        assert_eq!(waited(&attribution.sums, None), (2.0, 3));
        // It waits on, and then works.
        attribution.add(3e6, vec![waiting(1, 5), waiting(2, 5)]);
        attribution.add(4e6, vec![working(1, 5), waiting(2, 5)]);
        let sums = attribution.take();
        assert_eq!(waited(&sums, Some(4)), (3.0, 3));
        assert_eq!(waited(&sums, None), (4.0, 5));
        let in_cells: f64 = sums.cells.values().map(|it| it.0).sum();
        assert!((in_cells - 8e6).abs() < 1.0, "{in_cells}");
    }

    /// Regression: of a function that updates two tables, all waits were for the first one.
    #[test]
    fn an_execution_that_worked_since_may_wait_for_another_relation() {
        let mut attribution = LoadAttribution::default();
        for (second, sighting) in (0..).zip([waiting(1, 5), waiting(1, 5), working(1, 5)]) {
            attribution.add(f64::from(second) * 1e6, vec![sighting]);
            attribution.name_lock(1, Some(5), 4);
        }
        attribution.add(3e6, vec![waiting(1, 5)]);
        attribution.add(4e6, vec![waiting(1, 5)]);
        attribution.name_lock(1, Some(5), 9);
        assert_eq!(waited(&attribution.sums, None), (0.0, 0));
        assert!(waited(&attribution.sums, Some(9)).1 >= 2);
    }

    #[test]
    fn a_later_execution_and_an_earlier_part_of_the_watch_keep_their_waits() {
        let mut attribution = LoadAttribution::default();
        attribution.add(0.0, vec![waiting(1, 5)]);
        attribution.add(1e6, vec![waiting(1, 5)]);
        let first = attribution.take();
        attribution.add(2e6, vec![waiting(1, 5)]);
        // The locks were read during an execution that is over.
        attribution.name_lock(1, Some(4), 3);
        assert_eq!(waited(&attribution.sums, Some(3)), (0.0, 0));
        // Hidden: the present one.
        attribution.name_lock(1, None, 3);
        attribution.add(3e6, vec![waiting(1, 6)]);
        let second = attribution.take();
        assert_eq!(waited(&first, None), (1.0, 2));
        assert_eq!(waited(&second, Some(3)), (1.5, 1));
        assert_eq!(waited(&second, None), (0.5, 1));
    }
}
