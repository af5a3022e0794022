//! Facts about what executed the instructions: the machine and the server's build.

use pgassay_account::instructions::{Build, Machine};
use pgassay_profile::MachineConditions;
use pgassay_server::Server;

use super::Valgrind;

/// How a server was built.
pub fn build(server: &Server) -> Build {
    let installation = server.installation();
    let facts = &installation.build;
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "not recorded".to_owned());
    Build {
        version: installation.version.to_string(),
        configure: known(&facts.configure),
        cflags: known(&facts.cflags),
        compiler: known(&facts.compiler),
    }
}

/// The CPU features by which libc and PostgreSQL select implementations of functions.
const FEATURES: [&str; 12] = [
    "sse2", "ssse3", "sse4_1", "sse4_2", "popcnt", "avx", "avx2", "bmi1", "bmi2", "fma", "erms",
    "avx512f",
];

/// The machine and its version of valgrind.
pub fn machine(valgrind: &Valgrind) -> Machine {
    // If it is not readable, no features are recorded.
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "flags" | "Features").then_some(value)
    });
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    Machine {
        counter: valgrind.version.clone(),
        cpu: MachineConditions::read()
            .cpu_model
            .unwrap_or_else(|| "unknown".to_owned()),
        cpu_features: FEATURES
            .into_iter()
            .filter(|feature| flags.contains(feature))
            .map(str::to_owned)
            .collect(),
    }
}
