//! Parses callgrind's output: one process with its functions, calls and totals.
//!
//! Invariants: every cost line counts once, so the functions' self costs add up to the line
//! `totals:` (checked here, since a truncated file would otherwise look like a cheap run); a
//! function is one name in one object, whatever source files its lines come from.
//! For a forked process `summary:` is wrong and `totals:` is right, so only the latter is read.
//!
//! Source: "Callgrind Format Specification" in Valgrind's manual, version 1 of the format as 3.13
//! to 3.25 write it: names are compressed as `(id) name`, with separate ids for objects, files and
//! functions; positions may be relative (`+3`, `-3`, `*`); missing cost columns at the end of a
//! line are zero.

use std::collections::HashMap;

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutFileError {
    /// A line does not have the format.
    #[error("line {line} of callgrind's output: {what}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A mandatory line is missing.
    #[error("callgrind's output is truncated: it has no line \"{0}\"")]
    Missing(&'static str),
    /// The functions' costs do not add up to the process's total.
    #[error("callgrind's output is inconsistent: functions {functions}, totals {totals}")]
    DoesNotAddUp {
        /// Sum of the functions' self instructions.
        functions: u64,
        /// The line `totals:`.
        totals: u64,
    },
}

/// The most that all costs and calls of a file can add up to: nine years at 4 billion instructions per second.
const SUM_MAX: u64 = 1 << 60;
const TOO_LARGE: &str = "its costs are larger than those of any program";

/// The two kinds of cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallgrindEvents {
    /// Instructions executed (`Ir`).
    pub instructions: u64,
    /// System calls made (`sysCount`, with `--collect-systime`).
    pub system_calls: u64,
}

impl CallgrindEvents {
    fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.system_calls += other.system_calls;
    }
}

/// A function and its self cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallgrindFunction {
    /// Path of the program or library; `???` for code that belongs to none.
    pub object: String,
    /// Its name or, without a symbol, `0x` and its address in the object.
    pub name: String,
    /// The source file, if the object has debug information.
    pub file: Option<String>,
    /// Its self cost.
    pub own: CallgrindEvents,
}

/// All calls from one function to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Index of the caller among the functions.
    pub caller: usize,
    /// Index of the callee.
    pub callee: usize,
    /// The number of calls.
    pub count: u64,
    /// The callee's cost in these calls, including everything it called.
    pub inclusive: CallgrindEvents,
}

/// Returns the function at an object's address, `None` to keep callgrind's name. Needed because
/// callgrind attributes code without a symbol to the function that jumped there.
pub type Resolver<'a> = &'a mut dyn FnMut(&str, u64) -> Option<String>;

/// The counts of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutFile {
    /// The process.
    pub pid: u32,
    /// The line `totals:`.
    pub totals: CallgrindEvents,
    /// Functions, in the order of their first mention.
    pub functions: Vec<CallgrindFunction>,
    /// Calls, one entry for each pair of functions.
    pub calls: Vec<Call>,
}

impl OutFile {
    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<Self, OutFileError> {
        Self::parse_with(text, &mut |_, _| None)
    }

    /// As [`Self::parse`], but resolves functions by address if the file has addresses
    /// (`--dump-instr=yes`).
    pub fn parse_with(text: &str, resolver: Resolver<'_>) -> Result<Self, OutFileError> {
        let mut reader = OutFileReader::new(resolver);
        for (index, line) in text.lines().enumerate() {
            reader
                .line(line.trim_end())
                .map_err(|what| OutFileError::Line {
                    line: index + 1,
                    what,
                })?;
        }
        reader.finish()
    }

    /// Whether the text ends as a complete file does, so is no longer being written.
    pub fn is_complete(text: &str) -> bool {
        text.lines()
            .rev()
            .take(4)
            .any(|line| line.starts_with("totals:"))
    }
}

/// One table of compressed names.
#[derive(Default)]
struct NameSpace(HashMap<u64, String>);

impl NameSpace {
    /// `(7) name` defines a name, `(7)` refers to it, `name` stands for itself.
    fn resolve(&mut self, text: &str) -> Result<String, &'static str> {
        let Some(rest) = text.strip_prefix('(') else {
            return Ok(text.to_owned());
        };
        let (id, name) = rest
            .split_once(')')
            .ok_or("a name's id is not terminated")?;
        let Ok(id) = id.parse() else {
            // A function may be named `(below main)`: that is a name, not an id.
            return Ok(text.to_owned());
        };
        let name = name.trim_start();
        if name.is_empty() {
            let known = self.0.get(&id).ok_or("a name's id is not defined")?;
            return Ok(known.clone());
        }
        self.0.insert(id, name.to_owned());
        Ok(name.to_owned())
    }
}

