//! What the compiler cannot hold: the edges between crates and the habits of the house.
//!
//! Each test names every offender, with its file and line, so that one run shows all there is to
//! do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::{repo, step};

/// A longer file has more than one subject; 500 is the aim, and this is where it ends.
const LONGEST_FILE: usize = 600;

/// What fits beside another file on a screen.
const WIDEST_LINE: usize = 100;

/// Crates whose whole purpose is to test, to measure or to talk to a person.
const TEST_SUPPORT: [&str; 2] = ["cotal-testkit", "cotal-bench"];
const EDGES: [&str; 2] = ["cotal", "xtask"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    dependencies: Vec<Declared>,
}

#[derive(Deserialize)]
struct Declared {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Metadata {
    fn read() -> Self {
        let mut cargo = repo::cargo();
        cargo.args(["metadata", "--format-version", "1"]);
        serde_json::from_str(&step::capture(&mut cargo).unwrap()).unwrap()
    }

    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| self.workspace_members.contains(&p.id))
    }

    /// Every crate that ends up in a build of `name`, without what only its tests need.
    fn closure(&self, name: &str) -> BTreeSet<&str> {
        let names: BTreeMap<&str, &str> =
            self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let nodes: BTreeMap<&str, &Node> =
            self.resolve.nodes.iter().map(|n| (n.id.as_str(), n)).collect();
        let start = self.members().find(|p| p.name == name).expect("a crate of this workspace");
        let mut seen = BTreeSet::new();
        let mut pending = vec![start.id.as_str()];
        while let Some(id) = pending.pop() {
            for edge in nodes[id].deps.iter().filter(|edge| is_built(edge)) {
                if seen.insert(edge.pkg.as_str()) {
                    pending.push(&edge.pkg);
                }
            }
        }
        seen.into_iter().map(|id| names[id]).collect()
    }
}

fn is_built(edge: &Edge) -> bool {
    edge.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"))
}

#[test]
fn only_cotal_nats_depends_on_the_client_library() {
    let metadata = Metadata::read();
    let users: Vec<&str> = metadata
        .members()
        .filter(|p| {
            let mut declared = p.dependencies.iter();
            declared.any(|d| d.name == "async-nats" && d.kind.as_deref() != Some("dev"))
        })
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(users, ["cotal-nats"]);
}

#[test]
fn the_daemon_cannot_hold_a_signing_key() {
    let closure = Metadata::read();
    let closure = closure.closure("cotal-delivery");
    assert!(closure.contains("cotal-wire"), "the walk found nothing: {closure:?}");
    assert!(!closure.contains("cotal-trust"));
}

#[test]
fn the_contract_and_the_rules_do_no_io() {
    let metadata = Metadata::read();
    assert!(metadata.closure("cotal-rules").contains("cotal-wire"));
    for pure in ["cotal-wire", "cotal-rules"] {
        let closure = metadata.closure(pure);
        for banned in ["tokio", "async-nats", "getrandom"] {
            assert!(!closure.contains(banned), "{pure} depends on {banned}");
        }
    }
}

/// A line of product code: neither a comment nor inside a test module.
struct Line<'a> {
    krate: &'a str,
    place: String,
    text: &'a str,
}

