//! How well the stacks of samples were unwound and named.
//!
//! Identities, also of each sum: `total = with_user + kernel_only`, and
//! `with_user = reached_entry + truncated + unwind_failed`.

use std::ops::AddAssign;

/// The quality of samples, in numbers of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleQuality {
    /// All samples.
    pub total: u64,
    /// CPU time that all samples represent.
    pub sampled_ns: u64,
    /// Samples with a user stack, taken in user code or in a system call.
    pub with_user: u64,
    /// Samples without one: kernel work without a user side, such as a process's exit.
    pub kernel_only: u64,
    /// Samples taken while the CPU was in the kernel.
    pub in_kernel: u64,
    /// User stacks unwound to the process's entry.
    pub reached_entry: u64,
    /// User stacks that were deeper than the copy.
    pub truncated: u64,
    /// User stacks that could not be unwound for another reason.
    pub unwind_failed: u64,
    /// Samples whose innermost function has no name.
    pub leaf_unknown: u64,
    /// Frames of all samples.
    pub frames: u64,
    /// Frames without a name.
    pub frames_unknown: u64,
}

impl AddAssign for SampleQuality {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.sampled_ns += other.sampled_ns;
        self.with_user += other.with_user;
        self.kernel_only += other.kernel_only;
        self.in_kernel += other.in_kernel;
        self.reached_entry += other.reached_entry;
        self.truncated += other.truncated;
        self.unwind_failed += other.unwind_failed;
        self.leaf_unknown += other.leaf_unknown;
        self.frames += other.frames;
        self.frames_unknown += other.frames_unknown;
    }
}

impl SampleQuality {
    /// The share of user stacks unwound to the process's entry; `None` without user stacks.
    pub fn reached_entry_share(&self) -> Option<f64> {
        (self.with_user > 0).then(|| self.reached_entry as f64 / self.with_user as f64)
    }
}
