//! Several ranks.
