//! Names of databases and users.

use std::collections::BTreeMap;

use pgassay_server::TimedStream;
use pgassay_wire::{Exchange, ExchangeError};

/// Names by OID.
#[derive(Debug, Default)]
pub(super) struct ObjectNames {
    databases: BTreeMap<u32, String>,
    users: BTreeMap<u32, String>,
}

impl ObjectNames {
    /// Statements that [`ObjectNames::read`] sends.
    pub const STATEMENTS: u64 = 2;

    /// Reads all names.
    pub fn read(exchange: &mut Exchange<TimedStream>) -> Result<Self, ExchangeError> {
        let mut of = |sql: &str| -> Result<BTreeMap<u32, String>, ExchangeError> {
            let answer = exchange.query(sql)?.pop().unwrap_or_default();
            let pair = |row: Vec<Option<String>>| {
                let [oid, name] = <[_; 2]>::try_from(row).ok()?;
                Some((oid?.parse().ok()?, name?))
            };
            Ok(answer.rows.into_iter().filter_map(pair).collect())
        };
        Ok(Self {
            databases: of("select oid, datname from pg_database")?,
            users: of("select oid, rolname from pg_roles")?,
        })
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

fn named(names: &BTreeMap<u32, String>, oid: u32) -> String {
    match names.get(&oid) {
        Some(name) => name.clone(),
        None if oid == 0 => String::new(),
        None => format!("OID {oid}"),
    }
}
