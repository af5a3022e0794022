//! The screen in ASCII, for locales with other encodings than UTF-8.

use ratatui::buffer::Buffer;

/// Whether the locale's encoding is known not to be UTF-8. `variable` returns environment variables.
pub fn is_required(variable: impl Fn(&str) -> Option<String>) -> bool {
    let mut named = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(variable);
    // Containers often have none of them, whatever the terminal is.
    let Some(locale) = named.find(|it| !it.is_empty()) else {
        return false;
    };
    let encoding = locale.split('@').next().and_then(|it| it.split_once('.'));
    match encoding {
        Some((_, encoding)) => !encoding.to_lowercase().replace('-', "").eq("utf8"),
        None => matches!(&*locale, "C" | "POSIX"),
    }
}

/// Replaces all other characters, each by one.
pub fn replace(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let symbol = cell.symbol();
        if !symbol.is_ascii() {
            let first = symbol.chars().next().unwrap_or(' ');
            cell.set_char(like(first));
        }
    }
}

fn like(c: char) -> char {
    match c {
        '└' => '`',
        '…' => '~',
        '≥' => '>',
        '≤' => '<',
        '↑' => '^',
        '↓' => 'v',
        'µ' => 'u',
        '▁' | '▂' => '_',
        '▃' | '▄' => '-',
        '▅' | '▆' => '=',
        '▇' | '█' => '#',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locales_of_another_encoding_require_it() {
        for (name, locale, expected) in [
            ("LANG", "C", true),
            ("LANG", "POSIX", true),
            ("LC_CTYPE", "de_DE.ISO-8859-1", true),
            ("LC_ALL", "de_DE.ISO-8859-15@euro", true),
            ("LC_ALL", "C.UTF-8", false),
            ("LANG", "en_US.utf8", false),
            ("LANG", "en_US", false),
            ("LANG", "", false),
            ("TERM", "C", false),
        ] {
            let variable = |it: &str| (it == name).then(|| locale.to_owned());
            assert_eq!(is_required(variable), expected, "{name}={locale}");
        }
        let both = |it: &str| match it {
            "LC_ALL" => Some("C.UTF-8".to_owned()),
            "LANG" => Some("C".to_owned()),
            _ => None,
        };
        assert!(!is_required(both));
    }
}
