//! The injected delays, and the studies that compare a variant with the injection to one without.
//!
//! With one client, the injected delay d is the delay of each transaction. With 64 clients on few
//! CPUs, transactions also delay each other. There, scripts pause between statements, in the client
//! or in the server, so that CPUs are not saturated, and [`Case::injected_us`] computes d.

use std::fmt::Write as _;

use pgassay_account::ledger::{LedgerRow, Part};

use super::laboratory::{BURN, Held};

/// Where the delay is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// `pg_sleep` in the statement.
    Sleep,
    /// A row that another session keeps locked.
    RowLock,
    /// A row locked by a session that is idle in transaction.
    IdleHolder,
    /// A relay between client and server.
    Relay,
    /// A CPU-bound function.
    Cpu,
    /// A log pipe whose reader pauses.
    LogPipe,
    /// A client whose CPU is taken by another process.
    Client,
}

/// The pause of clients before each transaction. It differs between clients, or they would stay
/// synchronized.
const PAUSE: &str = "\\set pause 15000 + 150 * :client_id\n\\sleep :pause us\n";
/// Lock durations differ between pairs for the same reason.
const HOLDS: u32 = 11;
/// Messages of 4 kB that do not fit into the pipes between a session and the reader of the log.
const MESSAGES: u32 = 30;
/// Sleep of the clients that run next to the CPU hog, in ms. It is the client's, which is measured exactly;
/// the shares of sleeps in statements are too uncertain for so rare an event. It is long, because requests
/// that the hog delayed are sent together, and backends then wait for the server's CPU.
const NAP_MS: [u32; 2] = [40, 80];

const SETUP: &str = "
create table held (id int primary key, n int);
insert into held select i, 0 from generate_series(1, 64) i;
create function write_log(hold_us int, messages int) returns int language plpgsql as $$
begin
  raise log 'hold=% %', hold_us, repeat('x', 3800);
  for i in 2..messages loop raise log '%', repeat('x', 3800); end loop;
  return 0;
end $$;
vacuum analyze held;
";

/// The parts of a study that differ between cases.
struct Parts {
    script: String,
    /// Keys of both variants.
    variants: [String; 2],
}

