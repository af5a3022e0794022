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

    /// Sets the registers to those of the caller of a function that realigns its stack, and returns the return
    /// address. GCC stores the call frame address `offset` bytes from the frame pointer, and the caller's frame
    /// pointer where the frame pointer points to.
    pub(crate) fn leave_realigned(
        regs: &mut UnwindRegsNative,
        offset: i64,
        read_stack: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Option<u64> {
        let frame = regs.bp();
        let cfa = read_stack(frame.checked_add_signed(offset)?).ok()?;
        if cfa <= regs.sp() {
            return None;
        }
        let caller = read_stack(cfa.checked_sub(8)?).ok()?;
        regs.set_bp(read_stack(frame).ok()?);
        regs.set_sp(cfa);
        regs.set_ip(caller);
        Some(caller)
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

    /// Compilers describe realigned stacks by the frame pointer alone here.
    pub(crate) fn leave_realigned(
        _: &mut UnwindRegsNative,
        _: i64,
        _: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Option<u64> {
        None
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

pub(crate) use native::{REGS_COUNT, REGS_MASK, leave_realigned, regs_at, user_regs};

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_caller_of_a_realigned_function_has_its_own_stack_pointer() {
        // The stack from 0x1000 on: the stored call frame address, three registers, the frame pointer's target with
        // the caller's frame pointer and a copy of the return address, padding, and the return address itself.
        let stack = [0x1050, 1, 2, 3, 0x2000, 0xabc, 0, 0, 0, 0xabc];
        let mut read_stack = |address: u64| {
            let at = address.checked_sub(0x1000).ok_or(())? / 8;
            stack.get(at as usize).copied().ok_or(())
        };
        let mut regs = UnwindRegsNative::new(0x1, 0x0f00, 0x1020);
        let caller = leave_realigned(&mut regs, -32, &mut read_stack);
        assert_eq!(caller, Some(0xabc));
        assert_eq!((regs.ip(), regs.sp(), regs.bp()), (0xabc, 0x1050, 0x2000));
        // A frame pointer of unknown value.
        let mut regs = UnwindRegsNative::new(0x1, 0x0f00, 0);
        assert_eq!(leave_realigned(&mut regs, -32, &mut read_stack), None);
    }
}
