//! `-i`: creates and fills the standard tables.
//!
//! Source: `runInitSteps` and its callees in pgbench.c. Up to 16, only accounts were filled by COPY and
//! progress did not name the table; the contents are the same. With partitions, pgbench 18 makes
//! only the partitions unlogged, see [`Initialization::tables_are_unlogged`].

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Instant;

use super::cancellation::Cancellation;
use super::connection::{self, Setup};
use super::message::{Exit, fatal, write_stderr};
use super::settings::{PartitionMethod, Settings};
use crate::output::print_over_stderr;
use pgassay_script::Compat;

const BRANCHES: i64 = 1;
const TELLERS: i64 = 10;
const ACCOUNTS: i64 = 100_000;
/// From this scale, account IDs need 64 bits.
const SCALE_OF_BIGINT: i32 = 20_000;
/// Progress interval with `-q`.
const QUIET_S: f64 = 5.0;
/// Progress interval without `-q`, in rows.
const PROGRESS_ROWS: i64 = 100_000;
/// Approximate size of the messages in which rows are sent.
const MESSAGE_BYTES: usize = 32 << 10;
/// `COPY … FREEZE` is useful since this version, because it sets the visibility map.
const FREEZE_MAJOR: u32 = 14;
/// Servers reject an unlogged partitioned table since this version.
const NO_UNLOGGED_PARENT_MAJOR: u32 = 18;

struct Initialization<'a> {
    setup: Setup,
    settings: &'a Settings,
    cancellation: Option<Cancellation>,
}

/// Runs the initialization steps.
pub fn initialize(settings: &Settings, application: &str) -> Result<(), Exit> {
    let refused = |_| fatal("could not create connection for initialization");
    let mut target = connection::target(settings, application).map_err(refused)?;
    let setup = Setup::open(&mut target).map_err(refused)?;
    let mut initialization = Initialization {
        cancellation: Cancellation::watch(&setup, &target)?,
        setup,
        settings,
    };
    let (mut took, mut total_s) = (Vec::new(), 0.0);
    for step in settings.init_steps.as_deref().unwrap_or_default().chars() {
        let begin = Instant::now();
        let Some(name) = initialization.step(step)? else {
            continue;
        };
        let elapsed_s = begin.elapsed().as_secs_f64();
        total_s += elapsed_s;
        took.push(format!("{name} {elapsed_s:.2} s"));
    }
    write_stderr(&format!("done in {total_s:.2} s ({}).\n", took.join(", ")));
    initialization.setup.close();
    Ok(())
}

