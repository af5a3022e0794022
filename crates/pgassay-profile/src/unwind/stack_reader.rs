//! The stacks of samples: unwound, named, and stored once per window.

use crate::arch::REGS_COUNT;
use crate::perf::record::Sample;
use crate::unwind::frames::{FrameTable, StackFrame, StackTable};
use crate::unwind::kallsyms::KernelSymbols;
use crate::unwind::quality::SampleQuality;
use crate::unwind::space::{SpaceId, Spaces, StackEnd};
use std::collections::HashMap;
use std::sync::Arc;

/// The known code of all processes, and the stacks of the current window.
pub(crate) struct StackReader {
    pub spaces: Spaces,
    frames: FrameTable,
    /// Only of this window, so that memory does not grow from trial to trial.
    stacks: StackTable,
    /// Reused for every sample: user frames, leaf first, then the whole stack.
    scratch: Vec<u32>,
}

impl StackReader {
    pub fn new(kernel: KernelSymbols) -> Self {
        Self {
            spaces: Spaces::default(),
            frames: FrameTable::new(kernel),
            stacks: StackTable::default(),
            scratch: Vec::new(),
        }
    }

    /// Kernel functions have names.
    pub fn names_kernel(&self) -> bool {
        self.frames.names_kernel()
    }

    /// Discards the stacks of an earlier window.
    pub fn begin_window(&mut self) {
        self.stacks = StackTable::default();
    }

    /// The window's stacks, outermost frame first, as indices into the frames that occur in them.
    pub fn end_window(&mut self) -> (Vec<StackFrame>, Vec<Arc<[u32]>>) {
        let stacks = std::mem::take(&mut self.stacks);
        let mut frames = Vec::new();
        let mut numbers = HashMap::new();
        let renumbered = stacks
            .stacks()
            .iter()
            .map(|stack| {
                let new_number = |frame: &u32| {
                    *numbers.entry(*frame).or_insert_with(|| {
                        frames.push(self.frames.frames()[*frame as usize].clone());
                        (frames.len() - 1) as u32
                    })
                };
                stack.iter().map(new_number).collect()
            })
            .collect();
        (frames, renumbered)
    }

    /// The index of a sample's stack, and the sample's quality.
    pub fn stack_of_sample(
        &mut self,
        sample: &Sample<'_>,
        space: Option<SpaceId>,
    ) -> (u32, SampleQuality) {
        let (stack, mut quality) = self.stack_of(
            sample.user_regs.as_ref(),
            sample.stack,
            sample.stack_is_full,
            sample.kernel_chain(),
            space,
        );
        quality.sampled_ns = sample.period_ns;
        (stack, quality)
    }

    /// The index of the stack with these parts, and its quality.
    pub fn stack_of(
        &mut self,
        regs: Option<&[u64; REGS_COUNT]>,
        stack: &[u8],
        stack_is_full: bool,
        kernel_chain: impl IntoIterator<Item = u64>,
        space: Option<SpaceId>,
    ) -> (u32, SampleQuality) {
        self.scratch.clear();
        let end = regs.map(|regs| match space {
            Some(space) => self.push_user_frames(regs, stack, stack_is_full, space),
            None => StackEnd::Failed,
        });
        self.scratch.reverse();
        let user_frames = self.scratch.len();
        self.push_kernel_frames(kernel_chain);
        let mut quality = self.quality_of(end, user_frames);
        let (stack, is_whole) = self.stacks.intern(&self.scratch);
        if !is_whole {
            quality.truncated += std::mem::take(&mut quality.reached_entry);
        }
        (stack, quality)
    }

    /// The quality of the stack in `scratch`.
    fn quality_of(&self, end: Option<StackEnd>, user_frames: usize) -> SampleQuality {
        let frames = self.frames.frames();
        let is_unknown = |&id: &u32| frames[id as usize].symbol.is_none();
        SampleQuality {
            total: 1,
            sampled_ns: 0,
            with_user: end.is_some().into(),
            kernel_only: end.is_none().into(),
            in_kernel: (self.scratch.len() > user_frames).into(),
            reached_entry: (end == Some(StackEnd::Entry)).into(),
            truncated: (end == Some(StackEnd::Truncated)).into(),
            unwind_failed: (end == Some(StackEnd::Failed)).into(),
            leaf_unknown: self.scratch.last().is_none_or(is_unknown).into(),
            frames: self.scratch.len() as u64,
            frames_unknown: self.scratch.iter().filter(|id| is_unknown(id)).count() as u64,
        }
    }

    /// Appends the user stack, leaf first.
    fn push_user_frames(
        &mut self,
        regs: &[u64; REGS_COUNT],
        stack: &[u8],
        stack_is_full: bool,
        space: SpaceId,
    ) -> StackEnd {
        let Self {
            spaces,
            frames,
            scratch,
            ..
        } = self;
        let visit = |objects: &[_], code| {
            let resolved = frames.user(objects, code);
            // An address outside of all code is a wrong guess and not part of the stack.
            if resolved.code.is_code || scratch.is_empty() {
                scratch.push(resolved.frame);
            }
            resolved.code
        };
        spaces.unwind(space, regs, stack, stack_is_full, visit)
    }

    /// Appends the kernel stack, outermost first; `chain` is leaf first.
    fn push_kernel_frames(&mut self, chain: impl IntoIterator<Item = u64>) {
        let begin = self.scratch.len();
        for (depth, address) in chain.into_iter().enumerate() {
            // All but the leaf are return addresses, which may be past the end of their function.
            let frame = self.frames.kernel(address - u64::from(depth > 0));
            let is_repeated = self.scratch[begin..].last() == Some(&frame);
            if !(is_repeated && self.frames.frames()[frame as usize].symbol.is_none()) {
                self.scratch.push(frame);
            }
        }
        self.scratch[begin..].reverse();
    }
}
