//! What a long run keeps in memory, by counting the bytes of every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pgassay_lab::fake::{FakeEquipment, Journal};
use pgassay_lab::{
    FixedBlocks, Interrupt, LabEvent, Laboratory, LoadedStudy, RunContext, ServerOptions,
};
use pgassay_model::plan::{Overrides, plan};
use pgassay_model::study::StudySource;
use pgassay_model::trial::Trial;

/// Counts the bytes that each thread has allocated and not freed, so that tests in other threads do not matter.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends has no counter any more.
    _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

fn held() -> i64 {
    HELD.with(Cell::get)
}

// SAFETY: everything is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed() as i64);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size().cast_signed() as i64));
        // SAFETY: the pointer is from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

const STUDY: &str = r#"
question = "Does a long study grow?"
[[script]]
name = "one"
text = "select 1;"
[[variant]]
name = "simple"
[[variant]]
name = "prepared"
protocol = "prepared"
[conditions]
clients = [2]
[length]
full = "100ms"
pairs = 256
restart_every = 10
"#;

/// As many statistics as a server of version 18 has, with names of that length.
const STATISTICS: usize = 100;

/// The list of trials has room for exactly so many, so that its size is theirs.
const EARLY: usize = 256;
const LATE: usize = 1024;

/// Runs the study. Returns how much memory it holds after `EARLY` and `LATE` trials, and the last trial.
fn measured(study: &LoadedStudy) -> ([i64; 2], Trial) {
    let overrides = Overrides {
        without_profile: true,
        ..Overrides::default()
    };
    let plan = plan(&study.study, &study.source, &overrides).expect("the study can be planned");
    let seen = RefCell::new((0, [0; 2]));
    let note = |event: &LabEvent<'_>| {
        if let LabEvent::TrialEnded(_) = event {
            let (trials, held_after) = &mut *seen.borrow_mut();
            *trials += 1;
            match *trials {
                EARLY => held_after[0] = held(),
                LATE => held_after[1] = held(),
                _ => {}
            }
        }
    };
    let mut equipment = FakeEquipment::recording(&Journal::closed());
    let name = |at: usize| format!("pg_stat_io(client backend, x).{at:03}");
    equipment.statistics = (0..STATISTICS).map(name).collect();
    let mut laboratory = Laboratory {
        context: RunContext {
            study,
            options: &ServerOptions::default(),
            interrupt: &Interrupt::default(),
            events: &note,
        },
        equipment: &mut equipment,
    };
    let mut outcome = laboratory
        .run(&plan, &mut FixedBlocks::of(&plan))
        .expect("the fake does not fail");
    assert_eq!(outcome.trials.len(), LATE);
    let last = outcome.trials.pop().expect("there are trials");
    let (_, held_after) = *seen.borrow();
    (held_after, last)
}

/// Once, each trial had a map with its own names of its counters, which took 7 KB.
#[test]
fn a_long_study_grows_by_the_figures_of_its_trials_only() {
    let source = StudySource {
        file: "study.toml".to_owned(),
        text: STUDY.to_owned(),
    };
    let parsed = source.parse().expect("the study is valid");
    let study = LoadedStudy::new("study", source, parsed).expect("the study has no secrets");
    let ([early, late], trial) = measured(&study);
    let per_trial = (late - early) as f64 / (LATE - EARLY) as f64;
    let figures = size_of::<Trial>() + 8 * STATISTICS + trial.latency.hdr_v2_ns.len();
    assert!(
        per_trial <= 1.02 * figures as f64,
        "{per_trial} bytes per trial, of which figures {figures}"
    );
    // The result is what it was with maps.
    let counters = serde_json::to_value(&trial.counters).expect("a map of numbers");
    let map: BTreeMap<String, f64> = serde_json::from_value(counters).expect("it is a map");
    assert_eq!(map.len(), STATISTICS);
}
