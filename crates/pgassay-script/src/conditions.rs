//! Resolves the jump targets of `\if`, `\elif` and `\else`.
//!
//! Source of the messages: `CheckConditional` in pgbench.c.

use crate::command::{CommandKind, ScriptCommand};

/// A script whose conditionals do not match.
pub(crate) struct Mismatch {
    /// The offending command; the number of commands if an `\endif` is missing at the end.
    pub command: usize,
    pub message: &'static str,
}

/// An `\if` whose `\endif` has not been found yet.
#[derive(Default)]
struct OpenConditional {
    /// The latest condition, whose target if false is not known yet.
    condition: Option<usize>,
    /// The commands that end a branch and jump to the `\endif`.
    branch_ends: Vec<usize>,
    has_else: bool,
}

/// Sets the targets of all conditionals.
pub(crate) fn resolve(commands: &mut [ScriptCommand]) -> Result<(), Mismatch> {
    let mut blocks: Vec<OpenConditional> = Vec::new();
    for index in 0..commands.len() {
        let fail = |message| Mismatch {
            command: index,
            message,
        };
        match commands[index].kind {
            CommandKind::If { .. } => {
                blocks.push(OpenConditional {
                    condition: Some(index),
                    ..OpenConditional::default()
                });
            }
            CommandKind::Elif { .. } => {
                let block = blocks
                    .last_mut()
                    .ok_or(fail("\\elif without matching \\if"))?;
                if block.has_else {
                    return Err(fail("\\elif after \\else"));
                }
                set_otherwise(commands, block.condition.replace(index), index);
                block.branch_ends.push(index);
            }
            CommandKind::Else { .. } => {
                let block = blocks
                    .last_mut()
                    .ok_or(fail("\\else without matching \\if"))?;
                if block.has_else {
                    return Err(fail("\\else after \\else"));
                }
                block.has_else = true;
                set_otherwise(commands, block.condition.take(), index + 1);
                block.branch_ends.push(index);
            }
            CommandKind::Endif => {
                let block = blocks.pop().ok_or(fail("\\endif without matching \\if"))?;
                set_otherwise(commands, block.condition, index);
                for branch_end in block.branch_ends {
                    set_end(&mut commands[branch_end], index);
                }
            }
            _ => {}
        }
    }
    if blocks.is_empty() {
        Ok(())
    } else {
        Err(Mismatch {
            command: commands.len(),
            message: "\\if without matching \\endif",
        })
    }
}

fn set_otherwise(commands: &mut [ScriptCommand], condition: Option<usize>, target: usize) {
    let Some(condition) = condition else { return };
    if let CommandKind::If { otherwise, .. } | CommandKind::Elif { otherwise, .. } =
        &mut commands[condition].kind
    {
        *otherwise = target;
    }
}

fn set_end(command: &mut ScriptCommand, target: usize) {
    if let CommandKind::Elif { end, .. } | CommandKind::Else { end } = &mut command.kind {
        *end = target;
    }
}
