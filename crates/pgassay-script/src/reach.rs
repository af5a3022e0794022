//! What a statement can change, judged by its text: nothing, the current database, or more.
//!
//! The text of a statement does not show what a function or a code block does. So whatever is not
//! recognized counts as a change outside of the current database.

use crate::sql_scanner::tokens;

/// How far a statement's changes reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlReach {
    /// It reads, or changes only its own session.
    Reads,
    /// It changes the contents or the schema of the current database.
    Database,
    /// It changes something outside of the current database, or may do so.
    Server(ServerChange),
}

/// What a statement changes outside of the current database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// A setting: `ALTER SYSTEM`, or `ALTER DATABASE` or `ALTER ROLE` with `SET` or `RESET`.
    Setting(SettingChange),
    /// A database, such as `CREATE DATABASE`.
    Database,
    /// A role, its memberships, or what it owns.
    Role,
    /// Privileges on databases, tablespaces or settings, or membership in roles.
    Privilege,
    /// A tablespace.
    Tablespace,
    /// An extension: it is in the current database, but can run any code with a superuser's rights.
    Extension,
    /// A replication slot, a subscription, or an origin.
    Replication,
    /// A way to the data of other databases or servers: a foreign server, `dblink`.
    OtherData,
    /// Files or programs of the server's machine.
    File,
    /// Other sessions or processes of the server: checkpoints, reloading, terminating, statistics.
    Activity,
    /// Unknown: a code block, a procedure, or a statement that this list does not contain.
    Unknown,
}

impl ServerChange {
    /// What it is, for people.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Setting(change) => match change.scope {
                SettingScope::System => "setting of the server",
                SettingScope::Database(_) => "setting of a database",
                SettingScope::Role { .. } => "setting of a role",
            },
            Self::Database => "database",
            Self::Role => "role",
            Self::Privilege => "privileges",
            Self::Tablespace => "tablespace",
            Self::Extension => "extension, in the run's database",
            Self::Replication => "replication",
            Self::OtherData => {
                "may change data outside of the run's databases through a foreign server"
            }
            Self::File => "files or programs on the server's machine",
            Self::Activity => "other sessions or processes of the server",
            Self::Unknown => "may change anything",
        }
    }
}

/// A statement that changes a setting outside of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// What has the setting.
    pub scope: SettingScope,
    /// The name of the setting; `None` for all of them (`RESET ALL`), or if it is not recognized.
    pub name: Option<String>,
    /// What it is afterward.
    pub value: AssignedValue,
}

pub use assigned::AssignedValue;

/// What has a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingScope {
    /// The server: `ALTER SYSTEM`.
    System,
    /// A database.
    Database(String),
    /// A role, in all databases or in one.
    Role {
        /// Which one.
        role: RoleName,
        /// The database.
        database: Option<String>,
    },
}

/// A role as `ALTER ROLE` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// `ALL`.
    All,
    /// `CURRENT_USER` and the like.
    Current,
    /// By its name.
    Named(String),
}

