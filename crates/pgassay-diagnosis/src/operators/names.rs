//! Names and values as SQL requires them.

use pgassay_record::activity::RelationName;

use crate::setting_size::setting_size;

/// PostgreSQL's reserved key words, also those that may be function or type names: `src/include/parser/kwlist.h`
/// of versions 9.6 to 18.
const RESERVED: &str = concat!(
    "all analy",
    "se analyze and any array as asc asymmetric authorization binary both ",
    "case cast check collate collation column concurrently constraint create cross ",
    "current_catalog current_date current_role current_schema current_time ",
    "current_timestamp current_user default deferrable desc distinct do else end except ",
    "false fetch for fore",
    "ign freeze from full grant group having ilike in initially ",
    "inner intersect into is isnull join lateral leading left like limit localtime ",
    "localtimestamp natural not notnull null offset on only or order outer overlaps placing ",
    "primary references returning right select session_user similar some symmetric ",
    "system_user table tablesample then to trailing true union unique user using variadic ",
    "verbose when where window with"
);

/// An identifier, quoted if SQL requires it.
pub(super) fn identifier(name: &str) -> String {
    let mut letters = name.chars();
    let begins = letters
        .next()
        .is_some_and(|c| c.is_ascii_lowercase() || c == '_');
    let goes_on =
        letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '$'));
    let is_reserved = RESERVED.split_whitespace().any(|word| word == name);
    if begins && goes_on && !is_reserved {
        return name.to_owned();
    }
    let quoted = name.replace('"', "\"\"");
    if name.contains(is_unprintable) {
        let escaped = escaped(&quoted, |c| format!("\\+{:06X}", u32::from(c)));
        format!("U&\"{escaped}\"")
    } else {
        format!("\"{quoted}\"")
    }
}

/// Whether a terminal or a page would show the statement without this letter, so that it names something else.
fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// With backslashes doubled, and unprintable letters as escapes.
fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let letters = text.chars().map(|it| match it {
        '\\' => "\\\\".to_owned(),
        it if is_unprintable(it) => escape(it),
        it => it.to_string(),
    });
    letters.collect()
}

/// A string constant. Backslashes need the escape form only if `standard_conforming_strings` is off, so
/// that form is used whenever there is one.
pub(super) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains(|it| it == '\\' || is_unprintable(it)) {
        let escaped = escaped(&quoted, |c| format!("\\U{:08X}", u32::from(c)));
        format!("E'{escaped}'")
    } else {
        format!("'{quoted}'")
    }
}

/// A relation with its schema; `OID 1234` if its name is unknown.
pub(super) fn relation(relation: &RelationName) -> String {
    if relation.name.is_empty() {
        return format!("OID {}", relation.oid);
    }
    let name = identifier(&relation.name);
    if relation.schema.is_empty() {
        name
    } else {
        format!("{}.{name}", identifier(&relation.schema))
    }
}

/// A relation's storage parameter, as a statement.
pub(super) fn set_storage(table: &RelationName, parameters: &str) -> String {
    format!("alter table {} set ({parameters})", relation(table))
}

/// What a statement that changes a setting applies to.
pub(super) fn reach_of(sql: &str) -> &'static str {
    if sql.starts_with("alter role") && sql.contains(" in database ") {
        "It applies to all statements of the role in this database, in new sessions."
    } else if sql.starts_with("alter role") {
        "It applies to all statements of the role, in new sessions."
    } else if sql.starts_with("alter database") {
        "It applies to all new sessions in this database."
    } else {
        "It applies only to the session that runs it."
    }
}

/// Whether a name of a statement's text may be this one. In a database with another encoding than UTF-8, the
/// text has U+FFFD in place of letters that are not ASCII.
pub(super) fn may_be(mentioned: &str, name: &str) -> bool {
    if mentioned == name || is_decoded(mentioned) {
        return mentioned == name;
    }
    // One sign may stand for several letters, or several for one, so runs of them are compared.
    let runs = |text: &str| {
        let mut plain: Vec<char> = text.chars().collect();
        for letter in &mut plain {
            if !letter.is_ascii() {
                *letter = char::REPLACEMENT_CHARACTER;
            }
        }
        plain.dedup_by(|a, b| *a == char::REPLACEMENT_CHARACTER && a == b);
        plain
    };
    runs(mentioned) == runs(name)
}

