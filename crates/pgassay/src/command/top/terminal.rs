//! The terminal in raw mode on its alternate screen, and its return to what it was.

use std::io::{Stdout, Write, stdout};

use anyhow::{Context, Result};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// The terminal while `top` runs. Dropping it restores the terminal, and so does a panic, before its
/// message is printed.
pub struct TopTerminal {
    pub inner: Terminal<CrosstermBackend<Stdout>>,
}

impl TopTerminal {
    pub fn open() -> Result<Self> {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            previous(info);
        }));
        enable_raw_mode().context("cannot set the terminal to raw mode")?;
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match opened {
            Ok(inner) => Ok(Self { inner }),
            Err(error) => {
                restore();
                Err(anyhow::Error::new(error).context("cannot draw on the terminal"))
            }
        }
    }
}

/// Clears the screen, so that the next drawing is of all of it. (`clear` of ratatui asks the terminal where its cursor
/// is, and fails if the terminal does not answer.)
pub fn draw_anew<B: Backend>(terminal: &mut Terminal<B>) -> Result<(), B::Error> {
    let size = terminal.size()?;
    terminal.resize(size.into())
}

impl Drop for TopTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal; harmless if it was restored before. Nothing can be done about an error: the
/// terminal may be gone.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = stdout().flush();
}
