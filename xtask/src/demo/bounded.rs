//! Running a program that must end in time.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// How often a running program is looked at.
const EXIT_POLL_EVERY: Duration = Duration::from_millis(10);

/// How a program ended and what it printed.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` when it was killed because its time was over.
    pub(super) status: Option<ExitStatus>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ended {
    /// The exit code, if it ended by itself with one.
    pub(super) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// How it ended, in words.
    pub(super) fn how(&self) -> String {
        match self.status {
            Some(status) => status.to_string(),
            None => "no end in time".to_owned(),
        }
    }
}

/// Runs a program and kills it when it has not ended `within`.
///
/// Its output goes through files in `scratch`: a pipe would be inherited by what the program leaves
/// running, and would then never end.
pub(super) fn run(
    command: &mut Command,
    within: Duration,
    scratch: &Path,
) -> anyhow::Result<Ended> {
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let create = |path: &Path| {
        File::create(path).with_context(|| format!("cannot write {}", path.display()))
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(create(&out)?)
        .stderr(create(&err)?)
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let deadline = Instant::now() + within;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(EXIT_POLL_EVERY);
    };
    let read = |path: &Path| -> anyhow::Result<String> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Ended { status, stdout: read(&out)?, stderr: read(&err)? })
}

/// Asks until there is an answer, at most `within`.
pub(super) fn until<T>(
    within: Duration,
    every: Duration,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, within: Duration) -> Ended {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("sh").args(["-c", script]), within, dir.path()).unwrap()
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_what_it_said_is_kept() {
        let start = Instant::now();
        let ended = sh("echo so far; exec sleep 60", Duration::from_millis(300));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!((ended.code(), ended.stdout.as_str()), (None, "so far\n"));
        assert_eq!(ended.how(), "no end in time");
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let start = Instant::now();
        let ended = sh("sleep 5 & echo out; echo err >&2; exit 3", Duration::from_secs(30));
        assert!(start.elapsed() < Duration::from_secs(4));
        let said = (ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!((ended.code(), said), (Some(3), ("out\n", "err\n")));
    }

    #[test]
    fn asking_ends() {
        let mut asked = 0;
        let ask = || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        };
        let every = Duration::from_millis(1);
        assert_eq!(until(Duration::from_secs(5), every, ask).unwrap(), Some(3));
        let never: Option<()> = until(Duration::from_millis(20), every, || Ok(None)).unwrap();
        assert_eq!(never, None);
    }
}
