//! The replies of a load that nothing disturbs, with few instructions. They are most of what a client
//! executes for itself.

use crate::limits::UNLIMITED_BYTES;
use crate::message::{Event, TransactionStatus};
use crate::replies::{Core, HEADER_BYTES, RequestKind};

impl Core {
    /// Handles the messages at the beginning of `input` that are complete and as expected, up to one to
    /// report: all that an undisturbed load receives. [`Replies::step`] handles the same ones, and all
    /// others, for which this returns `None`.
    #[inline]
    pub fn expected<'i>(&mut self, input: &mut &'i [u8]) -> Option<Event<'i>> {
        let front = *self.pending.front()?;
        while let Some((&[tag, length @ ..], rest)) = input.split_first_chunk::<HEADER_BYTES>() {
            let length = (u32::from_be_bytes(length) as usize).wrapping_sub(4);
            if length > UNLIMITED_BYTES {
                return None;
            }
            let (body, rest) = rest.split_at_checked(length)?;
            let event = match (tag, front.kind) {
                (b'D' | b'T', RequestKind::Execute | RequestKind::Simple) if !front.rows => None,
                (b'1' | b'2', RequestKind::Execute) if body.is_empty() => None,
                (b'C', RequestKind::Execute | RequestKind::Simple) => {
                    if front.kind == RequestKind::Execute {
                        self.pending.pop_front();
                    }
                    Some(Event::completed(front.token, body))
                }
                (b'Z', RequestKind::Sync | RequestKind::Simple) => {
                    self.status = TransactionStatus::of(body)?;
                    self.pending.pop_front();
                    Some(Event::Ready {
                        token: Some(front.token),
                        status: self.status,
                    })
                }
                _ => return None,
            };
            *input = rest;
            if event.is_some() {
                return event;
            }
        }
        None
    }
}
