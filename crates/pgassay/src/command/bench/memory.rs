//! The memory of the load generator, and how much of it the clients need.

use pgassay_profile::{own_peak_bytes, own_resident_bytes};

/// The memory of the process that runs the clients; of several ranks, the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub struct ClientMemory {
    /// The largest resident set; 0 if it is unknown.
    pub peak_bytes: u64,
    /// How much larger this is than before the clients connected.
    pub grown_bytes: u64,
}

/// The memory of a process without clients.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBefore {
    resident_bytes: u64,
}

impl MemoryBefore {
    /// That of now.
    pub fn now() -> Self {
        Self {
            resident_bytes: own_resident_bytes(),
        }
    }

    /// The memory with clients, after they have run.
    pub fn with_clients(self) -> ClientMemory {
        ClientMemory::grown(self.resident_bytes, own_peak_bytes())
    }
}

impl ClientMemory {
    fn grown(before_bytes: u64, peak_bytes: u64) -> Self {
        Self {
            peak_bytes,
            grown_bytes: peak_bytes.saturating_sub(before_bytes),
        }
    }

    /// The memory of both processes.
    #[cfg(feature = "mpi")]
    pub fn plus(self, other: Self) -> Self {
        Self {
            peak_bytes: self.peak_bytes + other.peak_bytes,
            grown_bytes: self.grown_bytes + other.grown_bytes,
        }
    }

    /// By how much the memory grew for each client; `None` if it is unknown.
    pub fn bytes_per_client(self, clients: usize) -> Option<f64> {
        (self.peak_bytes > 0).then(|| self.grown_bytes as f64 / clients.max(1) as f64)
    }

    /// Words for the report; empty if it is unknown.
    pub fn words(self, clients: usize) -> String {
        let Some(each_bytes) = self.bytes_per_client(clients) else {
            return String::new();
        };
        let (peak_mb, each_kb) = (self.peak_bytes as f64 / 1_048_576.0, each_bytes / 1024.0);
        format!("; {peak_mb:.1} MB of memory, {each_kb:.1} kB per client")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_before_the_clients_is_not_theirs() {
        let memory = ClientMemory::grown(10 << 20, 30 << 20);
        assert_eq!(
            memory.words(2048),
            "; 30.0 MB of memory, 10.0 kB per client"
        );
        assert_eq!(memory.bytes_per_client(0), Some(20_971_520.0));
    }

    #[test]
    fn unknown_memory_is_not_shown() {
        let memory = ClientMemory::grown(0, 0);
        assert_eq!(
            (memory.words(4).as_str(), memory.bytes_per_client(4)),
            ("", None)
        );
    }
}
