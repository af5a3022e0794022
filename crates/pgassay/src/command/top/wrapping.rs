//! Text wrapped at a width.

use ratatui::text::Span;

/// A text in lines of at most `width` columns, broken between words; longer words are broken, too. A
/// text that fits is kept as it is.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let columns = |text: &str| Span::raw(text).width();
    if columns(text) <= width {
        return vec![text.to_owned()];
    }
    let mut line: String = text.chars().take_while(|c| *c == ' ').collect();
    let mut lines = Vec::new();
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && columns(&line) + 1 + columns(word) > width {
            lines.push(std::mem::take(&mut line));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        for c in word.chars() {
            if !line.is_empty() && columns(&line) + columns(c.encode_utf8(&mut [0; 4])) > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_the_width() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrapped("  x   yz", 8), ["  x   yz"]);
        assert_eq!(wrapped("  x yz", 4), ["  x", "yz"]);
        assert_eq!(wrapped("简单 abc", 4), ["简单", "abc"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
