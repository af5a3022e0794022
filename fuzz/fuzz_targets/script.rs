//! Any script yields commands or an error, and its expressions and statements are evaluated without a
//! panic. The first byte chooses protocol and version.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use pgassay_script::{
    CommandKind, Compat, ParseOptions, ParsedScript, QueryProtocol, Seeding, VariableNames,
    Variables, eval,
};

fuzz_target!(|data: &[u8]| {
    let [choice, text @ ..] = data else { return };
    let options = ParseOptions {
        protocol: [
            QueryProtocol::Simple,
            QueryProtocol::Extended,
            QueryProtocol::Prepared,
        ][usize::from(choice % 3)],
        compat: [Compat::V15, Compat::V17, Compat::V18][usize::from(choice / 3 % 3)],
    };
    let _ = pgassay_script::sql::statements(&String::from_utf8_lossy(text));
    let mut names = VariableNames::new();
    let Ok(script) = ParsedScript::parse("fuzzed", text, &options, &mut names) else {
        return;
    };
    let mut variables = Variables::new(&Arc::new(names));
    let mut rng = Seeding::new(5432, 1, 1, false).clients[0];
    let mut message = Vec::new();
    for command in script.commands() {
        match &command.kind {
            CommandKind::Set { slot, expr } => {
                if let Ok(value) = eval(expr, &mut variables, &mut rng, &mut |_| ()) {
                    variables.set(*slot, value);
                }
            }
            CommandKind::If { condition, .. } | CommandKind::Elif { condition, .. } => {
                let _ = eval(condition, &mut variables, &mut rng, &mut |_| ());
            }
            CommandKind::Sql(sql) => {
                message.clear();
                sql.render(&variables, &mut message);
            }
            _ => {}
        }
    }
});
