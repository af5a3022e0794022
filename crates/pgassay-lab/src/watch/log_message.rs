//! Messages of the server's log: the first line of an error, in each of the log's formats
//! (utils/error/elog.c, csvlog.c and jsonlog.c), and its text without constants.

/// Characters of a message that are kept.
const MESSAGE_MAX: usize = 160;
const ERRORS: [&str; 3] = ["ERROR", "FATAL", "PANIC"];
/// What else a line can begin with, behind `log_line_prefix`.
const OTHERS: [&str; 16] = [
    "LOG",
    "WARNING",
    "NOTICE",
    "INFO",
    "DEBUG",
    "DEBUG1",
    "DEBUG2",
    "DEBUG3",
    "DEBUG4",
    "DEBUG5",
    "DETAIL",
    "HINT",
    "QUERY",
    "CONTEXT",
    "LOCATION",
    "STATEMENT",
];
/// Columns of the format CSV, the same in all versions.
const CSV_PID: usize = 3;
const CSV_SEVERITY: usize = 11;

/// Words before a quoted name, which is no constant.
const NAMED: [&str; 18] = [
    "relation",
    "table",
    "column",
    "constraint",
    "database",
    "role",
    "user",
    "index",
    "function",
    "type",
    "schema",
    "sequence",
    "view",
    "trigger",
    "extension",
    "tablespace",
    "parameter",
    "slot",
];

/// How a log's messages are written (`log_destination`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// Behind `log_line_prefix`, with two blanks after the severity.
    Stderr,
    Csv,
    Json,
}

/// The first line of an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoggedError {
    /// What contains the backend's PID, if anything does.
    pub prefix: String,
    pub severity: &'static str,
    pub message: String,
}

impl LoggedError {
    /// The error of a line, which can also be of another severity, or continue a message.
    pub fn parse(format: LogFormat, line: &str) -> Option<Self> {
        match format {
            LogFormat::Stderr => Self::parse_stderr(line),
            LogFormat::Csv => Self::parse_csv(line),
            LogFormat::Json => Self::parse_json(line),
        }
    }

    fn parse_stderr(line: &str) -> Option<Self> {
        if line.starts_with('\t') {
            return None;
        }
        for (at, separator) in line.match_indices(":  ") {
            let before = line[..at].trim_end_matches(|it: char| it.is_ascii_alphanumeric());
            let severity = &line[before.len()..at];
            if let Some(severity) = error_severity(severity) {
                return Some(Self {
                    prefix: before.to_owned(),
                    severity,
                    message: line[at + separator.len()..].to_owned(),
                });
            }
            if OTHERS.contains(&severity) {
                return None;
            }
        }
        None
    }

    /// Only a message's first line has the fields up to the severity, and its SQLSTATE behind it. So quotes need
    /// not be followed from line to line, which would go wrong after a part that was not read.
    fn parse_csv(line: &str) -> Option<Self> {
        if !ERRORS.iter().any(|it| line.contains(&format!(",{it},"))) {
            return None;
        }
        let mut reader = csv::ReaderBuilder::new();
        let reader = reader.has_headers(false).flexible(true);
        let mut fields = csv::StringRecord::new();
        reader
            .from_reader(line.as_bytes())
            .read_record(&mut fields)
            .ok()?;
        let severity = error_severity(fields.get(CSV_SEVERITY)?)?;
        let state = fields.get(CSV_SEVERITY + 1)?;
        if state.len() != 5 || !state.bytes().all(|it| it.is_ascii_alphanumeric()) {
            return None;
        }
        let message = fields.get(CSV_SEVERITY + 2)?.lines().next();
        Some(Self {
            prefix: fields.get(CSV_PID)?.to_owned(),
            severity,
            message: message.unwrap_or_default().to_owned(),
        })
    }

    /// Quotes within a value have a backslash before them, so these keys are none of a value's text. A whole
    /// object cannot be parsed if its statement is so long that the line was cut.
    fn parse_json(line: &str) -> Option<Self> {
        let severity = error_severity(&json_value::<String>(line, "error_severity")?)?;
        let message: Option<String> = json_value(line, "message");
        let message = message.as_deref().and_then(|it| it.lines().next());
        let pid: Option<u32> = json_value(line, "pid");
        Some(Self {
            prefix: pid.map(|it| it.to_string()).unwrap_or_default(),
            severity,
            message: message.unwrap_or_default().to_owned(),
        })
    }
}

fn error_severity(text: &str) -> Option<&'static str> {
    ERRORS.into_iter().find(|it| *it == text)
}

fn json_value<T: serde::de::DeserializeOwned>(line: &str, key: &str) -> Option<T> {
    let (_, value) = line.split_once(&format!("\"{key}\":"))?;
    let mut values = serde_json::Deserializer::from_str(value).into_iter();
    values.next()?.ok()
}

