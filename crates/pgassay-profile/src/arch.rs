//! Differences between CPU architectures: the registers that the kernel copies with a sample, and
//! their order (by ascending bit number of the mask).
//!
//! See `arch/x86/include/uapi/asm/perf_regs.h` and `arch/arm64/include/uapi/asm/perf_regs.h` in
//! Linux. The registers are exactly those that framehop recovers from frame to frame.

use framehop::UnwindRegsNative;

/// The user registers of one sample, in the unwinder's terms.
pub(crate) struct UserRegs {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer, where the copied bytes begin.
    pub sp: u64,
    /// All registers, for framehop.
    pub unwind: UnwindRegsNative,
}

#[cfg(target_arch = "x86_64")]
mod native {
    use super::{UnwindRegsNative, UserRegs};

    const BP: u64 = 6;
    const SP: u64 = 7;
    const IP: u64 = 8;
    /// `perf_event_attr.sample_regs_user`.
    pub(crate) const REGS_MASK: u64 = 1 << BP | 1 << SP | 1 << IP;
    /// How many registers the mask names.
    pub(crate) const REGS_COUNT: usize = 3;

    /// What is known of a process's registers from outside.
    pub(crate) fn regs_at(ip: u64, sp: u64) -> [u64; REGS_COUNT] {
        [0, sp, ip]
    }

    pub(crate) fn user_regs(raw: &[u64; REGS_COUNT]) -> UserRegs {
        let [bp, sp, ip] = *raw;
        UserRegs {
            ip,
            sp,
            unwind: UnwindRegsNative::new(ip, sp, bp),
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod native {
    use super::{UnwindRegsNative, UserRegs};

    const FP: u64 = 29;
    const LR: u64 = 30;
    const SP: u64 = 31;
    const PC: u64 = 32;
    /// `perf_event_attr.sample_regs_user`.
    pub(crate) const REGS_MASK: u64 = 1 << FP | 1 << LR | 1 << SP | 1 << PC;
    /// How many registers the mask names.
    pub(crate) const REGS_COUNT: usize = 4;

    /// What is known of a process's registers from outside.
    pub(crate) fn regs_at(pc: u64, sp: u64) -> [u64; REGS_COUNT] {
        [0, 0, sp, pc]
    }

    pub(crate) fn user_regs(raw: &[u64; REGS_COUNT]) -> UserRegs {
        let [fp, lr, sp, pc] = *raw;
        // User addresses have at most 48 bits here, so higher bits are a pointer authentication
        // code.
        let mask = framehop::aarch64::PtrAuthMask::from_max_known_address((1 << 48) - 1);
        let unwind = UnwindRegsNative::new_with_ptr_auth_mask(mask, lr, sp, fp);
        UserRegs { ip: pc, sp, unwind }
    }
}

pub(crate) use native::{REGS_COUNT, REGS_MASK, regs_at, user_regs};
