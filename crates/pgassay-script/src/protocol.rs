//! The protocol by which statements are sent.

/// The query protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueryProtocol {
    /// Simple query; variables are substituted in the text.
    #[default]
    Simple,
    /// Extended query with unnamed statements.
    Extended,
    /// Extended query with statements that are prepared once.
    Prepared,
}

impl QueryProtocol {
    /// Returns pgbench's name for it, as in `-M` and `query mode:`.
    pub fn name(self) -> &'static str {
        match self {
            QueryProtocol::Simple => "simple",
            QueryProtocol::Extended => "extended",
            QueryProtocol::Prepared => "prepared",
        }
    }

    /// Returns the protocol with this name. The comparison is exact, as in pgbench.
    pub fn from_name(name: &str) -> Option<QueryProtocol> {
        [
            QueryProtocol::Simple,
            QueryProtocol::Extended,
            QueryProtocol::Prepared,
        ]
        .into_iter()
        .find(|protocol| protocol.name() == name)
    }
}
