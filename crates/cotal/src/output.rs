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

/// A column is padded to this at most, so that one long cell does not push every line apart.
const WIDEST_COLUMN: usize = 60;

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
        let mut lines = laid_out(heading, rows).into_iter();
        let heading = lines.next().unwrap_or_default();
        self.data(paint(self.colour_out, BOLD, &heading))?;
        for line in lines {
            self.data(line)?;
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

/// The heading and the rows of a listing as lines of equally wide columns. Only a cell that is
/// longer than a column may be wide pushes the rest of its own line.
fn laid_out(heading: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let heading = heading.iter().map(|&cell| cell.to_owned()).collect();
    let cells = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows.iter().map(cells)).collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count()).min(WIDEST_COLUMN);
        }
    }
    rows.iter().map(|row| aligned(row, &widths)).collect()
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in row.iter().zip(widths) {
        line.push_str(cell);
        let missing = width.saturating_sub(cell.chars().count());
        line.extend(std::iter::repeat_n(' ', missing + 2));
    }
    line.truncate(line.trim_end().len());
    line
}

fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A text of somebody else's as one harmless line: a message must not steer the reader's terminal.
pub fn plain(text: &str) -> String {
    let harmless = |c: char| {
        let steers = c.is_control() || turns_the_line(c);
        if steers { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(harmless).collect()
}

/// Marks that change the direction in which a line is shown, and so what it seems to say.
fn turns_the_line(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of somebody else's behind the head of its line. Further lines of it are indented, so that
/// none can be taken for a message of its own.
pub fn told_after(head: impl Display, text: &str) -> String {
    let mut lines = text.split('\n').map(|line| plain_line(line.trim_end_matches('\r')));
    let mut told = format!("{head} {}", lines.next().unwrap_or_default());
    for line in lines {
        told.push_str("\n    ");
        told.push_str(&line);
    }
    told.truncate(told.trim_end().len());
    told
}

/// A line whose tabs stay what they are.
fn plain_line(line: &str) -> String {
    let cells: Vec<_> = line.split('\t').map(plain).collect();
    cells.join("\t")
}

/// The same, with its lines kept apart: for an answer that is as long as its author made it.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(plain_line).collect();
    lines.join("\n")
}

/// How long ago an instant (Unix milliseconds) was, in its largest unit.
pub fn age(since_ms: i64) -> String {
    let seconds = cotal_manager::clock::unix_millis().saturating_sub(since_ms).max(0) / 1_000;
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
    fn the_lines_of_a_message_stay_lines_and_none_looks_like_another_message() {
        assert_eq!(told_after("12:00 bob:", "a\r\n\tb\n\n"), "12:00 bob: a\n    \tb");
        let forged = told_after("12:00 bob:", "x\n12:01 carol: y");
        assert!(!forged.lines().any(|line| line.starts_with("12:01")), "{forged}");
        assert_eq!(plain("a\u{202e}b"), "a\\u{202e}b");
    }

    /// The formatting machinery of the language panics on a width above 65,535.
    #[test]
    fn a_cell_of_any_length_is_listed() {
        let rows =
            [vec!["x".repeat(100_000), "y".to_owned()], vec!["a".to_owned(), "b".to_owned()]];
        let lines = laid_out(&["ONE", "TWO"], &rows);
        assert_eq!(lines[2].len(), WIDEST_COLUMN + 3);
        assert!(lines[1].ends_with("x  y"));
        assert_eq!(laid_out(&["A"], &[vec![]]), ["A", ""]);
    }

    #[test]
    fn an_age_of_any_instant_is_told() {
        for instant in [i64::MIN, -1, 0, i64::MAX] {
            assert!(!age(instant).is_empty());
        }
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
