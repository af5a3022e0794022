//! `--help`. Options and their order are pgbench's, because wrappers depend on them.

use pgassay_script::Compat;
use std::fmt::Write as _;

/// The help text.
pub fn text(program: &str, compat: Compat) -> String {
    let mut lines = Vec::new();
    lines.push(format!(
        "{program} is a benchmarking tool for PostgreSQL.\n"
    ));
    lines.push("Usage:".to_owned());
    lines.push(format!("  {program} [OPTION]... [DBNAME]"));
    for (title, options) in SECTIONS {
        lines.push(format!("\n{title}:"));
        for (since, until, names, what) in *options {
            if (*since..=*until).contains(&compat) {
                lines.push(option(names, what));
            }
        }
    }
    lines.push(
        "\nThis program is part of pgassay, not of PostgreSQL. It behaves like pgbench.\n\
         Report bugs to the pgassay project.\n"
            .to_owned(),
    );
    lines.join("\n")
}

fn option(names: &str, what: &str) -> String {
    const COLUMN: usize = 25;
    let mut lines = what.split('\n');
    let first = lines.next().unwrap_or_default();
    let mut text = if names.len() < COLUMN {
        format!("  {names:<COLUMN$}{first}")
    } else {
        format!("  {names}\n  {:COLUMN$}{first}", "")
    };
    for line in lines {
        let _ = write!(text, "\n  {:COLUMN$}{line}", "");
    }
    text
}

type UsageLine = (Compat, Compat, &'static str, &'static str);

const fn all(names: &'static str, what: &'static str) -> UsageLine {
    (Compat::V15, Compat::V18, names, what)
}