struct OutFileReader<'a> {
    resolver: Resolver<'a>,
    /// Whether the first position is an address.
    has_addresses: bool,
    /// The address of the last cost line.
    address: u64,
    /// The callee's address in a pending call.
    target: u64,
    pid: Option<u32>,
    totals: Option<CallgrindEvents>,
    /// Number of position columns before the costs.
    positions: usize,
    instructions_at: Option<usize>,
    system_calls_at: Option<usize>,
    objects: NameSpace,
    files: NameSpace,
    names: NameSpace,
    object: String,
    file: String,
    called_object: Option<String>,
    called_file: Option<String>,
    current: Option<usize>,
    called: Option<(String, String, String)>,
    /// The next cost line belongs to a call with this count.
    pending: Option<u64>,
    functions: Vec<CallgrindFunction>,
    index: HashMap<(String, String), usize>,
    calls: HashMap<(usize, usize), (u64, CallgrindEvents)>,
    /// The sum of all numbers so far.
    sum: u64,
}

impl<'a> OutFileReader<'a> {
    fn new(resolver: Resolver<'a>) -> Self {
        Self {
            resolver,
            has_addresses: false,
            address: 0,
            target: 0,
            pid: None,
            totals: None,
            positions: 1,
            instructions_at: None,
            system_calls_at: None,
            objects: NameSpace::default(),
            files: NameSpace::default(),
            names: NameSpace::default(),
            object: String::new(),
            file: String::new(),
            called_object: None,
            called_file: None,
            current: None,
            called: None,
            pending: None,
            functions: Vec::new(),
            index: HashMap::new(),
            calls: HashMap::new(),
            sum: 0,
        }
    }

    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let Some(first) = line.bytes().next() else {
            return Ok(());
        };
        if first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'*') {
            return self.cost(line);
        }
        // Names may contain colons (`std::sort`), so assignments are tried first; header lines
        // have no equals sign before their colon.
        if let Some((key, value)) = line.split_once('=')
            && key.bytes().all(|byte| byte.is_ascii_lowercase())
        {
            return self.assignment(key, value);
        }
        if let Some((key, value)) = line.split_once(':') {
            return self.header(key, value.trim());
        }
        Ok(())
    }

    fn header(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "pid" => self.pid = Some(value.parse().map_err(|_| "the PID is not a number")?),
            "positions" => {
                self.positions = value.split_whitespace().count();
                self.has_addresses = value.starts_with("instr");
            }
            "events" => {
                let at = |name| value.split_whitespace().position(|event| event == name);
                self.instructions_at = Some(at("Ir").ok_or("no event \"Ir\" (instructions)")?);
                self.system_calls_at = at("sysCount");
            }
            "totals" => self.totals = Some(self.events(value)?),
            _ => {}
        }
        Ok(())
    }

    fn assignment(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "ob" => self.object = self.objects.resolve(value)?,
            "fl" | "fi" | "fe" => self.file = self.files.resolve(value)?,
            "fn" => {
                let name = without_depth(self.names.resolve(value)?);
                self.current = Some(self.function(self.object.clone(), name, self.file.clone()));
            }
            "cob" => self.called_object = Some(self.objects.resolve(value)?),
            "cfi" | "cfl" => self.called_file = Some(self.files.resolve(value)?),
            "cfn" => {
                let name = without_depth(self.names.resolve(value)?);
                let object = self.called_object.take();
                let file = self.called_file.take();
                let object = object.unwrap_or_else(|| self.object.clone());
                let file = file.unwrap_or_else(|| self.file.clone());
                self.called = Some((object, name, file));
            }
            "calls" => {
                let mut words = value.split_whitespace();
                let count = words.next().unwrap_or_default();
                self.pending = Some(count.parse().map_err(|_| "a call has no count")?);
                if self.has_addresses {
                    self.target = position(words.next().unwrap_or_default(), self.address)?;
                }
            }
            // Jumps have no cost of their own, but may define a name.
            "job" => drop(self.objects.resolve(value)?),
            "jfi" | "jfl" => drop(self.files.resolve(value)?),
            "jfn" => drop(self.names.resolve(value)?),
            // `jump`, `jcnd` and unknown keys have no cost of their own.
            _ => {}
        }
        Ok(())
    }

    fn function(&mut self, object: String, name: String, file: String) -> usize {
        let key = (object, name);
        if let Some(&known) = self.index.get(&key) {
            return known;
        }
        let (object, name) = key.clone();
        self.functions.push(CallgrindFunction {
            object,
            name,
            file: (file != "???" && !file.is_empty()).then_some(file),
            own: CallgrindEvents::default(),
        });
        self.index.insert(key, self.functions.len() - 1);
        self.functions.len() - 1
    }

    fn cost(&mut self, line: &str) -> Result<(), &'static str> {
        let mut rest = line;
        for column in 0..self.positions.max(1) {
            rest = rest.trim_start();
            let end = rest.find(' ').unwrap_or(rest.len());
            if column == 0 && self.has_addresses {
                self.address = position(&rest[..end], self.address)?;
            }
            rest = &rest[end..];
        }
        let events = self.events(rest)?;
        self.limit(&[
            events.instructions,
            events.system_calls,
            self.pending.unwrap_or_default(),
        ])?;
        let current = self.current.ok_or("a cost belongs to no function")?;
        let object = self.functions[current].object.clone();
        let current = self.at(&object, self.address).unwrap_or(current);
        let Some(count) = self.pending.take() else {
            self.functions[current].own.add(events);
            return Ok(());
        };
        let (object, name, file) = self.called.clone().ok_or("a call has no callee")?;
        let callee = match self.at(&object, self.target) {
            Some(callee) => callee,
            None => self.function(object, name, file),
        };
        let call = self.calls.entry((current, callee)).or_default();
        call.0 += count;
        call.1.add(events);
        Ok(())
    }

    /// Keeps all sums of costs and calls, here and later, within their type.
    fn limit(&mut self, numbers: &[u64]) -> Result<(), &'static str> {
        let mut numbers = numbers.iter();
        let sum = numbers.try_fold(self.sum, |sum, number| sum.checked_add(*number));
        self.sum = sum.filter(|sum| *sum <= SUM_MAX).ok_or(TOO_LARGE)?;
        Ok(())
    }

    /// The function at an address, if the file has addresses and the resolver knows it.
    fn at(&mut self, object: &str, address: u64) -> Option<usize> {
        if !self.has_addresses {
            return None;
        }
        let name = (self.resolver)(object, address)?;
        Some(self.function(object.to_owned(), name, String::new()))
    }

    fn events(&self, text: &str) -> Result<CallgrindEvents, &'static str> {
        let instructions_at = self
            .instructions_at
            .ok_or("costs come before the line \"events:\"")?;
        let mut events = CallgrindEvents::default();
        for (at, word) in text.split_whitespace().enumerate() {
            // Other columns are ignored: callgrind's system call times overflow.
            let number = || match word.parse() {
                Ok(number) if number <= SUM_MAX => Ok(number),
                Ok(_) => Err(TOO_LARGE),
                Err(_) => Err("a cost is not a number"),
            };
            if at == instructions_at {
                events.instructions = number()?;
            } else if Some(at) == self.system_calls_at {
                events.system_calls = number()?;
            }
        }
        Ok(events)
    }

    fn finish(self) -> Result<OutFile, OutFileError> {
        let totals = self.totals.ok_or(OutFileError::Missing("totals:"))?;
        let pid = self.pid.ok_or(OutFileError::Missing("pid:"))?;
        let own = self.functions.iter().map(|function| function.own);
        let functions: u64 = own.map(|own| own.instructions).sum();
        if functions != totals.instructions {
            return Err(OutFileError::DoesNotAddUp {
                functions,
                totals: totals.instructions,
            });
        }
        let call = |((caller, callee), (count, inclusive))| Call {
            caller,
            callee,
            count,
            inclusive,
        };
        let mut calls: Vec<Call> = self.calls.into_iter().map(call).collect();
        calls.sort_by_key(|call| (call.caller, call.callee));
        Ok(OutFile {
            pid,
            totals,
            functions: self.functions,
            calls,
        })
    }
}

