//! Frames and stacks, each stored once.
//!
//! A frame is a function, not an address: samples at different instructions of a function have the
//! same frame, which keeps profiles small. Code without a name is a function too if `.eh_frame` has
//! its extent.

use crate::unwind::kallsyms::{KERNEL, KernelSymbols};
use crate::unwind::object_file::ObjectFile;
use crate::unwind::space::{CodeAddress, KnownCode, ObjectId};
use crate::unwind::symbols::source_name;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A function in a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// The object's symbol whose extent includes the address.
    pub symbol: Option<Arc<str>>,
    /// The file name without directories, `[kernel]`, a kernel module in brackets, or `[unknown]`
    /// for code without a file.
    pub object: Arc<str>,
    /// The start of the function as an address in the object file; the sampled address if the start
    /// is unknown.
    pub offset: u64,
    /// The function belongs to the kernel.
    pub kernel: bool,
}

impl StackFrame {
    /// The function's name in the source.
    pub fn name(&self) -> Option<&str> {
        self.symbol.as_deref().map(source_name)
    }
}

/// The name in the source, or `object+0xoffset`.
impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None if self.offset == 0 => f.write_str(&self.object),
            None => write!(f, "{}+{:#x}", self.object, self.offset),
        }
    }
}

/// A frame's index, and what is known of its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resolved {
    pub frame: u32,
    pub code: KnownCode,
}

/// The identity of a frame: object, offset, whether it belongs to the kernel, and whether it has a
/// name. The last, because a function may extend beyond its symbol's extent.
type FunctionKey = (Option<ObjectId>, u64, bool, bool);

/// All frames so far.
pub(crate) struct FrameTable {
    frames: Vec<StackFrame>,
    by_function: HashMap<FunctionKey, u32>,
    by_address: HashMap<CodeAddress, Resolved>,
    by_kernel_address: HashMap<u64, u32>,
    kernel: KernelSymbols,
    unknown: Arc<str>,
    kernel_object: Arc<str>,
}

impl FrameTable {
    pub fn new(kernel: KernelSymbols) -> Self {
        Self {
            frames: Vec::new(),
            by_function: HashMap::new(),
            by_address: HashMap::new(),
            by_kernel_address: HashMap::new(),
            kernel,
            unknown: Arc::from("[unknown]"),
            kernel_object: Arc::from(KERNEL),
        }
    }

    pub fn frames(&self) -> &[StackFrame] {
        &self.frames
    }

    /// Kernel functions have names.
    pub fn names_kernel(&self) -> bool {
        !self.kernel.is_empty()
    }

    /// The frame of a location in user code.
    pub fn user(&mut self, objects: &[Arc<ObjectFile>], code: CodeAddress) -> Resolved {
        let Some(id) = code.object else {
            // Addresses outside all objects have no meaning in another run, and there may be new ones without end:
            // of compiled code.
            let frame = StackFrame {
                symbol: None,
                object: self.unknown.clone(),
                offset: 0,
                kernel: false,
            };
            return Resolved {
                frame: self.add(None, frame),
                code: KnownCode {
                    is_code: false,
                    can_unwind: true,
                },
            };
        };
        if let Some(&known) = self.by_address.get(&code) {
            return known;
        }
        let resolved = self.in_object(&objects[id as usize], id, code.address);
        self.by_address.insert(code, resolved);
        resolved
    }

    fn in_object(&mut self, file: &ObjectFile, id: ObjectId, address: u64) -> Resolved {
        let named = file.symbols.lookup(address);
        let entry = file.unwind_entry(address);
        let can_unwind = entry.as_ref().is_none_or(|it| it.is_short);
        let extent = entry.map(|it| it.extent);
        // Without unwind information, only a name confirms that an address is code.
        let is_code = named.is_some()
            || extent.is_some()
            || file.is_entry(address)
            || !file.knows_its_extents();
        let (symbol, offset) = match (named, extent) {
            (Some((name, extent)), _) => (Some(Arc::from(name)), extent.start),
            (None, Some(extent)) => (None, extent.start),
            (None, None) => (None, address),
        };
        let frame = StackFrame {
            symbol,
            object: file.name.clone(),
            offset,
            kernel: false,
        };
        Resolved {
            frame: self.add(Some(id), frame),
            code: KnownCode {
                is_code,
                can_unwind,
            },
        }
    }

