//! Every text that a person can see, in one file: help, errors, notices, and logs at info and
//! above.
//!
//! The file is there to be read through by somebody who does not know the code. It is taken from
//! the sources, so nothing can be said that is not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::repo;

/// What a person runs, and what speaks through it.
const CRATES: [&str; 8] = [
    "cotal",
    "cotal-broker",
    "cotal-client",
    "cotal-delivery",
    "cotal-manager",
    "cotal-nats",
    "cotal-trust",
    "cotal-workspace",
];

/// Fewer words are a name or a key far more often than a message.
const WORDS: usize = 3;

/// Macros whose text nobody sees unless something is wrong with the product, or asks for it.
const SILENT: [&str; 10] = [
    "debug",
    "trace",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "json",
    "concat",
    "include_str",
    "unreachable",
];

/// Writes the list.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    std::fs::write(page(), listed()?).context("docs/messages.md cannot be written")
}

fn page() -> PathBuf {
    repo::root().join("docs/messages.md")
}

/// The page as the sources have it.
fn listed() -> anyhow::Result<String> {
    let mut page = "# Messages\n\n\
         Every text that a person can see: help, errors, notices, and logs at info and above, by \
         the file that says it.\n`{…}` stands for what is filled in. Written by `cargo xtask \
         messages`; a test compares it.\n"
        .to_owned();
    for (file, texts) in all()? {
        write!(page, "\n## {file}\n\n")?;
        for text in texts {
            writeln!(page, "- {text}")?;
        }
    }
    Ok(page)
}

/// The texts by file.
fn all() -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut found = BTreeMap::new();
    for name in CRATES {
        let dir = repo::root().join("crates").join(name).join("src");
        for file in repo::rust_files(&dir)? {
            if file.ends_with("tests.rs") || file.components().any(|c| c.as_os_str() == "tests") {
                continue;
            }
            let texts = texts(&file)?;
            if !texts.is_empty() {
                let below = file.strip_prefix(&dir).unwrap_or(&file).display().to_string();
                found.insert(format!("{name}: {below}"), texts);
            }
        }
    }
    Ok(found)
}

fn texts(file: &Path) -> anyhow::Result<BTreeSet<String>> {
    let source = std::fs::read_to_string(file)?;
    let parsed =
        syn::parse_file(&source).with_context(|| format!("{} cannot be parsed", file.display()))?;
    let mut reader = Reader::default();
    reader.visit_file(&parsed);
    Ok(reader.found)
}

#[derive(Default)]
struct Reader {
    found: BTreeSet<String>,
}

impl Reader {
    fn add(&mut self, text: &str, words: usize) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_word = |word: &&str| word.chars().any(char::is_alphabetic);
        if text.split(' ').filter(is_word).count() >= words {
            self.found.insert(text);
        }
    }

    fn tokens(&mut self, tokens: TokenStream, words: usize) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream(), words),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.add(&text.value(), words);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    /// What `--help` says comes from the documentation of the arguments.
    fn help(&mut self, attributes: &[syn::Attribute]) {
        let mut text = String::new();
        for attribute in attributes {
            if let syn::Meta::NameValue(pair) = &attribute.meta
                && pair.path.is_ident("doc")
                && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &pair.value
            {
                text.push_str(&line.value());
            }
        }
        self.add(&text, 1);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn is_command_line(attributes: &[syn::Attribute]) -> bool {
    let named = ["Args", "Parser", "Subcommand", "ValueEnum"];
    attributes.iter().filter(|attribute| attribute.path().is_ident("derive")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let derives = list.tokens.to_string();
        named.iter().any(|name| derives.contains(name))
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if is_command_line(&item.attrs) {
            self.help(&item.attrs);
            item.fields.iter().for_each(|field| self.help(&field.attrs));
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if is_command_line(&item.attrs) {
            for variant in &item.variants {
                self.help(&variant.attrs);
                variant.fields.iter().for_each(|field| self.help(&field.attrs));
            }
        }
        visit::visit_item_enum(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let speaks = ["error", "command", "arg"];
        if let syn::Meta::List(list) = &attribute.meta
            && speaks.iter().any(|name| list.path.is_ident(name))
        {
            let words = if list.path.is_ident("error") { 1 } else { WORDS };
            self.tokens(list.tokens.clone(), words);
        }
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let name = mac.path.segments.last().map(|segment| segment.ident.to_string());
        let name = name.unwrap_or_default();
        if SILENT.contains(&name.as_str()) {
            return;
        }
        let logs = ["info", "warn", "error"].contains(&name.as_str());
        self.tokens(mac.tokens.clone(), if logs { 1 } else { WORDS });
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.add(&text.value(), WORDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the wire, of the code and of a library, which say nothing to whoever reads them.
    const FOREIGN: [&str; 8] = [
        "$JS.",
        "_INBOX",
        "named explicitly",
        "recallNarrowed",
        "things made",
        "unwrap",
        "incarnation",
        "CONSUMER.",
    ];

    #[test]
    fn docs_messages_md_lists_what_the_sources_say() {
        let stands = std::fs::read_to_string(page()).unwrap_or_default();
        assert!(stands == listed().unwrap(), "run `cargo xtask messages`, and read what changed");
    }

    #[test]
    fn messages_name_things_in_the_words_of_whoever_reads_them() {
        for (file, texts) in all().unwrap() {
            // What a monitor of the broker or an author of a client reads is about the wire.
            if file.starts_with("cotal-nats: ") {
                continue;
            }
            for text in texts {
                for word in FOREIGN {
                    assert!(!text.contains(word), "{file}: {word:?} in {text:?}");
                }
            }
        }
    }

    #[test]
    fn texts_are_found_where_they_are_said_and_tests_say_nothing() {
        let source = r#"
            /// The arguments.
            #[derive(Debug, clap::Args)]
            struct Args {
                /// Which one.
                #[arg(long, value_name = "X")]
                one: u64,
            }
            #[derive(thiserror::Error)]
            enum Error {
                #[error("lost")]
                Lost,
            }
            /// Nothing that anybody sees.
            fn f() {
                info!(x, "a daemon serves");
                debug!("nobody sees this");
                let y = if true { "one of three" } else { "key" };
            }
            #[cfg(test)]
            mod tests { fn t() { panic!("a test says this"); } }
        "#;
        let mut reader = Reader::default();
        reader.visit_file(&syn::parse_file(source).unwrap());
        let found: Vec<_> = reader.found.iter().map(String::as_str).collect();
        assert_eq!(
            found,
            ["The arguments.", "Which one.", "a daemon serves", "lost", "one of three"]
        );
    }
}
