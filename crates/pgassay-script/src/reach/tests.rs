use super::*;

fn server(change: ServerChange) -> SqlReach {
    SqlReach::Server(change)
}

#[test]
fn statements_that_only_read_are_recognized() {
    for sql in [
        "select 1",
        "SELECT * FROM t WHERE a = 'insert into t'",
        "with a as (select 1) select * from a",
        "explain (analyze) select 1",
        "/* insert */ values (1)",
        "set work_mem = '64MB'",
        "set search_path = names",
        "begin isolation level repeatable read",
        "show all",
        "copy t to stdout",
        "copy (select 'a' from t) to stdout",
        "",
    ] {
        assert_eq!(SqlReach::of(sql), SqlReach::Reads, "{sql}");
    }
}

#[test]
fn changes_of_the_current_database_are_recognized() {
    for sql in [
        "insert into t values (1)",
        "with a as (delete from t returning *) select * from a",
        "select * into u from t",
        "select * from t for no key update",
        "select nextval('s')",
        "begin read write",
        "set transaction_read_only = off",
        "create unlogged table t (i int)",
        "create or replace function f() returns int language sql as 'select 1'",
        "CREATE UNIQUE INDEX ON t (a)",
        "alter table t set (fillfactor = 70)",
        "drop foreign table f",
        "drop user mapping for me server s",
        "comment on server s is 'x'",
        "create function f() returns int language plpgsql as $$ begin return 1; end $$",
        "create aggregate a (int) (sfunc = int4pl, stype = int)",
        "drop materialized view v",
        "comment on table t is 'on database'",
        "grant select on t to bob",
        "grant all on schema s to bob",
        "vacuum analyze t",
        "copy t from stdin",
        // Regression: names in quotes were not recognized.
        "set \"default_transaction_read_only\" = off",
        "set Standard_Conforming_Strings = off",
        "select \"set_config\"('default_transaction_read_only', 'off', false)",
        "select \"nextval\"('s')",
        "explain analyze execute p",
        // Regression: a transaction that may only read executes them.
        "select pg_notify('jobs', 'run')",
        "select pg_catalog.pg_clear_relation_stats('public', 't')",
        "select \"brin_summarize_new_values\"('i')",
        "insert into t select datname from pg_database",
        // Regression: with these, a string ended elsewhere for the server than for pgassay.
        "set client_encoding = 'SJIS'",
        "set names 'GBK'",
        "set session names 'BIG5'",
        "set local \"client_encoding\" to 'UHC'",
        // Regression: other sessions of the database wait for these, or get what they send.
        "select pg_advisory_lock(1)",
        "select pg_try_advisory_xact_lock(1, 2)",
        "listen jobs",
        "select pg_prewarm('t')",
    ] {
        assert_eq!(SqlReach::of(sql), SqlReach::Database, "{sql}");
    }
}

#[test]
fn changes_outside_of_the_current_database_are_recognized() {
    use ServerChange as C;
    for (sql, change) in [
        ("create role bob", C::Role),
        ("create user bob", C::Role),
        ("alter role bob createdb", C::Role),
        ("drop owned by bob", C::Role),
        ("grant pg_monitor to bob", C::Privilege),
        ("grant connect on database d to bob", C::Privilege),
        ("drop database shop", C::Database),
        ("alter database shop rename to pohs", C::Database),
        ("alter database shop set tablespace fast", C::Database),
        ("comment on database shop is 'x'", C::Database),
        ("create tablespace fast location '/x'", C::Tablespace),
        ("create extension if not exists pg_prewarm", C::Extension),
        (
            "create subscription s connection '' publication p",
            C::Replication,
        ),
        (
            "select pg_create_physical_replication_slot('s')",
            C::Replication,
        ),
        ("select pg_catalog.pg_reload_conf()", C::Activity),
        ("insert into t select pg_switch_wal()", C::Activity),
        ("copy t to '/tmp/t'", C::File),
        ("copy t from program 'id'", C::File),
        // Regression: a column of this name hid the program.
        (
            "copy t from program 'id' where a is distinct from stdin",
            C::File,
        ),
        ("checkpoint", C::Activity),
        ("do $$ begin execute 'create role x'; end $$", C::Unknown),
        ("call p()", C::Unknown),
        ("load 'auto_explain'", C::Unknown),
        (
            "select query_to_xml('select f()', true, true, '')",
            C::Unknown,
        ),
        ("select U&\"set\\005fconfig\"('a', 'b', false)", C::Unknown),
        ("select pg_stat_statements_reset()", C::Activity),
        ("select pg_stat_reset_shared('bgwriter')", C::Activity),
        // Regression: other extensions reset their statistics in the same way.
        ("select pg_wait_sampling_reset_profile()", C::Activity),
        ("prepare transaction 'x'", C::Unknown),
        // Regression: a superuser may write to the catalogs that all databases share.
        (
            "update only pg_catalog.pg_authid set rolsuper = true",
            C::Unknown,
        ),
        (
            "with a as (delete from \"pg_db_role_setting\") select 1",
            C::Unknown,
        ),
        ("insert into pg_database values (1)", C::Unknown),
        ("select pg_log_backend_memory_contexts(1)", C::Activity),
        (
            "select pg_logical_emit_message(false, '', '')",
            C::Replication,
        ),
        ("frobnicate", C::Unknown),
    ] {
        assert_eq!(SqlReach::of(sql), server(change), "{sql}");
    }
}

