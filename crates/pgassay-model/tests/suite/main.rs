//! Plans through the public interface.

mod external;
mod plan;
mod rejections;
