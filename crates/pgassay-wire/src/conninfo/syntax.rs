//! Connection strings: `keyword = 'value' …` and `postgresql://…`.
//!
//! Source: `conninfo_parse`, `conninfo_uri_parse_options`, `conninfo_uri_decode` in `fe-connect.c`.
//! Positions are bytes; the syntax is ASCII, so splits always fall between characters.

use super::ConninfoError;

type OptionPairs = Vec<(String, String)>;

fn syntax(at_byte: usize, what: &'static str) -> ConninfoError {
    ConninfoError::Syntax { at_byte, what }
}

/// Whether the text is a connection URI.
pub(super) fn is_uri(text: &str) -> bool {
    scheme(text).is_some()
}

fn scheme(text: &str) -> Option<usize> {
    let schemes = ["postgresql://", "postgres://"];
    schemes
        .iter()
        .find(|scheme| text.starts_with(**scheme))
        .map(|scheme| scheme.len())
}

/// Parses `keyword=value` pairs.
pub(super) fn pairs(text: &str) -> Result<OptionPairs, ConninfoError> {
    let bytes = text.as_bytes();
    let is_space = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_whitespace);
    let skip_spaces = |mut at: usize| {
        while is_space(at) {
            at += 1;
        }
        at
    };
    let mut found = OptionPairs::new();
    let mut at = skip_spaces(0);
    while at < bytes.len() {
        let start = at;
        while at < bytes.len() && bytes[at] != b'=' && !is_space(at) {
            at += 1;
        }
        let name = text[start..at].to_owned();
        at = skip_spaces(at);
        if bytes.get(at) != Some(&b'=') {
            return Err(syntax(start, "a keyword is not followed by \"=\""));
        }
        let (value, end) = value(bytes, skip_spaces(at + 1))?;
        found.push((name, value));
        at = skip_spaces(end);
    }
    Ok(found)
}

/// Parses one value, quoted or not; also returns where it ends.
fn value(bytes: &[u8], start: usize) -> Result<(String, usize), ConninfoError> {
    let quoted = bytes.get(start) == Some(&b'\'');
    let mut value = Vec::new();
    let mut at = start + usize::from(quoted);
    loop {
        match bytes.get(at) {
            None if quoted => return Err(syntax(start, "a quoted value has no closing quote")),
            None => break,
            Some(b'\'') if quoted => {
                at += 1;
                break;
            }
            Some(byte) if !quoted && byte.is_ascii_whitespace() => break,
            Some(b'\\') => {
                value.extend(bytes.get(at + 1));
                at = (at + 2).min(bytes.len());
            }
            Some(&byte) => {
                value.push(byte);
                at += 1;
            }
        }
    }
    let value =
        String::from_utf8(value).map_err(|_| syntax(start, "a value is not valid UTF-8"))?;
    Ok((value, at))
}

/// Returns an error unless a URI's port, with its position, is a number, maybe encoded. Without the port's text: behind
/// a user name whose password contains a "/", it is the beginning of the password.
fn check_port((at_byte, port): (usize, &str)) -> Result<(), ConninfoError> {
    let decoded = decode(at_byte, port)?;
    if decoded.trim().bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    let what = "expected a port number; in a password, write \"/\" as %2F";
    Err(syntax(at_byte, what))
}

/// Parses a URI.
pub(super) fn uri(text: &str) -> Result<OptionPairs, ConninfoError> {
    let start = scheme(text).unwrap_or(0);
    let mut cursor = OptionCursor { text, at: start };
    let mut found = OptionPairs::new();
    // The first "@" before any "/" ends user and password.
    let rest = &text[start..];
    let authority = rest.find('/').map_or(rest, |slash| &rest[..slash]);
    if authority.contains('@') {
        store_filled(&mut found, "user", cursor.take_until(&[':', '@']))?;
        if cursor.eat(':') {
            store_filled(&mut found, "password", cursor.take_until(&['@']))?;
        }
        cursor.eat('@');
    }
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    loop {
        hosts.push(cursor.host()?);
        let port = if cursor.eat(':') {
            let port = cursor.take_until(&['/', '?', ',']);
            check_port(port)?;
            port
        } else {
            (cursor.at, "")
        };
        ports.push(port);
        if !cursor.eat(',') {
            break;
        }
    }
    store_list(&mut found, "host", &hosts)?;
    store_list(&mut found, "port", &ports)?;
    if cursor.eat('/') {
        store_filled(&mut found, "dbname", cursor.take_until(&['?']))?;
    }
    if cursor.eat('?') {
        parameters(&mut cursor, &mut found)?;
    }
    Ok(found)
}