/// A message with its numbers and quoted texts replaced, except for names of objects.
pub(super) fn without_constants(message: &str) -> String {
    let mut text = String::new();
    // Behind it is the position in the statement, if there is one.
    let mut rest = message.split(" at character ").next().unwrap_or_default();
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '"' => quoted(rest, first),
            // Not an apostrophe.
            '\'' if !text.ends_with(char::is_alphanumeric) => quoted(rest, first),
            it if it.is_alphanumeric() || it == '_' => {
                let is_word = |it: char| it.is_alphanumeric() || it == '_';
                rest.find(|it| !is_word(it)).unwrap_or(rest.len())
            }
            it => it.len_utf8(),
        };
        let (token, behind) = rest.split_at(taken);
        let last_word = text.trim_end().rsplit(' ').next().unwrap_or_default();
        match first {
            '"' if !NAMED.contains(&last_word) => text.push_str("\"…\""),
            '\'' if taken > 1 => text.push_str("'…'"),
            it if it.is_ascii_digit() => text.push('…'),
            it if it.is_control() => text.push(' '),
            _ => text.push_str(token),
        }
        rest = behind;
    }
    match text.char_indices().nth(MESSAGE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The length of a quoted text.
fn quoted(text: &str, quote: char) -> usize {
    let end = text[1..].find(quote).map(|it| it + 2);
    end.unwrap_or(if quote == '"' { text.len() } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prefix, severity and message of an error.
    fn parsed(format: LogFormat, line: &str) -> Option<(String, &'static str, String)> {
        let error = LoggedError::parse(format, line)?;
        Some((error.prefix, error.severity, error.message))
    }

    #[test]
    fn only_the_first_line_of_an_error_in_csv_is_one() {
        let begun = "2026-11-27 10:00:00.123 UTC,\"o\"\"brien, jr\",\"shop\",4711,\"[local]\",65.1,3,\"SELECT\",\
                     2026-11-27 10:00:00 UTC,3/4,0,";
        let error = |severity: &str, rest: &str| {
            parsed(LogFormat::Csv, &format!("{begun}{severity},{rest}"))
        };
        let expected =
            |severity, message: &str| Some(("4711".to_owned(), severity, message.to_owned()));
        assert_eq!(
            error(
                "ERROR",
                "22012,\"division by zero, \"\"x\"\"\",,,,,,\"select 1/0\",,,\"psql\""
            ),
            expected("ERROR", "division by zero, \"x\""),
        );
        assert_eq!(
            error("FATAL", "57P01,\"the first line"),
            expected("FATAL", "the first line"),
        );
        assert_eq!(error("LOG", "00000,\"a,ERROR,22012,b\",,,"), None);
        assert_eq!(error("ERROR", "no state,\"x\""), None);
        assert_eq!(
            parsed(LogFormat::Csv, "insert into t values (1,ERROR,2)\",,,"),
            None
        );
    }

    #[test]
    fn an_error_in_json_is_found_though_its_line_is_cut() {
        let line = r#"{"timestamp":"x","user":"a\"error_severity\":\"PANIC\"","pid":4711,"error_severity":"ERROR","state_code":"22P02","message":"invalid: \"x\"\nsecond","statement":"select"#;
        let expected = ("4711".to_owned(), "ERROR", "invalid: \"x\"".to_owned());
        assert_eq!(parsed(LogFormat::Json, line), Some(expected));
        let line = line.replace("\"ERROR\"", "\"LOG\"");
        assert_eq!(parsed(LogFormat::Json, &line), None);
        let line = r#"{"pid":1,"error_severity":"FATAL","message":"so long that it is c"#;
        let expected = ("1".to_owned(), "FATAL", String::new());
        assert_eq!(parsed(LogFormat::Json, line), Some(expected));
    }

    #[test]
    fn messages_have_names_but_no_constants() {
        let cases = [
            (
                "duplicate key value violates unique constraint \"t_pkey\"",
                "duplicate key value violates unique constraint \"t_pkey\"",
            ),
            (
                "invalid input syntax for type integer: \"4711 secret\" at character 8",
                "invalid input syntax for type integer: \"…\"",
            ),
            (
                "customer 4711 can't pay 'a lot'",
                "customer … can't pay '…'",
            ),
            (
                "syntax error at or near \"open",
                "syntax error at or near \"…\"",
            ),
            (
                "relation \"t2\" does not exist\u{1b}[2J",
                "relation \"t2\" does not exist […",
            ),
        ];
        for (message, expected) in cases {
            assert_eq!(without_constants(message), expected);
        }
        assert_eq!(
            without_constants(&"ü".repeat(500)).chars().count(),
            MESSAGE_MAX + 1
        );
    }
}
