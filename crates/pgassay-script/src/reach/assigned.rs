//! The value that `ALTER … SET` gives to a setting, judged by its text.

use super::identifier;

/// What a statement makes of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignedValue {
    /// Not set: `RESET`, or `SET … TO DEFAULT`.
    Reset,
    /// These constants, several for a list.
    Constants(Vec<String>),
    /// The text does not show it: `FROM CURRENT`, a variable of a script.
    Unknown,
}

impl AssignedValue {
    /// The value that the words after the name of a setting give it.
    pub(super) fn of(words: &[&str]) -> Self {
        let words = match words {
            ["=" | "to", words @ ..] => words,
            // `TIME ZONE 'UTC'`, `NAMES 'UTF8'`, `SCHEMA 'a'`.
            [word] if word.starts_with('\'') => words,
            ["default" | "local"] => return Self::Reset,
            _ => return Self::Unknown,
        };
        if words == ["default"] {
            return Self::Reset;
        }
        let constants: Option<Vec<String>> = words.split(|it| *it == ",").map(constant).collect();
        constants.map_or(Self::Unknown, Self::Constants)
    }
}

/// The name of a setting, and the words after it.
pub(super) fn name<'a>(words: &'a [&'a str]) -> (Option<String>, &'a [&'a str]) {
    let special = |name: &str| Some(name.to_owned());
    match words {
        ["time", "zone", rest @ ..] => (special("timezone"), rest),
        ["names", rest @ ..] => (special("client_encoding"), rest),
        ["schema", rest @ ..] => (special("search_path"), rest),
        ["session", "authorization", rest @ ..] => (special("session_authorization"), rest),
        ["xml", "option", rest @ ..] => (special("xmloption"), rest),
        [name, rest @ ..] => {
            let mut name = identifier(name);
            let mut rest = rest;
            while let [".", part, after @ ..] = rest {
                name = format!("{name}.{}", identifier(part));
                rest = after;
            }
            (Some(name), rest)
        }
        [] => (None, words),
    }
}

/// The text that the server stores for a constant; `None` if that is not certain.
fn constant(words: &[&str]) -> Option<String> {
    match words {
        ["-", number] => Some(format!("-{}", unsigned(number)?)),
        ["+", number] => unsigned(number),
        [word] => match word.as_bytes().first()? {
            // A backslash depends on `standard_conforming_strings`.
            b'\'' if !word.contains('\\') => {
                let inner = word.strip_prefix('\'')?.strip_suffix('\'')?;
                Some(inner.replace("''", "'"))
            }
            b'0'..=b'9' => unsigned(word),
            b'"' | b'a'..=b'z' | b'_' if !word.contains('\'') => Some(identifier(word)),
            _ => None,
        },
        _ => None,
    }
}

fn unsigned(word: &str) -> Option<String> {
    if let Ok(whole) = word.parse::<i32>() {
        return Some(whole.to_string());
    }
    // The server keeps the text of other numbers, but not that of hexadecimal ones.
    let (whole, part) = word.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    (digits(whole) && digits(part)).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{ServerChange, SettingChange, SqlReach};
    use super::AssignedValue;

    fn of(sql: &str) -> (Option<String>, AssignedValue) {
        match SqlReach::of(sql) {
            SqlReach::Server(ServerChange::Setting(SettingChange { name, value, .. })) => {
                (name, value)
            }
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn the_value_that_a_statement_sets_is_known() {
        for (sql, name, expected) in [
            ("set Work_Mem = '5MB'", "work_mem", &["5MB"][..]),
            ("set work_mem to 0064", "work_mem", &["64"]),
            ("set deadlock_timeout = -1", "deadlock_timeout", &["-1"]),
            ("set random_page_cost = 1.10", "random_page_cost", &["1.10"]),
            ("set jit = OFF", "jit", &["off"]),
            ("set a.b = 'it''s'", "a.b", &["it's"]),
            ("set a.B.\"c d\" = 1", "a.b.c d", &["1"]),
            (
                "set session authorization 'bob'",
                "session_authorization",
                &["bob"],
            ),
            ("set time zone 'UTC'", "timezone", &["UTC"]),
            ("set names 'UTF8'", "client_encoding", &["UTF8"]),
            ("set schema 'a'", "search_path", &["a"]),
            (
                "set search_path = \"$user\", Public, 'A b'",
                "search_path",
                &["$user", "public", "A b"],
            ),
        ] {
            let expected = expected.iter().map(|&it| it.to_owned()).collect();
            let expected = AssignedValue::Constants(expected);
            let sql = format!("alter role bob {sql}");
            assert_eq!(of(&sql), (Some(name.to_owned()), expected), "{sql}");
        }
    }

    #[test]
    fn what_resets_and_what_the_text_does_not_show_is_recognized() {
        for sql in ["reset jit", "set jit = default", "set jit to DEFAULT"] {
            let expected = (Some("jit".to_owned()), AssignedValue::Reset);
            assert_eq!(of(&format!("alter role bob {sql}")), expected, "{sql}");
        }
        for value in [
            "from current",
            "= E'a'",
            "= 'a\\b'",
            "= 0x10",
            "= :x",
            "= $1",
            "= $$a$$",
        ] {
            let sql = format!("alter system set work_mem {value}");
            let expected = (Some("work_mem".to_owned()), AssignedValue::Unknown);
            assert_eq!(of(&sql), expected, "{sql}");
        }
        let option = of("alter role bob set xml option document");
        assert_eq!(
            option,
            (Some("xmloption".to_owned()), AssignedValue::Unknown)
        );
        let all = of("alter database shop reset all");
        assert_eq!(all, (None, AssignedValue::Reset));
    }
}
