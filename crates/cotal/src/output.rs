//! What a person or a pipe gets to see.
//!
//! Data goes to standard output, everything said about it to standard error. Colours are for
//! terminals: a pipe never gets any, nor does anyone who sets `NO_COLOR`.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

const BOLD: &str = "1";
const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";

/// The two streams and whether each takes colours.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    colour_out: bool,
    colour_err: bool,
}

impl Output {
    /// Looks at the process's own streams and environment.
    pub fn from_process() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self {
            colour_out: wanted && io::stdout().is_terminal(),
            colour_err: wanted && io::stderr().is_terminal(),
        }
    }

    /// One line of data.
    pub fn data(&self, line: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    /// One JSON document on a line of its own.
    pub fn json<T: Serialize + ?Sized>(&self, value: &T) -> anyhow::Result<()> {
        let text = serde_json::to_string(value)?;
        Ok(self.data(text)?)
    }

    /// A listing with a heading; an empty one is said on standard error, so that a pipe stays
    /// empty.
    pub fn table(&self, heading: &[&str], rows: &[Vec<String>], none: &str) -> io::Result<()> {
        if rows.is_empty() {
            self.note(none);
            return Ok(());
        }
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
        let mut widths: Vec<usize> = heading.iter().map(|h| h.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let heading: Vec<String> = heading.iter().map(|&h| h.to_owned()).collect();
        self.data(paint(self.colour_out, BOLD, &aligned(&heading, &widths)))?;
        for row in &rows {
            self.data(aligned(row, &widths))?;
        }
        Ok(())
    }

    /// Something worth knowing, for a person.
    pub fn note(&self, line: impl Display) {
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Something that was proven to work.
    pub fn proven(&self, line: impl Display) {
        self.note(format_args!("{} {line}", paint(self.colour_err, GREEN, "✓")));
    }

    /// Something that works in part.
    pub fn warn(&self, line: impl Display) {
        self.note(format_args!("{} {line}", paint(self.colour_err, YELLOW, "!")));
    }

    /// A failure with its causes.
    pub fn error(&self, error: &anyhow::Error) {
        self.note(format_args!("{} {}", paint(self.colour_err, RED, "✗"), told(error)));
    }
}

/// An error with its causes; one that the line before it tells already is not told again.
pub fn told(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(cause.trim_start_matches("nats: ")) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths);
    let line: Vec<String> = cells.map(|(cell, &width)| format!("{cell:<width$}")).collect();
    line.join("  ").trim_end().to_owned()
}

fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A text of somebody else's as one harmless line: a message must not steer the reader's terminal.
pub fn plain(text: &str) -> String {
    let harmless = |c: char| {
        if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(harmless).collect()
}

/// The same, with its lines kept apart: for an answer that is as long as its author made it.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(plain).collect();
    lines.join("\n")
}

/// How long ago an instant (Unix milliseconds) was, in its largest unit.
pub fn age(since_ms: i64) -> String {
    let seconds = (cotal_manager::clock::unix_millis() - since_ms).max(0) / 1_000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_a_terminal() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(plain("grüße ✓"), "grüße ✓");
    }

    #[test]
    fn a_cause_is_told_once() {
        let inner =
            anyhow::anyhow!("permission denied").context("cannot open x: permission denied");
        assert_eq!(told(&inner.context("up")), "up: cannot open x: permission denied");
    }

    #[test]
    fn colours_are_only_for_terminals() {
        assert_eq!(paint(false, RED, "x"), "x");
        assert_ne!(paint(true, RED, "x"), "x");
    }
}
