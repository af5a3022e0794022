//! Parses the command line as C's `getopt_long` does: attached or separate values, abbreviated long
//! names, options after arguments, and the same messages.
//!
//! Source: the option table of `main` in pgbench.c. In 15, `-d` is `--debug`; in 17 and later,
//! `--dbname`. `--exit-on-abort` was added in 17. pgassay's own options cannot be abbreviated, so
//! that they never make an abbreviation of pgbench's ambiguous. One of them is
//! `--continue-on-error`, which pgbench has only after 18.

use pgassay_script::Compat;

/// An option, by whichever name it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    Builtin,
    Client,
    Connect,
    Dbname,
    Debug,
    Define,
    File,
    Fillfactor,
    Host,
    Initialize,
    InitSteps,
    Jobs,
    Log,
    LatencyLimit,
    NoVacuum,
    Port,
    Progress,
    Protocol,
    Quiet,
    ReportPerCommand,
    Rate,
    Scale,
    SelectOnly,
    SkipSomeUpdates,
    Time,
    Transactions,
    Username,
    VacuumAll,
    UnloggedTables,
    Tablespace,
    IndexTablespace,
    SamplingRate,
    AggregateInterval,
    ProgressTimestamp,
    LogPrefix,
    ForeignKeys,
    RandomSeed,
    ShowScript,
    Partitions,
    PartitionMethod,
    FailuresDetailed,
    MaxTries,
    VerboseErrors,
    ExitOnAbort,
    ContinueOnError,
    Compat,
    Cpus,
    HdrLog,
    Json,
    LatencyPercentiles,
    Io,
    RankDsn,
}

/// Whether an option takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// `--name=VALUE` or `--name`.
    MaybeValue,
}

struct Known {
    opt: Opt,
    long: &'static str,
    short: Option<char>,
    takes: Takes,
    /// Not an option of pgbench.
    is_own: bool,
}

const fn known(opt: Opt, long: &'static str, short: char, takes: Takes) -> Known {
    Known {
        opt,
        long,
        short: if short == ' ' { None } else { Some(short) },
        takes,
        is_own: false,
    }
}

const fn own(opt: Opt, long: &'static str, takes: Takes) -> Known {
    Known {
        opt,
        long,
        short: None,
        takes,
        is_own: true,
    }
}

use Takes::{MaybeValue, Nothing, Value};

/// In pgbench's order, which determines the order in messages about ambiguity.
const KNOWN: [Known; 52] = [
    known(Opt::Builtin, "builtin", 'b', Value),
    known(Opt::Client, "client", 'c', Value),
    known(Opt::Connect, "connect", 'C', Nothing),
    known(Opt::Dbname, "dbname", 'd', Value),
    known(Opt::Define, "define", 'D', Value),
    known(Opt::File, "file", 'f', Value),
    known(Opt::Fillfactor, "fillfactor", 'F', Value),
    known(Opt::Host, "host", 'h', Value),
    known(Opt::Initialize, "initialize", 'i', Nothing),
    known(Opt::InitSteps, "init-steps", 'I', Value),
    known(Opt::Jobs, "jobs", 'j', Value),
    known(Opt::Log, "log", 'l', Nothing),
    known(Opt::LatencyLimit, "latency-limit", 'L', Value),
    known(Opt::NoVacuum, "no-vacuum", 'n', Nothing),
    known(Opt::Port, "port", 'p', Value),
    known(Opt::Progress, "progress", 'P', Value),
    known(Opt::Protocol, "protocol", 'M', Value),
    known(Opt::Quiet, "quiet", 'q', Nothing),
    known(Opt::ReportPerCommand, "report-per-command", 'r', Nothing),
    known(Opt::Rate, "rate", 'R', Value),
    known(Opt::Scale, "scale", 's', Value),
    known(Opt::SelectOnly, "select-only", 'S', Nothing),
    known(Opt::SkipSomeUpdates, "skip-some-updates", 'N', Nothing),
    known(Opt::Time, "time", 'T', Value),
    known(Opt::Transactions, "transactions", 't', Value),
    known(Opt::Username, "username", 'U', Value),
    known(Opt::VacuumAll, "vacuum-all", 'v', Nothing),
    known(Opt::UnloggedTables, "unlogged-tables", ' ', Nothing),
    known(Opt::Tablespace, "tablespace", ' ', Value),
    known(Opt::IndexTablespace, "index-tablespace", ' ', Value),
    known(Opt::SamplingRate, "sampling-rate", ' ', Value),
    known(Opt::AggregateInterval, "aggregate-interval", ' ', Value),
    known(Opt::ProgressTimestamp, "progress-timestamp", ' ', Nothing),
    known(Opt::LogPrefix, "log-prefix", ' ', Value),
    known(Opt::ForeignKeys, "foreign-keys", ' ', Nothing),
    known(Opt::RandomSeed, "random-seed", ' ', Value),
    known(Opt::ShowScript, "show-script", ' ', Value),
    known(Opt::Partitions, "partitions", ' ', Value),
    known(Opt::PartitionMethod, "partition-method", ' ', Value),
    known(Opt::FailuresDetailed, "failures-detailed", ' ', Nothing),
    known(Opt::MaxTries, "max-tries", ' ', Value),
    known(Opt::VerboseErrors, "verbose-errors", ' ', Nothing),
    known(Opt::ExitOnAbort, "exit-on-abort", ' ', Nothing),
    known(Opt::Debug, "debug", ' ', Nothing),
    own(Opt::Compat, "compat", Value),
    own(Opt::ContinueOnError, "continue-on-error", Nothing),
    own(Opt::Cpus, "cpus", Value),
    own(Opt::HdrLog, "hdr-log", Value),
    own(Opt::Json, "json", Nothing),
    own(Opt::LatencyPercentiles, "latency-percentiles", MaybeValue),
    own(Opt::Io, "io", Value),
    own(Opt::RankDsn, "rank-dsn", Value),
];

