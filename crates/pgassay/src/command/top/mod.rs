//! `pgassay top`: a live server's statements, waits, blockers and tables in the terminal.
//!
//! One thread watches the server, and the main one reads keys and draws: a server that does not answer
//! leaves the screen alive. What is on the screen is a pure function of [`TopState`].

mod args;
mod columns;
mod detail;
mod draw;
mod keys;
mod rows;
mod saving;
mod screen_loop;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod wrapping;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Result, bail};
use pgassay_lab::Interrupt;
use pgassay_record::activity::Activity;

pub use args::TopArgs;

use crate::args::ColorWhen;
use crate::style;
use state::{TopServer, TopState};

/// What watches the server: samples for this long or until an interrupt, and returns what it saw.
type ActivityFeed = Box<dyn FnMut(Duration, &Interrupt) -> Result<Activity>>;

/// Shows the server until the user quits.
pub fn top(args: &TopArgs, color: ColorWhen) -> Result<()> {
    let is_dumb = std::env::var("TERM").is_ok_and(|it| it.is_empty() || it == "dumb");
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() || is_dumb {
        bail!(
            "pgassay top requires a terminal; without one, use pgassay profile, which watches for a \
             time and then prints what it saw"
        );
    }
    let mut state = TopState::new(args.interval.duration(), style::style(color).color);
    screen_loop::run(&mut state, |interrupt| open(args, interrupt))
}

/// Connects, and says what is watched.
fn open(_args: &TopArgs, _interrupt: &Interrupt) -> Result<(TopServer, ActivityFeed)> {
    bail!("not wired")
}
