//! What all databases of a server share, before and after a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use pgassay_server::Connection;

use super::backup::{literal, quoted};

/// A kind of objects.
struct SharedKind {
    name: &'static str,
    /// Whether this server has it, and the role may read it.
    condition: Option<&'static str>,
    /// Names of objects, and what may change about them. Databases of runs are left out.
    sql: &'static str,
}

const fn kind(name: &'static str, sql: &'static str) -> SharedKind {
    SharedKind {
        name,
        condition: None,
        sql,
    }
}

const fn kind_if(name: &'static str, condition: &'static str, sql: &'static str) -> SharedKind {
    SharedKind {
        name,
        condition: Some(condition),
        sql,
    }
}

/// Rows as JSON have the columns of any version.
const KINDS: [SharedKind; 13] = [
    kind(
        "database",
        "select datname, to_jsonb(d) - 'datfrozenxid' - 'datminmxid' - 'dathasloginevt' \
         from pg_database d where datname !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    kind(
        "role",
        "select rolname, concat_ws(' ', to_jsonb(r) - 'rolpassword' - 'rolconfig', \
         (select string_agg(m::text, ' ' order by m::text) from pg_auth_members m \
          where member = r.oid)) from pg_roles r",
    ),
    kind_if(
        "password of role",
        "select has_table_privilege('pg_authid', 'select')",
        "select rolname, hashtext(rolpassword) from pg_authid where rolpassword is not null",
    ),
    kind(
        "setting",
        "select concat_ws(' ', split_part(entry, '=', 1), 'of', 'role ' || rolname, \
         'database ' || datname, case when setrole = 0 and setdatabase = 0 then 'all roles' end), \
         entry from (select setrole, setdatabase, unnest(setconfig) as entry \
                     from pg_db_role_setting) s \
         left join pg_roles r on r.oid = setrole left join pg_database d on d.oid = setdatabase \
         where coalesce(datname, '') !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    kind(
        "setting",
        "select name, setting from pg_settings where source = 'configuration file'",
    ),
    kind_if(
        "privileges on setting",
        "select current_setting('server_version_num')::int >= 150000",
        "select parname, paracl from pg_parameter_acl",
    ),
    kind("extension", "select extname, extversion from pg_extension"),
    kind(
        "replication slot",
        "select slot_name, slot_type from pg_replication_slots",
    ),
    kind(
        "replication origin",
        "select roname, roident from pg_replication_origin",
    ),
    kind_if(
        "subscription",
        "select current_setting('server_version_num')::int >= 100000",
        "select concat_ws(' ', subname, 'of database', datname), concat_ws(' ', subowner, subenabled) \
         from pg_subscription join pg_database d on d.oid = subdbid \
         where datname !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    kind(
        "tablespace",
        "select spcname, concat_ws(' ', to_jsonb(t), pg_tablespace_location(oid)) from pg_tablespace t",
    ),
    kind(
        "comment on",
        "select coalesce('database ' || datname, 'role ' || rolname, 'tablespace ' || spcname), \
         hashtext(description) from pg_shdescription \
         left join pg_database d on d.oid = objoid and classoid = 'pg_database'::regclass \
         left join pg_roles r on r.oid = objoid and classoid = 'pg_authid'::regclass \
         left join pg_tablespace t on t.oid = objoid and classoid = 'pg_tablespace'::regclass \
         where coalesce(datname, '') !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
    ),
    kind(
        "security label of",
        "select concat_ws(' ', provider, 'on', 'database ' || datname, 'role ' || rolname, \
         'tablespace ' || spcname), hashtext(label) from pg_shseclabel \
         left join pg_database d on d.oid = objoid and classoid = 'pg_database'::regclass \
         left join pg_roles r on r.oid = objoid and classoid = 'pg_authid'::regclass \
         left join pg_tablespace t on t.oid = objoid and classoid = 'pg_tablespace'::regclass \
         where coalesce(datname, '') !~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$'",
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
        for kind in KINDS {
            let is_readable = match kind.condition {
                None => true,
                Some(sql) => connection.value(sql)?.as_deref() == Some("t"),
            };
            if is_readable {
                state.add(kind.name, connection.query(kind.sql)?);
            }
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
    use pgassay_server::Server;
    use pgassay_test_support::servers;

    use super::*;

    /// Changes of all kinds that a function of a superuser may make, and what is then different.
    const CHANGES: [(&str, &str); 13] = [
        (
            "alter role bob password 'new'",
            "password of role bob changed",
        ),
        ("alter role eve connection limit 3", "role eve changed"),
        ("grant bob to ann with admin option", "role ann changed"),
        (
            "grant create on tablespace fast to bob",
            "tablespace fast changed",
        ),
        (
            "alter tablespace slow set (seq_page_cost = 9)",
            "tablespace slow changed",
        ),
        (
            "alter database shop is_template true",
            "database shop changed",
        ),
        (
            "alter database closed allow_connections false",
            "database closed changed",
        ),
        (
            "alter database few connection limit 3",
            "database few changed",
        ),
        (
            "alter database owned owner to bob",
            "database owned changed",
        ),
        (
            "alter database moved set tablespace fast",
            "database moved changed",
        ),
        (
            "grant connect on database open to bob",
            "database open changed",
        ),
        (
            "comment on database quiet is 'x'",
            "comment on database quiet added",
        ),
        (
            "comment on role bob is 'other'",
            "comment on role bob changed",
        ),
    ];

    fn state_of(server: &Server) -> ServerState {
        let mut connection = server.connect().unwrap();
        super::super::limit_inspection(&mut connection).unwrap();
        ServerState::read(&mut connection).unwrap()
    }

    fn execute(server: &Server, sql: &str) {
        server.connect().unwrap().execute(sql).expect(sql);
    }

    #[test]
    fn a_role_without_rights_reads_all_but_passwords() {
        for version in ["9.6", "10", "12", "15", "18"] {
            let Some(server) = servers::start(version) else {
                continue;
            };
            execute(&server, "create role bob password 'old'");
            let mut connection = server.connect().unwrap();
            connection.execute("set role bob").unwrap();
            let state = ServerState::read(&mut connection).expect(version);
            let has = |key: &str| state.objects.contains_key(key);
            assert!(has("role bob") && has("database postgres") && has("tablespace pg_default"));
            assert!(has("comment on database postgres"), "{version}");
            assert!(!has("password of role bob"), "{version}");
            assert!(
                state_of(&server)
                    .objects
                    .contains_key("password of role bob")
            );
        }
    }

    /// Regression: passwords, comments, privileges on tablespaces and settings, and flags of databases
    /// were not compared, so what a function changed had no warning.
    #[test]
    fn every_change_of_what_databases_share_is_a_difference() {
        for version in ["9.6", "10", "12", "15", "18"] {
            let Some(server) = servers::start(version) else {
                continue;
            };
            for name in ["shop", "closed", "few", "owned", "moved", "open", "quiet"] {
                execute(
                    &server,
                    &format!("create database {name} template template0"),
                );
            }
            execute(
                &server,
                "create role bob password 'old'; create role eve; create role ann; \
                 comment on role bob is 'old'",
            );
            for name in ["fast", "slow"] {
                let path = server.data_dir().join(name).display().to_string();
                let make = format!("copy (select 1) to program 'cat > /dev/null; mkdir {path}'");
                execute(&server, &make);
                execute(
                    &server,
                    &format!("create tablespace {name} location '{path}'"),
                );
            }
            let before = state_of(&server);
            assert!(
                before.differences(&state_of(&server)).is_empty(),
                "{version}"
            );
            let mut expected = Vec::new();
            let mut change = |sql: &str, difference: &str| {
                execute(&server, sql);
                expected.push(difference.to_owned());
            };
            for (sql, difference) in CHANGES {
                change(sql, difference);
            }
            if matches!(version, "15" | "18") {
                let sql = "grant set on parameter track_counts to bob";
                change(sql, "privileges on setting track_counts added");
            }
            change(
                "select pg_replication_origin_create('o')",
                "replication origin o added",
            );
            let after = state_of(&server);
            expected.sort();
            let found = before.differences(&after).into_iter();
            let found: Vec<String> = found.map(|(name, what)| format!("{name} {what}")).collect();
            assert_eq!(found, expected, "{version}");
            let hashes = format!("{after:?}");
            for secret in ["md5", "SCRAM-SHA-256", "'new'"] {
                assert!(!hashes.contains(secret), "{version}: {hashes}");
            }
        }
    }

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
