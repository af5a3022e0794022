//! Plans through the public interface.

mod plan;