/// Regression: statements deleted rows of another database through a foreign table, and a plan named none of them.
#[test]
fn statements_that_lead_to_other_databases_are_recognized() {
    for sql in [
        "create foreign data wrapper w handler h",
        "create server s foreign data wrapper postgres_fdw options (dbname 'shop')",
        "CREATE SERVER IF NOT EXISTS s FOREIGN DATA WRAPPER postgres_fdw",
        "alter server s options (set dbname 'shop')",
        "create user mapping for current_user server s options (user 'postgres')",
        "alter user mapping for current_user server s options (set user 'postgres')",
        "create foreign table f (i int) server s",
        "create foreign table f partition of t default server s",
        "alter foreign table f options (add table_name 't')",
        "import foreign schema public from server s into public",
        "select dblink_connect('dbname=shop')",
        "select dblink_exec('dbname=shop', 'delete from t')",
        "insert into t select * from public.\"dblink\" ('dbname=shop', 'x') as (i int)",
        "create view v as select dblink_send_query('a', 'b')",
        "create aggregate run (text) (sfunc = dblink_exec, stype = text)",
        "create or replace aggregate run (text) (sfunc = dblink_exec, stype = text)",
        "create operator @@@ (function = dblink_exec, leftarg = text, rightarg = text)",
    ] {
        assert_eq!(SqlReach::of(sql), server(ServerChange::OtherData), "{sql}");
    }
}

#[test]
fn functions_and_languages_that_can_do_anything_are_recognized() {
    for sql in [
        "create function f() returns int language c as 'lib', 'f'",
        "create or replace function f() returns bool as 'pg_reload_conf' language INTERNAL",
        "create function f() returns int language \"plpython3u\" as 'import os'",
        "create procedure p() language 'plperlu' as 'x'",
    ] {
        assert_eq!(SqlReach::of(sql), server(ServerChange::Unknown), "{sql}");
    }
    for sql in ["create language plperlu", "create trusted language plperl"] {
        assert_eq!(SqlReach::of(sql), server(ServerChange::Extension), "{sql}");
    }
}

#[test]
fn the_setting_that_a_statement_changes_is_known() {
    let of_role = |role, database: Option<&str>| SettingScope::Role {
        role,
        database: database.map(str::to_owned),
    };
    let named = |name: &str| RoleName::Named(name.to_owned());
    for (sql, scope, name) in [
        (
            "ALTER SYSTEM SET Work_Mem TO '64MB'",
            SettingScope::System,
            Some("work_mem"),
        ),
        (
            "alter system set auto_explain.log_analyze = on",
            SettingScope::System,
            Some("auto_explain.log_analyze"),
        ),
        ("alter system reset all", SettingScope::System, None),
        (
            "alter database \"My \"\"Shop\" reset jit",
            SettingScope::Database("My \"Shop".to_owned()),
            Some("jit"),
        ),
        (
            "alter role all set time zone 'UTC'",
            of_role(RoleName::All, None),
            Some("timezone"),
        ),
        (
            "alter user current_user set jit = off",
            of_role(RoleName::Current, None),
            Some("jit"),
        ),
        (
            "alter role Bob in database shop set search_path = a, b",
            of_role(named("bob"), Some("shop")),
            Some("search_path"),
        ),
    ] {
        let name = name.map(str::to_owned);
        let SqlReach::Server(ServerChange::Setting(found)) = SqlReach::of(sql) else {
            panic!("{sql}");
        };
        assert_eq!((found.scope, found.name), (scope, name), "{sql}");
    }
}
