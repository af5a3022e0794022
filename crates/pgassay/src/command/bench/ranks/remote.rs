//! How settings of other crates travel between ranks.

use pgassay_script::{Compat, QueryProtocol};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Compat")]
pub enum CompatName {
    V15,
    V17,
    V18,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "QueryProtocol")]
pub enum ProtocolName {
    Simple,
    Extended,
    Prepared,
}
