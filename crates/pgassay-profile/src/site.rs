//! Places where processes are blocked, each with its stack.
//!
//! A place is where the instruction and the stack pointer of a blocked process stand. Processes of a
//! server share one layout and begin at one depth of the stack, so a place nearly always belongs to
//! one chain of callers: who called whom decides how deep the stack is. So a stack is copied only
//! now and then, and the rest of the switches are known by their place, which costs far less. Where
//! a place has been met with several stacks, the most frequent stands for it, and the time is
//! counted as ambiguous in the others' share.

use crate::arch::{REGS_COUNT, user_regs};
use crate::look::Place;
use crate::space::SpaceId;
use crate::timeline::SiteId;
use std::collections::{BTreeMap, HashMap};

/// Copies of the stack at one place that are followed in a window; to follow all of them costs the
/// most of what slices cost. Of a second stack with a tenth of the time some six are among them.
const COPIES_ENOUGH: u64 = 64;

/// All places of a window.
#[derive(Default)]
pub(crate) struct Sites {
    ids: HashMap<(SpaceId, Place), SiteId>,
    all: Vec<Site>,
}

#[derive(Default)]
struct Site {
    /// How often each stack was copied here by the kernel, which also tells its own part.
    stacks: BTreeMap<u32, u64>,
    /// The stack as read from outside.
    outside: Option<u32>,
    /// How often each wait event was read here.
    waits: BTreeMap<u32, u64>,
    /// Registers of one that was here: not all of them can be seen from outside.
    regs: Option<[u64; REGS_COUNT]>,
}

/// What a place stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Meaning {
    pub stack: Option<u32>,
    pub wait: Option<u32>,
    /// The share of copies that had another stack.
    pub other_stacks: f64,
}

impl Place {
    pub fn of(regs: &[u64; REGS_COUNT]) -> Self {
        let regs = user_regs(regs);
        Self {
            ip: regs.ip,
            sp: regs.sp,
        }
    }
}

impl Sites {
    pub fn id(&mut self, space: SpaceId, place: Place) -> SiteId {
        *self.ids.entry((space, place)).or_insert_with(|| {
            self.all.push(Site::default());
            (self.all.len() - 1) as SiteId
        })
    }

    pub fn met(&mut self, site: SiteId, regs: [u64; REGS_COUNT]) {
        self.all[site as usize].regs = Some(regs);
    }

    pub fn regs(&self, site: SiteId) -> Option<[u64; REGS_COUNT]> {
        self.all[site as usize].regs
    }

    pub fn copied(&mut self, site: SiteId, stack: u32) {
        *self.all[site as usize].stacks.entry(stack).or_default() += 1;
    }

    /// It has been copied so often that one more tells nothing.
    pub fn is_known(&self, site: SiteId) -> bool {
        let copies: u64 = self.all[site as usize].stacks.values().sum();
        copies >= COPIES_ENOUGH
    }

    pub fn read_outside(&mut self, site: SiteId, stack: u32) {
        self.all[site as usize].outside = Some(stack);
    }

    pub fn has_stack(&self, site: SiteId) -> bool {
        let site = &self.all[site as usize];
        site.outside.is_some() || !site.stacks.is_empty()
    }

    pub fn waited(&mut self, site: SiteId, wait: u32) {
        *self.all[site as usize].waits.entry(wait).or_default() += 1;
    }

    pub fn meaning(&self, site: SiteId) -> Meaning {
        let site = &self.all[site as usize];
        let copies: u64 = site.stacks.values().sum();
        let most = site.stacks.iter().max_by_key(|it| it.1);
        Meaning {
            stack: most.map(|it| *it.0).or(site.outside),
            wait: site.waits.iter().max_by_key(|it| it.1).map(|it| *it.0),
            other_stacks: most.map_or(0.0, |it| 1.0 - *it.1 as f64 / copies as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_stack_stands_for_a_place_and_the_kernels_before_ours() {
        let mut sites = Sites::default();
        let site = sites.id(0, Place { ip: 1, sp: 2 });
        assert_ne!(site, sites.id(1, Place { ip: 1, sp: 2 }));
        assert_eq!(site, sites.id(0, Place { ip: 1, sp: 2 }));
        assert_eq!(sites.meaning(site).stack, None);
        sites.read_outside(site, 9);
        assert_eq!(sites.meaning(site).stack, Some(9));
        for stack in [4, 5, 5, 5] {
            sites.copied(site, stack);
        }
        sites.waited(site, 77);
        let meaning = sites.meaning(site);
        assert_eq!((meaning.stack, meaning.wait), (Some(5), Some(77)));
        assert!((meaning.other_stacks - 0.25).abs() < 1e-9);
    }
}
