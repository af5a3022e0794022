//! Which statements of a script change rows, as far as their texts show.

use pgassay_script::{SqlLexeme, lexemes};

/// The commands that change rows of a table.
const COMMANDS: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "MERGE"];

/// The commands that change rows, in order: one of each statement in a text, which can have several. Those of EXPLAIN,
/// of functions and of prepared statements are not seen.
pub(crate) fn write_commands(sql: &str) -> Vec<&'static str> {
    let lexemes = lexemes(sql).filter(|(kind, _)| *kind != SqlLexeme::Blank);
    let all: Vec<(SqlLexeme, &str)> = lexemes.collect();
    let statements = all.split(|(_, text)| *text == ";");
    statements.filter_map(write_command).collect()
}

/// The command of a statement, or the first one in its WITH clauses.
fn write_command(statement: &[(SqlLexeme, &str)]) -> Option<&'static str> {
    let (first, rest) = statement.split_first()?;
    if !is_word(first, "WITH") {
        return COMMANDS.into_iter().find(|it| is_word(first, it));
    }
    // Elsewhere, such a word is part of another clause: `ON CONFLICT DO UPDATE`, `FOR UPDATE`.
    let pairs = std::iter::once(first).chain(rest).zip(rest);
    let mut begins = pairs.filter(|((_, before), _)| matches!(*before, "(" | ")"));
    begins.find_map(|(_, word)| COMMANDS.into_iter().find(|it| is_word(word, it)))
}

fn is_word((kind, text): &(SqlLexeme, &str), word: &str) -> bool {
    *kind == SqlLexeme::Word && text.eq_ignore_ascii_case(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_change_rows_are_found_and_others_are_not() {
        for (sql, expected) in [
            ("delete from t where a = 1;", &["DELETE"][..]),
            ("/* x */ Update t set a = :a", &["UPDATE"]),
            (
                "insert into t values (1) on conflict (a) do update set a = 2",
                &["INSERT"],
            ),
            (
                "merge into t using s on true when matched then delete",
                &["MERGE"],
            ),
            (
                "with d as (delete from t returning *) select * from d",
                &["DELETE"],
            ),
            ("with d as (select 1) update t set a = 1", &["UPDATE"]),
            (
                "begin; delete from t; insert into t table u; end",
                &["DELETE", "INSERT"],
            ),
            ("select * from t for update", &[]),
            ("with a as (select 1) select * from a for update", &[]),
            ("select 'delete from t', \"delete\" from t", &[]),
            ("explain delete from t", &[]),
            ("create table u as select 1", &[]),
            ("", &[]),
        ] {
            assert_eq!(write_commands(sql), expected, "{sql}");
        }
    }
}
