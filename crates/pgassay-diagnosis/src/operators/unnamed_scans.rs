//! Tables that are read from end to end by statements that do not name them, or only insert into them: those of a
//! function, a trigger or a view.

use pgassay_record::activity::{ActivityStatement, RelationName, SessionStatus};

use super::detection::Detection;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::names;
use super::sql_text;
use pgassay_script::statement_tokens::StatementToken;

/// A statement with this share of its database's load is probably the one that reads the table.
const DOMINANT_MIN: f64 = 0.8;

/// Words before a parenthesis that call no function with statements of its own: key words, and the most
/// common functions of the server.
#[rustfmt::skip]
const NOT_CALLS: [&str; 38] = [
    "in", "values", "any", "all", "some", "exists", "and", "or", "not", "as", "on", "using", "over", "filter",
    "select", "from", "where", "by", "when", "then", "else", "with", "array", "row", "count", "sum", "avg",
    "min", "max", "coalesce", "lower", "upper", "now", "numeric", "varchar", "char", "extract", "set",
];

/// Adds to what was counted of the table which statement may read it.
pub(super) fn detect(view: &LiveView<'_>, table: &RelationName, counted: Detection) -> Detection {
    if hides_texts(view) {
        return counted
            .fix(
                "Find the statement: texts are switched off with --no-text, so which one reads the table is \
                 unknown. pg_stat_statements has those that name it, and pgassay profile without --no-text \
                 suggests the index.",
            )
            .risk("None; it only reads.");
    }
    if let Some((statement, _)) = undecoded(view, table) {
        return counted
            .statement(Some(statement))
            .context(format!("a statement that may read it: {}", statement_name(statement)))
            .fix(
                "Find the statement: the database has another encoding than UTF-8, and texts with other letters \
                 than ASCII cannot be decoded, so which one names the table is unknown. pg_stat_statements shows \
                 them. Then create an index on the columns of its filter.",
            )
            .risk("None; it only reads.");
    }
    match dominant(view) {
        Some((statement, load)) if inserts_into(view, load, table) => {
            of_insert(view, counted, statement, load)
        }
        Some((statement, load)) => of_dominant(view, counted, statement, load),
        None => of_any(view, counted),
    }
}

/// Whether a statement writes new rows and reads no table: an INSERT of values, or COPY FROM.
pub(super) fn only_inserts(load: &StatementLoad) -> bool {
    let tokens = &load.tokens;
    match sql_text::command(tokens) {
        "insert" => !tokens.iter().any(|it| it.is_any(&["select", "table"])),
        "copy" => tokens.iter().any(|it| it.is("from")) && !tokens.iter().any(|it| it.is("to")),
        _ => false,
    }
}

fn inserts_into(view: &LiveView<'_>, load: &StatementLoad, table: &RelationName) -> bool {
    let mut mentions = load.relations.iter();
    only_inserts(load) && mentions.any(|it| view.is_mention_of(it, table))
}

