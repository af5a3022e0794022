//! Scripts on the command line: built-in scripts, files, weights.
//!
//! Source: `findBuiltin`, `parseScriptWeight`, `process_file` in pgbench.c.

use std::fmt::Write as _;
use std::io::Read;

use pgassay_lab::connector::os_error_text;
use pgassay_script::{BUILTINS, Builtin, ParseOptions, ParsedScript, VariableNames, split_weight};

use super::message::{self, Exit, fatal};
use crate::input_file::read_open;

/// Lists the built-in scripts.
pub fn list_builtins() {
    let mut text = String::from("Available builtin scripts:\n");
    for builtin in &BUILTINS {
        let _ = writeln!(text, "  {:>13}: {}", builtin.name, builtin.title);
    }
    text.push('\n');
    message::write_stderr(&text);
}

/// The built-in script with this name or unique prefix.
pub fn find_builtin(name: &str) -> Result<&'static Builtin, Exit> {
    Builtin::find(name).map_err(|error| {
        let exit = fatal(&error.to_string());
        list_builtins();
        exit
    })
}

/// Prints the text of a built-in script and returns the exit code.
pub fn show_script(name: &str) -> Exit {
    match find_builtin(name) {
        Ok(builtin) => {
            message::write_stderr(&format!(
                "-- {}: {}\n{}\n",
                builtin.name, builtin.title, builtin.text
            ));
            Exit(0)
        }
        Err(exit) => exit,
    }
}

/// Splits an option into name and weight.
pub fn weight(option: &str) -> Result<(&str, u32), Exit> {
    split_weight(option).map_err(|error| fatal(&error.to_string()))
}

/// Reads a script; `-` is standard input.
pub fn read_script(name: &str) -> Result<Vec<u8>, Exit> {
    if name == "-" {
        let mut text = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut text)
            .map_err(|error| {
                fatal(&format!(
                    "could not read file \"-\": {}",
                    os_error_text(&error)
                ))
            })?;
        return Ok(text);
    }
    let file = std::fs::File::open(name).map_err(|error| {
        fatal(&format!(
            "could not open file \"{name}\": {}",
            os_error_text(&error)
        ))
    })?;
    read_open(file).map_err(|error| {
        fatal(&format!(
            "could not read file \"{name}\": {}",
            os_error_text(&error)
        ))
    })
}

/// Parses a script and reports errors.
pub fn parse(
    name: &str,
    text: &[u8],
    options: ParseOptions,
    names: &mut VariableNames,
) -> Result<ParsedScript, Exit> {
    ParsedScript::parse(name, text, &options, names).map_err(|error| {
        message::error(&error.headline());
        if let Some(excerpt) = error.excerpt() {
            message::write_stderr(&format!("{excerpt}\n"));
        }
        Exit(1)
    })
}
