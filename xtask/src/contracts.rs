//! `cargo xtask contracts`: which contracts are named by a test, and which by none.
//!
//! A contract is named by a test function whose name starts with its id: `fan_1_...` names FAN-1.
//! Several ids may stand there, with or without `and` between them. A test that is ignored names
//! nothing, for it proves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::repo;

/// What to list.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List every contract with the number of tests that name it.
    #[arg(long)]
    all: bool,
    /// List the contracts that no test names (the default).
    #[arg(long, conflicts_with = "all")]
    missing: bool,
    /// Print `{total, named, missing, tests}` as JSON.
    #[arg(long)]
    json: bool,
    /// Fail when no test names one of these: ids, or a file of ids.
    #[arg(long, value_name = "FILE|ID", num_args = 1.., value_delimiter = ',')]
    require: Vec<String>,
}

/// Tests by the contract that they name; a contract that none names has an empty list.
type Ledger = BTreeMap<Id, Vec<String>>;

/// `FAN-1`, ordered by area and then by number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    area: String,
    number: u32,
}

#[derive(Debug, Serialize)]
struct Report {
    total: usize,
    named: usize,
    missing: Vec<String>,
    tests: BTreeMap<String, Vec<String>>,
}

/// Lists the contracts.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ledger = ledger()?;
    let missing: Vec<&Id> = ledger.iter().filter(|(_, t)| t.is_empty()).map(|(id, _)| id).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report(&ledger))?);
    } else if args.all {
        for (id, tests) in &ledger {
            println!("{id} {}", tests.len());
        }
    } else {
        for id in &missing {
            println!("{id}");
        }
    }
    let named = ledger.len() - missing.len();
    eprintln!("{named} of {} contracts are named by a test", ledger.len());
    require(&ledger, &required(&args.require)?)
}

/// Fails when a contract that was promised as kept is named by no test.
pub(crate) fn check_kept() -> anyhow::Result<()> {
    let ledger = ledger()?;
    let kept = read_ids(&repo::root().join("contracts-kept.txt"))?;
    require(&ledger, &kept)?;
    eprintln!("all {} contracts that are promised as kept are named by a test", kept.len());
    Ok(())
}

fn require(ledger: &Ledger, required: &[Id]) -> anyhow::Result<()> {
    let unknown: Vec<String> =
        required.iter().filter(|id| !ledger.contains_key(id)).map(Id::to_string).collect();
    if !unknown.is_empty() {
        bail!("contracts.txt does not list {}", unknown.join(", "));
    }
    let unnamed: Vec<String> = required
        .iter()
        .filter(|id| ledger.get(id).is_none_or(Vec::is_empty))
        .map(Id::to_string)
        .collect();
    if !unnamed.is_empty() {
        bail!("no test names {}", unnamed.join(", "));
    }
    Ok(())
}

fn required(values: &[String]) -> anyhow::Result<Vec<Id>> {
    let mut ids = Vec::new();
    for value in values {
        match value.parse() {
            Ok(id) => ids.push(id),
            Err(_) => ids.extend(read_ids(Path::new(value))?),
        }
    }
    Ok(ids)
}

fn ledger() -> anyhow::Result<Ledger> {
    let ids = read_ids(&repo::root().join("contracts.txt"))?;
    let mut ledger: Ledger = ids.into_iter().map(|id| (id, Vec::new())).collect();
    for file in repo::rust_files(&repo::root().join("crates"))? {
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for name in test_names(&text) {
            assign(&mut ledger, &file, name)?;
        }
    }
    Ok(ledger)
}

fn assign(ledger: &mut Ledger, file: &Path, test: &str) -> anyhow::Result<()> {
    for id in named_by(test) {
        if let Some(tests) = ledger.get_mut(&id) {
            tests.push(test.to_owned());
        } else if ledger.keys().any(|known| known.area == id.area) {
            bail!(
                "{}: the test {test} names {id}, which contracts.txt does not list",
                file.display()
            );
        }
    }
    Ok(())
}

/// The names of the test functions of a file that are not ignored.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    let mut is_ignored = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
            is_ignored |= line.starts_with("#[ignore");
        }
        let name = function_name(line)?;
        let counts = is_test && !is_ignored;
        (is_test, is_ignored) = (false, false);
        counts.then_some(name)
    })
}

/// `#[test]`, `#[tokio::test]`, `#[tokio::test(...)]`.
fn is_test_attribute(line: &str) -> bool {
    let path: &str = line[2..].split([']', '(']).next().unwrap_or_default();
    path == "test" || path.ends_with("::test")
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix("#[test]").unwrap_or(line).trim_start();
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let name = line.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
}

