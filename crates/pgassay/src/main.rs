//! The program. All of it is in the library: a library is compiled while those that it depends on still generate
//! code, a program only after them.

use std::process::ExitCode;

fn main() -> ExitCode {
    pgassay::main()
}
