//! Running other programs, one named step after the other.
//!
//! A failed step does not end the run: somebody who waited ten minutes wants to know everything
//! that is wrong, not the first thing.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The steps of one run and how each ended.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<Done>,
}

#[derive(Debug)]
struct Done {
    name: &'static str,
    took: Duration,
    failed: bool,
}

impl Steps {
    /// Performs one step; its error is shown at once and counted.
    pub(crate) fn step<T>(
        &mut self,
        name: &'static str,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> Option<T> {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let result = action();
        if let Err(error) = &result {
            eprintln!("{name}: {error:#}");
        }
        self.done.push(Done { name, took: start.elapsed(), failed: result.is_err() });
        result.ok()
    }

    /// Says how long everything took; an error when a step failed.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let times: Vec<String> =
            self.done.iter().map(|d| format!("{} {:.1} s", d.name, d.took.as_secs_f64())).collect();
        let total: Duration = self.done.iter().map(|d| d.took).sum();
        eprintln!("\n{} (total {:.1} s)", times.join(", "), total.as_secs_f64());
        let failed: Vec<&str> = self.done.iter().filter(|d| d.failed).map(|d| d.name).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }
}

/// Runs a program with this terminal; an error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("cannot run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs a program and returns what it printed on standard output; an error unless it succeeds.
pub(crate) fn capture(command: &mut Command) -> anyhow::Result<String> {
    let shown = shown(command);
    let output = command.output().with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as a person would type it, without its environment.
fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_remembered_and_the_next_still_runs() {
        let mut steps = Steps::default();
        assert_eq!(steps.step("first", || bail!("broken") as anyhow::Result<()>), None);
        assert_eq!(steps.step("second", || Ok(7)), Some(7));
        let error = steps.finish().unwrap_err();
        assert_eq!(error.to_string(), "failed: first");
    }

    #[test]
    fn a_program_that_fails_is_an_error_that_names_it() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("`sh -c exit 3`"), "{error}");
        let said = capture(Command::new("sh").args(["-c", "echo out"])).unwrap();
        assert_eq!(said, "out\n");
        let error = capture(Command::new("sh").args(["-c", "echo why >&2; false"])).unwrap_err();
        assert!(error.to_string().ends_with("why"), "{error}");
    }
}
