//! How the demo is told: its acts, one line at a time, and how long each took.

use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The acts so far and how long each took.
#[derive(Debug, Default)]
pub(super) struct Clock {
    acts: Vec<(&'static str, Duration)>,
}

impl Clock {
    /// Plays one act; the first that fails is the last.
    pub(super) fn act<T>(
        &mut self,
        title: &'static str,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        println!("\n== {title}");
        let start = Instant::now();
        let outcome = action();
        self.acts.push((title, start.elapsed()));
        outcome.with_context(|| format!("failed at {title:?}"))
    }

    /// Says how long each act took.
    pub(super) fn tell(&self) {
        println!("\nTime of each step:");
        for (title, took) in &self.acts {
            println!("{:>8.1} s  {title}", took.as_secs_f64());
        }
        let total: Duration = self.acts.iter().map(|(_, took)| *took).sum();
        println!("{:>8.1} s  in total", total.as_secs_f64());
    }
}

/// One line of the story.
pub(super) fn say(line: impl std::fmt::Display) {
    println!("   {line}");
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_act_is_named_and_timed() {
        let mut clock = Clock::default();
        assert_eq!(clock.act("works", || Ok(7)).unwrap(), 7);
        let failed: anyhow::Result<()> = clock.act("breaks", || bail!("expected a, saw b"));
        let message = format!("{:#}", failed.unwrap_err());
        assert_eq!(message, "failed at \"breaks\": expected a, saw b");
        assert_eq!(clock.acts.len(), 2);
    }
}
