//! The settings that a script has changed where one of its statements is explained. Pure.

use pgassay_script::{SqlLexeme, lexemes};

/// The SET and RESET commands in effect at a statement of a script.
#[derive(Debug, Default)]
pub struct ScriptSettings {
    commands: Vec<SettingCommand>,
    in_transaction: bool,
}

#[derive(Debug)]
struct SettingCommand {
    sql: String,
    /// It lasts until the transaction ends.
    is_local: bool,
}

impl ScriptSettings {
    /// Takes note of a statement: it may change a setting, and begin or end a transaction.
    pub fn note(&mut self, sql: &str) {
        let words: Vec<String> = lexemes(sql)
            .filter(|(kind, _)| *kind != SqlLexeme::Blank)
            .map(|(_, text)| text.to_lowercase())
            .collect();
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        match word(0) {
            "begin" | "start" => self.in_transaction = true,
            // ROLLBACK TO and ROLLBACK PREPARED end no transaction, and COMMIT PREPARED neither.
            "commit" | "end" | "rollback" | "abort"
                if !words.iter().any(|it| it == "to" || it == "prepared") =>
            {
                self.in_transaction = false;
                self.commands.retain(|it| !it.is_local);
            }
            "set" | "reset" => {
                let is_local = ["local", "transaction", "constraints"].contains(&word(1));
                // Outside of a transaction, SET LOCAL has no effect.
                if self.in_transaction || !is_local {
                    self.commands.push(SettingCommand {
                        sql: sql.to_owned(),
                        is_local,
                    });
                }
            }
            _ => {}
        }
    }

    /// The commands that give a transaction these settings, in order.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().map(|it| it.sql.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands in effect after each statement.
    fn after(statements: &[&str]) -> Vec<String> {
        let mut settings = ScriptSettings::default();
        let noted = statements.iter().map(|it| {
            settings.note(it);
            settings.commands().collect::<Vec<_>>().join("; ")
        });
        noted.collect()
    }

    #[test]
    fn set_local_lasts_until_its_transaction_ends_and_set_longer() {
        assert_eq!(
            after(&[
                "set local jit = off",
                "BEGIN",
                "/* a */ SET LOCAL jit = off",
                "set work_mem = '1MB'",
                "rollback to a",
                "select 1",
                "end",
            ]),
            [
                "",
                "",
                "/* a */ SET LOCAL jit = off",
                "/* a */ SET LOCAL jit = off; set work_mem = '1MB'",
                "/* a */ SET LOCAL jit = off; set work_mem = '1MB'",
                "/* a */ SET LOCAL jit = off; set work_mem = '1MB'",
                "set work_mem = '1MB'",
            ]
        );
    }
}
