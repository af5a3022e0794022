//! Call sites where processes are blocked, each with its stack.
//!
//! A call site is identified by the instruction pointer and the stack pointer of a blocked process.
//! The processes of a server share one address layout and one initial stack depth, and the chain of
//! callers determines the depth of the stack, so a call site nearly always has one stack. Therefore
//! stacks are copied only for some switches; the others are identified by their call site, which
//! costs far less. If several stacks were copied at a call site, the most frequent one represents
//! it, and the others' share of the time is counted as ambiguous.

use crate::arch::REGS_COUNT;
use crate::off_cpu::state_sample::CodeLocation;
use crate::off_cpu::timeline::SiteId;
use crate::unwind::space::SpaceId;
use std::collections::{BTreeMap, HashMap};

/// Stack copies that are unwound per call site and window; unwinding all would be the largest cost
/// of slices. A second stack with a tenth of the waits has about six copies among them.
const COPIES_ENOUGH: u64 = 64;

/// All call sites of a window.
#[derive(Default)]
pub(crate) struct WaitSites {
    ids: HashMap<(SpaceId, CodeLocation), SiteId>,
    all: Vec<WaitSite>,
}

#[derive(Default)]
struct WaitSite {
    /// The number of copies of each stack by the kernel, which include the kernel's part.
    stacks: BTreeMap<u32, u64>,
    /// The stack as read from the process's memory.
    outside: Option<u32>,
    /// The number of samples of each wait event.
    waits: BTreeMap<u32, u64>,
    /// Registers at a switch here: `/proc` shows only some of them.
    regs: Option<[u64; REGS_COUNT]>,
}

/// What a call site represents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SiteSummary {
    pub stack: Option<u32>,
    pub wait: Option<u32>,
    /// The share of copies with another stack.
    pub other_stacks: f64,
}

impl WaitSites {
    pub fn id(&mut self, space: SpaceId, place: CodeLocation) -> SiteId {
        *self.ids.entry((space, place)).or_insert_with(|| {
            self.all.push(WaitSite::default());
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

    /// It has enough copies.
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

    pub fn meaning(&self, site: SiteId) -> SiteSummary {
        let site = &self.all[site as usize];
        let copies: u64 = site.stacks.values().sum();
        let most = site.stacks.iter().max_by_key(|it| it.1);
        SiteSummary {
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
    fn the_most_frequent_stack_represents_a_site_and_kernel_copies_come_first() {
        let mut sites = WaitSites::default();
        let site = sites.id(0, CodeLocation { ip: 1, sp: 2 });
        assert_ne!(site, sites.id(1, CodeLocation { ip: 1, sp: 2 }));
        assert_eq!(site, sites.id(0, CodeLocation { ip: 1, sp: 2 }));
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
