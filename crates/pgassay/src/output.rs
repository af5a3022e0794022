//! Everything that is printed passes through here: text from a server, a study or a name must not send
//! commands to the terminal.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use pgassay_report::printable;

/// The colors of reports; see [`pgassay_report::Style`].
const COLORS: [&str; 6] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[1;32m",
    "\u{1b}[1;31m",
    "\u{1b}[33m",
];

/// Whether a job of `GitHub` Actions reads the output.
fn is_job() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some()
}

/// The runner of a job executes lines that begin with `::`, after white space, and `##[` anywhere ("Workflow
/// commands"). A zero-width space between the characters makes them text.
fn without_commands(text: &str) -> String {
    let without = |line: &str| {
        let start = line.len() - line.trim_start().len();
        let (white, rest) = line.split_at(start);
        let rest = match rest.strip_prefix("::") {
            Some(rest) => format!(":\u{200b}:{rest}"),
            None => rest.to_owned(),
        };
        white.to_owned() + &rest.replace("##[", "##\u{200b}[")
    };
    text.split_inclusive(['\n', '\r']).map(without).collect()
}

/// Text for stderr, and for stdout if only people read it.
pub fn shown(text: &str) -> Cow<'_, str> {
    if is_job() {
        return Cow::Owned(without_commands(&printable(text)));
    }
    printable(text)
}

/// Prints on stderr, and ignores errors: there is nowhere to report them.
pub fn print_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(shown(text).as_bytes());
}

/// Prints a command for the runner of a job, on a line.
pub fn print_job_command(command: &str) {
    let line = format!("{}\n", printable(command));
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Prints a line on stderr.
pub fn print_line_stderr(text: &str) {
    print_stderr(&format!("{text}\n"));
}

/// Prints a line of our own that ends with a carriage return, so that the next one replaces it.
pub fn print_over_stderr(text: &str) {
    let line = format!("{}\r", printable(text));
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Stderr as a writer, for log messages.
pub struct FilteredStderr;

impl Write for FilteredStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().lock().write_all(shown(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The process that read stdout has closed it, as in `pgassay list | head`.
#[derive(Debug, thiserror::Error)]
#[error("the reader of stdout has closed it")]
pub struct ClosedOutput;

/// Stdout cannot be written: the disk of its file is full, for example.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to stdout: {0}")]
struct UnwritableOutput(io::Error);

/// Stdout with errors that name it, and distinguish a closed pipe from a closed connection to a server.
pub struct MarkedStdout(io::Stdout);

/// Names stdout in an error of writing it.
pub fn of_stdout(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::BrokenPipe => io::Error::new(kind, ClosedOutput),
        // `write_all` tries again.
        io::ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, UnwritableOutput(error)),
    }
}

impl Write for MarkedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// Where a command prints, and writes the files that the user wants on stdout (`-`).
pub trait FileOutput: Write {
    /// Writes the content of a file.
    ///
    /// # Errors
    /// As for writing.
    fn write_file(&mut self, content: &[u8]) -> io::Result<()>;
}

/// Stdout. On a terminal it is filtered; a file or a pipe gets every byte, because what is printed may
/// be data, such as JSON. In a job of `GitHub` Actions, lines that the runner would execute are changed, unless they
/// are those of a file that the user wants there, or stdout has been redirected to a file.
pub enum ProgramStdout {
    /// A person reads it.
    Terminal(FilteredLines<MarkedStdout>),
    /// The runner of a job reads it.
    Job(FilteredLines<io::BufWriter<MarkedStdout>>),
    /// A file or a pipe.
    Verbatim(io::BufWriter<MarkedStdout>),
}

impl ProgramStdout {
    /// That of this process.
    pub fn new() -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        let out = MarkedStdout(out);
        // A redirection; what reads a pipe is unknown.
        let is_file = || std::fs::metadata("/dev/stdout").is_ok_and(|it| it.is_file());
        if is_terminal {
            Self::Terminal(FilteredLines::new(out, printable_in_color))
        } else if is_job() && !is_file() {
            let out = io::BufWriter::new(out);
            Self::Job(FilteredLines::new(out, without_commands))
        } else {
            Self::Verbatim(io::BufWriter::new(out))
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Terminal(out) => out,
            Self::Job(out) => out,
            Self::Verbatim(out) => out,
        }
    }
}

impl Write for ProgramStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

impl FileOutput for ProgramStdout {
    fn write_file(&mut self, content: &[u8]) -> io::Result<()> {
        match self {
            Self::Job(out) => out.write_unfiltered(content),
            other => other.write_all(content),
        }
    }
}

#[cfg(test)]
impl FileOutput for Vec<u8> {
    fn write_file(&mut self, content: &[u8]) -> io::Result<()> {
        self.write_all(content)
    }
}

/// Filters whole lines, so that no character is cut.
pub struct FilteredLines<W: Write> {
    inner: W,
    filter: fn(&str) -> String,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
}

impl<W: Write> FilteredLines<W> {
    fn new(inner: W, filter: fn(&str) -> String) -> Self {
        Self {
            inner,
            filter,
            line: Vec::new(),
        }
    }

    /// Writes bytes as they are, after what has been written before.
    fn write_unfiltered(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.inner.write_all(bytes)
    }
}

impl<W: Write> Write for FilteredLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            let lines: Vec<u8> = self.line.drain(..=end).collect();
            let text = String::from_utf8_lossy(&lines);
            self.inner.write_all((self.filter)(&text).as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&rest);
        self.inner.write_all((self.filter)(&text).as_bytes())?;
        self.inner.flush()
    }
}

