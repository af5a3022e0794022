//! How the system calls of two variants differ, in words.

use pgassay_account::instructions::is_clock_function;

/// A difference per transaction below this is rounding.
const SHOWN_MIN: f64 = 0.005;

/// The calls whose numbers per transaction differ, in the order of the baseline. Clock reads have a separate line:
/// only valgrind makes system calls of them, and the number of system calls leaves them out.
pub(crate) fn lines([before, after]: [&[(&str, f64)]; 2]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in before.iter().chain(after) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let count = |of: &[(&str, f64)], name: &str| {
        let found = of.iter().find(|(other, _)| *other == name);
        found.map_or(0.0, |(_, count)| *count)
    };
    let changed = |is_clock: bool| -> Vec<String> {
        names
            .iter()
            .filter(|name| is_clock_function(name) == is_clock)
            .map(|name| (name, count(before, name), count(after, name)))
            .filter(|(_, before, after)| (after - before).abs() >= SHOWN_MIN)
            .map(|(name, before, after)| format!("{name} {before:.2} → {after:.2}"))
            .collect()
    };
    [
        ("system calls", changed(false)),
        (
            "clock reads (no system calls outside valgrind)",
            changed(true),
        ),
    ]
    .into_iter()
    .filter(|(_, changed)| !changed.is_empty())
    .map(|(title, changed)| format!("{title} per transaction: {}", changed.join(", ")))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the syscalls of a variant decreased from 6.12 to 4.12, and "system calls per transaction: gettimeofday
    /// 4.03 → 7.03, lseek 2.00 → 0.00" increased.
    #[test]
    fn clock_reads_are_not_listed_as_system_calls() {
        let before = [("gettimeofday", 4.03), ("lseek", 2.0), ("recvfrom", 1.03)];
        let after = [("gettimeofday", 7.03), ("recvfrom", 1.03)];
        assert_eq!(
            lines([&before, &after]),
            [
                "system calls per transaction: lseek 2.00 → 0.00",
                "clock reads (no system calls outside valgrind) per transaction: gettimeofday 4.03 → 7.03",
            ]
        );
        assert!(lines([&before, &before]).is_empty());
    }
}
