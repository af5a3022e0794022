//! Functions that realign their stack, whose frames framehop cannot leave.
//!
//! GCC gives a function with a variable that is aligned to more than 16 bytes a frame whose call frame address (CFA)
//! is stored in it: `DW_CFA_def_cfa_expression (DW_OP_breg6 (rbp): N; DW_OP_deref)`. PostgreSQL has such functions
//! since 16, with blocks aligned for direct I/O (`PGIOAlignedBlock` in `src/include/c.h`): every block that a sort
//! spills goes through one. framehop 0.16 evaluates no expression that reads memory. It falls back to the frame
//! pointer, which gives the copy of the return address that such a function keeps below its frame, and a stack pointer
//! that is far off.

use std::ops::Range;

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, CieOrFde, EhFrame, EndianSlice, NativeEndian,
    Reader, UnwindContext, UnwindSection,
};

const OP_BREG_RBP: u8 = 0x70 + 6;
const OP_DEREF: u8 = 0x06;

/// At most this many bytes of unwind instructions are evaluated. PostgreSQL 18 has a few KiB for such functions. A
/// damaged or hostile table can repeat instructions of megabytes for each of its functions.
const EVALUATED_BYTES_MAX: usize = 16 << 20;
const ROWS_MAX: usize = 1 << 20;

/// The addresses of an object at which the CFA is stored in the frame, in order.
#[derive(Debug, Default)]
pub(crate) struct RealignedFrames(Vec<(Range<u64>, i64)>);

impl RealignedFrames {
    /// Those that an object's `.eh_frame` describes. What cannot be parsed is left out.
    pub fn of(eh_frame: &[u8], bases: &BaseAddresses) -> Self {
        let section = EhFrame::new(eh_frame, NativeEndian);
        let mut context = UnwindContext::new();
        let mut found = Vec::new();
        let mut evaluated = 0;
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let mut instructions = fde.instructions(&section, bases);
            let mut is_realigned = false;
            while let Ok(Some(instruction)) = instructions.next() {
                is_realigned |=
                    matches!(instruction, CallFrameInstruction::DefCfaExpression { .. });
            }
            if !is_realigned {
                continue;
            }
            evaluated += fde.entry_len() + fde.cie().entry_len();
            if evaluated > EVALUATED_BYTES_MAX {
                break;
            }
            let Ok(mut rows) = fde.rows(&section, bases, &mut context) else {
                continue;
            };
            while let Ok(Some(row)) = rows.next_row() {
                let CfaRule::Expression(expression) = row.cfa() else {
                    continue;
                };
                let Ok(expression) = expression.get(&section) else {
                    continue;
                };
                if let Some(offset) = stored_at(expression.0.slice())
                    && found.len() < ROWS_MAX
                {
                    found.push((row.start_address()..row.end_address(), offset));
                }
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        Self(found)
    }

    /// The memory that they take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Where the frame at this address of the object has its CFA, in bytes from the frame pointer.
    pub fn cfa_offset(&self, address: u64) -> Option<i64> {
        let after = self.0.partition_point(|(range, _)| range.start <= address);
        let (range, offset) = self.0.get(after.checked_sub(1)?)?;
        range.contains(&address).then_some(*offset)
    }
}

/// The offset from the frame pointer in an expression that reads the CFA from the frame.
fn stored_at(expression: &[u8]) -> Option<i64> {
    let [OP_BREG_RBP, offset @ .., OP_DEREF] = expression else {
        return None;
    };
    let mut offset = EndianSlice::new(offset, NativeEndian);
    let value = offset.read_sleb128().ok()?;
    offset.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CIE and the FDE of `ltsWriteBlock` of PostgreSQL 18, shortened, at 0x27a1.
    fn eh_frame() -> Vec<u8> {
        eh_frame_of(0, 1)
    }

    /// As [`eh_frame`], with more instructions that do nothing, and several such functions in a row.
    fn eh_frame_of(idle: usize, functions: u64) -> Vec<u8> {
        let entry = |id: u32, body: &[u8]| {
            let mut padded = body.to_vec();
            padded.resize(body.len().next_multiple_of(4), 0);
            let length = padded.len() as u32 + 4;
            [&length.to_ne_bytes()[..], &id.to_ne_bytes(), &padded].concat()
        };
        // Version 1, "zR", code alignment 1, data alignment -8, return address in register 16, absolute pointers;
        // CFA = rsp + 8, return address at CFA - 8.
        let mut cie = b"\x01zR\0\x01\x78\x10\x01\x00\x0c\x07\x08\x90\x01".to_vec();
        cie.resize(cie.len() + idle, 0);
        let mut all = entry(0, &cie);
        for function in 0..functions {
            let mut body = Vec::new();
            body.extend((0x27a1 + 0x100 * function).to_ne_bytes());
            body.extend(0x100_u64.to_ne_bytes());
            body.push(0);
            // After 5 bytes CFA = r10; after 12 more, CFA is stored at rbp - 32; in the last byte, CFA = rsp + 8.
            body.extend(b"\x45\x0c\x0a\x00\x4c\x0f\x03\x76\x60\x06\x02\xee\x0c\x07\x08");
            let back = all.len() as u32 + 4;
            all.extend(entry(back, &body));
        }
        all.extend(0_u32.to_ne_bytes());
        all
    }

    #[test]
    fn the_stack_of_a_sort_that_spills_does_not_end_at_the_function_that_writes_blocks() {
        let bases = BaseAddresses::default().set_eh_frame(0x1_0000);
        let frames = RealignedFrames::of(&eh_frame(), &bases);
        let offsets = [0x27a1, 0x27a6, 0x27b1, 0x27b2, 0x289f, 0x28a0, 0x28a1];
        assert_eq!(
            offsets.map(|address| frames.cfa_offset(address)),
            [None, None, None, Some(-32), Some(-32), None, None]
        );
    }

    #[test]
    fn instructions_that_are_repeated_for_each_function_do_not_take_hours() {
        let bases = BaseAddresses::default().set_eh_frame(0x1_0000);
        let all = |functions| RealignedFrames::of(&eh_frame_of(1 << 20, functions), &bases);
        assert_eq!(all(3).0.len(), 3);
        assert_eq!(all(50).0.len(), (EVALUATED_BYTES_MAX >> 20) - 1);
    }

    #[test]
    fn other_expressions_are_left_to_framehop() {
        for other in [
            &b"\x77\x08"[..],
            b"\x76\x60",
            b"\x77\x08\x06",
            b"\x76\x60\x60\x06",
            b"",
        ] {
            assert_eq!(stored_at(other), None, "{other:?}");
        }
        assert_eq!(stored_at(b"\x76\x90\x7f\x06"), Some(-112));
    }
}
