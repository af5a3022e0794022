//! What the clients run: scripts, and the prepared statements they share.

use std::collections::HashMap;
use std::sync::Arc;

use pgassay_script::{
    CommandKind, ParsedScript, QueryProtocol, Rng, VariableNames, Variables, with_fixed_variables,
};

use crate::client_options::{NoticeSink, ShellSink};
use crate::config::{ClientPoolConfig, DebugSink, RequestHook};
use crate::error::LoadError;

/// A statement that is prepared once per connection.
pub(crate) struct PreparedStatement {
    pub name: Vec<u8>,
    pub sql: Box<[u8]>,
}

/// A script and its prepared statements.
pub(crate) struct ProgramPart {
    pub script: ParsedScript,
    pub weight: u64,
    /// The statement of each command, if the command is SQL and statements are prepared.
    pub statements: Vec<Option<usize>>,
}

/// Everything that clients share and never change.
pub(crate) struct Program {
    pub parts: Vec<ProgramPart>,
    pub statements: Vec<PreparedStatement>,
    pub protocol: QueryProtocol,
    pub names: Arc<VariableNames>,
    pub debug: Option<DebugSink>,
    /// Called with the backend's process ID before each request.
    pub before_request: Option<RequestHook>,
    pub trace: Option<DebugSink>,
    pub shell: Option<ShellSink>,
    pub notices: Option<NoticeSink>,
    /// Whether an SQL error fails only its transaction.
    pub continues_on_error: bool,
    /// Whether a script sleeps.
    pub has_sleep: bool,
    total_weight: u64,
}

impl Program {
    /// Compiles the configured scripts; commands with equal SQL share one prepared statement.
    pub fn new(config: &ClientPoolConfig) -> Result<Self, LoadError> {
        let mut statements = Vec::new();
        let mut known: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut parts = Vec::new();
        let mut fixed = Variables::new(&config.names);
        config.define(&mut fixed);
        let scripts: Vec<&ParsedScript> = config.scripts.iter().map(|it| &*it.script).collect();
        let scripts = with_fixed_variables(&scripts, &config.names, &fixed);
        let suffix = config.options.statement_suffix;
        let suffix = suffix.map_or_else(String::new, |it| format!("_{it:08x}"));
        for (script, weighted) in scripts.into_iter().zip(&config.scripts) {
            let commands = script.commands();
            let mut of_commands = vec![None; commands.len()];
            for (index, command) in commands.iter().enumerate() {
                let CommandKind::Sql(sql) = &command.kind else {
                    continue;
                };
                if config.protocol != QueryProtocol::Prepared {
                    continue;
                }
                let statement = *known.entry(sql.statement().into()).or_insert_with(|| {
                    let name = format!("P_{}{suffix}", statements.len()).into_bytes();
                    statements.push(PreparedStatement {
                        name,
                        sql: sql.statement().into(),
                    });
                    statements.len() - 1
                });
                of_commands[index] = Some(statement);
            }
            parts.push(ProgramPart {
                script,
                weight: weighted.weight,
                statements: of_commands,
            });
        }
        let total_weight = parts.iter().map(|part| part.weight).sum();
        if total_weight == 0 || i64::try_from(total_weight).is_err() {
            return Err(LoadError::Config {
                what: "total script weight must not be zero, nor exceed 63 bits".into(),
            });
        }
        let mut commands = parts
            .iter()
            .flat_map(|part: &ProgramPart| part.script.commands());
        let has_sleep = commands.any(|command| matches!(command.kind, CommandKind::Sleep(_)));
        Ok(Self {
            parts,
            statements,
            protocol: config.protocol,
            names: Arc::clone(&config.names),
            debug: config.debug.clone(),
            before_request: None,
            trace: config.options.trace.clone(),
            shell: config.options.shell.clone(),
            notices: config.options.notices.clone(),
            continues_on_error: config.options.continues_on_error,
            has_sleep,
            total_weight,
        })
    }

    /// Chooses the next transaction's script as `chooseScript` in pgbench.c does: with a single
    /// script it draws no random number.
    #[inline]
    pub fn choose(&self, rng: &mut Rng) -> usize {
        if self.parts.len() == 1 {
            return 0;
        }
        let mut left = rng.uniform(0, self.total_weight.cast_signed() - 1);
        let reached = self.parts.iter().position(|part| {
            left -= part.weight.cast_signed();
            left < 0
        });
        reached.expect("the draw is below the sum of all weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::ParseOptions;
    use pgassay_wire::conninfo::Target;

    /// Regression: behind a pooler in transaction mode, a run executed the statement that an earlier one had left on a
    /// connection under the same name.
    #[test]
    fn statements_of_two_runs_had_the_same_names() {
        let mut names = VariableNames::new();
        let options = ParseOptions {
            protocol: QueryProtocol::Prepared,
            ..ParseOptions::default()
        };
        let text = "select 1;\nselect 2;\nselect 1;";
        let script = ParsedScript::parse("test", text, &options, &mut names).unwrap();
        let target = Target::unix("/nowhere", 1, "me", "me");
        let mut config = ClientPoolConfig::new(target, Arc::new(script), Arc::new(names));
        config.protocol = QueryProtocol::Prepared;
        for (suffix, expected) in [
            (None, ["P_0", "P_1"]),
            (Some(0x001a_2b3c), ["P_0_001a2b3c", "P_1_001a2b3c"]),
        ] {
            config.options.statement_suffix = suffix;
            let program = Program::new(&config).unwrap();
            let statements = program.statements.iter();
            let names: Vec<&[u8]> = statements.map(|it| &*it.name).collect();
            assert_eq!(names, expected.map(str::as_bytes));
        }
    }
}