fn parameters(cursor: &mut OptionCursor<'_>, found: &mut OptionPairs) -> Result<(), ConninfoError> {
    while cursor.at < cursor.text.len() {
        let (at, parameter) = cursor.take_until(&['&']);
        cursor.eat('&');
        let (name, value) = parameter
            .split_once('=')
            .ok_or_else(|| syntax(at, "a parameter of the URI has no \"=\""))?;
        if value.contains('=') {
            return Err(syntax(at, "a parameter of the URI has a second \"=\""));
        }
        let name = decode(at, name)?;
        let value = decode(at, value)?;
        // JDBC's spelling.
        if (name.as_str(), value.as_str()) == ("ssl", "true") {
            found.push(("sslmode".into(), "require".into()));
        } else {
            found.push((name, value));
        }
    }
    Ok(())
}

struct OptionCursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> OptionCursor<'a> {
    fn eat(&mut self, character: char) -> bool {
        let found = self.text[self.at..].starts_with(character);
        self.at += usize::from(found);
        found
    }

    /// Returns the text up to one of these characters, and its position.
    fn take_until(&mut self, ends: &[char]) -> (usize, &'a str) {
        let start = self.at;
        let rest = &self.text[start..];
        let length = rest.find(ends).unwrap_or(rest.len());
        self.at += length;
        (start, &rest[..length])
    }

    fn host(&mut self) -> Result<(usize, &'a str), ConninfoError> {
        if !self.eat('[') {
            return Ok(self.take_until(&[':', '/', '?', ',']));
        }
        let (start, address) = self.take_until(&[']']);
        if !self.eat(']') {
            return Err(syntax(start, "an IPv6 address has no \"]\""));
        }
        if address.is_empty() {
            return Err(syntax(start, "an IPv6 address is empty"));
        }
        if !self.text[self.at..].is_empty()
            && !self.text[self.at..].starts_with([':', '/', '?', ','])
        {
            return Err(syntax(
                self.at,
                "unexpected character after an IPv6 address",
            ));
        }
        Ok((start, address))
    }
}

/// Stores a part of a URI unless it is empty: an option or the environment may then set it.
fn store_filled(
    found: &mut OptionPairs,
    name: &str,
    (at, raw): (usize, &str),
) -> Result<(), ConninfoError> {
    if !raw.is_empty() {
        found.push((name.into(), decode(at, raw)?));
    }
    Ok(())
}

/// Stores a comma-separated list unless it is empty.
fn store_list(
    found: &mut OptionPairs,
    name: &str,
    parts: &[(usize, &str)],
) -> Result<(), ConninfoError> {
    if parts.len() == 1 && parts[0].1.is_empty() {
        return Ok(());
    }
    let decoded = parts.iter().map(|&(at, raw)| decode(at, raw));
    let joined = decoded.collect::<Result<Vec<_>, _>>()?.join(",");
    found.push((name.into(), joined));
    Ok(())
}

/// Decodes percent-encoding.
fn decode(start: usize, raw: &str) -> Result<String, ConninfoError> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let at = start + raw.len() - rest.len();
        let digit = |place: usize| rest.get(place).and_then(|&d| char::from(d).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(syntax(
                at,
                "\"%\" is not followed by two hexadecimal digits",
            ));
        };
        match (high * 16 + low) as u8 {
            0 => return Err(syntax(at, "\"%00\" is not allowed")),
            decoded => bytes.push(decoded),
        }
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| syntax(start, "a value is not valid UTF-8"))
}
