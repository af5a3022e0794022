//! Tables and colors for a terminal.
//!
//! Widths are display widths (`unicode-width`), so that names in any script line up; colors are added
//! after the padding and do not count.

use unicode_width::UnicodeWidthStr;

use crate::printable::printable;

/// The role of a piece of text, which determines its color. The text is complete without color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextStyle {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Caution,
}

impl TextStyle {
    /// The parameters of the ANSI sequence (ECMA-48, SGR); the eight basic colors follow the user's theme.
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Strong => Some("1"),
            Self::Faint => Some("2"),
            Self::Good => Some("1;32"),
            Self::Bad => Some("1;31"),
            Self::Caution => Some("33"),
        }
    }
}

/// The text in its color, or unchanged if colors are off.
pub(super) fn paint(text: &str, ink: TextStyle, color: bool) -> String {
    match ink.code() {
        Some(code) if color && !text.is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        _ => text.to_owned(),
    }
}

#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    ink: TextStyle,
}

/// A cell in the terminal's default color.
pub(super) fn cell(text: impl Into<String>) -> Cell {
    inked(text, TextStyle::Plain)
}

/// A cell in a color.
pub(super) fn inked(text: impl Into<String>, ink: TextStyle) -> Cell {
    Cell {
        text: visible(&text.into()),
        ink,
    }
}

/// A cell with a name, cut which leaves room for figures.
pub(super) fn name(text: &str) -> Cell {
    cell(cut(&visible(text), NAME_WIDTH))
}

/// The width of a column of names, so that the figures still fit.
pub(super) const NAME_WIDTH: usize = 20;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alignment {
    Left,
    Right,
}

/// A line of a table: cells in columns, or text across all of them.
enum TableLine {
    Cells(Vec<Cell>),
    Across(Cell),
}

/// Rows with common column widths.
pub(super) struct Table {
    sides: Vec<Alignment>,
    rows: Vec<TableLine>,
}

impl Table {
    /// A table with columns of these alignments.
    pub(super) fn new(sides: &[Alignment]) -> Self {
        Self {
            sides: sides.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for every column.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.sides.len(), "a cell for every column");
        self.rows.push(TableLine::Cells(cells));
    }

    /// Adds a line across all columns, which does not affect their widths.
    pub(super) fn across(&mut self, mut cell: Cell) {
        cell.text = cut(&cell.text, ACROSS_WIDTH_MAX);
        self.rows.push(TableLine::Across(cell));
    }

    /// The widest line, indentation included.
    pub(super) fn width(&self) -> usize {
        let widths = self.widths();
        INDENT.len() + widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
    }

    /// Removes a column.
    pub(super) fn remove_column(&mut self, column: usize) {
        self.sides.remove(column);
        for row in &mut self.rows {
            if let TableLine::Cells(cells) = row {
                cells.remove(column);
            }
        }
    }

    /// The lines, each with a final newline and no trailing blanks.
    pub(super) fn render(&self, color: bool) -> String {
        let widths = self.widths();
        let mut out = String::new();
        for row in &self.rows {
            match row {
                TableLine::Across(cell) => out.push_str(&paint(&cell.text, cell.ink, color)),
                TableLine::Cells(cells) => out.push_str(&self.line(cells, &widths, color)),
            }
            out.push('\n');
        }
        out
    }

    /// A row's cells, each padded to its column's width.
    fn line(&self, cells: &[Cell], widths: &[usize], color: bool) -> String {
        let mut line = INDENT.to_owned();
        let last = cells.iter().rposition(|cell| !cell.text.is_empty());
        let Some(last) = last else {
            return String::new();
        };
        for (column, cell) in cells.iter().enumerate().take(last + 1) {
            let padding = " ".repeat(widths[column] - cell.text.width());
            let text = paint(&cell.text, cell.ink, color);
            if column > 0 {
                line.push_str(GAP);
            }
            if self.sides[column] == Alignment::Right {
                line.push_str(&padding);
            }
            line.push_str(&text);
            if self.sides[column] == Alignment::Left && column < last {
                line.push_str(&padding);
            }
        }
        line
    }

    /// The display width of each column's widest cell.
    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.sides.len()];
        for row in &self.rows {
            if let TableLine::Cells(cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.text.width());
                }
            }
        }
        widths
    }
}

/// The width of the widest report.
const ACROSS_WIDTH_MAX: usize = 100;
const INDENT: &str = "  ";
const GAP: &str = "  ";