impl<W: Write> Drop for FilteredLines<W> {
    fn drop(&mut self) {
        // As `BufWriter` does.
        let _ = self.flush();
    }
}

/// [`printable`], except for the colors of reports.
fn printable_in_color(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut out = printable(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let color = COLORS.iter().find(|color| part.starts_with(&color[1..]));
        let rest = color.map_or(part, |color| &part[color.len() - 1..]);
        out.push_str(color.unwrap_or(&"\u{fffd}"));
        out.push_str(&printable(rest));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_colors_and_no_other_commands() {
        let mut seen = Vec::new();
        let mut out = FilteredLines::new(&mut seen, printable_in_color);
        let text = "\u{1b}[1;32mfaster\u{1b}[0m \u{1b}[2Jü\u{9b}8m\u{1b}]0;x\u{7}\nend";
        for byte in text.as_bytes() {
            out.write_all(&[*byte]).unwrap();
        }
        out.flush().unwrap();
        drop(out);
        assert_eq!(
            String::from_utf8(seen).unwrap(),
            "\u{1b}[1;32mfaster\u{1b}[0m \u{fffd}[2Jü\u{fffd}8m\u{fffd}]0;x\u{fffd}\nend"
        );
    }

    /// Regression: an argument `-`, such as that of `-f -`, let the runner execute what a report contains.
    #[test]
    fn in_a_job_files_on_stdout_are_verbatim_and_text_is_not() {
        let mut seen = Vec::new();
        let mut out = FilteredLines::new(&mut seen, without_commands);
        out.write_all(b"::error::a\n::b").unwrap();
        out.write_unfiltered(b"\n::c\xff\n").unwrap();
        out.write_all(b"::d").unwrap();
        drop(out);
        let expected = ":\u{200b}:error::a\n:\u{200b}:b\n::c\u{fffd}\n:\u{200b}:d";
        assert_eq!(String::from_utf8_lossy(&seen), expected);
        assert!(seen.contains(&0xff), "bytes of a file are kept");
    }

    /// Regression: a server's error and a variant's name could turn off the annotation of a gate, or forge one.
    #[test]
    fn no_text_is_a_command_for_the_runner_of_a_job() {
        for (text, expected) in [
            ("a: ::b\n", "a: ::b\n"),
            ("ERROR: x\n::error::y\n", "ERROR: x\n:\u{200b}:error::y\n"),
            ("\t ::stop-commands::q", "\t :\u{200b}:stop-commands::q"),
            ("a ##[add-mask]e", "a ##\u{200b}[add-mask]e"),
            ("a\r::error::b", "a\r:\u{200b}:error::b"),
        ] {
            assert_eq!(without_commands(text), expected);
        }
    }
}