/// Calls `check` with every line of product code of the workspace and returns its complaints.
fn offenders(check: impl Fn(&Line<'_>) -> bool) -> Vec<String> {
    let root = repo::root();
    let mut found = Vec::new();
    let mut lines = 0;
    for file in repo::rust_files(root).unwrap() {
        let relative = file.strip_prefix(root).unwrap();
        let Some(krate) = product_crate(relative) else {
            continue;
        };
        let text = fs::read_to_string(&file).unwrap();
        for (index, text) in product_lines(&text) {
            let place = format!("{}:{}", relative.display(), index + 1);
            let line = Line { krate, place, text };
            lines += 1;
            if check(&line) {
                found.push(format!("{}: {}", line.place, line.text.trim()));
            }
        }
    }
    assert!(lines > 100, "the sources were not found");
    found
}

/// The crate that a source file belongs to; none for files that only tests compile.
fn product_crate(file: &Path) -> Option<&str> {
    let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
    let (krate, rest) = match parts.as_slice() {
        ["crates", krate, rest @ ..] | [krate @ "xtask", rest @ ..] => (*krate, rest),
        _ => return None,
    };
    let is_test = |part: &&str| matches!(*part, "tests" | "tests.rs" | "tidy.rs" | "examples");
    (!TEST_SUPPORT.contains(&krate) && !rest.iter().any(is_test)).then_some(krate)
}

/// Test modules end a file in this house, so the first one ends the product code.
fn product_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| *line != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn only_the_edges_print_read_the_environment_or_exit() {
    let banned = [
        "println!",
        "eprintln!",
        "print!(",
        "env::var",
        "env::vars",
        "env::args",
        "current_dir()",
        "process::exit",
    ];
    let found = offenders(|line| {
        !EDGES.contains(&line.krate) && banned.iter().any(|word| line.text.contains(word))
    });
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn names_of_the_wire_are_spelled_in_cotal_wire_alone() {
    let found = offenders(|line| {
        let ours = line.text.contains("\"cotal.") && line.krate != "cotal-wire";
        let may_name_api = matches!(line.krate, "cotal-wire" | "cotal-nats");
        let api = ["$JS.", "$KV.", "$SYS."].iter().any(|word| line.text.contains(word));
        ours || (api && !may_name_api)
    });
    // What this file itself looks for is spelled in the tests of xtask, which are no product code.
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let root = repo::root();
    let mut found = Vec::new();
    for file in repo::rust_files(root).unwrap() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        if lines > LONGEST_FILE {
            found.push(format!("{}: {lines} lines", file.strip_prefix(root).unwrap().display()));
        }
    }
    assert!(found.is_empty(), "over {LONGEST_FILE} lines:\n{}", found.join("\n"));
}

/// Fields that are secrets when they are bare text.
const SECRET_FIELDS: [&str; 5] = ["seed", "seeds", "secret", "creds", "password"];

/// A derived `Debug` prints each field; a secret in bare text would stand in the next log line that
/// shows its owner.
#[test]
fn no_type_that_holds_a_secret_derives_debug() {
    let root = repo::root();
    let mut found = Vec::new();
    let mut types = 0;
    for file in repo::rust_files(root).unwrap() {
        let text = fs::read_to_string(&file).unwrap();
        for found_type in derived_types(&text) {
            types += 1;
            if let Some(field) = found_type.lines().find(|line| is_bare_secret(line)) {
                let file = file.strip_prefix(root).unwrap().display();
                found.push(format!("{file}: {}", field.trim()));
            }
        }
    }
    assert!(types > 100, "the types were not found");
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// The bodies of the types that derive `Debug`, each until the line that closes it.
fn derived_types(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("#[derive(").map(|(at, _)| &text[at..]);
    starts.filter_map(|rest| {
        let (derives, body) = rest.split_once(")]")?;
        let body = body.split_once("\n}").map_or(body, |(body, _)| body);
        derives.contains("Debug").then_some(body)
    })
}

fn is_bare_secret(line: &str) -> bool {
    let line = line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
    let Some((name, kind)) = line.split_once(": ") else { return false };
    let bare = ["String", "&str", "str>", "Vec<u8>", "&'a str"];
    SECRET_FIELDS.contains(&name) && bare.iter().any(|word| kind.contains(word))
}

#[test]
fn no_line_is_too_wide() {
    let root = repo::root();
    let mut found = Vec::new();
    for file in repo::rust_files(root).unwrap() {
        let relative = file.strip_prefix(root).unwrap().display().to_string();
        for (index, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            // A string that is read as one line may stand as one, and so may a row of a table.
            let is_whole = line.contains('"') || line.trim_start().starts_with("/// |");
            if line.chars().count() > WIDEST_LINE && !is_whole {
                found.push(format!("{relative}:{}", index + 1));
            }
        }
    }
    assert!(found.is_empty(), "over {WIDEST_LINE} columns:\n{}", found.join("\n"));
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let mut manifests = vec![repo::root().join("xtask/Cargo.toml")];
    for entry in fs::read_dir(repo::root().join("crates")).unwrap() {
        manifests.push(entry.unwrap().path().join("Cargo.toml"));
    }
    for manifest in manifests {
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.contains("[lints]\nworkspace = true"), "{}", manifest.display());
    }
}

#[test]
fn the_scan_sees_product_code_and_nothing_else() {
    let text = "use a;\n// println!\n/// doc\nfn f() {}\n#[cfg(test)]\nmod tests { x!() }\n";
    let lines: Vec<(usize, &str)> = product_lines(text).collect();
    assert_eq!(lines, [(0, "use a;"), (3, "fn f() {}")]);
    for (file, krate) in [
        ("crates/cotal-wire/src/acl.rs", Some("cotal-wire")),
        ("crates/cotal-rules/src/fanout/tests.rs", None),
        ("crates/cotal-nats/tests/real.rs", None),
        ("crates/cotal-testkit/src/lib.rs", None),
        ("xtask/src/main.rs", Some("xtask")),
    ] {
        assert_eq!(product_crate(Path::new(file)), krate, "{file}");
    }
}
