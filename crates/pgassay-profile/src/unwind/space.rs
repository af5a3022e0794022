//! Address spaces: mappings, and stack unwinding.
//!
//! A postmaster's children are forked and never execute another program, so they share one address
//! layout. Processes with equal mappings share one space here; a backend that loads an additional
//! library gets another. Each object is read once for all spaces.

use crate::arch::{REGS_COUNT, leave_realigned, user_regs};
use crate::proc::maps::{MappedFile, Mapping};
use crate::unwind::debug_file::ChecksumBudget;
use crate::unwind::object_file::{ObjectFile, SectionBytes};
use framehop::{
    CacheNative, FrameAddress, MayAllocateDuringUnwind, Module, Unwinder, UnwinderNative,
};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The symbols and unwind tables of all objects take at most this much memory, and one object more: which files a
/// process maps is up to its user.
const OBJECTS_BYTES_MAX: usize = 1 << 30;

/// Index of an object.
pub(crate) type ObjectId = u32;
/// Index of an address space.
pub(crate) type SpaceId = usize;

/// Maximum number of frames in a stack.
const FRAMES_MAX: usize = 1024;

/// A code location: an address in an object's own address space, or outside all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CodeAddress {
    pub object: Option<ObjectId>,
    pub address: u64,
}

/// What is known of a code location.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownCode {
    /// It is in a function.
    pub is_code: bool,
    /// The unwind instructions there can be evaluated quickly.
    pub can_unwind: bool,
}

/// Where unwinding of a user stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StackEnd {
    /// At the process's entry.
    Entry,
    /// At the end of the copied part of a deeper stack.
    Truncated,
    /// At a frame that could not be unwound.
    Failed,
}

/// All spaces and objects.
#[derive(Default)]
pub(crate) struct Spaces {
    all: Vec<AddressSpace>,
    /// The number of discarded spaces, whose indices are not used again.
    discarded: usize,
    by_mappings: HashMap<Vec<Mapping>, SpaceId>,
    objects: Vec<Arc<ObjectFile>>,
    /// The memory that the objects take.
    objects_bytes: usize,
    checksums: ChecksumBudget,
    by_file: HashMap<MappedFile, Option<ObjectId>>,
    unreadable: BTreeSet<String>,
}

struct AddressSpace {
    modules: Vec<SpaceModule>,
    unwinder: UnwinderNative<SectionBytes, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

struct SpaceModule {
    range: Range<u64>,
    bias: u64,
    object: ObjectId,
}

impl Spaces {
    /// The space with exactly these mappings; `pid` is a process that has them, used to open their
    /// files.
    pub fn intern(&mut self, pid: u32, mappings: &[Mapping]) -> SpaceId {
        if let Some(&id) = self.by_mappings.get(mappings) {
            return id;
        }
        let mut modules = Vec::new();
        let mut unwinder = UnwinderNative::new();
        for mapping in mappings {
            let Some(object) = self.object(pid, mapping) else {
                continue;
            };
            let file = &self.objects[object as usize];
            let Some(bias) = file.bias(mapping) else {
                continue;
            };
            let range = mapping.start..mapping.end;
            unwinder.add_module(Module::new(
                file.name.to_string(),
                range.clone(),
                bias,
                file.unwind_sections(),
            ));
            modules.push(SpaceModule {
                range,
                bias,
                object,
            });
        }
        let id = self.discarded + self.all.len();
        self.by_mappings.insert(mappings.to_vec(), id);
        self.all.push(AddressSpace {
            modules,
            unwinder,
            cache: CacheNative::new(),
        });
        id
    }

    /// The number of spaces.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Discards the spaces, but not the objects.
    pub fn clear(&mut self) {
        self.discarded += self.all.len();
        self.all.clear();
        self.by_mappings.clear();
    }

    /// Objects that could not be read, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = &String> {
        self.unreadable.iter()
    }

    /// Names of stripped objects without a debug file.
    pub fn stripped(&self) -> impl Iterator<Item = &Arc<str>> {
        let stripped = self.objects.iter().filter(|object| object.is_stripped);
        stripped.map(|object| &object.name)
    }