impl Case {
    pub const ALL: [Self; 7] = [
        Self::Sleep,
        Self::RowLock,
        Self::IdleHolder,
        Self::Relay,
        Self::Cpu,
        Self::LogPipe,
        Self::Client,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sleep => "pg_sleep",
            Self::RowLock => "row lock",
            Self::IdleHolder => "idle in transaction",
            Self::Relay => "relay",
            Self::Cpu => "CPU burn",
            Self::LogPipe => "log pipe",
            Self::Client => "client descheduled",
        }
    }

    /// The row that must increase.
    pub fn row(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::RowLock | Self::IdleHolder => "Lock …",
            Self::Relay => "network …",
            Self::Cpu => "CPU: execute",
            Self::LogPipe => "logging pipe",
            Self::Client => "client run queue",
        }
    }

    /// Whether the injection also makes backends wait for a CPU: work of many clients coincides, and requests
    /// that were delayed together are sent together.
    pub fn queues(self, clients: u32) -> bool {
        clients > 1 && matches!(self, Self::Cpu | Self::Client)
    }

    pub fn is_its(self, group: &LedgerRow) -> bool {
        let name = group.cost.name.as_str();
        match self {
            Self::Sleep => {
                group.part == Part::Blocked && ["sleep", "Timeout PgSleep"].contains(&name)
            }
            Self::RowLock | Self::IdleHolder => {
                group.part == Part::Blocked && (name == "Lock" || name.starts_with("Lock "))
            }
            Self::Relay => name.contains("wake-up"),
            Self::Cpu => group.part == Part::OnCpu && name == "execute",
            Self::LogPipe => group.part == Part::Blocked && name == "logging pipe",
            Self::Client => group.part == Part::Client && name == "client run queue",
        }
    }

    /// The number of clients, including the lock holder if that is a client.
    pub fn clients(self, clients: u32) -> u32 {
        match self {
            Self::RowLock | Self::IdleHolder => clients.max(2),
            _ => clients,
        }
    }

    /// The delay that the script, the relay or the driver is asked for, in µs.
    pub fn asked_us(self, clients: u32) -> u32 {
        match (self, clients > 1) {
            (Self::Cpu, _) | (Self::LogPipe, true) => 1000,
            (Self::Relay, false) => 2000,
            (Self::Sleep | Self::RowLock | Self::IdleHolder | Self::Client, false) => 5000,
            (Self::Relay, true) | (Self::LogPipe, false) => 10_000,
            (Self::RowLock | Self::IdleHolder, true) => 15_000,
            (Self::Sleep | Self::Client, true) => 20_000,
        }
    }

    /// The mean delay of a transaction as measured by the injection itself.
    pub fn injected_us(self, clients: u32, held: &Held, baseline_us: f64) -> f64 {
        let asked_us = f64::from(self.asked_us(clients));
        match self {
            Self::Sleep | Self::Relay => asked_us,
            // Pairs with short locks complete more transactions.
            Self::RowLock | Self::IdleHolder => {
                let pairs = 0..self.clients(clients) / 2;
                let count = f64::from(pairs.end);
                let rates = pairs.map(|pair| 1.0 / (asked_us + f64::from(pair % HOLDS) * 1e3));
                count / rates.sum::<f64>()
            }
            Self::Cpu => held.burn_us,
            // All clients wait for the reader, which serves one after the other.
            Self::LogPipe if clients > 1 => {
                f64::from(clients) * held.holds.period_us() - baseline_us
            }
            Self::Client if clients > 1 => beside_a_hog_us(clients, held.holds.mean_us()),
            Self::LogPipe | Self::Client => held.holds.mean_us(),
        }
    }

    /// The study. `server`: keys of its `[server]`; `loops`: loops that take the requested CPU time;
    /// `pipe`: the CPU hog's pipe.
    pub fn study(
        self,
        clients: u32,
        server: &str,
        loops: u64,
        pipe: &str,
        length: &Length,
    ) -> String {
        let Parts { script, variants } = self.parts(clients, loops, pipe);
        let mut text = format!(
            "question = \"Does {} land in its row?\"\n[server]\n{server}\n\
             [data]\nsetup = '''{BURN};{SETUP}'''\n[[script]]\nname = \"script\"\ntext = '''\n{script}'''\n",
            self.name()
        );
        for (name, keys) in ["without", "with"].iter().zip(&variants) {
            write!(text, "[[variant]]\nname = \"{name}\"\n{keys}\n")
                .expect("writing to a String cannot fail");
        }
        let Length { full, pairs } = length;
        write!(
            text,
            "[conditions]\nclients = [{}]\n[length]\nfull = \"{full}\"\npairs = {pairs}\n",
            self.clients(clients)
        )
        .expect("writing to a String cannot fail");
        text
    }

    fn parts(self, clients: u32, loops: u64, pipe: &str) -> Parts {
        let asked_us = self.asked_us(clients);
        let many = clients > 1;
        let pause = if many { PAUSE } else { "" };
        let parameter = |name: &str, without: &str, with: &str| {
            [without, with].map(|value| format!("parameters = {{ {name} = \"{value}\" }}"))
        };
        let asked = || parameter("us", "0", &asked_us.to_string());
        // Without the injection, each client of a pair has its own row.
        let lock = format!(
            "\\set id (:client_id / ${{sharing}}) * ${{sharing}} + 1\n\
             \\set hold {} + (:client_id / 2) % {HOLDS}\n",
            asked_us / 1000
        );
        let update = "update held set n = n + 1 where id = :id";
        let (script, variants) = match self {
            Self::Sleep => (format!("{pause}select pg_sleep(${{us}} / 1e6);\n"), asked()),
            Self::RowLock => (
                format!("{lock}{update} returning pg_sleep(:hold / 1000.0);\n"),
                parameter("sharing", "1", "2"),
            ),
            Self::IdleHolder => (
                format!("{lock}begin;\n{update};\n\\sleep :hold ms\ncommit;\n"),
                parameter("sharing", "1", "2"),
            ),
            Self::Relay => (
                format!("{pause}select 1;\n"),
                [0, asked_us].map(|us| format!("network = {{ delay = \"{us}us\" }}")),
            ),
            Self::Cpu => {
                let pause = if many {
                    "\\set pause random(160, 480)\n\\sleep :pause ms\n"
                } else {
                    ""
                };
                (
                    format!("{pause}select burn(${{loops}});\n"),
                    parameter("loops", "0", &loops.to_string()),
                )
            }
            Self::LogPipe => {
                let messages = if many { 1 } else { MESSAGES };
                (
                    format!("{pause}select write_log(${{us}}, {messages});\n"),
                    asked(),
                )
            }
            Self::Client => {
                let tell = format!("copy (select ${{us}}) to '{pipe}';\n");
                let [least, most] = NAP_MS;
                let script = if many {
                    format!(
                        "\\set nap random({least}, {most})\n\\sleep :nap ms\nselect 1;\n\
                         \\if :client_id = 0\n{tell}\\endif\n"
                    )
                } else {
                    format!("{tell}\\sleep 5 ms\n")
                };
                (script, asked())
            }
        };
        Parts { script, variants }
    }
}

/// Mean delay if one of many clients has its thread's CPU taken for `hold_us` at the end of each of its
/// transactions, simulated. That client waits for all of it, others from the end of their sleep. Clients
/// that were delayed together also sleep together, so more of them are delayed than at random.
fn beside_a_hog_us(clients: u32, hold_us: f64) -> f64 {
    const HOLDS: usize = 10_000;
    let mut random = 1_u64;
    let mut nap_us = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let [least, most] = NAP_MS.map(u64::from);
        ((random >> 33) % (most - least + 1) + least) as f64 * 1e3
    };
    let mut end_us = 0.0;
    let mut begin_of_next = || {
        let begin_us = end_us + nap_us();
        end_us = begin_us + hold_us;
        begin_us
    };
    let begins: Vec<f64> = (0..HOLDS).map(|_| begin_of_next()).collect();
    let (mut waited_us, mut transactions) = (HOLDS as f64 * hold_us, HOLDS as f64);
    for _ in 1..clients {
        let mut now_us = nap_us();
        while now_us < end_us {
            let before = begins.partition_point(|begin| *begin <= now_us);
            let until_us = before.checked_sub(1).map_or(0.0, |at| begins[at] + hold_us);
            let wait_us = (until_us - now_us).max(0.0);
            waited_us += wait_us;
            transactions += 1.0;
            now_us += wait_us + nap_us();
        }
    }
    waited_us / transactions
}

/// How long to measure.
#[derive(Debug, Clone)]
pub struct Length {
    pub full: String,
    pub pairs: u32,
}