/// A paragraph wrapped at `width`; `first` indents the first line, `next` the others. A no-break space
/// prevents a line break and prints as a space.
pub(super) fn wrap(text: &str, width: usize, first: &str, next: &str) -> String {
    let mut out = String::new();
    let mut line = first.to_owned();
    let mut empty = true;
    // A line never begins with a unit.
    let text = text.replace(" %", "\u{a0}%").replace(" µs", "\u{a0}µs");
    let blank = |c: char| c.is_ascii_whitespace();
    let words = text.split(blank).filter(|word| !word.is_empty());
    for word in words.map(visible) {
        if !empty && line.width() + 1 + word.width() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            next.clone_into(&mut line);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}

/// The text, with each line that is too wide broken between words. What follows begins below the line's last column, which
/// is the text after two or more spaces, or two columns to the right of the line.
pub(super) fn fold(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.width() <= width {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let words = line.trim_start();
        let indent = line.len() - words.len();
        let last_column = words.rfind(GAP).map(|at| indent + at + GAP.len());
        let last_column = last_column.filter(|at| line[..*at].width() <= width / 2);
        let (start, next) = last_column.map_or((indent, indent + INDENT.len()), |at| {
            (at, line[..at].width())
        });
        out += &wrap(&line[start..], width, &line[..start], &" ".repeat(next));
    }
    out
}

/// The text on one line, with control characters replaced.
pub fn visible(text: &str) -> String {
    let on_one_line = text.replace(['\n', '\r', '\t', '\u{a0}'], " ");
    printable(&on_one_line).into_owned()
}

/// The text cut to a width, with an ellipsis if anything was cut.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        if out.width() + 1 + c.to_string().width() > width {
            break;
        }
        out.push(c);
    }
    out.push('…');
    out
}

/// The text in exactly `width` columns: cut, or padded on the right, or on the left if `is_right`.
pub fn fit(text: &str, width: usize, is_right: bool) -> String {
    let text = if text.width() <= width {
        text.to_owned()
    } else {
        // One column short, if the ellipsis does not fit.
        cut(text, width).chars().take(width).collect()
    };
    let padding = " ".repeat(width.saturating_sub(text.width()));
    if is_right {
        padding + &text
    } else {
        text + &padding
    }
}

/// A bar over `share` (0 to 1) of `width` columns, in eighths of a character.
pub(super) fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    if bar.is_empty() && share > 0.0 && width > 0 {
        "▏".to_owned()
    } else {
        bar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_in_any_script_and_color() {
        let mut table = Table::new(&[Alignment::Left, Alignment::Right]);
        table.row(vec![cell("简单"), cell("1")]);
        table.row(vec![inked("ab", TextStyle::Good), cell("22")]);
        assert_eq!(table.render(false), "  简单   1\n  ab    22\n");
        assert_eq!(
            table.render(true),
            "  简单   1\n  \u{1b}[1;32mab\u{1b}[0m    22\n"
        );
        assert_eq!(table.width(), 10);
    }

    #[test]
    fn names_cannot_send_terminal_commands() {
        assert_eq!(visible("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }

    #[test]
    fn paragraphs_break_between_words() {
        assert_eq!(wrap("one two three", 9, "! ", "  "), "! one two\n  three\n");
        assert_eq!(
            wrap("incomprehensibility", 5, "", ""),
            "incomprehensibility\n"
        );
    }

    #[test]
    fn a_line_wider_than_the_terminal_goes_on_below_its_last_column() {
        assert_eq!(fold("one\n\n  two\n", 9), "one\n\n  two\n");
        assert_eq!(fold("  one two three\n", 9), "  one two\n    three\n");
        let text = "a   12  one two three four five\nb    3  six\n";
        assert_eq!(
            fold(text, 20),
            "a   12  one two\n        three four\n        five\nb    3  six\n"
        );
        assert_eq!(fold("one two three  4", 9), "one two\n  three 4\n");
    }

    #[test]
    fn long_names_are_cut_and_bars_are_never_lost() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(fit("abc", 5, false), "abc  ");
        assert_eq!(fit("abc", 5, true), "  abc");
        assert_eq!(fit("abc", 2, true), "a…");
        assert_eq!(fit("简单", 3, false), "简…");
        assert_eq!(fit("abc", 0, false), "");
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(0.001, 4), "▏");
        assert_eq!(bar(0.0, 4), "");
    }
}