    fn object(&mut self, pid: u32, mapping: &Mapping) -> Option<ObjectId> {
        if let Some(known) = self.by_file.get(&mapping.file) {
            return *known;
        }
        if self.objects_bytes > OBJECTS_BYTES_MAX {
            let gib = OBJECTS_BYTES_MAX >> 30;
            self.unreadable.insert(format!(
                "further object files: those read before take more than {gib} GiB"
            ));
            return None;
        }
        let id = match ObjectFile::load(pid, mapping, &mut self.checksums) {
            Ok(file) => {
                self.objects_bytes += file.bytes();
                self.objects.push(Arc::new(file));
                Some((self.objects.len() - 1) as ObjectId)
            }
            Err(error) => {
                tracing::warn!(%error, pid, "cannot read an object file; its functions have no names");
                self.unreadable.insert(error.to_string());
                None
            }
        };
        self.by_file.insert(mapping.file.clone(), id);
        id
    }

    /// Unwinds a user stack from its leaf and passes each address to `visit`, which returns what is known of it.
    /// Unwinding stops at one that is not code, since further frames would be guesses.
    ///
    /// `stack` is the copy from the stack pointer upward; `stack_is_full` if it has the maximum
    /// size.
    pub fn unwind(
        &mut self,
        id: SpaceId,
        regs: &[u64; REGS_COUNT],
        stack: &[u8],
        stack_is_full: bool,
        mut visit: impl FnMut(&[Arc<ObjectFile>], CodeAddress) -> KnownCode,
    ) -> StackEnd {
        let AddressSpace {
            modules,
            unwinder,
            cache,
            ..
        } = &mut self.all[id - self.discarded];
        let objects = &self.objects;
        let regs = user_regs(regs);
        let mut beyond = false;
        let mut read_stack = |address: u64| {
            let word = address
                .checked_sub(regs.sp)
                .and_then(|at| usize::try_from(at).ok())
                .map(|at| stack.get(at..).and_then(|rest| rest.first_chunk::<8>()));
            beyond |= word == Some(None);
            word.flatten()
                .map(|bytes| u64::from_ne_bytes(*bytes))
                .ok_or(())
        };
        let mut frame = FrameAddress::InstructionPointer(regs.ip);
        let mut registers = regs.unwind;
        for depth in 0..FRAMES_MAX {
            // A return address after a call at the end of a function is outside of it; framehop
            // looks up the byte before it, and so must we.
            let code = locate(modules, frame.address_for_lookup());
            let known = visit(objects, code);
            // The entry code of old C libraries has no unwind information and is not marked as
            // outermost.
            if code
                .object
                .is_some_and(|o| objects[o as usize].is_entry(code.address))
            {
                return StackEnd::Entry;
            }
            if !known.can_unwind || (!known.is_code && depth > 0) {
                break;
            }
            let realigned = code
                .object
                .and_then(|it| objects[it as usize].realigned.cfa_offset(code.address));
            let caller = match realigned {
                Some(offset) => leave_realigned(&mut registers, offset, &mut read_stack).map(Some),
                None => unwinder
                    .unwind_frame(frame, &mut registers, cache, &mut read_stack)
                    .ok(),
            };
            let Some(caller) = caller else { break };
            let Some(caller) = caller else {
                return StackEnd::Entry;
            };
            let Some(next) = FrameAddress::from_return_address(caller) else {
                break;
            };
            frame = next;
        }
        if beyond && stack_is_full {
            StackEnd::Truncated
        } else {
            StackEnd::Failed
        }
    }
}

fn locate(modules: &[SpaceModule], address: u64) -> CodeAddress {
    let after = modules.partition_point(|m| m.range.start <= address);
    match modules[..after]
        .last()
        .filter(|m| m.range.contains(&address))
    {
        Some(module) => CodeAddress {
            object: Some(module.object),
            address: address.wrapping_sub(module.bias),
        },
        None => CodeAddress {
            object: None,
            address,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwinding_ends_at_code_that_cannot_be_unwound() {
        let visited = |can_unwind| {
            let own = std::process::id();
            let mut spaces = Spaces::default();
            let space = spaces.intern(own, &crate::proc::maps::read(own).unwrap());
            // Three frames, by frame pointers.
            let stack: Vec<u8> = [64_u64, 0x1010, 128, 0x1020, 0, 0]
                .iter()
                .flat_map(|it| it.to_ne_bytes())
                .collect();
            let mut regs = crate::arch::regs_at(0x1000, 48);
            // The frame pointer, in all architectures.
            regs[0] = 48;
            let mut visited = 0;
            spaces.unwind(space, &regs, &stack, false, |_, _| {
                visited += 1;
                KnownCode {
                    is_code: true,
                    can_unwind,
                }
            });
            visited
        };
        assert!(visited(true) > 1);
        assert_eq!(visited(false), 1);
    }
}
