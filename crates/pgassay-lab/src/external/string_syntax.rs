//! How a server's sessions read strings: whether pgassay recognizes the end of a string where the server does.

use anyhow::{Result, bail};

/// The beginnings of names of encodings whose characters of several bytes contain no byte of ASCII. In the others
/// (`SJIS`, `BIG5`, `GBK`, `UHC`, `GB18030`, `JOHAB`), the last byte of a character may be that of a backslash.
const SAFE_ENCODINGS: [&str; 8] = [
    "EUC_",
    "ISO_8859_",
    "KOI8",
    "LATIN",
    "MULE_INTERNAL",
    "SQL_ASCII",
    "UTF8",
    "WIN",
];

/// What a server reports about how a session reads strings.
#[derive(Clone, Debug, Default)]
pub struct StringSyntax {
    /// `standard_conforming_strings`.
    pub conforming: Option<String>,
    /// `client_encoding`.
    pub encoding: Option<String>,
}

impl StringSyntax {
    /// Returns an error if statements that seem to be part of a string may be none for the server. A load that only
    /// reads could write then.
    pub fn check(&self) -> Result<()> {
        let (name, value, needed) = match (self.conforming.as_deref(), self.encoding.as_deref()) {
            (conforming, _) if conforming != Some("on") => {
                let needed = "options='-c standard_conforming_strings=on'";
                ("standard_conforming_strings", conforming, needed)
            }
            (_, Some(encoding)) if SAFE_ENCODINGS.iter().any(|it| encoding.starts_with(it)) => {
                return Ok(());
            }
            (_, encoding) => ("client_encoding", encoding, "client_encoding=UTF8"),
        };
        bail!(
            "sessions of this role in this database have {name} = {}, with which a string may end elsewhere than \
             pgassay assumes, so it cannot tell whether the load only reads; this run has changed nothing. Set \
             {needed} in the connection string",
            value.unwrap_or("(not reported)")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with these settings, of a role or of the connection string, statements in a string wrote into a
    /// database that must only be read.
    #[test]
    fn a_load_in_place_is_refused_where_strings_may_end_elsewhere() {
        let check = |conforming: &str, encoding: &str| {
            let syntax = StringSyntax {
                conforming: Some(conforming.to_owned()),
                encoding: Some(encoding.to_owned()),
            };
            syntax.check().map_err(|error| error.to_string())
        };
        for safe in ["UTF8", "LATIN9", "WIN1252", "EUC_JIS_2004", "SQL_ASCII"] {
            assert_eq!(check("on", safe), Ok(()), "{safe}");
        }
        for unsafe_one in [
            "SJIS",
            "SHIFT_JIS_2004",
            "BIG5",
            "GBK",
            "UHC",
            "GB18030",
            "JOHAB",
        ] {
            let message = check("on", unsafe_one).unwrap_err();
            assert!(message.contains("client_encoding=UTF8"), "{message}");
        }
        let message = check("off", "UTF8").unwrap_err();
        assert!(
            message.contains("standard_conforming_strings=on"),
            "{message}"
        );
        assert!(StringSyntax::default().check().is_err());
    }
}
