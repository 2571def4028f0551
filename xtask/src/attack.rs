//! `cargo xtask attack`: every attempt of `docs/security.md`, against a real broker.
//!
//! The page's table *attempt → who refuses → proof* is the list: a row names the tests that try it,
//! so an attempt that is described and not tried cannot be. All of them are ordinary tests, which
//! also run with the others; here they run alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{repo, step, tools};

/// Which attempts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the table and run nothing.
    #[arg(long)]
    list: bool,
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Who tries.
    pub(crate) who: String,
    /// What.
    pub(crate) what: String,
    /// Who refuses.
    pub(crate) refused_by: String,
    /// The tests that try it.
    pub(crate) proofs: Vec<String>,
}

/// Runs the attempts.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let table = table(&repo::root().join("docs/security.md"))?;
    if args.list {
        for Attempt { who, what, refused_by, proofs } in &table {
            println!("{who}: {what} → {refused_by} → {}", proofs.join(", "));
        }
        return Ok(());
    }
    let names: Vec<String> = table
        .iter()
        .flat_map(|attempt| &attempt.proofs)
        .map(|test| format!("test(/(^|::){test}$/)"))
        .collect();
    let nextest = tools::cargo_tool(&tools::NEXTEST)?;
    let mut tests = Command::new(nextest);
    tests.current_dir(repo::root()).args(["nextest", "run", "--workspace"]);
    tests.args(["-E", &names.join(" | ")]);
    tests.env("COTAL_NATS_SERVER", tools::broker()?.path);
    step::run(&mut tests)?;
    eprintln!("{} attempts, each refused as the table says", table.len());
    Ok(())
}

/// The rows of the table below the heading *Attempts*.
pub(crate) fn table(page: &Path) -> anyhow::Result<Vec<Attempt>> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let (_, section) = text.split_once("\n## Attempts\n").context("no section Attempts")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    // The heading and the line below it are no attempts.
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let rows: Vec<Attempt> = rows.map(attempt).collect::<anyhow::Result<_>>()?;
    if rows.is_empty() {
        bail!("the section Attempts of {} has no row", page.display());
    }
    Ok(rows)
}

fn attempt(line: &str) -> anyhow::Result<Attempt> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [who, what, refused_by, proofs] = cells[..] else {
        bail!("not four cells: {line}");
    };
    let proofs: Vec<String> =
        proofs.split('`').skip(1).step_by(2).map(|test| test.to_owned()).collect();
    if proofs.is_empty() {
        bail!("no test tries it: {line}");
    }
    let [who, what, refused_by] = [who, what, refused_by].map(str::to_owned);
    Ok(Attempt { who, what, refused_by, proofs })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every function of the sources that is a test, ignored ones among them.
    fn tests() -> Vec<String> {
        let mut found = Vec::new();
        for file in repo::rust_files(&repo::root().join("crates")).expect("the sources") {
            let text = fs::read_to_string(&file).expect("a source file");
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let name = line.trim_start_matches("async ").strip_prefix("fn ");
                if let (true, Some(name)) = (is_test, name.and_then(|name| name.split('(').next()))
                {
                    found.push(name.to_owned());
                    is_test = false;
                }
            }
        }
        found
    }

    #[test]
    fn every_attempt_of_the_security_page_names_a_test_that_is_there() {
        let (tests, table) = (tests(), table(&repo::root().join("docs/security.md")).unwrap());
        for attempt in table {
            for proof in attempt.proofs {
                assert!(tests.contains(&proof), "{}: no test {proof}", attempt.what);
            }
        }
    }
}
