//! Properties that hold for any script, expression or number.

use std::ffi::CString;

use crate::common::{parse, value};
use crate::grammar::{DEFINES, expression};
use pgassay_script::{
    CommandKind, ParseOptions, ParsedScript, QueryProtocol, ScriptValue, VariableNames, sql,
};
use proptest::prelude::*;

/// Script fragments, so that random texts get past the first token.
fn script_fragments() -> impl Strategy<Value = String> {
    const PIECES: [&str; 64] = [
        "\\set ",
        "\\if ",
        "\\elif ",
        "\\else",
        "\\endif",
        "\\sleep ",
        "\\shell ",
        "\\setshell ",
        "\\gset",
        "\\aset ",
        "\\startpipeline",
        "\\endpipeline",
        "\\setrandom ",
        "\\",
        "\n",
        "\n",
        " ",
        "\t",
        "\\\n",
        "x ",
        ":x",
        "::",
        ":",
        "1",
        "9223372036854775808",
        "1.5",
        "1e",
        ".",
        "'",
        "\"",
        "$",
        "$$",
        "$a$",
        "/*",
        "*/",
        "--",
        ";",
        "\\;",
        "\\:",
        "(",
        ")",
        ",",
        "+",
        "-",
        "<",
        "=",
        ">",
        "!",
        "~",
        "case ",
        "when ",
        "then ",
        "else ",
        "end ",
        "not ",
        "and ",
        "is ",
        "null ",
        "random(",
        "least(",
        "CREATE FUNCTION ",
        "BEGIN ATOMIC ",
        "é",
        "E'",
    ];
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40)
        .prop_map(|pieces| pieces.concat())
}

/// Formats as PostgreSQL's `snprintf("%.15g")` does, using C's function, on which it is based.
fn c_format(value: f64) -> String {
    let mut buffer = [0_u8; 64];
    // SAFETY: the buffer's length is given, and the format takes the one double that is passed.
    let length = unsafe {
        libc::snprintf(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            c"%.15g".as_ptr(),
            value,
        )
    };
    let text = std::str::from_utf8(&buffer[..usize::try_from(length).unwrap()]).unwrap();
    // PostgreSQL's own printf has other names for these.
    text.replace("-nan", "NaN")
        .replace("nan", "NaN")
        .replace("inf", "Infinity")
}

/// C's `strtod` of a whole text, as pgbench uses it.
fn c_parse(text: &str) -> Option<f64> {
    let text = CString::new(text).unwrap();
    let mut end = std::ptr::null_mut();
    // SAFETY: the text ends with a NUL, `end` points to a pointer, and errno is thread-local.
    let (value, errno, consumed) = unsafe {
        *libc::__errno_location() = 0;
        let value = libc::strtod(text.as_ptr(), &raw mut end);
        (
            value,
            *libc::__errno_location(),
            end.offset_from(text.as_ptr()),
        )
    };
    let is_whole = consumed > 0 && consumed.cast_unsigned() == text.as_bytes().len();
    (errno == 0 && is_whole).then_some(value)
}

fn debug_of_double(value: f64) -> String {
    ScriptValue::Double(value)
        .debug_text()
        .trim_start_matches("double ")
        .to_owned()
}

/// The number of cases per property; `PROPTEST_CASES` increases it.
fn cases() -> u32 {
    ProptestConfig::default().cases.max(2000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expressions_evaluate_to_what_a_tree_walk_gives(node in expression()) {
        let text = node.text(0);
        let got = value(&text, &DEFINES);
        match node.expected() {
            Ok(expected) => prop_assert_eq!(got, expected.debug_text(), "{}", text),
            Err(error) => prop_assert!(got.starts_with(&error), "{}: {} and not {}", text, got, error),
        }
    }

    #[test]
    fn parsing_never_panics(text in script_fragments(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for protocol in [QueryProtocol::Simple, QueryProtocol::Prepared] {
            let options = ParseOptions { protocol, ..ParseOptions::default() };
            let _ = ParsedScript::parse("s", &text, &options, &mut VariableNames::new()).map_err(|error| error.to_string());
            let _ = ParsedScript::parse("s", &bytes, &options, &mut VariableNames::new()).map_err(|error| error.to_string());
        }
        let _ = sql::statements(&text);
    }

    #[test]
    fn every_target_of_a_conditional_is_a_command(text in script_fragments()) {
        let Ok((script, _)) = parse(&text, QueryProtocol::Simple) else { return Ok(()) };
        let commands = script.commands();
        let is_endif = |target: usize| matches!(commands[target].kind, CommandKind::Endif);
        for (index, command) in commands.iter().enumerate() {
            match command.kind {
                CommandKind::If { otherwise, .. } => prop_assert!(otherwise > index && otherwise < commands.len()),
                CommandKind::Elif { otherwise, end, .. } => {
                    prop_assert!(otherwise > index && otherwise <= end && is_endif(end));
                }
                CommandKind::Else { end } => prop_assert!(end > index && is_endif(end)),
                _ => {}
            }
        }
    }

    #[test]
    fn statements_without_defined_variables_are_sent_as_they_are(text in script_fragments()) {
        let Ok((script, names)) = parse(&text, QueryProtocol::Simple) else { return Ok(()) };
        let variables = pgassay_script::Variables::new(&std::sync::Arc::new(names));
        for command in script.commands() {
            let CommandKind::Sql(sql) = &command.kind else { continue };
            let mut sent = Vec::new();
            sql.render(&variables, &mut sent);
            prop_assert_eq!(&sent, sql.text());
            let dollars = |text: &[u8]| text.split(|&byte| byte == b'$').count();
            prop_assert_eq!(dollars(sql.statement()), dollars(sql.text()) + sql.parameters().len());
        }
    }

    #[test]
    fn splitting_is_stable(text in script_fragments()) {
        let Ok(statements) = sql::statements(&text) else { return Ok(()) };
        let joined: String = statements.iter().flat_map(|found| [&found.text, "\n;\n"]).collect();
        let again = sql::statements(&joined).unwrap();
        let texts = |found: &[sql::Statement]| found.iter().map(|one| one.text.clone()).collect::<Vec<_>>();
        prop_assert_eq!(texts(&again), texts(&statements));
    }

    #[test]
    fn doubles_print_as_in_c(bits in any::<u64>(), small in -1e6..1e6_f64, exponent in -20_i32..20, digits in -99999_i32..99999) {
        for value in [f64::from_bits(bits), small, small.trunc(), f64::from(digits) * 10_f64.powi(exponent)] {
            prop_assert_eq!(debug_of_double(value), c_format(value));
        }
    }

    #[test]
    fn doubles_parse_as_in_c(
        text in "[ \t]?[-+]?([0-9]{0,18}(\\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?|0[xX][0-9a-fA-F]{0,20}(\\.[0-9a-fA-F]{0,4})?([pP][-+]?[0-9]{1,4})?|inf|Infinity|nan)[ x]?"
    ) {
        // Integers and words are typed by other rules.
        if !text.contains(['.', 'e', 'E', 'x', 'X', 'i', 'I']) {
            return Ok(());
        }
        let got = value(":v", &[("v", &text)]);
        match c_parse(&text) {
            Some(expected) => prop_assert_eq!(got, format!("double {}", c_format(expected)), "{:?}", text),
            None => prop_assert!(got.starts_with("malformed variable"), "{:?}: {}", text, got),
        }
    }
}
