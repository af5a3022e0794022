//! Settings of modules that are not loaded. PostgreSQL accepts any name with a dot, and keeps the value for a module
//! that may be loaded later; until then, only `current_setting` reads it.

use std::collections::BTreeSet;

use pgassay_model::plan::{Plan, Point};
use pgassay_model::study::DriverKind;
use pgassay_wire::Exchange;

use crate::connector::TimedStream;

/// What to do about it.
pub(super) const HINT: &str = "If a module has it, set shared_preload_libraries or session_preload_libraries in the same variant";

/// The settings of a point's server and sessions that modules define: their names have a dot.
pub(super) fn module_settings<'p>(plan: &'p Plan, point: &'p Point) -> Vec<&'p str> {
    if point.driver != DriverKind::Postgres {
        return Vec::new();
    }
    let of_server = plan.servers[point.server].settings.keys();
    let names: BTreeSet<&str> = of_server
        .chain(point.session.keys())
        .map(String::as_str)
        .filter(|it| it.contains('.'))
        .collect();
    names.into_iter().collect()
}

/// Whether no module of a session defines a setting, not even those that functions of the database load when they are
/// called, such as a procedural language. If in doubt, one does.
pub(super) fn is_undefined(connection: &mut Exchange<TimedStream>, name: &str) -> bool {
    if !name.contains('.') {
        return false;
    }
    let is_missing = format!(
        "select pg_catalog.count(*) from pg_catalog.pg_settings \
         where pg_catalog.lower(name) operator(pg_catalog.=) pg_catalog.lower('{}')",
        name.replace('\'', "''")
    );
    let is_missing = |connection: &mut Exchange<TimedStream>| {
        let count = connection.value(&is_missing);
        matches!(count.as_ref().map(Option::as_deref), Ok(Some("0")))
    };
    is_missing(connection) && load_libraries(connection).is_some() && is_missing(connection)
}

/// Loads the libraries of the database's functions; `None` if that is not permitted.
fn load_libraries(connection: &mut Exchange<TimedStream>) -> Option<()> {
    // With the role's `search_path`: every name has its schema.
    let libraries = "select pg_catalog.string_agg( \
                       'load ' operator(pg_catalog.||) pg_catalog.quote_literal(probin), '; ') \
                     from (select distinct p.probin from pg_catalog.pg_proc p \
                     join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang \
                     where l.lanname operator(pg_catalog.=) 'c' and p.probin is not null \
                     and not exists (select from pg_catalog.pg_conversion c \
                                     where c.conproc operator(pg_catalog.=) p.oid)) of_functions";
    let load = connection.value(libraries).ok()?;
    match load {
        Some(load) => connection.run(&load).ok(),
        None => Some(()),
    }
}

/// Whether a point's scripts or its setup mention a setting's module: they read the setting, or load the module.
pub(super) fn is_mentioned(plan: &Plan, point: &Point, name: &str) -> bool {
    let databases = &plan.servers[point.server].databases;
    let setup = databases
        .get(point.database)
        .map_or(&[][..], |it| &it.setup);
    let setup = setup.iter().chain(&point.resets).map(|it| &it.text);
    let texts = setup.chain(point.scripts.iter().map(|it| &it.text));
    mention(texts.map(String::as_str), name)
}

fn mention<'t>(mut texts: impl Iterator<Item = &'t str>, name: &str) -> bool {
    let (module, _) = name.split_once('.').unwrap_or((name, ""));
    let module = module.to_ascii_lowercase();
    texts.any(|it| it.to_ascii_lowercase().contains(&module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_read_a_setting_or_load_its_module_mention_it() {
        let is_mentioned = |text: &str| mention(["select 1", text].into_iter(), "App.tenant");
        assert!(is_mentioned("select current_setting('app.tenant')"));
        assert!(is_mentioned("LOAD 'app'"));
        assert!(!is_mentioned("select 2"));
    }
}
