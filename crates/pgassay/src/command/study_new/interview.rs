//! Questions with defaults: asked on a terminal, answered line by line by a pipe, or not asked at all.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result, bail};

use crate::output::{print_line_stderr, print_stderr};

/// Where answers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerSource {
    /// A person, who sees each question and is asked again after an answer that cannot be used.
    Terminal,
    /// Lines of stdin, in the order of the questions; after the last one, defaults.
    Lines,
    /// None: stdin is not read.
    Defaults,
}

/// Asks questions.
pub struct Interview {
    source: AnswerSource,
}

impl Interview {
    /// On stdin; with `only_defaults`, nothing is asked.
    pub fn on_stdin(only_defaults: bool) -> Self {
        let source = if only_defaults {
            AnswerSource::Defaults
        } else if io::stdin().is_terminal() {
            AnswerSource::Terminal
        } else {
            AnswerSource::Lines
        };
        Self { source }
    }

    /// Whether a person answers.
    pub fn has_person(&self) -> bool {
        self.source == AnswerSource::Terminal
    }

    /// Tells a person something.
    pub fn say(&self, text: &str) {
        if self.has_person() {
            print_line_stderr(text);
        }
    }

    /// The answer to a question, or the default for an empty one, as `understood`.
    ///
    /// # Errors
    /// If a line is not understood, or a person ends the input.
    pub fn ask<T>(
        &self,
        question: &str,
        default: &str,
        understood: impl Fn(&str) -> Result<T>,
    ) -> Result<T> {
        loop {
            let answer = self.answer(question, default)?;
            let answer = answer.trim();
            let answer = if answer.is_empty() { default } else { answer };
            match understood(answer) {
                Ok(found) => return Ok(found),
                Err(error) if self.has_person() => print_line_stderr(&format!("  {error:#}")),
                Err(error) => return Err(error.context(format!("the answer to \"{question}\""))),
            }
        }
    }

    /// The answer as it is; empty for the default.
    fn answer(&self, question: &str, default: &str) -> Result<String> {
        if self.source == AnswerSource::Defaults {
            return Ok(String::new());
        }
        if self.has_person() {
            let shown = match default {
                "" => String::new(),
                _ => format!(" [{default}]"),
            };
            print_stderr(&format!("{question}{shown}: "));
        }
        let mut line = String::new();
        let read = io::stdin()
            .lock()
            .read_line(&mut line)
            .context("cannot read the answer")?;
        if read == 0 && self.has_person() {
            print_line_stderr("");
            bail!("the input ended before the last question; no study was written");
        }
        Ok(line)
    }
}