/// Whether a name of a statement's text is known in full.
pub(super) fn is_decoded(name: &str) -> bool {
    !name.contains(char::REPLACEMENT_CHARACTER)
}

/// A list of columns, as in an index definition.
pub(super) fn columns(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| identifier(name)).collect();
    names.join(", ")
}

/// A memory setting's value that is at least this many bytes: a power of two.
pub(super) fn memory(bytes: f64) -> String {
    let mib = (bytes / 1_048_576.0).max(1.0).ceil() as u64;
    let mib = mib.checked_next_power_of_two().unwrap_or(1 << 63);
    if mib >= 1024 {
        format!("{}GB", mib / 1024)
    } else {
        format!("{mib}MB")
    }
}

/// Bytes of a setting's value with its unit, such as `1GB`, `16384 8kB` or `64 MB`, or a plain number;
/// `None` if it is none.
pub(super) fn bytes(value: &str) -> Option<f64> {
    setting_size(value, 1.0)
}

/// Microseconds of a setting's value with its unit, such as `5min`, `300 s` or `1000ms`; `None` if it is
/// none. A value without a unit has that of no setting in particular, so it is none.
pub(super) fn micros(value: &str) -> Option<f64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = value.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let unit = match unit.trim() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3600e6,
        "d" => 86_400e6,
        _ => return None,
    };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_quoted_only_where_sql_requires_it() {
        let names = [
            "orders", "Orders", "order", "1st", "a b", "x\"y", "_a$1", "é", "",
        ];
        let quoted = names.map(identifier);
        let expected = [
            "orders",
            "\"Orders\"",
            "\"order\"",
            "\"1st\"",
            "\"a b\"",
            "\"x\"\"y\"",
            "_a$1",
            "\"é\"",
            "\"\"",
        ];
        assert_eq!(quoted, expected);
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
    }

    /// Regression: a line break in a name was printed as a space, so that the statement named another relation.
    #[test]
    fn letters_that_are_not_shown_are_escapes() {
        assert_eq!(identifier("t\nnew\\ \"x"), "U&\"t\\+00000Anew\\\\ \"\"x\"");
        assert_eq!(identifier("\u{202e}bidi"), "U&\"\\+00202Ebidi\"");
        assert_eq!(literal("it's\u{202e}\\"), "E'it''s\\U0000202E\\\\'");
    }

    #[test]
    fn letters_that_could_not_be_decoded_match_any_that_are_not_ascii() {
        for (mentioned, name, expected) in [
            ("caf\u{fffd}", "café", true),
            ("caf\u{fffd}\u{fffd}", "café", true),
            ("\u{fffd}t\u{fffd}", "été", true),
            ("caf\u{fffd}", "cafe", false),
            ("caf\u{fffd}", "cafés", false),
            ("café", "café", true),
            ("cafè", "café", false),
        ] {
            assert_eq!(may_be(mentioned, name), expected, "{mentioned} {name}");
        }
    }

    #[test]
    fn relations_have_their_schema_and_unknown_ones_their_oid() {
        let named = |schema: &str, name: &str| RelationName {
            oid: 77,
            schema: schema.to_owned(),
            name: name.to_owned(),
            ..RelationName::default()
        };
        assert_eq!(relation(&named("public", "user")), "public.\"user\"");
        assert_eq!(relation(&named("", "t")), "t");
        assert_eq!(relation(&named("", "")), "OID 77");
    }

    #[test]
    fn sizes_of_settings_are_read_and_written() {
        let read = ["1GB", "16384 8kB", "64 MB", "512", "8kB", "on", "1 parsec"];
        let expected = [
            Some(1_073_741_824.0),
            Some(134_217_728.0),
            Some(67_108_864.0),
            Some(512.0),
            Some(8192.0),
            None,
            None,
        ];
        assert_eq!(read.map(bytes), expected);
        assert_eq!([0.0, 3e6, 3e9].map(memory), ["1MB", "4MB", "4GB"]);
        let times = ["5min", "300 s", "1000ms", "-1", "7"];
        let expected = [Some(300e6), Some(300e6), Some(1e6), None, None];
        assert_eq!(times.map(micros), expected);
    }
}
