//! Text that cannot send commands to a terminal.

use std::borrow::Cow;

/// The text with control characters (ASCII's, and C1 of ISO 6429), line separators, marks of writing
/// direction and what no XML may contain replaced by U+FFFD; only newlines and tabs stay. A server, a
/// study or a name could otherwise move the cursor, set the window's title, hide text, or make the
/// results of a gate unreadable.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let shown = |c| if is_printable(c) { c } else { '\u{fffd}' };
    Cow::Owned(text.chars().map(shown).collect())
}

fn is_printable(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        // The first move text, too; XML may not contain the last.
        '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fffe}'
        | '\u{ffff}' => false,
        _ => !c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_character_is_replaced_but_newline_and_tab() {
        for code in (0..0x20).chain(0x7f..0xa0) {
            let c = char::from(code);
            let text = format!("a{c}b");
            let kept = matches!(c, '\n' | '\t');
            assert_eq!(printable(&text) == text, kept, "{code:#x}");
            assert_eq!(printable(&text).chars().count(), 3);
        }
        assert_eq!(printable("\u{1b}]0;pwned\u{7}"), "\u{fffd}]0;pwned\u{fffd}");
        assert_eq!(printable("\u{9b}31m\u{202e}"), "\u{fffd}31m\u{fffd}");
        assert_eq!(printable("\u{61c}\u{2066}"), "\u{fffd}\u{fffd}");
        assert_eq!(printable("\u{fffe}\u{ffff}"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn usual_text_is_not_copied() {
        let text = "FEHLER:  Relation »t« existiert nicht\n\tZEILE 1: 简单\n";
        assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
    }
}
