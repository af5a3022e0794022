//! Names of databases and users.

use std::collections::BTreeMap;

use pgassay_server::TimedStream;
use pgassay_wire::{Exchange, ExchangeError, QueryResult};

/// Names by OID.
#[derive(Debug, Default)]
pub(super) struct ObjectNames {
    databases: BTreeMap<u32, String>,
    users: BTreeMap<u32, String>,
    /// The backend that answered. Behind a pooler it is not the one that the connection names.
    pub own_pid: Option<u32>,
}

impl ObjectNames {
    /// Statements that [`ObjectNames::read`] sends.
    pub const STATEMENTS: u64 = 1;

    /// Reads all names in one transaction.
    pub fn read(exchange: &mut Exchange<TimedStream>) -> Result<Self, ExchangeError> {
        let sql = "begin transaction isolation level read committed read only; \
                   set local search_path = pg_catalog, pg_temp; \
                   set local statement_timeout = '10s'; set local lock_timeout = '100ms'; \
                   select pg_backend_pid(), null; select oid, datname from pg_database; \
                   select oid, rolname from pg_roles; commit";
        let mut answers = match exchange.query(sql) {
            Ok(answers) => answers.into_iter().filter(|it| !it.columns.is_empty()),
            Err(error) => {
                // The error left a transaction.
                exchange.run("rollback")?;
                return Err(error);
            }
        };
        let mut next = || named_oids(answers.next().unwrap_or_default());
        let own_pid = next().into_keys().next();
        Ok(Self {
            own_pid,
            databases: next(),
            users: next(),
        })
    }

    /// Notes OIDs without a name, so that they are not asked for again: of dropped users, for example.
    pub fn give_up(&mut self, (database, user): (u32, u32)) {
        self.databases
            .entry(database)
            .or_insert_with(|| format!("OID {database}"));
        self.users
            .entry(user)
            .or_insert_with(|| format!("OID {user}"));
    }

    /// Whether both names are known; 0 stands for none.
    pub fn has(&self, (database, user): (u32, u32)) -> bool {
        (database == 0 || self.databases.contains_key(&database))
            && (user == 0 || self.users.contains_key(&user))
    }

    /// The name of a database; its OID if it was dropped, empty for 0.
    pub fn database(&self, oid: u32) -> String {
        named(&self.databases, oid)
    }

    /// The name of a user, likewise.
    pub fn user(&self, oid: u32) -> String {
        named(&self.users, oid)
    }
}

fn named_oids(answer: QueryResult) -> BTreeMap<u32, String> {
    let pair = |row: Vec<Option<String>>| {
        let [oid, name] = <[_; 2]>::try_from(row).ok()?;
        Some((oid?.parse().ok()?, name.unwrap_or_default()))
    };
    answer.rows.into_iter().filter_map(pair).collect()
}

fn named(names: &BTreeMap<u32, String>, oid: u32) -> String {
    match names.get(&oid) {
        Some(name) => name.clone(),
        None if oid == 0 => String::new(),
        None => format!("OID {oid}"),
    }
}
