//! What each key does. The habits of `pg_activity` and less are kept: `1 2 3`, Space, `/`, `j k`, `q`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::{TopView, sort_letters};
use super::state::{KeyMode, TopState};

/// What the loop does after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopAction {
    /// Nothing but to draw.
    Draw,
    /// Save what is shown.
    Save,
    /// Draw everything again.
    Redraw,
    /// End.
    Quit,
}

/// A page, for `PageUp` and `PageDown`.
const PAGE: usize = 10;
/// Longer filters do not fit the line.
const FILTER_MAX: usize = 60;

impl TopState {
    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) -> TopAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.press_with_control(key.code);
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // Esc and the next key, if they arrive together, as over a slow line.
            self.press(KeyCode::Esc.into());
        }
        self.message = None;
        match self.mode {
            KeyMode::Command => return self.command(key.code),
            KeyMode::Filter => self.type_filter(key.code),
            KeyMode::Sort => self.choose_sort(key.code),
            KeyMode::Help => self.read_help(key.code),
            KeyMode::Detail => return self.read_detail(key.code),
        }
        TopAction::Draw
    }

    /// Letters with Control are not those without: Ctrl-U does not type a `u`, and Ctrl-W saves nothing.
    fn press_with_control(&mut self, code: KeyCode) -> TopAction {
        match code {
            KeyCode::Char('c') => return TopAction::Quit,
            KeyCode::Char('l') => return TopAction::Redraw,
            KeyCode::Char('u') if self.mode == KeyMode::Filter => self.filter_by(String::new()),
            KeyCode::Char('w') if self.mode == KeyMode::Filter => {
                let words = self.filter.trim_end();
                let kept = words
                    .rfind(char::is_whitespace)
                    .map_or("", |at| &words[..=at]);
                self.filter_by(kept.to_owned());
            }
            _ => {}
        }
        TopAction::Draw
    }

    fn command(&mut self, code: KeyCode) -> TopAction {
        match code {
            KeyCode::Char('q') => return TopAction::Quit,
            KeyCode::Char('w' | 'S') => return TopAction::Save,
            KeyCode::Char('1') | KeyCode::F(1) => self.show(TopView::Statements),
            KeyCode::Char('2') | KeyCode::F(2) => self.show(TopView::Waiting),
            KeyCode::Char('3') | KeyCode::F(3) => self.show(TopView::Blocking),
            KeyCode::Char('4') | KeyCode::F(4) => self.show(TopView::Sessions),
            KeyCode::Char('t') => self.show(TopView::Tables),
            KeyCode::Char('f') => self.show(TopView::Findings),
            KeyCode::Char(' ') => self.toggle_pause(),
            KeyCode::Char('+') => self.change_interval(true),
            KeyCode::Char('-') => self.change_interval(false),
            KeyCode::Char('/') => self.mode = KeyMode::Filter,
            KeyCode::Char('s') if self.view == TopView::Blocking => {
                self.message = Some("a tree cannot be sorted".to_owned());
            }
            KeyCode::Char('s') => self.mode = KeyMode::Sort,
            KeyCode::Char('h' | '?') => {
                self.mode = KeyMode::Help;
                self.text_from = 0;
            }
            KeyCode::Esc => self.filter_by(String::new()),
            KeyCode::Enter => self.show_details(),
            other => self.move_selection(other),
        }
        TopAction::Draw
    }

    fn show_details(&mut self) {
        if let Some(row) = self.selected_row() {
            self.detailed = row.key;
            self.mode = KeyMode::Detail;
            self.text_from = 0;
        }
    }

    fn move_selection(&mut self, code: KeyCode) {
        let last = self.rows().len().saturating_sub(1);
        self.selected = moved(self.selected, code).min(last);
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = KeyMode::Command,
            KeyCode::Esc => {
                self.mode = KeyMode::Command;
                self.filter_by(String::new());
            }
            KeyCode::Backspace => {
                let mut filter = self.filter.clone();
                filter.pop();
                self.filter_by(filter);
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => {
                let filter = format!("{}{c}", self.filter);
                self.filter_by(filter);
            }
            _ => {}
        }
    }

    fn filter_by(&mut self, filter: String) {
        let key = self.selected_row().map(|row| row.key);
        self.filter = filter;
        self.select(key.as_deref());
    }

    fn choose_sort(&mut self, code: KeyCode) {
        self.mode = KeyMode::Command;
        let KeyCode::Char(letter) = code else { return };
        if sort_letters(self.view).any(|(known, _)| known == letter) {
            self.sorted_by[self.view as usize] = letter;
            self.selected = 0;
        } else {
            self.message = Some(format!("no column has the letter {letter}"));
        }
    }

    fn read_detail(&mut self, code: KeyCode) -> TopAction {
        match code {
            KeyCode::Char('q') => return TopAction::Quit,
            KeyCode::Char('w' | 'S') => return TopAction::Save,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => self.mode = KeyMode::Command,
            KeyCode::Char(' ') => self.toggle_pause(),
            other => self.scroll(other),
        }
        TopAction::Draw
    }

    /// Keys that move show the rest of the help on a small screen; any other key closes it.
    fn read_help(&mut self, code: KeyCode) {
        if is_move(code) {
            self.scroll(code);
        } else {
            self.mode = KeyMode::Command;
        }
    }

    fn scroll(&mut self, code: KeyCode) {
        // Where the text ends, the screen knows.
        self.text_from = moved(self.text_from.min(self.text_from_max.get()), code);
    }
}

fn is_move(code: KeyCode) -> bool {
    moved(1, code) != 1
}

/// A position after a key that moves.
fn moved(at: usize, code: KeyCode) -> usize {
    match code {
        KeyCode::Char('j') | KeyCode::Down => at + 1,
        KeyCode::Char('k') | KeyCode::Up => at.saturating_sub(1),
        KeyCode::PageDown => at + PAGE,
        KeyCode::PageUp => at.saturating_sub(PAGE),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX / 2,
        _ => at,
    }
}
