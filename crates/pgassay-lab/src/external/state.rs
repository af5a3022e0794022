//! What all databases of a server share, before and after a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use pgassay_server::Connection;

/// Kinds of objects, and queries for their names and what may change about them. Databases of runs
/// are left out.
const KINDS: [(&str, &str); 7] = [
    (
        "database",
        "select datname, concat_ws(' ', pg_get_userbyid(datdba), datallowconn, datconnlimit, datacl) \
         from pg_database where datname !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    (
        "role",
        "select rolname, concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, \
         rolcanlogin, rolreplication, rolbypassrls, rolconnlimit, rolvaliduntil, \
         (select string_agg(pg_get_userbyid(roleid), ',' order by roleid) \
          from pg_auth_members where member = r.oid)) from pg_roles r",
    ),
    (
        "setting",
        "select concat_ws(' ', split_part(entry, '=', 1), 'of', 'role ' || rolname, \
         'database ' || datname, case when setrole = 0 and setdatabase = 0 then 'all roles' end), \
         entry from (select setrole, setdatabase, unnest(setconfig) as entry \
                     from pg_db_role_setting) s \
         left join pg_roles r on r.oid = setrole left join pg_database d on d.oid = setdatabase \
         where coalesce(datname, '') !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    (
        "setting",
        "select name, setting from pg_settings where source = 'configuration file'",
    ),
    ("extension", "select extname, extversion from pg_extension"),
    (
        "replication slot",
        "select slot_name, slot_type from pg_replication_slots",
    ),
    (
        "tablespace",
        "select spcname, pg_get_userbyid(spcowner) from pg_tablespace",
    ),
];
/// The settings of `ALTER SYSTEM`, in effect or not. Only superusers can read them.
const SYSTEM_SETTINGS: &str = "select name || ' of ALTER SYSTEM', setting from pg_file_settings \
     where sourcefile like '%/postgresql.auto.conf' and name is not null";

/// What all databases of a server share: names of objects, and what may change about them.
#[derive(Debug, Default)]
pub struct ServerState {
    objects: BTreeMap<String, String>,
}

impl ServerState {
    /// Reads the state. Extensions are those of the connection's database.
    ///
    /// # Errors
    /// As for statements.
    pub fn read(connection: &mut Connection) -> Result<Self> {
        let mut state = Self::default();
        for (kind, sql) in KINDS {
            state.add(kind, connection.query(sql)?);
        }
        match connection.query(SYSTEM_SETTINGS) {
            Ok(rows) => state.add("setting", rows),
            // A role that cannot read them cannot change them either, with few exceptions.
            Err(error) if error.sql().is_some() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(state)
    }

    fn add(&mut self, kind: &str, rows: Vec<Vec<Option<String>>>) {
        for row in rows {
            let mut values = row.into_iter().map(Option::unwrap_or_default);
            let name = values.next().unwrap_or_default();
            let key = format!("{kind} {name}");
            self.objects.insert(key, values.next().unwrap_or_default());
        }
    }

    /// What is different later: `role bob` → `added`. Values are left out, because they may be secret.
    pub fn differences(&self, later: &Self) -> BTreeMap<String, &'static str> {
        let keys: BTreeSet<&String> = self.objects.keys().chain(later.objects.keys()).collect();
        let difference = |key: &String| match (self.objects.get(key), later.objects.get(key)) {
            (None, Some(_)) => Some("added"),
            (Some(_), None) => Some("removed"),
            (before, after) if before != after => Some("changed"),
            _ => None,
        };
        keys.into_iter()
            .filter_map(|key| Some((key.clone(), difference(key)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(objects: &[(&str, &str)]) -> ServerState {
        let objects = objects.iter();
        ServerState {
            objects: objects
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn added_removed_and_changed_objects_are_named() {
        let before = state(&[("role a", "1"), ("role b", "1"), ("role c", "1")]);
        let after = state(&[("role b", "2"), ("role c", "1"), ("role d", "1")]);
        let found: Vec<_> = before.differences(&after).into_iter().collect();
        let expected = [
            ("role a", "removed"),
            ("role b", "changed"),
            ("role d", "added"),
        ];
        assert_eq!(found, expected.map(|(name, what)| (name.to_owned(), what)));
    }
}