impl Initialization<'_> {
    fn step(&mut self, step: char) -> Result<Option<&'static str>, Exit> {
        Ok(Some(match step {
            'd' => {
                write_stderr("dropping old tables...\n");
                self.execute(
                    "drop table if exists pgbench_accounts, pgbench_branches, pgbench_history, \
                     pgbench_tellers",
                )?;
                "drop tables"
            }
            't' => {
                self.create_tables()?;
                "create tables"
            }
            'g' => {
                self.generate_here()?;
                "client-side generate"
            }
            'G' => {
                self.generate_there()?;
                "server-side generate"
            }
            'v' => {
                write_stderr("vacuuming...\n");
                for table in ["branches", "tellers", "accounts", "history"] {
                    self.execute(&format!("vacuum analyze pgbench_{table}"))?;
                }
                "vacuum"
            }
            'p' => {
                self.create_primary_keys()?;
                "primary keys"
            }
            'f' => {
                self.create_foreign_keys()?;
                "foreign keys"
            }
            _ => return Ok(None),
        }))
    }

    fn execute(&mut self, sql: &str) -> Result<(), Exit> {
        self.setup.execute(sql)
    }

    fn create_tables(&mut self) -> Result<(), Exit> {
        write_stderr("creating tables...\n");
        let settings = self.settings;
        let unlogged = unlogged(self.tables_are_unlogged());
        let aid = if settings.scale >= SCALE_OF_BIGINT {
            "bigint"
        } else {
            "int"
        };
        let tables = [
            (
                "history",
                format!("tid int,bid int,aid {aid},delta int,mtime timestamp,filler char(22)"),
            ),
            (
                "tellers",
                "tid int not null,bid int,tbalance int,filler char(84)".to_owned(),
            ),
            (
                "accounts",
                format!("aid {aid} not null,bid int,abalance int,filler char(84)"),
            ),
            (
                "branches",
                "bid int not null,bbalance int,filler char(88)".to_owned(),
            ),
        ];
        for (table, columns) in tables {
            let mut sql = format!("create{unlogged} table pgbench_{table}({columns})");
            match settings.partition_method {
                Some(method) if table == "accounts" => {
                    let _ = write!(sql, " partition by {} (aid)", method.name());
                }
                _ if table != "history" => {
                    let _ = write!(sql, " with (fillfactor={})", settings.fillfactor);
                }
                _ => {}
            }
            if let Some(tablespace) = &settings.tablespace {
                let _ = write!(sql, " tablespace {}", quoted(tablespace));
            }
            self.execute(&sql)?;
        }
        match settings.partition_method {
            Some(method) => self.create_partitions(method),
            None => Ok(()),
        }
    }

    /// Whether the four standard tables are unlogged. Partitions always are with `--unlogged-tables`.
    ///
    /// pgbench 18 makes all four tables permanent if accounts are partitioned, on every server.
    /// Older versions make all four unlogged and fail on servers since 18, which reject an unlogged
    /// partitioned table; there pgassay does what pgbench 18 does.
    fn tables_are_unlogged(&self) -> bool {
        let settings = self.settings;
        let parent_may_be_unlogged =
            settings.compat < Compat::V18 && self.setup.server_major() < NO_UNLOGGED_PARENT_MAJOR;
        settings.unlogged && (settings.partition_method.is_none() || parent_may_be_unlogged)
    }

    /// The first and last ranges are unbounded, so that every key has a partition.
    fn create_partitions(&mut self, method: PartitionMethod) -> Result<(), Exit> {
        let count = i64::from(self.settings.partitions);
        let unlogged = unlogged(self.settings.unlogged);
        write_stderr(&format!("creating {count} partitions...\n"));
        let size = (ACCOUNTS * i64::from(self.settings.scale) + count - 1) / count;
        for number in 1..=count {
            let values = match method {
                PartitionMethod::Hash => {
                    format!("with (modulus {count}, remainder {})", number - 1)
                }
                PartitionMethod::Range => {
                    let edge = |number: i64, open: &str| {
                        if (1..count).contains(&number) {
                            (number * size + 1).to_string()
                        } else {
                            open.to_owned()
                        }
                    };
                    let (from, to) = (edge(number - 1, "minvalue"), edge(number, "maxvalue"));
                    format!("from ({from}) to ({to})")
                }
            };
            self.execute(&format!(
                "create{unlogged} table pgbench_accounts_{number}\n  \
                 partition of pgbench_accounts\n  for values {values} with (fillfactor={})",
                self.settings.fillfactor
            ))?;
        }
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), Exit> {
        self.execute(
            "truncate table pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers",
        )
    }

    /// In one transaction with the truncation, so that the server can skip WAL.
    fn generate_here(&mut self) -> Result<(), Exit> {
        write_stderr("generating data (client-side)...\n");
        self.execute("begin")?;
        self.truncate()?;
        self.copy("pgbench_branches", BRANCHES, |out, row| {
            push_row(out, &[row + 1, 0], "\t\\N\n");
        })?;
        self.copy("pgbench_tellers", TELLERS, |out, row| {
            push_row(out, &[row + 1, row / TELLERS + 1, 0], "\t\\N\n");
        })?;
        self.copy("pgbench_accounts", ACCOUNTS, |out, row| {
            push_row(out, &[row + 1, row / ACCOUNTS + 1, 0], "\t\n");
        })?;
        self.execute("commit")
    }

    fn copy(
        &mut self,
        table: &str,
        rows_per_scale: i64,
        push: impl Fn(&mut Vec<u8>, i64),
    ) -> Result<(), Exit> {
        let freeze = if self.setup.server_major() >= FREEZE_MAJOR && self.is_ordinary(table)? {
            " with (freeze on)"
        } else {
            ""
        };
        let total = rows_per_scale * i64::from(self.settings.scale);
        let mut progress = FillProgress::new(self.settings, table, total);
        let (mut row, mut is_canceled) = (0, false);
        let cancellation = &self.cancellation;
        self.setup
            .copy(&format!("copy {table} from stdin{freeze}"), |out| {
                // The server notices a cancel request when it receives more rows.
                is_canceled = cancellation.as_ref().is_some_and(Cancellation::is_sent);
                let end = out.len() + MESSAGE_BYTES;
                while row < total && out.len() < end {
                    push(out, row);
                    row += 1;
                    progress.row(row);
                }
                row < total && !is_canceled
            })?;
        progress.end();
        if row < total {
            // The request failed.
            return Err(fatal(&format!("{table} was not filled: interrupted")));
        }
        Ok(())
    }

    /// Whether it is an ordinary table; only these accept `COPY … FREEZE`. Asks the server, because
    /// an earlier run may have created the tables.
    fn is_ordinary(&mut self, table: &str) -> Result<bool, Exit> {
        let sql = format!(
            "select relkind from pg_catalog.pg_class \
             where oid = '{table}'::pg_catalog.regclass"
        );
        let kind = self.setup.value(&sql)?;
        Ok(kind.as_deref() == Some("r"))
    }

    fn generate_there(&mut self) -> Result<(), Exit> {
        write_stderr("generating data (server-side)...\n");
        let scale = i64::from(self.settings.scale);
        self.execute("begin")?;
        self.truncate()?;
        self.execute(&format!(
            "insert into pgbench_branches(bid,bbalance) select bid, 0 \
             from generate_series(1, {}) as bid",
            BRANCHES * scale
        ))?;
        self.execute(&format!(
            "insert into pgbench_tellers(tid,bid,tbalance) select tid, (tid - 1) / {TELLERS} + 1, 0 \
             from generate_series(1, {}) as tid",
            TELLERS * scale
        ))?;
        self.execute(&format!(
            "insert into pgbench_accounts(aid,bid,abalance,filler) \
             select aid, (aid - 1) / {ACCOUNTS} + 1, 0, '' from generate_series(1, {}) as aid",
            ACCOUNTS * scale
        ))?;
        self.execute("commit")
    }

    fn create_primary_keys(&mut self) -> Result<(), Exit> {
        write_stderr("creating primary keys...\n");
        let tablespace = match &self.settings.index_tablespace {
            Some(name) => format!(" using index tablespace {}", quoted(name)),
            None => String::new(),
        };
        for (table, key) in [("branches", "bid"), ("tellers", "tid"), ("accounts", "aid")] {
            self.execute(&format!(
                "alter table pgbench_{table} add primary key ({key}){tablespace}"
            ))?;
        }
        Ok(())
    }

    fn create_foreign_keys(&mut self) -> Result<(), Exit> {
        write_stderr("creating foreign keys...\n");
        for (table, key, other) in [
            ("tellers", "bid", "branches"),
            ("accounts", "bid", "branches"),
            ("history", "bid", "branches"),
            ("history", "tid", "tellers"),
            ("history", "aid", "accounts"),
        ] {
            self.execute(&format!(
                "alter table pgbench_{table} add constraint pgbench_{table}_{key}_fkey \
                 foreign key ({key}) references pgbench_{other}"
            ))?;
        }
        Ok(())
    }
}

