//! `cargo xtask dist`: the release binary, linked statically.
//!
//! The C library is linked in with `crt-static`, which needs no further target to be installed. A
//! binary is only handed out when it is proven static and was run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{build, repo, step};

/// The build takes no choices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Builds the binary and prints its path.
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    println!("{}", static_binary()?.display());
    Ok(())
}

/// Builds the static release binary `cotal` and returns its path.
fn static_binary() -> anyhow::Result<PathBuf> {
    let triple = host_triple()?;
    // Naming the target keeps the flags away from build scripts and procedural macros, which
    // cannot be static.
    let mut build = repo::cargo();
    build
        .args(["build", "--locked", "--release", "--package", "cotal", "--target", &triple])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    step::run(&mut build)?;
    let binary = build::target_dir().join(&triple).join("release").join("cotal");
    if triple.contains("linux") {
        let image =
            fs::read(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
        if needs_loader(&image)? {
            bail!("{} is not static: it asks for a dynamic loader", binary.display());
        }
    }
    proof_of_life(&binary)?;
    Ok(binary)
}

fn proof_of_life(binary: &Path) -> anyhow::Result<()> {
    let said = step::capture(Command::new(binary).arg("--version"))?;
    eprintln!("{} runs: {}", binary.display(), said.trim());
    Ok(())
}

fn host_triple() -> anyhow::Result<String> {
    let said = step::capture(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// Whether a 64-bit little-endian ELF image has a program header that names a dynamic loader.
fn needs_loader(image: &[u8]) -> anyhow::Result<bool> {
    const PT_INTERP: u32 = 3;
    if !image.starts_with(b"\x7fELF\x02\x01") {
        bail!("it is not a 64-bit little-endian ELF file");
    }
    let table = usize::try_from(u64::from_le_bytes(bytes(image, 0x20)?))?;
    let size = usize::from(u16::from_le_bytes(bytes(image, 0x36)?));
    let count = usize::from(u16::from_le_bytes(bytes(image, 0x38)?));
    for index in 0..count {
        if u32::from_le_bytes(bytes(image, table + index * size)?) == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

fn bytes<const N: usize>(image: &[u8], at: usize) -> anyhow::Result<[u8; N]> {
    let slice = image.get(at..).and_then(|rest| rest.first_chunk::<N>());
    slice.copied().context("the ELF file is cut short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn an_ordinary_program_asks_for_a_loader() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needs_loader(&this).unwrap());
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(needs_loader(b"#!/bin/sh\n").is_err());
        assert!(needs_loader(b"\x7fELF\x02\x01").is_err());
    }
}
