//! The nouns of a performance study and the pure functions between them.