fn with_statement(
    counted: Detection,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Detection {
    counted
        .statement(Some(statement))
        .load(
            "average sessions that execute the statement with most load",
            load.local,
        )
        .context(format!("the statement: {}", statement_name(statement)))
}

/// A trigger reads what the statement inserts into.
fn of_insert(
    view: &LiveView<'_>,
    counted: Detection,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Detection {
    let detection = with_statement(counted, statement, load)
        .against(true, "the statement only inserts into the table");
    with_nested(
        view,
        detection,
        "The statement with most load inserts into the table and does not read it: a trigger, or a function that it \
         calls, probably does.",
    )
}

fn of_dominant(
    view: &LiveView<'_>,
    counted: Detection,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Detection {
    let detection = with_statement(counted, statement, load)
        .against(true, "the statement does not name the table");
    if !may_nest(load) {
        return detection
            .fix(
                "Run EXPLAIN for the statement with most load: it does not name the table, but probably reads it \
                 through a view. Then create an index on the columns of the filter.",
            )
            .risk("None; EXPLAIN without ANALYZE does not execute the statement.");
    }
    with_nested(
        view,
        detection,
        "The statement with most load does not name the table, but probably reads it in a function or a trigger, or \
         through a view.",
    )
}

fn of_any(view: &LiveView<'_>, counted: Detection) -> Detection {
    if !of_database(view).any(|(_, load)| may_nest(load)) {
        return counted
            .fix(
                "Find the statement: no session was seen with one that names the table, so it uses a view. \
                 EXPLAIN shows which tables a statement reads. Then create an index on the columns of its \
                 filter.",
            )
            .risk("None; EXPLAIN without ANALYZE does not execute the statement.");
    }
    with_nested(
        view,
        counted,
        "Find the statement: no session was seen with one that reads the table, so it is in a function or a trigger, \
         or uses a view.",
    )
}

/// Suggests what shows the statements of functions.
fn with_nested(view: &LiveView<'_>, detection: Detection, where_it_is: &str) -> Detection {
    // Without the extension, the server does not know its settings.
    let is_counted = of_database(view).any(|(statement, _)| statement.counters.is_some());
    if !is_counted || view.setting("pg_stat_statements.track") == Some("all") {
        return detection
            .fix(format!(
                "{where_it_is} auto_explain with log_nested_statements shows the plans of the statements of \
                 functions. Then create an index on the columns of the filter."
            ))
            .risk("Logging plans takes some CPU time.");
    }
    detection
        .fix(format!(
            "{where_it_is} With pg_stat_statements.track = all, pg_stat_statements also shows the statements of \
             functions; auto_explain shows their plans. Then create an index on the columns of the filter."
        ))
        .sql("alter system set pg_stat_statements.track = 'all'")
        .risk("It takes effect after pg_reload_conf(), and counting the statements of functions takes some CPU time.")
}

/// The statements that were active in the database whose tables are known.
fn of_database<'a, 'v>(
    view: &'v LiveView<'a>,
) -> impl Iterator<Item = (&'a ActivityStatement, &'v StatementLoad)> {
    let all = view.activity.statements.iter().zip(&view.statements);
    all.filter(|(_, load)| load.local > 0.0)
}

/// Whether texts are not kept, so that no statement names anything.
fn hides_texts(view: &LiveView<'_>) -> bool {
    of_database(view).any(|(statement, _)| statement.text.is_none())
}

/// A statement with a name that cannot be decoded and may be that of the table.
fn undecoded<'a, 'v>(
    view: &'v LiveView<'a>,
    table: &RelationName,
) -> Option<(&'a ActivityStatement, &'v StatementLoad)> {
    let is_it = |name: &str| !names::is_decoded(name) && names::may_be(name, &table.name);
    of_database(view).find(|(_, load)| load.relations.iter().any(|it| is_it(&it.name)))
}

fn dominant<'a, 'v>(view: &'v LiveView<'a>) -> Option<(&'a ActivityStatement, &'v StatementLoad)> {
    let cells = view.activity.cells.iter();
    let is_local = |session: u32| {
        let session = view.activity.sessions.get(session as usize);
        session.is_some_and(|it| it.database == view.catalog.database)
    };
    let active = cells.filter(|it| it.state == SessionStatus::Active && is_local(it.session));
    let all_us: f64 = active.map(|it| it.time_us).sum();
    let all = all_us / view.activity.window_us.max(f64::MIN_POSITIVE);
    let most = of_database(view).max_by(|a, b| a.1.local.total_cmp(&b.1.local));
    most.filter(|(_, load)| load.local >= DOMINANT_MIN * all)
}

/// Whether it may execute statements that its text does not contain.
fn may_nest(load: &StatementLoad) -> bool {
    let command = sql_text::command(&load.tokens);
    let has_triggers = [
        "insert", "update", "delete", "merge", "call", "do", "execute",
    ];
    has_triggers.contains(&command) || calls_function(&load.tokens)
}

fn calls_function(tokens: &[StatementToken]) -> bool {
    tokens
        .windows(2)
        .any(|pair| pair[0].is_name() && pair[1].is("(") && !pair[0].is_any(&NOT_CALLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_functions_differ_from_key_words_and_aggregates() {
        for (text, expected) in [
            ("select work($1)", true),
            ("select * from totals($1)", true),
            ("select count(*) from v where id in ($1, $2)", false),
            ("select * from v where id = any ($1)", false),
        ] {
            let tokens = pgassay_script::statement_tokens::tokens(text);
            assert_eq!(calls_function(&tokens), expected, "{text}");
        }
    }
}
