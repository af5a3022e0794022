//! What a statement does, as far as its text shows: whether EXPLAIN accepts it and whether it writes.

use crate::lexeme::{Lexeme, LexemeKind, lexemes};

/// Whether executing a statement changes data, as far as its text shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementEffect {
    /// A query. Functions that it calls may still write: a read-only transaction prevents that.
    Reads,
    /// It changes rows, creates a table or locks rows.
    Writes,
    /// `EXECUTE`: the text does not show what was prepared.
    Unknown,
}

/// Why there is no EXPLAIN for a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainRefusal {
    /// Nothing but white space and comments.
    #[error("the statement is empty")]
    Empty,
    /// EXPLAIN would apply to the first only, and the others would be executed.
    #[error("only one statement can be explained at a time: split the text at \";\"")]
    ManyStatements,
    /// A constant, a quoted name or a comment has no end.
    #[error("a constant, a quoted name or a comment does not end: close it")]
    Unterminated,
    /// A statement without a plan.
    #[error(
        "{command} has no plan: PostgreSQL explains SELECT, VALUES, INSERT, UPDATE, DELETE, MERGE, EXECUTE, \
         DECLARE, CREATE TABLE AS and CREATE MATERIALIZED VIEW AS"
    )]
    Utility {
        /// Its first keyword in capitals.
        command: String,
    },
    /// `$1` in a text that is not prepared.
    #[error(
        "the statement has parameters ($1): explain it as a prepared statement with values, or its generic plan \
         (PostgreSQL 16 or later)"
    )]
    Parameters,
    /// A generic plan of a text, before 16.
    #[error("EXPLAIN (GENERIC_PLAN) requires PostgreSQL 16: explain a prepared statement instead")]
    NoGenericPlan,
    /// A generic plan cannot be executed.
    #[error("EXPLAIN (GENERIC_PLAN) cannot execute the statement: leave out ANALYZE")]
    GenericPlanExecuted,
    /// A text with parameters, and another number of values.
    #[error("the statement has {parameters} parameters, but {values} values were given")]
    Values {
        /// The highest `$n`.
        parameters: u32,
        /// The values given.
        values: usize,
    },
}

/// What the text of a statement shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatementText<'a> {
    /// Without a semicolon at its end.
    pub(crate) sql: &'a str,
    pub(crate) effect: StatementEffect,
    /// Whether it declares a cursor.
    pub(crate) is_cursor: bool,
    /// The highest `$n`, or 0.
    pub(crate) parameters: u32,
}

impl<'a> StatementText<'a> {
    /// Reads a text with a single statement.
    pub(crate) fn read(source: &'a str) -> Result<Self, ExplainRefusal> {
        let all = lexemes(source).ok_or(ExplainRefusal::Unterminated)?;
        let semicolon = all.iter().position(|it| it.is_symbol(";"));
        let (statement, rest) = all.split_at(semicolon.unwrap_or(all.len()));
        if rest.iter().any(|it| !it.is_symbol(";")) {
            return Err(ExplainRefusal::ManyStatements);
        }
        let (Some(first), Some(last)) = (statement.first(), statement.last()) else {
            return Err(ExplainRefusal::Empty);
        };
        let parameters = statement.iter().filter_map(Lexeme::parameter).max();
        Ok(Self {
            sql: &source[first.start..last.end()],
            effect: effect(statement)?,
            is_cursor: first.is_word("declare"),
            parameters: parameters.unwrap_or(0),
        })
    }
}

/// Whether a statement declares a cursor. FETCH decides how much of its query runs, and EXPLAIN ANALYZE would run all
/// of it, so that [`ExplainRequest`](crate::ExplainRequest) only plans it.
pub fn declares_cursor(sql: &str) -> bool {
    let all = lexemes(sql).unwrap_or_default();
    all.first().is_some_and(|it| it.is_word("declare"))
}