/// `fan_1_copies` names FAN-1, `crd_2_and_crd_4_moves` both; `fan_out` and `fan_1` name nothing.
fn named_by(test: &str) -> Vec<Id> {
    let mut words: Vec<&str> = test.split('_').collect();
    let mut ids = Vec::new();
    loop {
        let rest = if words.first() == Some(&"and") { &words[1..] } else { &words[..] };
        let [area, number, next, ..] = rest else { break };
        let is_area =
            !next.is_empty() && area.len() == 3 && area.chars().all(|c| c.is_ascii_lowercase());
        let Some(number) = number.parse().ok().filter(|_| is_area) else { break };
        ids.push(Id { area: area.to_ascii_uppercase(), number });
        words = rest[2..].to_vec();
    }
    ids
}

fn read_ids(path: &Path) -> anyhow::Result<Vec<Id>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.parse().with_context(|| format!("in {}", path.display())))
        .collect()
}

fn report(ledger: &Ledger) -> Report {
    let (named, missing): (Vec<_>, Vec<_>) = ledger.iter().partition(|(_, t)| !t.is_empty());
    Report {
        total: ledger.len(),
        named: named.len(),
        missing: missing.iter().map(|(id, _)| id.to_string()).collect(),
        tests: named.iter().map(|(id, tests)| (id.to_string(), (*tests).clone())).collect(),
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.area, self.number)
    }
}

impl std::str::FromStr for Id {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parsed = text.split_once('-').and_then(|(area, number)| {
            let is_area = area.len() == 3 && area.chars().all(|c| c.is_ascii_uppercase());
            let number = number.parse().ok()?;
            is_area.then(|| Self { area: area.to_owned(), number })
        });
        parsed.with_context(|| format!("`{text}` is not a contract's id such as FAN-1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        text.parse().unwrap()
    }

    #[test]
    fn only_the_whole_number_is_named() {
        assert_eq!(named_by("fan_1_copies_to_members"), [id("FAN-1")]);
        assert_eq!(named_by("rdr_12_narrowed"), [id("RDR-12")]);
        assert_eq!(named_by("crd_2_and_crd_4_moves"), [id("CRD-2"), id("CRD-4")]);
        assert_eq!(named_by("lse_4_lse_5_quoted"), [id("LSE-4"), id("LSE-5")]);
        for name in ["fan_1", "fan_out_is_fair", "fan_1_", "lanes_1_x", "a_paused_server"] {
            assert!(named_by(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn only_tests_that_run_count() {
        let text = "
            fn fan_1_helper() {}
            #[test]
            fn fan_2_plain() {}
            #[tokio::test(flavor = \"multi_thread\")]
            async fn fan_3_async() {}
            #[test]
            #[ignore = \"slow\"]
            fn fan_4_ignored() {}
            #[test] fn fan_5_on_one_line() {}
            // #[test]
            // fn fan_6_commented_out() {}
            #[cfg(test)]
            fn fan_7_is_no_test() {}
        ";
        let names: Vec<&str> = test_names(text).collect();
        assert_eq!(names, ["fan_2_plain", "fan_3_async", "fan_5_on_one_line"]);
    }

    #[test]
    fn every_contract_is_promised_as_kept() {
        let ids = |file: &str| read_ids(&repo::root().join(file)).unwrap();
        let (all, kept) = (ids("contracts.txt"), ids("contracts-kept.txt"));
        let missing: Vec<&Id> = all.iter().filter(|id| !kept.contains(id)).collect();
        let unknown: Vec<&Id> = kept.iter().filter(|id| !all.contains(id)).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "{missing:?} {unknown:?}");
        assert_eq!(kept.len(), all.len(), "an id stands twice");
    }

    #[test]
    fn a_required_contract_that_no_test_names_is_an_error() {
        let ledger =
            Ledger::from([(id("FAN-1"), vec!["fan_1_x".to_owned()]), (id("FAN-2"), Vec::new())]);
        assert!(require(&ledger, &[id("FAN-1")]).is_ok());
        let error = require(&ledger, &[id("FAN-1"), id("FAN-2")]).unwrap_err();
        assert_eq!(error.to_string(), "no test names FAN-2");
        let error = require(&ledger, &[id("FAN-3")]).unwrap_err();
        assert_eq!(error.to_string(), "contracts.txt does not list FAN-3");
    }

    #[test]
    fn a_test_that_names_an_unlisted_contract_is_an_error() {
        let mut ledger = Ledger::from([(id("FAN-1"), Vec::new())]);
        let file = Path::new("x.rs");
        assert!(assign(&mut ledger, file, "fan_9_typo").is_err());
        assert!(assign(&mut ledger, file, "two_3_other").is_ok());
        assert!(assign(&mut ledger, file, "fan_1_right").is_ok());
        assert_eq!(ledger[&id("FAN-1")], ["fan_1_right"]);
    }
}
