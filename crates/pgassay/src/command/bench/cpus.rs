//! `--cpus`: on which CPUs the load's threads run.

use std::fmt::Write as _;
use std::path::Path;

use pgassay_profile::allowed_cpus;

use super::message::{Exit, fatal, hint};

/// Parses numbers and ranges, such as `0-3,8`. Their order counts.
pub fn parse(list: &str) -> Result<Vec<usize>, Exit> {
    listed(list).map_err(|refusal| fatal(&refusal))
}

fn listed(list: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>();
        match (number(first), number(last)) {
            (Ok(first), Ok(last)) if first <= last => {
                if last >= libc::CPU_SETSIZE as usize {
                    return Err(missing(last));
                }
                cpus.extend(first..=last);
            }
            _ => {
                return Err(format!(
                    "invalid value \"{list}\" for option --cpus: expecting numbers and ranges, such as 0-3,8"
                ));
            }
        }
    }
    Ok(cpus)
}

/// Refuses CPUs that this process cannot use.
pub fn check(cpus: &[usize]) -> Result<(), Exit> {
    let allowed = allowed_cpus();
    let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) else {
        return Ok(());
    };
    if !Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}")).exists() {
        return Err(fatal(&missing(*cpu)));
    }
    let exit = fatal(&format!(
        "--cpus: CPU {cpu} is offline, or this process may not use it: it may use {}",
        in_words(&allowed)
    ));
    hint("taskset, containers and mpirun (without --bind-to none) restrict CPUs.");
    Err(exit)
}

fn missing(cpu: usize) -> String {
    format!("--cpus: this machine has no CPU {cpu}")
}

/// The CPU of each of these threads, in turn; none if the kernel chooses.
pub fn of_threads(cpus: &[usize], first_thread: usize, threads: usize) -> Vec<usize> {
    let from_first = cpus.iter().cycle().skip(first_thread % cpus.len().max(1));
    from_first.take(threads).copied().collect()
}

/// Sorted numbers as the kernel writes them: `0-3,8`.
fn in_words(cpus: &[usize]) -> String {
    let mut out = String::new();
    for range in cpus.chunk_by(|one, next| one + 1 == *next) {
        let separator = if out.is_empty() { "" } else { "," };
        let _ = match range {
            [first, .., last] => write!(out, "{separator}{first}-{last}"),
            _ => write!(out, "{separator}{}", range[0]),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn numbers_and_ranges_keep_their_order() {
        assert_eq!(listed("8,0-2, 4").unwrap(), [8, 0, 1, 2, 4]);
        assert_eq!(in_words(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
    }

    #[test]
    fn what_is_no_cpu_is_refused() {
        for list in ["", "a", "1-", "3-1", "0,,1", "-1"] {
            let refusal = listed(list).unwrap_err();
            assert!(
                refusal.contains("expecting numbers and ranges"),
                "{refusal}"
            );
        }
        let refusal = listed("0-4000000000").unwrap_err();
        assert_eq!(refusal, "--cpus: this machine has no CPU 4000000000");
        assert!(check(&[1023]).is_err() && check(&allowed_cpus()).is_ok());
    }

    #[test]
    fn threads_take_the_cpus_in_turn_on_all_ranks() {
        assert_eq!(of_threads(&[4, 6, 7], 0, 5), [4, 6, 7, 4, 6]);
        // A rank whose first thread is number 5.
        assert_eq!(of_threads(&[4, 6, 7], 5, 2), [7, 4]);
        assert!(of_threads(&[], 3, 4).is_empty());
    }
}
