//! A script runner without a server: it works like the load engine, but collects SQL and does not
//! send it.

use std::sync::Arc;

use pgassay_script::{
    CommandKind, EvalError, ParseError, ParseOptions, ParsedScript, QueryProtocol, Rng,
    ScriptValue, Seeding, VariableNames, Variables, debug_line, eval,
};

/// The result of running one transaction.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The lines of `debug()`.
    pub debugged: Vec<String>,
    /// The statements, rendered for the simple protocol.
    pub sent: Vec<String>,
    /// The command that failed, from 0, and its error.
    pub error: Option<(usize, EvalError)>,
}

/// One client with its variables.
pub struct Client {
    pub variables: Variables,
    pub rng: Rng,
}

pub fn parse(
    text: &str,
    protocol: QueryProtocol,
) -> Result<(ParsedScript, VariableNames), ParseError> {
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol,
        ..ParseOptions::default()
    };
    let script = ParsedScript::parse("test.sql", text, &options, &mut names)?;
    Ok((script, names))
}

/// Creates a client as pgbench does with `--random-seed=seed`, one client and one thread.
pub fn client(mut names: VariableNames, seed: u64, defines: &[(&str, &str)]) -> Client {
    let slots: Vec<_> = defines
        .iter()
        .map(|(name, value)| (names.define("option", name).unwrap(), *value))
        .collect();
    let seeding = Seeding::new(seed, 1, 1, false);
    let mut variables = Variables::new(&Arc::new(names));
    variables.set(VariableNames::SCALE, ScriptValue::Int(1));
    variables.set(VariableNames::CLIENT_ID, ScriptValue::Int(0));
    variables.set(
        VariableNames::RANDOM_SEED,
        ScriptValue::Int(seeding.random_seed),
    );
    variables.set(
        VariableNames::DEFAULT_SEED,
        ScriptValue::Int(seeding.default_seed.unwrap()),
    );
    for (slot, value) in slots {
        variables.set_text(slot, value.as_bytes());
    }
    Client {
        variables,
        rng: seeding.clients[0],
    }
}

impl Client {
    /// Runs the script once.
    pub fn run(&mut self, script: &ParsedScript) -> Outcome {
        let mut outcome = Outcome::default();
        let (mut next, mut was_jumped_to) = (0, false);
        while let Some(command) = script.commands().get(next) {
            let index = next;
            let is_due = std::mem::take(&mut was_jumped_to);
            next += 1;
            let mut test = |condition, otherwise| match self.eval(condition, index, &mut outcome) {
                Some(value) if !value.is_true() => (otherwise, true),
                _ => (index + 1, false),
            };
            match &command.kind {
                CommandKind::Sql(sql) => {
                    let mut message = Vec::new();
                    sql.render(&self.variables, &mut message);
                    outcome.sent.push(String::from_utf8(message).unwrap());
                }
                CommandKind::Set { slot, expr } => {
                    if let Some(value) = self.eval(expr, index, &mut outcome) {
                        self.variables.set(*slot, value);
                    }
                }
                CommandKind::If {
                    condition,
                    otherwise,
                } => {
                    (next, was_jumped_to) = test(condition, *otherwise);
                }
                CommandKind::Elif {
                    condition,
                    otherwise,
                    ..
                } if is_due => {
                    (next, was_jumped_to) = test(condition, *otherwise);
                }
                CommandKind::Elif { end, .. } | CommandKind::Else { end } => next = *end,
                CommandKind::Sleep(sleep) => {
                    outcome.error = sleep
                        .duration_us(&self.variables)
                        .err()
                        .map(|error| (index, error));
                }
                CommandKind::Shell(shell) | CommandKind::SetShell { shell, .. } => {
                    outcome.error = shell
                        .render(&self.variables)
                        .err()
                        .map(|error| (index, error));
                }
                _ => {}
            }
            if outcome.error.is_some() {
                break;
            }
        }
        outcome
    }

    fn eval(
        &mut self,
        expr: &pgassay_script::Expr,
        index: usize,
        outcome: &mut Outcome,
    ) -> Option<ScriptValue> {
        let debugged = &mut outcome.debugged;
        let mut debug = |value| debugged.push(debug_line(0, index + 1, value));
        match eval(expr, &mut self.variables, &mut self.rng, &mut debug) {
            Ok(value) => Some(value),
            Err(error) => {
                outcome.error = Some((index, error));
                None
            }
        }
    }
}

/// Runs `text` once with pgbench's seed 5432; panics if it does not parse.
pub fn run(text: &str, defines: &[(&str, &str)]) -> Outcome {
    let (script, names) = parse(text, QueryProtocol::Simple).unwrap();
    client(names, 5432, defines).run(&script)
}

/// Returns the value of an expression as `debug` prints it, or the error message.
pub fn value(expression: &str, defines: &[(&str, &str)]) -> String {
    let outcome = run(&format!("\\set x debug({expression})"), defines);
    match outcome.error {
        Some((_, error)) => error.to_string(),
        None => outcome.debugged[0].split_once(": ").unwrap().1.to_owned(),
    }
}
