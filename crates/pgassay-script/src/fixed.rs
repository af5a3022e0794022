//! Variables that no script assigns, such as `:scale`: what expressions compute from them alone is computed
//! once, before the run.

use crate::command::{Capture, CommandKind};
use crate::expr::{Expr, Op};
use crate::expr_parser::{depth, fold};
use crate::names::{SlotId, VariableNames};
use crate::script::ParsedScript;
use crate::value::ScriptValue;
use crate::variables::Variables;

/// Which variables scripts assign while they run.
pub(crate) struct Assigned<'a> {
    slots: Vec<SlotId>,
    /// Which columns `\gset` and `\aset` find is known only when they run.
    prefixes: Vec<&'a [u8]>,
}

impl<'a> Assigned<'a> {
    pub fn by(scripts: &[&'a ParsedScript]) -> Self {
        let (mut slots, mut prefixes) = (Vec::new(), Vec::new());
        for command in scripts.iter().flat_map(|script| script.commands()) {
            match &command.kind {
                CommandKind::Set { slot, .. } | CommandKind::SetShell { slot, .. } => {
                    slots.push(*slot);
                }
                CommandKind::Sql(sql) => match sql.capture() {
                    Capture::Gset { prefix } | Capture::Aset { prefix } => {
                        prefixes.push(&prefix[..]);
                    }
                    Capture::None => {}
                },
                _ => {}
            }
        }
        Self { slots, prefixes }
    }

    pub fn includes(&self, slot: SlotId, names: &VariableNames) -> bool {
        let name = names.name(slot);
        self.slots.contains(&slot) || self.prefixes.iter().any(|it| name.starts_with(it))
    }
}

/// Returns the scripts, which run together, with the values of the variables that none of them assigns in their
/// expressions. `fixed` holds the variables that have the same value for all clients. Results and errors are
/// the same as without.
pub fn with_fixed_variables(
    scripts: &[&ParsedScript],
    names: &VariableNames,
    fixed: &Variables,
) -> Vec<ParsedScript> {
    let assigned = Assigned::by(scripts);
    let value_of = |slot| {
        let value = || fixed.clone().value(slot).ok();
        (!assigned.includes(slot, names)).then(value).flatten()
    };
    let changed = |script: &&ParsedScript| script.with_expressions(|it| with_values(it, value_of));
    scripts.iter().map(changed).collect()
}

/// Replaces variables by their values, and the calls whose arguments then are constants by their results.
fn with_values(expr: &Expr, value_of: impl Fn(SlotId) -> Option<ScriptValue>) -> Expr {
    let mut code: Vec<Op> = Vec::with_capacity(expr.code.len());
    for op in &expr.code {
        match *op {
            Op::Variable(slot) => code.push(value_of(slot).map_or(*op, Op::Constant)),
            Op::Call {
                function,
                arguments,
            } => {
                // Each of these constants is one argument, because the code is in postfix order.
                let first = code.len().saturating_sub(arguments as usize);
                let constant = |op: &Op| match op {
                    Op::Constant(value) => Some(*value),
                    _ => None,
                };
                let values: Option<Vec<ScriptValue>> = code[first..].iter().map(constant).collect();
                match values.and_then(|values| fold(function, &values)) {
                    Some(result) => {
                        code.truncate(first);
                        code.push(result);
                    }
                    None => code.push(*op),
                }
            }
            Op::Constant(_) | Op::Uniform { .. } => code.push(*op),
            // Shorter code would need other jumps, and too many arguments are an error anyway.
            Op::TooManyArguments
            | Op::And { .. }
            | Op::Or { .. }
            | Op::Truth
            | Op::Unless { .. }
            | Op::Jump { .. } => return expr.clone(),
        }
    }
    Expr {
        depth: depth(&code),
        code: code.into_boxed_slice(),
        invalid_target: expr.invalid_target.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use super::*;
    use crate::script::ParseOptions;
    use crate::{Rng, eval};

    /// The results of a script's `\set` commands, and how many steps their code has.
    fn results(script: &ParsedScript, variables: &mut Variables) -> (Vec<String>, usize) {
        let (mut rng, mut steps) = (Rng::from_seed(7), 0);
        let mut results = Vec::new();
        for command in script.commands() {
            if let CommandKind::Set { slot, expr } = &command.kind {
                let value = eval(expr, variables, &mut rng, &mut |_| ());
                results.push(format!("{value:?}"));
                if let Ok(value) = value {
                    variables.set(*slot, value);
                }
                steps += expr.code.len();
            }
        }
        (results, steps)
    }

    #[test]
    fn fixed_variables_leave_results_and_errors_as_they_are() {
        let sets = [
            "random(1, 100000 * :scale)",
            "random(1, :n) + :scale",
            "random(:n, 1)",
            "9223372036854775807 + :n",
            "1 / (:n - 5)",
            ":text + 1",
            ":missing * 2",
            ":half * 2 + :n",
            "least(:n, 2, random(1, 3))",
            "case when :n > 3 then random(1, :n) else 0 end",
            ":a + :n",
            ":g_x * :n",
        ];
        let lines = sets.map(|it| format!("\\set a {it}\n")).concat();
        let text = format!("{lines}select 1 as x \\gset g_\n");
        let mut names = VariableNames::new();
        let script = ParsedScript::parse("s", &text, &ParseOptions::default(), &mut names).unwrap();
        let names = Arc::new(names);
        let mut variables = Variables::new(&names);
        variables.set(VariableNames::SCALE, ScriptValue::Int(10));
        let defined = [
            ("n", "5"),
            ("half", "0.5"),
            ("text", "x y"),
            ("a", "3"),
            ("g_x", "7"),
        ];
        for (name, value) in defined {
            variables.set_text(names.slot(name.as_bytes()).unwrap(), value.as_bytes());
        }

        let [changed] = &with_fixed_variables(&[&script], &names, &variables)[..] else {
            panic!("one script");
        };
        let (expected, steps) = results(&script, &mut variables.clone());
        let (found, steps_left) = results(changed, &mut variables);
        assert_eq!(found, expected);
        assert!(steps_left < steps, "{steps_left} of {steps}");
        // Pgbench's own \set is one draw then; what scripts assign is not fixed.
        let code = |at: usize| match &changed.commands()[at].kind {
            CommandKind::Set { expr, .. } => expr.code.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!((code(0), code(10), code(11)), (1, 3, 3));
    }

    #[test]
    fn another_scripts_assignment_is_respected() {
        let mut names = VariableNames::new();
        let options = ParseOptions::default();
        let mut parse = |text: &str| ParsedScript::parse("s", text, &options, &mut names).unwrap();
        let (reads, sets) = (parse("\\set a :n + 1\n"), parse("\\set n 2\n"));
        let names = Arc::new(names);
        let mut fixed = Variables::new(&names);
        fixed.set_text(names.slot(b"n").unwrap(), b"5");
        for (scripts, length) in [(&[&reads][..], 1), (&[&reads, &sets], 3)] {
            let changed = with_fixed_variables(scripts, &names, &fixed);
            let CommandKind::Set { expr, .. } = &changed[0].commands()[0].kind else {
                panic!("it sets a variable");
            };
            assert_eq!(expr.code.len(), length);
        }
    }
}
