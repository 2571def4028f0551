//! The blocks of README.md, run in order in one shell, as they stand. Only the directory of the
//! mesh is this test's own, nothing is built, and the unit is printed instead of installed.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use cotal_testkit::broker_binary;

use crate::site::Run;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

#[test]
fn the_blocks_of_the_readme_run_in_order_as_they_stand() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    // Blocks in another language than the shell's are named so.
    let fenced = page.split("```").skip(1).step_by(2);
    let blocks: Vec<_> = fenced.filter_map(|block| block.strip_prefix('\n')).collect();
    assert!(blocks.len() >= 5, "the blocks were not found");
    let dir = tempfile::tempdir().unwrap();
    let (bin, mesh) = (dir.path().join("bin"), dir.path().join("mesh"));
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cotal"), bin.join("cotal")).unwrap();
    std::fs::write(bin.join("cargo"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(bin.join("cargo"), std::fs::Permissions::from_mode(0o700)).unwrap();
    // Whoever may write the machine's units would leave one behind.
    let script = blocks.concat().replace("service install", "service print");
    let script = script.replace("/tmp/mesh", mesh.to_str().unwrap());
    let path = std::env::var_os("PATH").unwrap();
    let own = std::iter::once(bin).chain(std::env::split_paths(&path));
    let run = Command::new("sh")
        .args(["-euxc", &script])
        .current_dir(dir.path())
        .env("PATH", std::env::join_paths(own).unwrap())
        .env("COTAL_NATS_SERVER", broker_binary().path)
        .env("XDG_CONFIG_HOME", dir.path().join("config"))
        .env_remove("COTAL_SPACE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let run = Run::of(run);
    if run.code != 0 {
        let mut down = Command::new(env!("CARGO_BIN_EXE_cotal"));
        let _ = down.args(["down", "--root"]).arg(&mesh).output();
    }
    let run = run.ok();
    for said in [
        "team.backend local.alice: The build is green",
        "team.chat local.alice: Please have a look",
        "done by local.carol",
        "Looks good",
    ] {
        assert!(run.out.contains(said), "{said:?}: {run:?}");
    }
    assert!(run.err.contains("nothing has arrived"), "{run:?}");
}