/// The SQL keyword before `table`.
fn unlogged(is_unlogged: bool) -> &'static str {
    if is_unlogged { " unlogged" } else { "" }
}

fn push_row(out: &mut Vec<u8>, values: &[i64], end: &str) {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b'\t');
        }
        out.extend_from_slice(value.to_string().as_bytes());
    }
    out.extend_from_slice(end.as_bytes());
}

/// Quotes an SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Prints the progress of filling a table on stderr.
struct FillProgress {
    /// The table's name in progress lines.
    of: String,
    total: i64,
    quiet: bool,
    /// Whether there are lines for this table: until 16, only for the accounts.
    reports: bool,
    begin: Instant,
    reported_s: f64,
    line_end: char,
    width: usize,
    /// Whether the line is cleared at the end on a terminal, as since 17.
    clears: bool,
}

impl FillProgress {
    fn new(settings: &Settings, table: &str, total: i64) -> Self {
        Self {
            of: if settings.compat >= Compat::V17 {
                format!(" of {table}")
            } else {
                String::new()
            },
            total,
            quiet: settings.quiet,
            reports: settings.compat >= Compat::V17 || table == "pgbench_accounts",
            begin: Instant::now(),
            reported_s: 0.0,
            line_end: if std::io::stderr().is_terminal() {
                '\r'
            } else {
                '\n'
            },
            width: 0,
            clears: settings.compat >= Compat::V17,
        }
    }

    fn row(&mut self, row: i64) {
        if !self.reports {
            return;
        }
        if self.quiet {
            if row % 100 == 0 {
                let elapsed_s = self.begin.elapsed().as_secs_f64();
                if row == self.total || elapsed_s >= self.reported_s + QUIET_S {
                    self.reported_s = elapsed_s;
                    self.tell(row, elapsed_s);
                }
            }
        } else if row % PROGRESS_ROWS == 0 {
            self.tell(row, self.begin.elapsed().as_secs_f64());
        }
    }

    fn tell(&mut self, row: i64, elapsed_s: f64) {
        let remaining_s = (self.total - row) as f64 * elapsed_s / row as f64;
        let line = format!(
            "{row} of {} tuples ({}%){} done (elapsed {elapsed_s:.2} s, remaining {remaining_s:.2} s)",
            self.total,
            row * 100 / self.total,
            self.of
        );
        let blanks = " ".repeat(self.width.saturating_sub(line.len()));
        if self.line_end == '\r' {
            print_over_stderr(&format!("{line}{blanks}"));
        } else {
            write_stderr(&format!("{line}{blanks}\n"));
        }
        self.width = line.len();
    }

    /// Ends the progress line.
    fn end(&self) {
        if self.line_end == '\n' || self.width == 0 {
            return;
        }
        if self.clears {
            print_over_stderr(&format!("{:width$}", "", width = self.width));
        } else {
            write_stderr("\n");
        }
    }
}
