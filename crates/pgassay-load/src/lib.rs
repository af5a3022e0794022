//! The load engine: event loops, pacing and recorders.