    /// The frame of a kernel address.
    pub fn kernel(&mut self, address: u64) -> u32 {
        if let Some(&known) = self.by_kernel_address.get(&address) {
            return known;
        }
        let frame = match self.kernel.lookup(address) {
            Some((name, object, offset)) => StackFrame {
                symbol: Some(Arc::from(name)),
                object: object.clone(),
                offset,
                kernel: true,
            },
            // The kernel's address changes at every boot, so it is not stored.
            None => StackFrame {
                symbol: None,
                object: self.kernel_object.clone(),
                offset: 0,
                kernel: true,
            },
        };
        let id = self.add(None, frame);
        self.by_kernel_address.insert(address, id);
        id
    }

    fn add(&mut self, object: Option<ObjectId>, frame: StackFrame) -> u32 {
        let key = (object, frame.offset, frame.kernel, frame.symbol.is_some());
        *self.by_function.entry(key).or_insert_with(|| {
            self.frames.push(frame);
            (self.frames.len() - 1) as u32
        })
    }
}

/// Maximum number of frames in all stacks, about: 16 MiB, and as much for the tables.
const STACKS_FRAMES_MAX: usize = 1 << 22;

/// All stacks so far, outermost frame first.
#[derive(Default)]
pub(crate) struct StackTable {
    stacks: Vec<Arc<[u32]>>,
    ids: HashMap<Arc<[u32]>, u32>,
    frames: usize,
}

impl StackTable {
    /// The index of a stack, and whether all of it is stored. Without room, a new one is cut to its innermost frame.
    pub fn intern(&mut self, frames: &[u32]) -> (u32, bool) {
        if let Some(&id) = self.ids.get(frames) {
            return (id, true);
        }
        if self.frames >= STACKS_FRAMES_MAX && frames.len() > 1 {
            return (self.intern(&frames[frames.len() - 1..]).0, false);
        }
        let id = self.stacks.len() as u32;
        let stack: Arc<[u32]> = frames.into();
        self.frames += stack.len();
        self.stacks.push(stack.clone());
        self.ids.insert(stack, id);
        (id, true)
    }

    pub fn stacks(&self) -> &[Arc<[u32]>] {
        &self.stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_a_name_is_shown_as_object_and_offset() {
        let mut frame = StackFrame {
            symbol: None,
            object: "postgres".into(),
            offset: 0x1f20,
            kernel: false,
        };
        assert_eq!(frame.to_string(), "postgres+0x1f20");
        frame.symbol = Some("hash_search.isra.0".into());
        assert_eq!(frame.to_string(), "hash_search");
        assert_eq!(frame.name(), Some("hash_search"));
    }

    #[test]
    fn equal_stacks_are_stored_once() {
        let mut table = StackTable::default();
        let first = table.intern(&[1, 2, 3]);
        assert_eq!(table.intern(&[1, 2]), (1, true));
        assert_eq!(table.intern(&[1, 2, 3]), first);
        assert_eq!(table.stacks().len(), 2);
    }

    #[test]
    fn stacks_without_end_do_not_fill_memory() {
        let mut table = StackTable::default();
        let known = table.intern(&[1, 2]);
        for number in 0..20_000 {
            let mut stack = vec![number; 400];
            stack[399] = number % 10;
            table.intern(&stack);
        }
        assert!(table.frames < STACKS_FRAMES_MAX + 400 + 10);
        assert_eq!(table.intern(&[1, 2]), known);
        let (id, is_whole) = table.intern(&[7, 8, 9]);
        assert_eq!((&*table.stacks()[id as usize], is_whole), (&[9][..], false));
    }

    /// Regression: each address of code that LLVM had compiled was kept, in a profile of an hour without end.
    #[test]
    fn addresses_outside_of_all_files_are_not_kept() {
        let mut table = FrameTable::new(KernelSymbols::default());
        for address in 0..1000 {
            let code = CodeAddress {
                object: None,
                address,
            };
            assert_eq!(table.user(&[], code).frame, 0);
        }
        assert!(table.by_address.is_empty() && table.frames.len() == 1);
    }

    #[test]
    fn hidden_kernel_addresses_become_one_frame() {
        let mut table = FrameTable::new(KernelSymbols::default());
        let first = table.kernel(0xffff_ffff_8100_0000);
        assert_eq!(table.kernel(0xffff_ffff_8200_0000), first);
        assert_eq!(table.frames()[first as usize].to_string(), "[kernel]");
        assert!(!table.names_kernel());
    }
}
