//! What all databases of a server share, before and after a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use pgassay_server::Connection;

use super::backup::{literal, quoted};

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

/// An object that a statement can drop.
#[derive(Debug, PartialEq, Eq)]
pub struct AddedObject {
    /// Its kind and name: `role bob`.
    pub name: String,
    /// The statement that drops it.
    pub drop: String,
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

    /// The objects that a statement can drop: `role bob`.
    pub fn droppable(&self) -> BTreeSet<String> {
        let keys = self.objects.keys();
        keys.filter(|key| drop_statement(key).is_some())
            .cloned()
            .collect()
    }

    /// The objects that are not among those `before`.
    pub fn added_since(&self, before: &BTreeSet<String>) -> Vec<AddedObject> {
        let added = self.objects.keys().filter(|key| !before.contains(*key));
        let with_drop = added.filter_map(|key| {
            Some(AddedObject {
                name: key.clone(),
                drop: drop_statement(key)?,
            })
        });
        with_drop.collect()
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

/// The statement that drops an object such as `role bob`; `None` for a setting.
fn drop_statement(object: &str) -> Option<String> {
    if let Some(name) = object.strip_prefix("replication slot ") {
        // All that the server allows in such a name; the server may be a hostile one.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let name = if name.bytes().all(is_plain) {
            format!("'{name}'")
        } else {
            literal(name)
        };
        return Some(format!("select pg_drop_replication_slot({name});"));
    }
    let (kind, name) = object.split_once(' ')?;
    let is_known = ["database", "role", "extension", "tablespace"].contains(&kind);
    is_known.then(|| format!("drop {kind} {};", quoted(name)))
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

    #[test]
    fn added_objects_have_a_statement_that_drops_them() {
        let before = state(&[("role a", "1"), ("setting x of role a", "1")]);
        let after = state(&[
            ("role a", "2"),
            ("role b \"c\"", "1"),
            ("replication slot s", "physical"),
            ("setting y of role a", "1"),
            ("tablespace fast", "a"),
        ]);
        let kept = before.droppable();
        assert_eq!(kept.iter().collect::<Vec<_>>(), ["role a"]);
        let found = after.added_since(&kept);
        let expected = [
            (
                "replication slot s",
                "select pg_drop_replication_slot('s');",
            ),
            ("role b \"c\"", "drop role \"b \"\"c\"\"\";"),
            ("tablespace fast", "drop tablespace \"fast\";"),
        ];
        let expected = expected.map(|(name, drop)| AddedObject {
            name: name.to_owned(),
            drop: drop.to_owned(),
        });
        assert_eq!(found, expected);
    }
}
