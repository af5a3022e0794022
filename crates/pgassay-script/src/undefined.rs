//! Variables that scripts read although nothing in them defines them.
//!
//! pgbench finds them when it runs: an expression fails, and in a statement `:name` stays as it is, which is
//! usually a syntax error, or NULL if it is a bound parameter.

use crate::command::CommandKind;
use crate::fixed::Assigned;
use crate::names::{SlotId, VariableNames};
use crate::script::ParsedScript;

/// A variable that nothing defines, where a script reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndefinedVariable {
    /// The script's index.
    pub script: usize,
    /// The line, from 1.
    pub line: u32,
    /// Its name, without a colon.
    pub name: String,
}

/// The first read of a variable that none of these scripts defines, which a client runs in any order. The order of
/// definitions and reads is not considered, nor what only looks like a variable: the `:MI` in `'HH24:MI'`, and the
/// bounds in `a[1:n]`.
pub fn undefined_variable(
    scripts: &[&ParsedScript],
    names: &VariableNames,
) -> Option<UndefinedVariable> {
    let automatic = [
        VariableNames::SCALE,
        VariableNames::CLIENT_ID,
        VariableNames::DEFAULT_SEED,
        VariableNames::RANDOM_SEED,
    ];
    let assigned = Assigned::by(scripts);
    let is_undefined = |slot: SlotId| !automatic.contains(&slot) && !assigned.includes(slot, names);
    for (script, parsed) in scripts.iter().enumerate() {
        for command in parsed.commands() {
            let mut reads = reads(&command.kind).into_iter();
            if let Some((lines, slot)) = reads.find(|(_, slot)| is_undefined(*slot)) {
                return Some(UndefinedVariable {
                    script,
                    line: command.line + lines,
                    name: names.display(slot),
                });
            }
        }
    }
    None
}

/// The variables that a command reads, each with the number of lines before it.
fn reads(kind: &CommandKind) -> Vec<(u32, SlotId)> {
    let at_start = |slots: Vec<SlotId>| slots.into_iter().map(|slot| (0, slot)).collect();
    match kind {
        CommandKind::Sql(sql) => sql.template.reads(),
        CommandKind::Set { expr, .. } => at_start(expr.reads()),
        CommandKind::If { condition, .. } | CommandKind::Elif { condition, .. } => {
            at_start(condition.reads())
        }
        CommandKind::Sleep(sleep) => at_start(sleep.reads()),
        CommandKind::Shell(shell) | CommandKind::SetShell { shell, .. } => at_start(shell.reads()),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::script::ParseOptions;

    fn undefined(texts: &[&str]) -> Option<(usize, u32, String)> {
        let mut names = VariableNames::new();
        let scripts: Vec<ParsedScript> = texts
            .iter()
            .map(|text| {
                ParsedScript::parse("s", text, &ParseOptions::default(), &mut names).unwrap()
            })
            .collect();
        let scripts: Vec<&ParsedScript> = scripts.iter().collect();
        undefined_variable(&scripts, &names).map(|it| (it.script, it.line, it.name))
    }

    #[test]
    fn a_variable_that_nothing_defines_is_found_with_its_line() {
        for (text, line) in [
            ("select 1;\nselect 1,\n  :d;", 3),
            ("select 1;\n\\set a :d + 1\nselect :a;", 2),
            ("\\if :d > 1\nselect 1;\n\\endif", 1),
            ("select 1;\n\\sleep :d ms", 2),
            ("select 1 as x \\gset p_\nselect :d;", 2),
        ] {
            assert_eq!(
                undefined(&[text]),
                Some((0, line, "d".to_owned())),
                "{text}"
            );
        }
        let second = undefined(&["select 1;", "select :d;"]);
        assert_eq!(second, Some((1, 1, "d".to_owned())));
    }

    #[test]
    fn a_variable_that_any_script_defines_is_not_undefined() {
        for text in [
            "\\set d 1\nselect :d;",
            "select :scale, :client_id, :random_seed, :default_seed;",
            "select 1 as d \\gset\nselect :d;",
            "select 1 as d \\gset p_\nselect :p_d;",
        ] {
            assert_eq!(undefined(&[text]), None, "{text}");
        }
        assert_eq!(undefined(&["select :d;", "\\set d 1\nselect 1;"]), None);
    }

    #[test]
    fn what_only_looks_like_a_variable_is_not_undefined() {
        for text in [
            "select 1::int;",
            "select to_char(now(), 'HH24:MI:SS');",
            "select $$a :d$$ /* :d */;",
            "select \"a:d\" from t;",
            "select a[1:n], a[lo:hi] from t;",
        ] {
            assert_eq!(undefined(&[text]), None, "{text}");
        }
    }
}
