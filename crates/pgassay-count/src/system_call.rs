//! System calls by name, from the library functions that make them.
//!
//! callgrind counts system calls but not which ones. Each is made by a libc function that does
//! little else and has the same name, except for decorations: `__libc_send`, `pread64`,
//! `epoll_wait@@GLIBC_2.3.2`, `__write_nocancel`.

use std::collections::BTreeMap;

use pgassay_account::instructions::{SystemCalls, is_address};

use crate::tally::InstructionTally;

/// The system calls of a tally, the most frequent first.
pub(crate) fn by_name(tally: &InstructionTally) -> Vec<SystemCalls> {
    let mut counts = BTreeMap::new();
    for function in tally
        .functions
        .iter()
        .filter(|function| function.system_calls != 0)
    {
        let name = if is_server(&function.object) {
            SIGNAL_RETURN
        } else {
            plain(&function.name)
        };
        *counts.entry(name).or_insert(0) += function.system_calls;
    }
    let mut rows: Vec<SystemCalls> = counts
        .into_iter()
        .filter(|(_, count)| *count != 0)
        .map(|(name, count)| SystemCalls {
            name: name.to_owned(),
            count,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// The server makes its system calls through libc. A function of the server itself seems to make one if a signal
/// interrupted it: the return from the handler counts as the interrupted function's.
const SIGNAL_RETURN: &str = "rt_sigreturn";

fn is_server(object: &str) -> bool {
    object.rsplit('/').next() == Some("postgres")
}

fn plain(name: &str) -> &str {
    if is_address(name) {
        return name;
    }
    let name = name.split('@').next().unwrap_or(name);
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("libc_").unwrap_or(name);
    let name = name.strip_suffix("_nocancel").unwrap_or(name);
    let name = name.strip_suffix("_syscall").unwrap_or(name);
    name.strip_suffix("64").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::{by_name, plain};
    use crate::outfile::OutFile;
    use crate::tally::InstructionTally;

    /// Regression: the list of system calls contained `ExecClearTuple`.
    #[test]
    fn a_function_of_the_server_that_a_signal_interrupted_is_not_named_as_a_system_call() {
        let text = "pid: 1\nevents: Ir sysCount\n\
                    ob=(1) /usr/lib/postgresql/18/bin/postgres\nfn=(1) ExecClearTuple\n1 500 2\n\
                    ob=(2) /lib/libc.so.6\nfn=(2) __libc_send\n1 500 3\ntotals: 1000 5\n";
        let many = OutFile::parse(text).unwrap();
        let mut tally = InstructionTally::default();
        let few = OutFile::parse("pid: 1\nevents: Ir sysCount\ntotals: 0 0\n").unwrap();
        tally.add(&few, &many, 1);
        let names = by_name(&tally).into_iter().map(|it| (it.name, it.count));
        let expected = [("send".to_owned(), 3), ("rt_sigreturn".to_owned(), 2)];
        assert!(names.eq(expected));
    }

    #[test]
    fn names_lose_their_decorations() {
        let cases = [
            ("__libc_send", "send"),
            ("gettimeofday_syscall", "gettimeofday"),
            ("pread64@@GLIBC_2.2.5", "pread"),
            ("epoll_wait", "epoll_wait"),
            ("__write_nocancel", "write"),
            ("0x00000000000f6464", "0x00000000000f6464"),
        ];
        for (name, expected) in cases {
            assert_eq!(plain(name), expected);
        }
    }
}