/// A parsed option and its value, which is empty if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub opt: Opt,
    pub value: String,
}

/// Reads options one at a time, so that the first error is reported first.
pub struct OptionReader<'a> {
    words: std::slice::Iter<'a, String>,
    /// Short options that follow in the current word.
    cluster: &'a str,
    arguments: Vec<String>,
    compat: Compat,
    /// Whether the first argument ends the options.
    is_posix: bool,
}

impl<'a> OptionReader<'a> {
    /// Reads the arguments `words`, without the program name.
    pub fn new(words: &'a [String], compat: Compat, is_posix: bool) -> Self {
        Self {
            words: words.iter(),
            cluster: "",
            arguments: Vec::new(),
            compat,
            is_posix,
        }
    }

    /// The non-option arguments, after all options have been read.
    pub fn into_arguments(self) -> Vec<String> {
        self.arguments
    }

    fn exists(&self, known: &Known) -> bool {
        match known.opt {
            Opt::Dbname | Opt::ExitOnAbort => self.compat >= Compat::V17,
            Opt::ContinueOnError => self.compat >= Compat::V18,
            _ => true,
        }
    }

    /// The next option.
    ///
    /// # Errors
    /// glibc's message, without the program's name.
    pub fn next(&mut self) -> Option<Result<Found, String>> {
        if !self.cluster.is_empty() {
            return Some(self.short());
        }
        loop {
            let word = self.words.next()?;
            if word == "--" {
                self.arguments.extend(self.words.by_ref().cloned());
                return None;
            }
            if let Some(long) = word.strip_prefix("--") {
                return Some(self.long(long));
            }
            match word.strip_prefix('-') {
                Some(cluster) if !cluster.is_empty() => {
                    self.cluster = cluster;
                    return Some(self.short());
                }
                _ => self.arguments.push(word.clone()),
            }
            if self.is_posix {
                self.arguments.extend(self.words.by_ref().cloned());
                return None;
            }
        }
    }

    fn short(&mut self) -> Result<Found, String> {
        let mut letters = self.cluster.chars();
        let letter = letters.next().expect("a cluster in progress has letters");
        self.cluster = letters.as_str();
        if letter == 'd' && self.compat < Compat::V17 {
            return Ok(Found {
                opt: Opt::Debug,
                value: String::new(),
            });
        }
        let found = KNOWN.iter().find(|known| known.short == Some(letter));
        let Some(known) = found else {
            return Err(format!("invalid option -- '{letter}'"));
        };
        let value = match known.takes {
            Value if self.cluster.is_empty() => self
                .words
                .next()
                .cloned()
                .ok_or_else(|| format!("option requires an argument -- '{letter}'"))?,
            Value => std::mem::take(&mut self.cluster).to_owned(),
            _ => String::new(),
        };
        Ok(Found {
            opt: known.opt,
            value,
        })
    }

    fn long(&mut self, word: &str) -> Result<Found, String> {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        let exact = KNOWN
            .iter()
            .find(|known| known.long == name && self.exists(known));
        let known = match exact {
            Some(known) => known,
            None => self.abbreviated(name)?,
        };
        let long = known.long;
        let value = match (known.takes, attached) {
            (Nothing, Some(_)) => {
                return Err(format!("option '--{long}' doesn't allow an argument"));
            }
            (Value, None) => self
                .words
                .next()
                .cloned()
                .ok_or_else(|| format!("option '--{long}' requires an argument"))?,
            (_, attached) => attached.unwrap_or_default(),
        };
        Ok(Found {
            opt: known.opt,
            value,
        })
    }

