//! Which file of a crate imports which: the circles among them, and who names a component.
//!
//! Files that import each other can only be read together, so a circle is refused. A component that
//! many files name cannot be changed alone, so two at most may. An arrow is a
//! path in product code that leads into another file of the same crate. A re-export draws none: a
//! path that goes through it leads to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use syn::visit::{self, Visit};

use crate::repo;

/// A module's path below its crate.
type Module = Vec<String>;

/// The modules of one crate, each a file.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, Source>,
}

/// What one file says of others.
#[derive(Default)]
struct Source {
    name: String,
    /// Paths that its product code names.
    paths: Vec<Vec<String>>,
    /// Names that it hands on, each with the path that it stands for.
    exports: BTreeMap<String, Vec<String>>,
    types: BTreeSet<String>,
    idents: BTreeSet<String>,
    /// What its function `spawn` gives back; none when it has no such function.
    spawned: Option<BTreeSet<String>>,
}

impl Crate {
    fn read(src: &Path) -> anyhow::Result<Self> {
        let mut found = Self::default();
        for file in repo::rust_files(src)? {
            let relative = file.strip_prefix(src)?;
            if relative.components().any(|part| part.as_os_str() == "tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            let parsed = syn::parse_file(&text)
                .with_context(|| format!("cannot parse {}", file.display()))?;
            let mut source = Source { name: relative.display().to_string(), ..Source::default() };
            source.visit_file(&parsed);
            found.files.insert(module_of(relative), source);
        }
        Ok(found)
    }

    /// The file that defines what `path` names, as `from` sees it; none when it is not of this
    /// crate.
    fn resolve(&self, from: &[String], path: &[String]) -> Option<Module> {
        let (mut at, mut rest) = self.begin(from, path)?;
        // A re-export may lead to another one; no path of this house needs as many.
        for _ in 0..16 {
            while let Some((first, behind)) = rest.split_first() {
                let child = [at.as_slice(), std::slice::from_ref(first)].concat();
                if !self.files.contains_key(&child) {
                    break;
                }
                (at, rest) = (child, behind.to_vec());
            }
            let export = rest.first().and_then(|name| self.files.get(&at)?.exports.get(name));
            match export.and_then(|target| self.begin(&at, target)) {
                Some((module, mut target)) => {
                    target.extend_from_slice(&rest[1..]);
                    (at, rest) = (module, target);
                }
                None => return Some(at),
            }
        }
        None
    }

    /// The module in which a path begins, and what is left of the path.
    fn begin(&self, from: &[String], path: &[String]) -> Option<(Module, Vec<String>)> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some((Module::new(), rest.to_vec())),
            "self" => Some((from.to_vec(), rest.to_vec())),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let parent = from.len().checked_sub(ups)?;
                Some((from[..parent].to_vec(), path[ups..].to_vec()))
            }
            _ => {
                let child = [from, std::slice::from_ref(first)].concat();
                self.files.contains_key(&child).then(|| (child, rest.to_vec()))
            }
        }
    }

    fn arrows(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let arrows = self.files.iter().map(|(module, source)| {
            let targets = source.paths.iter().filter_map(|path| self.resolve(module, path));
            let known = targets.filter_map(|target| self.files.get_key_value(&target));
            (module, known.map(|(target, _)| target).filter(|target| *target != module).collect())
        });
        arrows.collect()
    }

    /// Which path leads from one file of a circle to another.
    fn reasons(&self, circle: &[&str]) -> Vec<String> {
        let mut reasons = Vec::new();
        for (module, source) in &self.files {
            for path in &source.paths {
                let target = self.resolve(module, path).and_then(|it| self.files.get(&it));
                let Some(target) = target.filter(|it| it.name != source.name) else { continue };
                if circle.contains(&source.name.as_str()) && circle.contains(&target.name.as_str())
                {
                    let path = path.join("::");
                    reasons.push(format!("    {} -> {}: {path}", source.name, target.name));
                }
            }
        }
        reasons
    }

    /// Each component with the files outside its room that name it. A component is what a function
    /// `spawn` starts: it is named by calling that, and by the type that it gives back.
    fn components(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let mut components = BTreeMap::new();
        for (module, source) in &self.files {
            let Some(spawned) = &source.spawned else { continue };
            let room = &module[..1];
            let is_handle = |(at, other): (&Module, &Source), name: &String| {
                at.starts_with(room) && other.types.contains(name)
            };
            let handles =
                spawned.iter().filter(|name| self.files.iter().any(|it| is_handle(it, name)));
            let handles: BTreeSet<_> = handles.collect();
            let names = |from: &Module, path: &Vec<String>| {
                let (target, last) = (self.resolve(from, path), path.last());
                let calls = target.as_ref() == Some(module) && last.is_some_and(|it| it == "spawn");
                let is_of_room = target.is_some_and(|it| it.starts_with(room));
                calls || is_of_room && last.is_some_and(|name| handles.contains(name))
            };
            let outside = self.files.iter().filter(|(from, _)| !from.starts_with(room));
            let naming = outside.filter(|(from, it)| it.paths.iter().any(|path| names(from, path)));
            components
                .insert(source.name.clone(), naming.map(|(_, it)| it.name.as_str()).collect());
        }
        components
    }

    /// Every set of files that reach each other.
    fn circles(&self) -> Vec<Vec<&str>> {
        let arrows = self.arrows();
        let reached = |from: &Module| {
            let (mut seen, mut pending) = (BTreeSet::new(), vec![from]);
            while let Some(module) = pending.pop() {
                for target in arrows.get(module).into_iter().flatten() {
                    if seen.insert(*target) {
                        pending.push(target);
                    }
                }
            }
            seen
        };
        let all: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, reached(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, reached) in &all {
            if reached.contains(*module) {
                let same = reached.iter().filter(|other| all[**other].contains(*module));
                circles.insert(same.map(|it| self.files[*it].name.as_str()).collect::<Vec<_>>());
            }
        }
        circles.into_iter().collect()
    }
}

