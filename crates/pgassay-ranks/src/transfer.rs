//! Messages on their way, which need not arrive: a rank that is stopped neither sends nor receives.
//!
//! Buffers are never freed. MPI may write to a buffer, or read it, for as long as a transfer that was
//! given up has not ended; a process sends and receives few messages.

use mpi::datatype::Equivalence;
use mpi::point_to_point::{Destination as _, Source as _};
use mpi::request::{Request, StaticScope};
use mpi::topology::{Communicator as _, Process};

/// A message that is being sent or received.
pub(crate) struct Transfer {
    request: Option<Request<'static, [u8], StaticScope>>,
    arrived: &'static [u8],
}

impl Transfer {
    /// Begins to send.
    pub fn send(to: &Process<'_>, tag: i32, bytes: &[u8]) -> Self {
        let bytes: &'static [u8] = Box::leak(bytes.into());
        Self {
            request: Some(to.immediate_send_with_tag(StaticScope, bytes, tag)),
            arrived: &[],
        }
    }

    /// Begins to receive, if a message is on its way.
    pub fn receive(from: &Process<'_>, tag: i32) -> Option<Self> {
        let (message, status) = from.immediate_matched_probe_with_tag(tag)?;
        let length = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0);
        let bytes: &'static mut [u8] = Box::leak(vec![0; length].into());
        Some(Self {
            request: Some(message.immediate_matched_receive_into(StaticScope, bytes)),
            arrived: &[],
        })
    }

    /// Whether it has ended; without waiting.
    pub fn has_ended(&mut self) -> bool {
        let Some(request) = self.request.take() else {
            return true;
        };
        match request.test_with_data() {
            Ok((_, bytes)) => self.arrived = bytes,
            Err(request) => self.request = Some(request),
        }
        self.request.is_none()
    }

    /// The message that arrived; empty before.
    pub fn arrived(&self) -> &'static [u8] {
        self.arrived
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // A request must not be dropped before it has ended. This one may never end.
        std::mem::forget(self.request.take());
    }
}

/// A process of the world.
pub(crate) fn process(world: &mpi::topology::SimpleCommunicator, rank: usize) -> Process<'_> {
    world.process_at_rank(i32::try_from(rank).unwrap_or(i32::MAX))
}