const SECTIONS: &[(&str, &[UsageLine])] = &[
    (
        "Initialization options",
        &[
            all("-i, --initialize", "invokes initialization mode"),
            (
                Compat::V15,
                Compat::V15,
                "-I, --init-steps=[dtgGvpf]+ (default \"dtgvp\")",
                "run selected initialization steps",
            ),
            (
                Compat::V17,
                Compat::V18,
                "-I, --init-steps=[dtgGvpf]+ (default \"dtgvp\")",
                "run selected initialization steps, in the specified order\n\
                 d: drop any existing pgbench tables\n\
                 t: create the tables used by the standard pgbench scenario\n\
                 g: generate data, client-side\n\
                 G: generate data, server-side\n\
                 v: invoke VACUUM on the standard tables\n\
                 p: create primary key indexes on the standard tables\n\
                 f: create foreign keys between the standard tables",
            ),
            all("-F, --fillfactor=NUM", "set fill factor"),
            all("-n, --no-vacuum", "do not run VACUUM during initialization"),
            all("-q, --quiet", "quiet logging (one message each 5 seconds)"),
            all("-s, --scale=NUM", "scaling factor"),
            all(
                "--foreign-keys",
                "create foreign key constraints between tables",
            ),
            all(
                "--index-tablespace=TABLESPACE",
                "create indexes in the specified tablespace",
            ),
            all(
                "--partition-method=(range|hash)",
                "partition pgbench_accounts with this method (default: range)",
            ),
            all(
                "--partitions=NUM",
                "partition pgbench_accounts into NUM parts (default: 0)",
            ),
            all(
                "--tablespace=TABLESPACE",
                "create tables in the specified tablespace",
            ),
            all("--unlogged-tables", "create tables as unlogged tables"),
        ],
    ),
    (
        "Options to select what to run",
        &[
            all(
                "-b, --builtin=NAME[@W]",
                "add builtin script NAME weighted at W (default: 1)\n\
                 (use \"-b list\" to list available scripts)",
            ),
            all(
                "-f, --file=FILENAME[@W]",
                "add script FILENAME weighted at W (default: 1)",
            ),
            all(
                "-N, --skip-some-updates",
                "skip updates of pgbench_tellers and pgbench_branches\n\
                 (same as \"-b simple-update\")",
            ),
            all(
                "-S, --select-only",
                "perform SELECT-only transactions\n(same as \"-b select-only\")",
            ),
        ],
    ),
    (
        "Benchmarking options",
        &[
            all(
                "-c, --client=NUM",
                "number of concurrent database clients (default: 1)",
            ),
            all(
                "-C, --connect",
                "establish new connection for each transaction",
            ),
            all(
                "-D, --define=VARNAME=VALUE",
                "define variable for use by custom script",
            ),
            all("-j, --jobs=NUM", "number of threads (default: 1)"),
            all("-l, --log", "write transaction times to log file"),
            all(
                "-L, --latency-limit=NUM",
                "count transactions lasting more than NUM ms as late",
            ),
            all(
                "-M, --protocol=simple|extended|prepared",
                "protocol for submitting queries (default: simple)",
            ),
            all("-n, --no-vacuum", "do not run VACUUM before tests"),
            all(
                "-P, --progress=NUM",
                "show thread progress report every NUM seconds",
            ),
            all(
                "-r, --report-per-command",
                "report latencies, failures, and retries per command",
            ),
            all("-R, --rate=NUM", "target rate in transactions per second"),
            all("-s, --scale=NUM", "report this scale factor in output"),
            all(
                "-t, --transactions=NUM",
                "number of transactions each client runs (default: 10)",
            ),
            all("-T, --time=NUM", "duration of benchmark test in seconds"),
            all(
                "-v, --vacuum-all",
                "vacuum all four standard tables before tests",
            ),
            all(
                "--aggregate-interval=NUM",
                "aggregate data over NUM seconds",
            ),
            (
                Compat::V17,
                Compat::V18,
                "--exit-on-abort",
                "exit when any client is aborted",
            ),
            all(
                "--failures-detailed",
                "report the failures grouped by basic types",
            ),
            all(
                "--log-prefix=PREFIX",
                "prefix for transaction time log file\n(default: \"pgbench_log\")",
            ),
            all(
                "--max-tries=NUM",
                "max number of tries to run transaction (default: 1)",
            ),
            all(
                "--progress-timestamp",
                "use Unix epoch timestamps for progress",
            ),
            all(
                "--random-seed=SEED",
                "set random seed (\"time\", \"rand\", integer)",
            ),
            all(
                "--sampling-rate=NUM",
                "fraction of transactions to log (e.g., 0.01 for 1%)",
            ),
            all("--show-script=NAME", "show builtin script code, then exit"),
            all("--verbose-errors", "print messages of all errors"),
        ],
    ),
    (
        "Options that pgbench does not have",
        &[
            all(
                "--compat=15|17|18",
                "behave like this version of pgbench (default: 18)",
            ),
            (
                Compat::V18,
                Compat::V18,
                "--continue-on-error",
                "continue running after an SQL error (added to pgbench after 18)",
            ),
            all(
                "--cpus=LIST",
                "run thread 1, 2, ... on these CPUs in turn, such as 0-3,8\n\
                 (default: the kernel chooses)",
            ),
            all(
                "--hdr-log=FILE",
                "write latency histograms, one per second, as HdrHistogram log\n\
                 (after the run; until then, they are in memory)",
            ),
            all(
                "--io=auto|epoll|uring",
                "client I/O interface (default: auto, io_uring if available)",
            ),
            all(
                "--json",
                "print results as JSON instead of pgbench's report",
            ),
            all(
                "--latency-percentiles[=LIST]",
                "print latency percentiles (default: 50,90,95,99,99.9)",
            ),
            all(
                "--rank-dsn=CONNINFO",
                "with mpirun: connect rank 0 to CONNINFO; repeat for ranks 1, 2, ...\n\
                 (rank R uses number R modulo their number)",
            ),
        ],
    ),
    (
        "Common options",
        &[
            (
                Compat::V15,
                Compat::V15,
                "-d, --debug",
                "print debugging output",
            ),
            (
                Compat::V17,
                Compat::V18,
                "--debug",
                "print debugging output",
            ),
            (
                Compat::V17,
                Compat::V18,
                "-d, --dbname=DBNAME",
                "database name to connect to",
            ),
            all(
                "-h, --host=HOSTNAME",
                "database server host or socket directory",
            ),
            all("-p, --port=PORT", "database server port number"),
            all(
                "-U, --username=USERNAME",
                "connect as specified database user",
            ),
            all("-V, --version", "output version information, then exit"),
            all("-?, --help", "show this help, then exit"),
        ],
    ),
];
