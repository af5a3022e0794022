//! Numbers in, plain structs out: pairs, intervals, verdicts.
