//! The search for a server, over directories made for each test and stand-in programs.
//!
//! A stand-in is a script that prints a version; what is proven is the search and the refusals.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cotal_broker::{LocateError, LocateOptions, Source, Version, locate};
use tempfile::TempDir;

/// Writes a program through the shell, so that this process never holds it open for writing: a
/// child forked by another test would inherit that and make running it fail as busy.
fn program(path: &Path, body: &str) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\"", "sh"])
        .arg(path)
        .arg(body)
        .status()
        .unwrap();
    assert!(status.success());
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

fn server(path: &Path, version: &str) -> PathBuf {
    program(path, &format!("echo 'nats-server: v{version}'"))
}

fn options(dir: &TempDir) -> LocateOptions {
    LocateOptions {
        explicit: None,
        path_env: Some(OsString::from(dir.path().join("bin"))),
        cache_dir: dir.path().join("cache"),
        allow_fetch: false,
    }
}

fn cached(dir: &TempDir) -> PathBuf {
    dir.path().join("cache/nats-server/2.15.1/nats-server")
}

#[test]
fn the_explicit_path_wins_over_path_and_path_over_the_cache() {
    let dir = TempDir::new().unwrap();
    let mut options = options(&dir);
    let in_cache = server(&cached(&dir), "2.15.1");
    let found = locate(&options).unwrap();
    assert_eq!((found.path, found.source), (in_cache, Source::Cache));

    let on_path = server(&dir.path().join("bin/nats-server"), "2.14.3");
    let found = locate(&options).unwrap();
    assert_eq!((found.path, found.source), (on_path, Source::Path));
    assert_eq!(found.version, Version::new(2, 14, 3));

    let named = server(&dir.path().join("mine"), "2.12.7");
    options.explicit = Some(named.clone());
    let found = locate(&options).unwrap();
    assert_eq!((found.path, found.source), (named, Source::Explicit));
    assert_eq!(found.warnings, Vec::<String>::new());
}

#[test]
fn an_old_server_on_path_is_refused_by_name_even_with_a_good_cache() {
    let dir = TempDir::new().unwrap();
    server(&cached(&dir), "2.15.1");
    let old = server(&dir.path().join("bin/nats-server"), "2.9.10");
    let error = locate(&options(&dir)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LocateError::TooOld { .. }), "{text}");
    for named in [old.to_str().unwrap(), "found on PATH", "2.9.10", "2.12.0"] {
        assert!(text.contains(named), "{named} is missing in: {text}");
    }
}

#[test]
fn a_pre_release_of_the_minimum_is_too_old() {
    let dir = TempDir::new().unwrap();
    server(&dir.path().join("bin/nats-server"), "2.12.0-RC.3");
    assert!(matches!(locate(&options(&dir)), Err(LocateError::TooOld { .. })));
}

#[test]
fn a_server_below_the_security_fixes_is_used_with_a_warning() {
    let dir = TempDir::new().unwrap();
    server(&dir.path().join("bin/nats-server"), "2.12.3");
    let found = locate(&options(&dir)).unwrap();
    assert_eq!(found.warnings.len(), 1);
    assert!(found.warnings[0].contains("2.12.3") && found.warnings[0].contains("2.12.7"));
}

#[test]
fn an_explicit_path_that_is_absent_or_no_server_is_an_error() {
    let dir = TempDir::new().unwrap();
    server(&dir.path().join("bin/nats-server"), "2.15.1");
    let mut options = options(&dir);
    options.explicit = Some(dir.path().join("nowhere"));
    assert!(matches!(locate(&options), Err(LocateError::Missing { .. })));

    for body in ["echo hello", "exit 3", "echo 'nats-server: vNext'"] {
        options.explicit = Some(program(&dir.path().join("fake"), body));
        let error = locate(&options).unwrap_err();
        assert!(matches!(error, LocateError::Unusable { .. }), "{body}: {error}");
    }
    let plain = dir.path().join("plain");
    fs::write(&plain, "text").unwrap();
    options.explicit = Some(plain);
    assert!(matches!(locate(&options), Err(LocateError::Unusable { .. })));
}

#[test]
fn what_is_on_path_and_cannot_be_executed_is_passed_over() {
    let dir = TempDir::new().unwrap();
    let path = server(&dir.path().join("bin/nats-server"), "2.15.1");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = locate(&options(&dir)).unwrap_err();
    assert!(matches!(error, LocateError::NotFound { .. }), "{error}");
}
