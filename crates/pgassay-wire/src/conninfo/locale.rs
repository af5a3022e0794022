//! The encoding of the locale, which `client_encoding=auto` stands for.
//!
//! Source: `pg_get_encoding_from_locale` in `chklocale.c`.

use super::{ConninfoError, Environment};

/// Character sets as in locale names, with lower-case letters and digits only, and PostgreSQL's names.
const ENCODINGS: &[(&str, &str)] = &[
    ("utf8", "UTF8"),
    ("iso88591", "LATIN1"),
    ("iso88592", "LATIN2"),
    ("iso88593", "LATIN3"),
    ("iso88594", "LATIN4"),
    ("iso88595", "ISO_8859_5"),
    ("iso88596", "ISO_8859_6"),
    ("iso88597", "ISO_8859_7"),
    ("iso88598", "ISO_8859_8"),
    ("iso88599", "LATIN5"),
    ("iso885910", "LATIN6"),
    ("iso885913", "LATIN7"),
    ("iso885914", "LATIN8"),
    ("iso885915", "LATIN9"),
    ("iso885916", "LATIN10"),
    ("cp1251", "WIN1251"),
    ("cp1252", "WIN1252"),
    ("koi8r", "KOI8R"),
    ("koi8u", "KOI8U"),
    ("eucjp", "EUC_JP"),
    ("euckr", "EUC_KR"),
];

/// Returns the encoding of the locale.
pub(super) fn encoding(environment: &dyn Environment) -> Result<&'static str, ConninfoError> {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"];
    let mut named = variables.iter().filter_map(|it| environment.variable(it));
    let locale = named.find(|locale| !locale.is_empty());
    let locale = locale.as_deref().unwrap_or("C");
    if matches!(locale, "C" | "POSIX") {
        return Ok("SQL_ASCII");
    }
    let characters = locale.split('@').next().and_then(|it| it.split_once('.'));
    let characters = characters.map_or(String::new(), |(_, name)| {
        let plain = name.chars().filter(char::is_ascii_alphanumeric);
        plain.collect::<String>().to_ascii_lowercase()
    });
    let known = ENCODINGS.iter().find(|(name, _)| *name == characters);
    known
        .map(|(_, encoding)| *encoding)
        .ok_or_else(|| ConninfoError::Unsupported {
            option: "client_encoding",
            value: "auto".into(),
            reason: "the encoding of the locale (LC_ALL, LC_CTYPE, LANG) is not known; name it",
        })
}
