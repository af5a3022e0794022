//! `pgassay top`: a live server's statements, sessions, waits, blockers, tables and findings in the terminal.
//!
//! One thread watches the server, and the main one reads keys and draws: a server that does not answer
//! leaves the screen alive. What is on the screen is a pure function of [`TopState`].

mod args;
mod ascii;
mod columns;
mod detail;
mod draw;
mod feed;
mod finding_rows;
mod hangup;
mod keys;
#[cfg(test)]
mod list_tests;
mod lists;
#[cfg(test)]
mod regressions;
mod rows;
mod saving;
mod screen_loop;
mod session_detail;
mod session_rows;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod wrapping;

use std::io::IsTerminal;

use anyhow::{Result, bail};

pub use args::TopArgs;

use crate::args::ColorWhen;
use crate::style;
use state::TopState;

/// Shows the server until the user quits.
pub fn top(args: &TopArgs, color: ColorWhen) -> Result<()> {
    let is_dumb = std::env::var("TERM").is_ok_and(|it| it.is_empty() || it == "dumb");
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() || is_dumb {
        bail!(
            "pgassay top requires a terminal; without one, use pgassay profile, which watches for a \
             time and then prints what it saw"
        );
    }
    hangup::exit_on_hangup()?;
    let mut state = TopState::new(args.interval.duration(), style::style(color).color);
    state.is_ascii = ascii::is_required(|name| std::env::var(name).ok());
    screen_loop::run(&mut state, || feed::open(args))
}