/// Functions that act outside of the current database, by the beginning of their names.
const SERVER_FUNCTIONS: [(&str, ServerChange); 34] = [
    // These execute a text.
    ("connectby", ServerChange::Unknown),
    ("crosstab", ServerChange::Unknown),
    ("dblink", ServerChange::OtherData),
    ("query_to_xml", ServerChange::Unknown),
    ("ts_rewrite", ServerChange::Unknown),
    ("ts_stat", ServerChange::Unknown),
    ("xpath_table", ServerChange::Unknown),
    ("autoprewarm_", ServerChange::Activity),
    ("lo_export", ServerChange::File),
    ("lo_import", ServerChange::File),
    ("pg_backup_", ServerChange::Activity),
    ("pg_buffercache_evict", ServerChange::Activity),
    ("pg_buffercache_mark_dirty", ServerChange::Activity),
    ("pg_cancel_backend", ServerChange::Activity),
    ("pg_copy_", ServerChange::Replication),
    ("pg_create_logical", ServerChange::Replication),
    ("pg_create_physical", ServerChange::Replication),
    ("pg_create_restore_point", ServerChange::Activity),
    ("pg_drop_replication_slot", ServerChange::Replication),
    ("pg_file_", ServerChange::File),
    ("pg_log_", ServerChange::Activity),
    ("pg_logfile_", ServerChange::Activity),
    ("pg_logical_", ServerChange::Replication),
    ("pg_promote", ServerChange::Activity),
    ("pg_reload_conf", ServerChange::Activity),
    ("pg_replication_", ServerChange::Replication),
    ("pg_rotate_logfile", ServerChange::Activity),
    ("pg_start_backup", ServerChange::Activity),
    ("pg_stop_backup", ServerChange::Activity),
    ("pg_switch_", ServerChange::Activity),
    ("pg_sync_replication_slots", ServerChange::Replication),
    ("pg_terminate_backend", ServerChange::Activity),
    ("pg_wal_replay", ServerChange::Activity),
    ("pg_xlog_replay", ServerChange::Activity),
];

/// Functions that change the current database, or make its other sessions wait, by the beginning of their names. Most
/// do so in a transaction that may only read, too.
const DATABASE_FUNCTIONS: [&str; 15] = [
    "brin_desummarize",
    "brin_summarize",
    "gin_clean_pending_list",
    "heap_force_",
    "nextval",
    "pg_advisory_",
    "pg_clear_",
    "pg_extension_config_dump",
    "pg_import_system_collations",
    "pg_notify",
    "pg_prewarm",
    "pg_restore_",
    "pg_truncate_visibility_map",
    "pg_try_advisory_",
    "setval",
];

/// Catalogs that all databases of a server share. A superuser may write to them.
const SHARED_CATALOGS: [&str; 11] = [
    "pg_auth_members",
    "pg_authid",
    "pg_database",
    "pg_db_role_setting",
    "pg_parameter_acl",
    "pg_replication_origin",
    "pg_shdepend",
    "pg_shdescription",
    "pg_shseclabel",
    "pg_subscription",
    "pg_tablespace",
];

/// Words between `CREATE` or `ALTER` or `DROP` and the kind of object.
const MODIFIERS: [&str; 12] = [
    "or",
    "replace",
    "temp",
    "temporary",
    "global",
    "local",
    "unlogged",
    "unique",
    "recursive",
    "constraint",
    "trusted",
    "procedural",
];

/// Kinds of objects that belong to a database, by their first word.
const IN_DATABASE: [&str; 29] = [
    "table",
    "index",
    "view",
    "materialized",
    "sequence",
    "schema",
    "function",
    "procedure",
    "routine",
    "aggregate",
    "trigger",
    "event",
    "type",
    "domain",
    "rule",
    "operator",
    "cast",
    "collation",
    "conversion",
    "statistics",
    "publication",
    "policy",
    "text",
    "access",
    "transform",
    "default",
    "large",
    "column",
    "constraint",
];