    fn abbreviated(&self, name: &str) -> Result<&'static Known, String> {
        let matching: Vec<&Known> = KNOWN
            .iter()
            .filter(|known| !known.is_own && known.long.starts_with(name) && self.exists(known))
            .collect();
        match matching[..] {
            [known] => Ok(known),
            [] => Err(format!("unrecognized option '--{name}'")),
            _ => {
                let names = matching.iter().map(|known| format!(" '--{}'", known.long));
                let names: String = names.collect();
                Err(format!(
                    "option '--{name}' is ambiguous; possibilities:{names}"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Options with their values, and arguments.
    type Read = (Vec<(Opt, String)>, Vec<String>);

    fn read(line: &str, compat: Compat) -> Result<Read, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut reader = OptionReader::new(&words, compat, false);
        let mut found = Vec::new();
        while let Some(next) = reader.next() {
            let next = next?;
            found.push((next.opt, next.value));
        }
        Ok((found, reader.into_arguments()))
    }

    fn options(line: &str) -> Vec<(Opt, String)> {
        read(line, Compat::V18).unwrap().0
    }

    fn is(opt: Opt, value: &str) -> (Opt, String) {
        (opt, value.to_owned())
    }

    #[test]
    fn values_are_attached_or_apart() {
        let expected = [is(Opt::Client, "10"), is(Opt::Jobs, "2")];
        assert_eq!(options("-c10 -j2"), expected);
        assert_eq!(options("-c 10 -j 2"), expected);
        assert_eq!(options("--client=10 --jobs 2"), expected);
        assert_eq!(
            options("-nSc10"),
            [
                is(Opt::NoVacuum, ""),
                is(Opt::SelectOnly, ""),
                is(Opt::Client, "10")
            ]
        );
        // A value can look like an option.
        assert_eq!(
            options("--partitions -1 -s -n"),
            [is(Opt::Partitions, "-1"), is(Opt::Scale, "-n")]
        );
    }

    #[test]
    fn arguments_may_come_anywhere() {
        let (found, arguments) = read("one -n two -- -S", Compat::V18).unwrap();
        assert_eq!(found, [is(Opt::NoVacuum, "")]);
        assert_eq!(arguments, ["one", "two", "-S"]);
        assert_eq!(read("-", Compat::V18).unwrap().1, ["-"]);
    }

    #[test]
    fn long_names_may_be_cut_short() {
        assert_eq!(
            options("--trans=5 --lat=3"),
            [is(Opt::Transactions, "5"), is(Opt::LatencyLimit, "3")]
        );
        assert_eq!(options("--log"), [is(Opt::Log, "")]);
        let ambiguous = read("--pro", Compat::V18).unwrap_err();
        assert_eq!(
            ambiguous,
            "option '--pro' is ambiguous; possibilities: '--progress' '--protocol' \
             '--progress-timestamp'"
        );
        assert!(read("--jso", Compat::V18).is_err(), "ours are spelt out");
    }

    #[test]
    fn an_option_that_came_after_18_makes_none_of_18_ambiguous() {
        assert_eq!(options("--con"), [is(Opt::Connect, "")]);
        assert_eq!(
            options("--continue-on-error"),
            [is(Opt::ContinueOnError, "")]
        );
        assert!(read("--cont", Compat::V18).is_err(), "ours are spelt out");
    }

    #[test]
    fn refusals_are_those_of_the_c_library() {
        for (line, message) in [
            ("--bad-option", "unrecognized option '--bad-option'"),
            ("-x", "invalid option -- 'x'"),
            ("-c", "option requires an argument -- 'c'"),
            ("--client", "option '--client' requires an argument"),
            ("--log=x", "option '--log' doesn't allow an argument"),
        ] {
            assert_eq!(read(line, Compat::V18).unwrap_err(), message);
        }
    }

    #[test]
    fn versions_differ() {
        assert_eq!(
            read("-d x", Compat::V15).unwrap(),
            (vec![is(Opt::Debug, "")], vec!["x".to_owned()])
        );
        assert_eq!(options("-d x"), [is(Opt::Dbname, "x")]);
        assert!(read("--exit-on-abort", Compat::V15).is_err());
        assert!(read("--continue-on-error", Compat::V17).is_err());
    }
}
