//! One execution of a script without its statements: the values that its variables have at each of them.

use std::sync::Arc;

use pgassay_script::{
    CommandKind, EvalError, ParsedScript, ScriptCommand, ScriptValue, Seeding, SqlCommand,
    VariableNames, Variables, eval,
};

/// One execution of a script by a client with a seed, as pgbench's first client would.
pub struct ScriptWalk<'a> {
    commands: &'a [ScriptCommand],
    variables: Variables,
    rng: pgassay_script::Rng,
    next: usize,
}

impl<'a> ScriptWalk<'a> {
    /// At the beginning of a script.
    pub fn new(
        script: &'a ParsedScript,
        names: &Arc<VariableNames>,
        scale: i64,
        seed: u64,
    ) -> Self {
        let seeding = Seeding::new(seed, 1, 1, false);
        let mut variables = Variables::new(names);
        let automatic = [
            (VariableNames::SCALE, Some(scale)),
            (VariableNames::CLIENT_ID, Some(0)),
            (VariableNames::RANDOM_SEED, Some(seeding.random_seed)),
            (VariableNames::DEFAULT_SEED, seeding.default_seed),
        ];
        for (slot, value) in automatic {
            if let Some(value) = value {
                variables.set(slot, ScriptValue::Int(value));
            }
        }
        Self {
            commands: script.commands(),
            variables,
            rng: seeding.clients[0],
            next: 0,
        }
    }

    /// The next statement; `None` after the last. Sleeps and shell commands are left out.
    ///
    /// # Errors
    /// An expression that cannot be evaluated, for example because it needs the output of a shell command.
    pub fn next_statement(
        &mut self,
    ) -> Result<Option<(&'a ScriptCommand, &'a SqlCommand)>, EvalError> {
        let mut jumped = false;
        while let Some(command) = self.commands.get(self.next) {
            let was_jumped = std::mem::take(&mut jumped);
            self.next += 1;
            match &command.kind {
                CommandKind::Sql(sql) => return Ok(Some((command, sql))),
                CommandKind::Set { slot, expr } => {
                    let value = eval(expr, &mut self.variables, &mut self.rng, &mut |_| ())?;
                    self.variables.set(*slot, value);
                }
                CommandKind::Elif { end, .. } if !was_jumped => self.next = *end,
                CommandKind::If {
                    condition,
                    otherwise,
                }
                | CommandKind::Elif {
                    condition,
                    otherwise,
                    ..
                } => {
                    let value = eval(condition, &mut self.variables, &mut self.rng, &mut |_| ())?;
                    if !value.is_true() {
                        self.next = *otherwise;
                        jumped = true;
                    }
                }
                CommandKind::Else { end } => self.next = *end,
                _ => {}
            }
        }
        Ok(None)
    }

    /// The statement with the values of its variables in the text.
    pub fn rendered(&self, sql: &SqlCommand) -> String {
        let mut text = Vec::new();
        sql.render(&self.variables, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The names and values of a statement's variables, in the order of the text.
    pub fn values(&self, sql: &SqlCommand) -> Vec<(String, Option<String>)> {
        let value = |slot: &pgassay_script::SlotId| {
            let mut text = Vec::new();
            let is_defined = self.variables.write_text(*slot, &mut text);
            let value = is_defined.then(|| String::from_utf8_lossy(&text).into_owned());
            (self.variables.names().display(*slot), value)
        };
        sql.parameters().iter().map(value).collect()
    }

    /// Stores a result's column as `\gset` does.
    pub fn store(&mut self, prefix: &[u8], column: &str, value: Option<&str>) {
        let slot = self.variables.names();
        let slot = slot.capture_slot("\\gset", prefix, column.as_bytes());
        // pgbench stores an empty text for null (`readCommandResponse`, pgbench.c).
        if let Ok(Some(slot)) = slot {
            let value = value.unwrap_or_default();
            self.variables.set_text(slot, value.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use pgassay_script::ParseOptions;

    fn statements(text: &str, seed: u64) -> Vec<String> {
        let mut names = VariableNames::new();
        let script = ParsedScript::parse("s", text, &ParseOptions::default(), &mut names).unwrap();
        let mut walk = ScriptWalk::new(&script, &Arc::new(names), 7, seed);
        let mut found = Vec::new();
        while let Some((_, sql)) = walk.next_statement().unwrap() {
            found.push(walk.rendered(sql));
            walk.store(b"p_", "k", Some("010"));
        }
        found
    }

    #[test]
    fn the_branch_that_is_taken_is_followed_and_values_are_drawn_by_the_script() {
        let text = "\\set x :scale\n\\if :x = 1\nselect 1;\n\\elif :x = 7\nselect :x;\n\\elif :x = 7\nselect 3;\n\
                    \\else\nselect 4;\n\\endif\n\\sleep 9 s\nselect 5;\n\\if false\nselect 6;\n\\else\nselect 7;\n\
                    \\endif\nselect :p_k;\n";
        let expected = ["select 7;", "select 5;", "select 7;", "select 010;"];
        assert_eq!(statements(text, 1), expected);
    }

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let text = "\\set x random(1, 1000000000)\nselect :x;\n";
        assert_eq!(statements(text, 5), statements(text, 5));
        assert_ne!(statements(text, 5), statements(text, 6));
    }
}
