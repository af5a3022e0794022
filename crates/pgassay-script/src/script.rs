//! Scripts: text in, commands out.

use crate::command::{Command, Protocol};
use crate::error::ParseError;
use crate::names::Names;

/// The pgbench whose language is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Compat {
    /// 15 and 16: no `\syncpipeline`.
    V15,
    /// 17.
    V17,
    /// 18.
    #[default]
    V18,
}

/// How to parse a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How its statements will be sent: only the simple protocol has no limit of parameters.
    pub protocol: Protocol,
    /// The version of the language.
    pub compat: Compat,
}

/// Something to tell the user about a script that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line, from 1.
    pub line: u32,
    /// What to say.
    pub text: String,
}

/// A parsed script. It never changes, so that all threads of a run may share it in an `Arc`.
#[derive(Clone, Debug)]
pub struct Script {
    name: String,
    commands: Vec<Command>,
    notes: Vec<Note>,
}

impl Script {
    /// Parses `text`, which need not be UTF-8. Variables are interned into `names`, to be shared
    /// by all scripts of a run. `name` is the file's name, or a built-in script's title.
    pub fn parse(
        name: &str,
        text: &(impl AsRef<[u8]> + ?Sized),
        options: &Options,
        names: &mut Names,
    ) -> Result<Script, ParseError> {
        let _ = (text.as_ref(), options, names);
        todo!("{name}")
    }

    /// The file's name, or the built-in script's title.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The commands, of which there is at least one.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// What to tell the user, such as that `\setrandom` is long gone.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}