/// An absolute position, or one relative to the last position.
fn position(word: &str, last: u64) -> Result<u64, &'static str> {
    let number = |digits: &str| match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let found = match word.as_bytes().first() {
        Some(b'*') => Ok(last),
        Some(b'+') => number(&word[1..]).map(|offset| last.wrapping_add(offset)),
        Some(b'-') => number(&word[1..]).map(|offset| last.wrapping_sub(offset)),
        _ => number(word),
    };
    found.map_err(|_| "a position is not a number")
}

/// Removes callgrind's recursion level: `f'2`.
fn without_depth(mut name: String) -> String {
    if let Some((plain, depth)) = name.rsplit_once('\'')
        && !depth.is_empty()
        && depth.bytes().all(|byte| byte.is_ascii_digit())
    {
        name.truncate(plain.len());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
version: 1
pid: 42
cmd:  postgres -D x=y
positions: line
events: Ir sysCount sysTime
summary: 9 9 9

ob=(1) /bin/postgres
fl=(1) ???
fn=(1) main
10 3
+2 4 1 7
cob=(2) /lib/libc.so.6
cfi=(2) string.c
cfn=(2) memcpy
calls=2 0
* 20 0
cfn=(3) 0x0000000000001230
calls=1 0
* 5

fn=(3)
-1 5

ob=(2)
fl=(2)
fn=(2)
0 18
fi=(3) inline.h
0 2

totals: 32 1 7
";

    #[test]
    fn names_costs_and_calls_are_parsed() {
        let file = OutFile::parse(FILE).unwrap();
        assert_eq!((file.pid, file.totals.instructions), (42, 32));
        let own = |name: &str| {
            let function = file.functions.iter().find(|function| function.name == name);
            function.unwrap().own.instructions
        };
        assert_eq!((own("main"), own("memcpy")), (7, 20));
        assert_eq!(own("0x0000000000001230"), 5);
        assert_eq!(file.functions[0].own.system_calls, 1);
        assert_eq!(file.functions[1].object, "/lib/libc.so.6");
        assert_eq!(file.functions[1].file.as_deref(), Some("string.c"));
        assert_eq!(file.functions[2].object, "/bin/postgres");
        assert_eq!(file.calls.len(), 2);
        assert_eq!(file.calls[0].count, 2);
        assert_eq!(file.calls[0].inclusive.instructions, 20);
    }

    #[test]
    fn a_truncated_file_is_rejected() {
        let (cut, _) = FILE.split_once("totals").unwrap();
        assert!(!OutFile::is_complete(cut) && OutFile::is_complete(FILE));
        assert_eq!(OutFile::parse(cut), Err(OutFileError::Missing("totals:")));
        let less = FILE.replace("0 18", "0 17");
        assert!(matches!(
            OutFile::parse(&less),
            Err(OutFileError::DoesNotAddUp {
                functions: 31,
                totals: 32
            })
        ));
        let unknown = FILE.replace("fn=(3)\n", "fn=(9)\n");
        assert!(matches!(
            OutFile::parse(&unknown),
            Err(OutFileError::Line { line: 23, .. })
        ));
    }

    /// Regression: the number of calls, and the sum of the costs, overflowed.
    #[test]
    fn costs_beyond_those_of_any_program_are_an_error() {
        let most = u64::MAX.to_string();
        let half = (SUM_MAX / 2 + 1).to_string();
        for (from, to, line) in [
            ("calls=2 ", format!("calls={most} "), true),
            ("totals: 32", format!("totals: 32 {most}"), true),
            ("0 18", format!("0 {half}\n0 {half}"), true),
            ("0 18", "0 x".to_owned(), false),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = OutFile::parse(&FILE.replace(from, &to)).unwrap_err();
            assert_eq!(error.to_string().contains(TOO_LARGE), line, "{error}");
        }
    }

    #[test]
    fn code_without_a_symbol_is_not_attributed_to_the_function_that_jumped_there() {
        let text = "pid: 1\npositions: instr line\nevents: Ir\nob=(1) /bin/postgres\n\
                    fn=(1) search\n0x10 0 5\n+16 0 7\ncfn=(2) other\ncalls=1 0x40 0\n* * 9\n\
                    fn=(2)\n0x40 0 9\nfn=(3) search'2\n0x11 0 1\ntotals: 22\n";
        let file = OutFile::parse_with(text, &mut |object, address| {
            assert_eq!(object, "/bin/postgres");
            (address & !0xf == 0x20).then(|| "0x20".to_owned())
        })
        .unwrap();
        let own: Vec<(&str, u64)> = file
            .functions
            .iter()
            .map(|function| (function.name.as_str(), function.own.instructions))
            .collect();
        assert_eq!(own, [("search", 6), ("0x20", 7), ("other", 9)]);
        let call = file.calls[0];
        assert_eq!((call.caller, call.callee), (1, 2));
    }

    #[test]
    fn addresses_in_the_file_do_not_change_the_counts() {
        let text = FILE.replace("positions: line", "positions: instr line");
        let text: String = text
            .lines()
            .map(|line| match line.bytes().next() {
                Some(b'0'..=b'9' | b'+' | b'-' | b'*') => format!("0x1f {line}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert_eq!(
            OutFile::parse(&text).unwrap(),
            OutFile::parse(FILE).unwrap()
        );
    }
}