impl SqlReach {
    /// Judges one statement.
    pub fn of(sql: &str) -> Self {
        let words: Vec<String> = tokens(sql.as_bytes())
            .into_iter()
            .filter(|token| !token.starts_with(b"/*"))
            .map(|token| String::from_utf8_lossy(&token).into_owned())
            .collect();
        // An identifier with Unicode escapes can be any name.
        let is_escaped = |word: &String| {
            word.get(..3)
                .is_some_and(|it| it.eq_ignore_ascii_case("u&\""))
        };
        if words.iter().any(is_escaped) {
            return Self::Server(ServerChange::Unknown);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((first, rest)) = words.split_first() else {
            return Self::Reads;
        };
        let by_kind = of_command(first, rest);
        // A call can be in any statement, such as `INSERT … SELECT pg_switch_wal()`.
        match (&by_kind, server_function(&words)) {
            (Self::Reads | Self::Database, Some(change)) => Self::Server(change),
            (Self::Database, None) if writes_shared_catalog(&words) => {
                Self::Server(ServerChange::Unknown)
            }
            _ => by_kind,
        }
    }
}

fn of_command(first: &str, rest: &[&str]) -> SqlReach {
    match first {
        "select" | "with" | "values" | "table" | "(" | "explain" | "prepare" | "declare" => {
            of_query(first, rest)
        }
        "set" | "begin" | "start" | "reset" => of_session(rest),
        "commit" | "rollback" | "end" | "abort" if rest.contains(&"prepared") => {
            SqlReach::Server(ServerChange::Unknown)
        }
        "show" | "commit" | "rollback" | "end" | "abort" | "savepoint" | "release" | "fetch"
        | "move" | "close" | "deallocate" | "discard" | "unlisten" => SqlReach::Reads,
        "insert" | "update" | "delete" | "merge" | "truncate" | "vacuum" | "analyze"
        | "reindex" | "cluster" | "refresh" | "lock" | "listen" | "notify" | "execute" => {
            SqlReach::Database
        }
        "copy" => of_copy(rest),
        "create" | "alter" | "drop" => of_definition(first, rest),
        "import" => SqlReach::Server(ServerChange::OtherData),
        "comment" | "security" => of_object(after(rest, "on")),
        "grant" | "revoke" => of_privilege(rest),
        "reassign" => SqlReach::Server(ServerChange::Role),
        "checkpoint" => SqlReach::Server(ServerChange::Activity),
        _ => SqlReach::Server(ServerChange::Unknown),
    }
}

/// Queries, which write if they contain a statement or a clause that does.
fn of_query(first: &str, rest: &[&str]) -> SqlReach {
    if first == "prepare" && rest.first() == Some(&"transaction") {
        return SqlReach::Server(ServerChange::Unknown);
    }
    let writes = |word: &&str| {
        matches!(
            *word,
            "insert" | "update" | "delete" | "merge" | "into" | "create" | "execute"
        )
    };
    let names = || rest.iter().copied().map(identifier);
    let changes = |name: String| DATABASE_FUNCTIONS.iter().any(|it| name.starts_with(it));
    // The argument may be an expression, and `default_transaction_read_only` one of its values.
    let sets = |name: &str| name == "set_config";
    // Large objects may be written in a transaction that reads, up to 15.
    let writes_object = |name: &str| {
        name.starts_with("lo_") && !matches!(name, "lo_get" | "lo_open") || name == "lowrite"
    };
    if names().any(|name| sets(&name) || writes_object(&name)) {
        return SqlReach::Database;
    }
    let locks = rest
        .windows(2)
        .any(|pair| pair[0] == "for" && matches!(pair[1], "share" | "no" | "key"));
    if locks || rest.iter().any(writes) || names().any(changes) {
        SqlReach::Database
    } else {
        SqlReach::Reads
    }
}

/// Settings of a session with which its statements are others than they seem, or may write where they must only
/// read: whether they are read only, which bytes are a quote or a backslash, what a backslash in a string means, and
/// which libraries are loaded.
const FREEING_SETTINGS: [&str; 7] = [
    "client_encoding",
    "default_transaction_read_only",
    "local_preload_libraries",
    "options",
    "session_preload_libraries",
    "standard_conforming_strings",
    "transaction_read_only",
];

/// Whether a session with this setting may write although it must only read.
pub fn frees_session(setting: &str) -> bool {
    // The server accepts either sign (`ParseLongOption` in guc.c).
    let name = setting.to_ascii_lowercase().replace('-', "_");
    FREEING_SETTINGS.contains(&name.trim())
}

/// `SET`, `BEGIN` and the like: a transaction that may write again is not one that reads.
fn of_session(rest: &[&str]) -> SqlReach {
    // Another form of `SET client_encoding`.
    let sets_names = matches!(rest, ["names", ..] | ["local" | "session", "names", ..]);
    let may_write = sets_names
        || rest.contains(&"write")
        || rest
            .iter()
            .any(|word| identifier(word).ends_with("_read_only"))
        || rest.iter().any(|word| frees_session(&identifier(word)));
    if may_write {
        SqlReach::Database
    } else {
        SqlReach::Reads
    }
}

fn of_copy(rest: &[&str]) -> SqlReach {
    // The first one: `WHERE a IS DISTINCT FROM stdin` may follow.
    let mut depth = 0_u32;
    let is_direction = |word: &&str| {
        match *word {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(*word, "to" | "from")
    };
    let target = rest
        .iter()
        .position(is_direction)
        .and_then(|at| rest.get(at + 1));
    match target {
        Some(&"stdin") => SqlReach::Database,
        Some(&"stdout") => of_query("copy", rest),
        _ => SqlReach::Server(ServerChange::File),
    }
}

/// `CREATE`, `ALTER` and `DROP`.
fn of_definition(command: &str, rest: &[&str]) -> SqlReach {
    let at = rest.iter().position(|word| !MODIFIERS.contains(word));
    let rest = &rest[at.unwrap_or(rest.len())..];
    match rest {
        ["system", rest @ ..] if command == "alter" => setting(SettingScope::System, rest),
        ["database", rest @ ..] if command == "alter" => of_altered_database(rest),
        ["role" | "user", rest @ ..] if command == "alter" && rest.first() != Some(&"mapping") => {
            of_altered_role(rest)
        }
        ["owned", ..] => SqlReach::Server(ServerChange::Role),
        _ if command != "drop" && leads_elsewhere(rest) => {
            SqlReach::Server(ServerChange::OtherData)
        }
        ["function" | "procedure", rest @ ..] if is_in_unsafe_language(rest) => {
            SqlReach::Server(ServerChange::Unknown)
        }
        _ => of_object(rest),
    }
}

/// Whether this is an object through which statements reach other servers, beginning with its kind.
fn leads_elsewhere(rest: &[&str]) -> bool {
    matches!(
        rest,
        ["user", "mapping", ..] | ["server", ..] | ["foreign", "table" | "data", ..]
    )
}

/// Whether a function is in a language that can do what a superuser can: not `sql`, `plpgsql` or another trusted one.
fn is_in_unsafe_language(rest: &[&str]) -> bool {
    let languages = rest.windows(2).filter(|pair| pair[0] == "language");
    languages
        .map(|pair| identifier(pair[1].trim_matches('\'')).to_ascii_lowercase())
        .any(|it| it == "c" || it == "internal" || it.ends_with('u'))
}

/// An object that a statement names, beginning with its kind.
fn of_object(rest: &[&str]) -> SqlReach {
    SqlReach::Server(match rest {
        _ if leads_elsewhere(rest) => return SqlReach::Database,
        [kind, ..] if IN_DATABASE.contains(kind) => return SqlReach::Database,
        ["role" | "user" | "group", ..] => ServerChange::Role,
        ["database", ..] => ServerChange::Database,
        ["tablespace", ..] => ServerChange::Tablespace,
        // A language that is not trusted can do anything, too.
        ["extension" | "language", ..] => ServerChange::Extension,
        ["subscription", ..] => ServerChange::Replication,
        _ => ServerChange::Unknown,
    })
}

/// `GRANT` and `REVOKE`: without `ON`, a membership; a table if no kind is named.
fn of_privilege(rest: &[&str]) -> SqlReach {
    match after(rest, "on") {
        [] | ["database" | "tablespace" | "parameter", ..] => {
            SqlReach::Server(ServerChange::Privilege)
        }
        _ => SqlReach::Database,
    }
}

fn of_altered_database(rest: &[&str]) -> SqlReach {
    let is_setting = matches!(rest, [_, "reset", ..])
        || matches!(rest, [_, "set", name, ..] if *name != "tablespace");
    match rest {
        [name, rest @ ..] if is_setting => setting(SettingScope::Database(identifier(name)), rest),
        _ => SqlReach::Server(ServerChange::Database),
    }
}

fn of_altered_role(rest: &[&str]) -> SqlReach {
    let (name, rest) = match rest {
        [name, rest @ ..] => (*name, rest),
        [] => return SqlReach::Server(ServerChange::Role),
    };
    let (database, rest) = match rest {
        ["in", "database", database, rest @ ..] => (Some(identifier(database)), rest),
        _ => (None, rest),
    };
    if !matches!(rest.first(), Some(&("set" | "reset"))) {
        return SqlReach::Server(ServerChange::Role);
    }
    let role = match name {
        "all" => RoleName::All,
        "current_user" | "current_role" | "session_user" => RoleName::Current,
        other => RoleName::Named(identifier(other)),
    };
    setting(SettingScope::Role { role, database }, rest)
}

/// `SET name …`, `RESET name` or `RESET ALL`.
fn setting(scope: SettingScope, rest: &[&str]) -> SqlReach {
    let (name, value) = match rest {
        ["reset", "all", ..] => (None, AssignedValue::Reset),
        ["reset", rest @ ..] => (assigned::name(rest).0, AssignedValue::Reset),
        ["set", rest @ ..] => {
            let (name, rest) = assigned::name(rest);
            (name, AssignedValue::of(rest))
        }
        _ => (None, AssignedValue::Unknown),
    };
    SqlReach::Server(ServerChange::Setting(SettingChange { scope, name, value }))
}

/// An identifier's value: quotes are removed, and unquoted ones are in lower case already.
fn identifier(token: &str) -> String {
    match token
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => token.to_owned(),
    }
}

/// The words after the first `word`; none if it is missing.
fn after<'a>(words: &'a [&'a str], word: &str) -> &'a [&'a str] {
    match words.iter().position(|it| *it == word) {
        Some(at) => &words[at + 1..],
        None => &[],
    }
}

/// Whether a statement inserts, updates or deletes rows of a catalog that all databases share.
fn writes_shared_catalog(words: &[&str]) -> bool {
    (0..words.len()).any(|at| {
        let before = match &words[..at] {
            [before @ .., schema, "."] if identifier(schema) == "pg_catalog" => before,
            before => before,
        };
        let before = before.strip_suffix(&["only"]).unwrap_or(before);
        let is_target = matches!(before, [.., "into" | "update"] | [.., "delete", "from"]);
        is_target && SHARED_CATALOGS.contains(&identifier(words[at]).as_str())
    })
}

/// A call of a function that acts outside of the current database, or an object that calls it.
fn server_function(words: &[&str]) -> Option<ServerChange> {
    // `CREATE AGGREGATE a (text) (sfunc = dblink_exec, …)`.
    let kinds = words.iter().skip(1).take(3);
    let has_function = words.first() == Some(&"create")
        && kinds
            .into_iter()
            .any(|it| matches!(*it, "aggregate" | "operator" | "cast"));
    let names = words
        .iter()
        .enumerate()
        .filter(|(at, _)| has_function || words.get(at + 1) == Some(&"("));
    names.map(|(_, name)| identifier(name)).find_map(|name| {
        // Those of extensions, too: `pg_stat_statements_reset`, `pg_qualstats_reset`.
        if name.starts_with("pg_") && name.contains("_reset") {
            return Some(ServerChange::Activity);
        }
        let found = SERVER_FUNCTIONS
            .iter()
            .find(|(begin, _)| name.starts_with(begin));
        found.map(|(_, change)| change.clone())
    })
}

mod assigned;
#[cfg(test)]
mod tests;
