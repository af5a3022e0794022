//! The command line of pgassay.

fn main() {}
