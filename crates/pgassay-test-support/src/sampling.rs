//! Whether tests may sample CPU stacks.

use pgassay_profile::{Sampler, SamplerConfig};

/// Whether CPU stacks can be sampled here; otherwise a visible skip.
///
/// # Panics
/// As [`crate::skip`].
pub fn sampling_is_permitted() -> bool {
    match Sampler::open(&SamplerConfig::default()) {
        Ok(_) => true,
        Err(error) => {
            crate::skip("CPU stacks", &error.to_string());
            false
        }
    }
}
