//! Text wrapped at a width.

/// The words of a text in lines of at most `width` characters; longer words are broken. Leading blanks
/// are kept.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent: String = text.chars().take_while(|c| *c == ' ').collect();
    let mut lines = Vec::new();
    let mut line = indent;
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let needed = line.chars().count() + usize::from(!is_empty) + word.chars().count();
        if needed > width && !is_empty {
            lines.push(std::mem::take(&mut line));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        for c in word.chars() {
            if line.chars().count() >= width {
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
        assert_eq!(wrapped("  x yz", 4), ["  x", "yz"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