fn module_of(relative: &Path) -> Module {
    let mut parts: Module = relative
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        match item.vis {
            syn::Visibility::Inherited => {
                self.paths.extend(paths.into_iter().map(|(path, _)| path));
            }
            _ => self.exports.extend(paths.into_iter().map(|(path, name)| (name, path))),
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.insert(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.ident == "spawn" {
            let mut given = Self::default();
            given.visit_return_type(&item.sig.output);
            self.spawned = Some(given.idents);
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.idents.extend(path.segments.last().map(|part| part.ident.to_string()));
        if path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

fn is_for_tests(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        _ => return false,
    };
    attributes.iter().any(|it| {
        it.path().is_ident("cfg")
            && it.parse_args::<syn::Path>().is_ok_and(|option| option.is_ident("test"))
    })
}

/// Every path of a `use` with the name that it brings in.
fn flatten(tree: &syn::UseTree, at: &mut Vec<String>, paths: &mut Vec<(Vec<String>, String)>) {
    let mut ends = |at: &[String], last: Option<String>, name: String| {
        paths.push((at.iter().cloned().chain(last).collect(), name));
    };
    match tree {
        syn::UseTree::Path(path) => {
            at.push(path.ident.to_string());
            flatten(&path.tree, at, paths);
            at.pop();
        }
        syn::UseTree::Name(it) if it.ident == "self" => {
            ends(at, None, at.last().cloned().unwrap_or_default());
        }
        syn::UseTree::Name(it) => ends(at, Some(it.ident.to_string()), it.ident.to_string()),
        syn::UseTree::Rename(it) => ends(at, Some(it.ident.to_string()), it.rename.to_string()),
        syn::UseTree::Glob(_) => ends(at, None, "*".to_owned()),
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, at, paths);
            }
        }
    }
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let mut crates = vec![repo::root().join("xtask")];
    for entry in fs::read_dir(repo::root().join("crates")).unwrap() {
        crates.push(entry.unwrap().path());
    }
    let mut found = Vec::new();
    for krate in crates {
        let name = krate.file_name().unwrap().to_string_lossy().into_owned();
        let read = Crate::read(&krate.join("src")).unwrap();
        assert!(!read.files.is_empty(), "{name} has no source");
        for circle in read.circles() {
            found.push(format!("{name}: {}", circle.join(", ")));
            found.extend(read.reasons(&circle));
        }
    }
    assert!(found.is_empty(), "files that import each other:\n{}", found.join("\n"));
}

#[test]
fn no_component_of_the_daemon_is_named_in_more_than_two_files_outside_its_room() {
    let read = Crate::read(&repo::root().join("crates/cotal-delivery/src")).unwrap();
    let components = read.components();
    let started: Vec<_> = components.keys().map(String::as_str).collect();
    for component in ["registry/mod.rs", "role_requests/start.rs", "feed/mod.rs"] {
        assert!(started.contains(&component), "{component} is not seen among {started:?}");
    }
    let spread: Vec<_> = components.iter().filter(|(_, named)| named.len() > 2).collect();
    assert!(spread.is_empty(), "named in more than two files outside its room: {spread:#?}");
}

#[test]
fn a_circle_is_seen_through_re_exports_and_not_in_tests() {
    let source = |name: &str, text: &str| {
        let mut source = Source { name: name.to_owned(), ..Source::default() };
        source.visit_file(&syn::parse_file(text).unwrap());
        source
    };
    let krate = |files: [(&str, &str); 3]| {
        let sources = files.map(|(name, text)| (module_of(Path::new(name)), source(name, text)));
        Crate { files: sources.into_iter().collect() }
    };
    let circle = krate([
        ("lib.rs", "pub use b::B;"),
        ("a.rs", "use crate::B;"),
        ("b.rs", "struct B; fn f() { crate::a::g() }"),
    ]);
    assert_eq!(circle.circles(), [["a.rs", "b.rs"]]);
    let none = krate([
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "use super::b::B; #[cfg(test)] mod tests { use crate::b; }"),
        ("b.rs", "struct B; #[cfg(test)] mod tests { use crate::a; }"),
    ]);
    assert!(none.circles().is_empty());
}