fn effect(statement: &[Lexeme<'_>]) -> Result<StatementEffect, ExplainRefusal> {
    let inner = statement.iter().position(|it| !it.is_symbol("("));
    let first = inner.map(|at| statement[at]);
    let is = |word: &str| first.is_some_and(|it| it.is_word(word));
    if ["select", "values", "table", "with", "declare"]
        .into_iter()
        .any(is)
    {
        return Ok(if writes(statement) {
            StatementEffect::Writes
        } else {
            StatementEffect::Reads
        });
    }
    if ["insert", "update", "delete", "merge"].into_iter().any(is) {
        return Ok(StatementEffect::Writes);
    }
    if is("create") && creates_from_query(statement) {
        return Ok(StatementEffect::Writes);
    }
    if is("execute") {
        return Ok(StatementEffect::Unknown);
    }
    let command = first.map_or_else(|| "(".to_owned(), |it| it.text.to_uppercase());
    Err(ExplainRefusal::Utility { command })
}

/// Whether a query writes: a data-modifying WITH, SELECT INTO, or locks of rows, which are writes too.
/// If in doubt, it does.
fn writes(statement: &[Lexeme<'_>]) -> bool {
    let begins = |at: usize| at > 0 && matches!(statement[at - 1].text, "(" | ")");
    statement.iter().enumerate().any(|(at, it)| {
        let next = |words: &[&str]| {
            let next = statement.get(at + 1);
            next.is_some_and(|next| words.iter().any(|word| next.is_word(word)))
        };
        let modifies = ["insert", "update", "delete", "merge"]
            .into_iter()
            .any(|word| it.is_word(word));
        (modifies && begins(at))
            || it.is_word("into")
            || (it.is_word("for") && next(&["update", "share", "no", "key"]))
    })
}

/// `CREATE [TEMP | UNLOGGED …] TABLE … AS` or `CREATE MATERIALIZED VIEW … AS` with a query.
fn creates_from_query(statement: &[Lexeme<'_>]) -> bool {
    let words: Vec<&Lexeme<'_>> = statement.iter().take(5).collect();
    let creates_table = words
        .iter()
        .skip(1)
        .take_while(|it| {
            [
                "global",
                "local",
                "temp",
                "temporary",
                "unlogged",
                "table",
                "materialized",
            ]
            .into_iter()
            .any(|word| it.is_word(word))
        })
        .any(|it| it.is_word("table") || it.is_word("materialized"));
    let mut depth = 0;
    creates_table
        && statement.windows(2).any(|pair| {
            match pair[0].text {
                "(" if pair[0].kind == LexemeKind::Symbol => depth += 1,
                ")" if pair[0].kind == LexemeKind::Symbol => depth -= 1,
                _ => {}
            }
            depth == 0
                && pair[0].is_word("as")
                && (pair[1].is_symbol("(")
                    || ["select", "with", "values", "table", "execute"]
                        .into_iter()
                        .any(|word| pair[1].is_word(word)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(sql: &str) -> Result<StatementEffect, ExplainRefusal> {
        StatementText::read(sql).map(|it| it.effect)
    }

    #[test]
    fn queries_read() {
        for sql in [
            "select 1",
            "  (select a from t) union (select b from u) ;  -- done",
            "values (1), (2)",
            "table t",
            "with a as (select 1) select * from a",
            "select 'insert into t', \"into\" from t where x = $$ for update $$",
            "select delete, update.x from t as update",
            "declare c cursor for select 1",
            "select substring(a from 1 for 2) from t",
        ] {
            assert_eq!(effect_of(sql), Ok(StatementEffect::Reads), "{sql}");
        }
    }

    #[test]
    fn statements_that_write_are_recognized() {
        for sql in [
            "insert into t values (1)",
            "/* x */ UPDATE t set a = 1;",
            "delete from t",
            "merge into t using s on true when matched then delete",
            "with d as (delete from t returning *) select * from d",
            "with d as materialized (insert into t values (1) returning *) table d",
            "with d as (select 1) update t set a = 1",
            "with d as (with e as (delete from t returning 1) select 1) select 1",
            "select * into u from t",
            "select * from t for update",
            "select * from t for no key update skip locked",
            "select * from t for key share",
            "create table u as select 1",
            "create temp table if not exists u (a) on commit drop as (select 1)",
            "create materialized view v as select 1",
            "create unlogged table u as execute p(1)",
        ] {
            assert_eq!(effect_of(sql), Ok(StatementEffect::Writes), "{sql}");
        }
        assert_eq!(effect_of("execute p(1)"), Ok(StatementEffect::Unknown));
    }

    #[test]
    fn what_has_no_plan_is_refused() {
        for (sql, command) in [
            ("vacuum t", "VACUUM"),
            ("create table t (a int, b text default 'x' as)", "CREATE"),
            ("create view v as select 1", "CREATE"),
            ("refresh materialized view v", "REFRESH"),
            ("begin", "BEGIN"),
            ("explain select 1", "EXPLAIN"),
            ("copy t to stdout", "COPY"),
            ("call p()", "CALL"),
            ("((", "("),
        ] {
            let command = command.to_owned();
            assert_eq!(effect_of(sql), Err(ExplainRefusal::Utility { command }));
        }
    }

    #[test]
    fn a_second_statement_is_not_executed_behind_the_explained_one() {
        for sql in ["select 1; delete from t", "select 1;; drop table t;"] {
            assert_eq!(effect_of(sql), Err(ExplainRefusal::ManyStatements), "{sql}");
        }
        assert_eq!(effect_of(" -- nothing\n ;"), Err(ExplainRefusal::Empty));
        assert_eq!(effect_of("select 'a"), Err(ExplainRefusal::Unterminated));
    }

    #[test]
    fn the_text_has_no_semicolon_and_its_parameters_are_counted() {
        let read = StatementText::read("select $2, '$9' from t where a = $10 ; -- $12").unwrap();
        assert_eq!(read.sql, "select $2, '$9' from t where a = $10");
        assert_eq!(read.parameters, 10);
    }
}
