//! Where every file of a workspace root lives.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use cotal_wire::{Principal, Space};

use crate::files::{self, FileError};

/// The directory whose presence makes its parent a workspace root.
const DOT_DIR: &str = ".cotal";

/// The directories below `.cotal/` that hold what is trusted: `<seg>/agents/`, `auth/<seg>/`,
/// `broker/tls/`.
const LEVELS: usize = 2;
/// `broker/jetstream/<account>/streams/<stream>/obs/<consumer>/`, and some more.
const BROKER_LEVELS: usize = 16;

/// Why there is no root.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// No directory from here up to `/` holds `.cotal/`.
    #[error(
        "no .cotal/ in {searched_from} or any directory above it: run `cotal up` there, or name \
         the root with --root",
        searched_from = .0.display()
    )]
    NotFound(PathBuf),
    /// The named root holds no `.cotal/`.
    #[error(
        "{root} holds no .cotal/: run `cotal up` there, or name another root with --root",
        root = .0.display()
    )]
    NotARoot(PathBuf),
    /// The directory could not be resolved or made.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a text cannot name a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be a directory name: give the space a name of letters, digits, _ and -")]
pub struct SegmentError(String);

/// A space as a safe path segment.
///
/// Two different spaces never share a segment, and a segment is never empty, `.` or `..` and
/// never holds a separator.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Segment(String);

impl Segment {
    /// Percent-encodes every byte that is not `[A-Za-z0-9_-]`.
    ///
    /// # Errors
    /// When the space is `""`, `.` or `..`.
    pub fn of(space: impl AsRef<str>) -> Result<Self, SegmentError> {
        let space = space.as_ref();
        if matches!(space, "" | "." | "..") {
            return Err(SegmentError(space.to_owned()));
        }
        let mut text = String::with_capacity(space.len());
        for byte in space.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
        Ok(Self(text))
    }

    /// The segment's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Space> for Segment {
    /// A space's own alphabet needs no encoding.
    fn from(space: &Space) -> Self {
        Self(space.as_str().to_owned())
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A workspace root: the directory that holds `.cotal/`, as an absolute path without links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    dir: PathBuf,
}

impl Root {
    /// The root at `dir`, which must hold `.cotal/`.
    ///
    /// # Errors
    /// When it does not, it cannot be resolved, or somebody else could change it.
    pub fn at(dir: impl AsRef<Path>) -> Result<Self, RootError> {
        let root = Self { dir: resolved(dir.as_ref())? };
        if !root.dot_dir().is_dir() {
            return Err(RootError::NotARoot(root.dir));
        }
        Ok(root.trusted()?)
    }

    /// The nearest root at or above `start`.
    ///
    /// # Errors
    /// When there is none, the message names `start`; and when somebody else could change it.
    pub fn find(start: impl AsRef<Path>) -> Result<Self, RootError> {
        let start = resolved(start.as_ref())?;
        let found = start.ancestors().find(|dir| dir.join(DOT_DIR).is_dir());
        let root = found.map(|dir| Self { dir: dir.to_owned() });
        Ok(root.ok_or(RootError::NotFound(start.clone()))?.trusted()?)
    }

    /// Keys that another user planted, and files that lead out of the root, would be trusted like
    /// one's own: so only a root is taken that nobody else can change.
    fn trusted(self) -> Result<Self, FileError> {
        files::refuse_foreign_path(&self.dir)?;
        files::refuse_foreign_tree(&self.dot_dir(), LEVELS)?;
        Ok(self)
    }

    /// Makes sure that nothing below `broker/`, which another program writes to, leads out of it.
    ///
    /// # Errors
    /// When there is a link, or a directory that somebody else could change.
    pub fn check_broker_files(&self) -> Result<(), FileError> {
        files::refuse_foreign_tree(&self.broker_dir(), BROKER_LEVELS)
    }

    /// Makes `dir` a root; a second call changes nothing.
    ///
    /// # Errors
    /// When `.cotal` is a link or a file, somebody else could change it, or the system refuses.
    pub fn init(dir: impl AsRef<Path>) -> Result<Self, RootError> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(FileError::io("create the directory", dir))?;
        let root = Self { dir: resolved(dir)? };
        files::refuse_foreign_path(&root.dir)?;
        files::private_dir(&root.dot_dir())?;
        Ok(root.trusted()?)
    }

    /// The directory that holds `.cotal/`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `.cotal/`.
    #[must_use]
    pub fn dot_dir(&self) -> PathBuf {
        self.dir.join(DOT_DIR)
    }

    /// `mesh.json`: server, TLS requirement and spaces.
    #[must_use]
    pub fn mesh_file(&self) -> PathBuf {
        self.dot_dir().join("mesh.json")
    }

    /// `auth/`: trust material, which the daemon never opens.
    #[must_use]
    pub fn auth_dir(&self) -> PathBuf {
        self.dot_dir().join("auth")
    }

    /// `auth/operator.seed`.
    #[must_use]
    pub fn operator_seed(&self) -> PathBuf {
        self.auth_dir().join("operator.seed")
    }

    /// `auth/system.json`.
    #[must_use]
    pub fn system_file(&self) -> PathBuf {
        self.auth_dir().join("system.json")
    }

    /// `auth/<seg>/account.json`.
    #[must_use]
    pub fn account_file(&self, segment: &Segment) -> PathBuf {
        self.auth_dir().join(segment.as_str()).join("account.json")
    }

    /// `<seg>/`: the credentials of one space.
    #[must_use]
    pub fn space_dir(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(segment.as_str())
    }

    /// `<seg>/<name>.creds`.
    #[must_use]
    pub fn creds_file(&self, segment: &Segment, name: &str) -> PathBuf {
        self.space_dir(segment).join(format!("{name}.creds"))
    }

    /// `<seg>/agents/`.
    #[must_use]
    pub fn agents_dir(&self, segment: &Segment) -> PathBuf {
        self.space_dir(segment).join("agents")
    }

    /// `<seg>/agents/<owner>.<actor>.creds`.
    #[must_use]
    pub fn agent_creds(&self, segment: &Segment, agent: &Principal) -> PathBuf {
        self.agents_dir(segment).join(format!("{agent}.creds"))
    }

    /// `broker/`.
    #[must_use]
    pub fn broker_dir(&self) -> PathBuf {
        self.dot_dir().join("broker")
    }

    /// `broker/server.conf`.
    #[must_use]
    pub fn broker_config(&self) -> PathBuf {
        self.broker_dir().join("server.conf")
    }

    /// `broker/tls/`: the broker's certificate and its key.
    #[must_use]
    pub fn broker_tls_dir(&self) -> PathBuf {
        self.broker_dir().join("tls")
    }

    /// `broker/resolver/`: account JWTs as the broker keeps them.
    #[must_use]
    pub fn broker_resolver(&self) -> PathBuf {
        self.broker_dir().join("resolver")
    }

    /// `broker/jetstream/`.
    #[must_use]
    pub fn broker_jetstream(&self) -> PathBuf {
        self.broker_dir().join("jetstream")
    }

    /// `broker/nats-server.pid`.
    #[must_use]
    pub fn broker_pid(&self) -> PathBuf {
        self.broker_dir().join("nats-server.pid")
    }

    /// `broker/nats-server.run.lock`: held by the broker for as long as it lives.
    #[must_use]
    pub fn broker_run_lock(&self) -> PathBuf {
        self.broker_dir().join("nats-server.run.lock")
    }

    /// `broker/nats-server.log`.
    #[must_use]
    pub fn broker_log(&self) -> PathBuf {
        self.broker_dir().join("nats-server.log")
    }

    /// `delivery.<seg>.pid`.
    #[must_use]
    pub fn delivery_pid(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("delivery.{segment}.pid"))
    }

    /// `auth/<seg>/delivery.seed`: the daemon's key while its credential is taken away (CRD-7).
    #[must_use]
    pub fn delivery_seed(&self, segment: &Segment) -> PathBuf {
        self.auth_dir().join(segment.as_str()).join("delivery.seed")
    }

    /// `delivery.<seg>.log`.
    #[must_use]
    pub fn delivery_log(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("delivery.{segment}.log"))
    }

    /// `delivery.<seg>.stop.lock`: held by whoever is stopping the space's daemon.
    #[must_use]
    pub fn delivery_stop_lock(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("delivery.{segment}.stop.lock"))
    }

    /// `host.json`: what the multi-space host of this root last said of its lanes.
    #[must_use]
    pub fn host_file(&self) -> PathBuf {
        self.dot_dir().join("host.json")
    }

    /// `host.lock`: held for as long as a multi-space host runs on this root.
    #[must_use]
    pub fn host_lock(&self) -> PathBuf {
        self.dot_dir().join("host.lock")
    }

    /// `host.log`.
    #[must_use]
    pub fn host_log(&self) -> PathBuf {
        self.dot_dir().join("host.log")
    }

    /// `manager.<seg>.pid`.
    #[must_use]
    pub fn manager_pid(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("manager.{segment}.pid"))
    }

    /// `manager.<seg>.lock`: held for as long as a manager of the space runs on this root.
    #[must_use]
    pub fn manager_lock(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("manager.{segment}.lock"))
    }

    /// `auth/<seg>/family.json`: the manager's own keys, and who holds a credential of theirs.
    #[must_use]
    pub fn family_file(&self, segment: &Segment) -> PathBuf {
        self.auth_dir().join(segment.as_str()).join("family.json")
    }

    /// `<seg>/gate.json`: why no agent may be provisioned; absent while the gate is open.
    #[must_use]
    pub fn gate_file(&self, segment: &Segment) -> PathBuf {
        self.space_dir(segment).join("gate.json")
    }

    /// `<seg>/renewals.json`: what became of each renewed credential.
    #[must_use]
    pub fn renewals_file(&self, segment: &Segment) -> PathBuf {
        self.space_dir(segment).join("renewals.json")
    }

    /// `manager.<seg>.log`.
    #[must_use]
    pub fn manager_log(&self, segment: &Segment) -> PathBuf {
        self.dot_dir().join(format!("manager.{segment}.log"))
    }

    /// The spaces of which a process has run on this root, whatever `mesh.json` lists.
    ///
    /// # Errors
    /// When `.cotal/` cannot be read.
    pub fn recorded_spaces(&self) -> Result<BTreeSet<Space>, FileError> {
        let dir = self.dot_dir();
        let mut spaces = BTreeSet::new();
        for entry in std::fs::read_dir(&dir).map_err(FileError::io("list", &dir))? {
            let entry = entry.map_err(FileError::io("list", &dir))?;
            spaces.extend(entry.file_name().to_str().and_then(space_of_record));
        }
        Ok(spaces)
    }

    /// `up.lock`: held by the one process that changes what runs on this root.
    #[must_use]
    pub fn up_lock(&self) -> PathBuf {
        self.dot_dir().join("up.lock")
    }
}

/// The space in the name of a pid record, or of the lock of the process that it is about. A
/// segment holds no dot, and that of a space is its name.
fn space_of_record(file: &str) -> Option<Space> {
    let (component, rest) = file.split_once('.')?;
    let (segment, kind) = rest.split_once('.')?;
    match (component, kind) {
        ("delivery" | "manager", "pid" | "run.lock") => Space::parse(segment).ok(),
        _ => None,
    }
}

fn resolved(dir: &Path) -> Result<PathBuf, FileError> {
    dir.canonicalize().map_err(FileError::io("resolve", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_safe_and_distinct() {
        for refused in ["", ".", ".."] {
            assert!(Segment::of(refused).is_err(), "{refused:?}");
        }
        let of = |space: &str| Segment::of(space).unwrap().to_string();
        assert_eq!(of("Alpha_1-x"), "Alpha_1-x");
        assert_eq!(of("a/b"), "a%2Fb");
        assert_eq!(of("..."), "%2E%2E%2E");
        assert_eq!(of("a%2Fb"), "a%252Fb");
        assert_eq!(of("é\0"), "%C3%A9%00");
    }

    #[test]
    fn lif_12_the_nearest_root_above_is_found_or_the_start_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let outer = Root::init(dir.path().join("outer")).unwrap();
        let deep = outer.dir().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(Root::find(&deep).unwrap(), outer);
        let inner = Root::init(outer.dir().join("a")).unwrap();
        assert_eq!(Root::find(&deep).unwrap(), inner);

        let bare = dir.path().join("bare");
        std::fs::create_dir(&bare).unwrap();
        let bare = bare.canonicalize().unwrap();
        let message = Root::find(&bare).unwrap_err().to_string();
        assert!(message.contains(bare.to_str().unwrap()), "{message}");
        assert!(matches!(Root::at(&bare), Err(RootError::NotARoot(_))));
    }

    #[test]
    fn init_is_private_and_repeatable() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        assert_eq!(Root::init(dir.path()).unwrap(), root);
        assert_eq!(Root::at(dir.path()).unwrap(), root);
        let mode = root.dot_dir().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn recorded_spaces_are_those_of_pid_records_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let segment = |space: &str| Segment::from(&Space::parse(space).unwrap());
        for file in [
            root.delivery_pid(&segment("a")),
            root.dot_dir().join("delivery.b-1.run.lock"),
            root.manager_pid(&segment("launched")),
            root.delivery_log(&segment("log")),
            root.manager_lock(&segment("lock")),
            root.dot_dir().join("delivery.birth.pid.birth"),
            root.dot_dir().join("delivery.locked.pid.lock"),
            root.dot_dir().join("manager.stop.stop.lock"),
            root.dot_dir().join("delivery.a%2Fb.pid"),
            root.dot_dir().join("other.c.pid"),
        ] {
            std::fs::write(file, "1").unwrap();
        }
        let spaces = root.recorded_spaces().unwrap();
        let names: Vec<_> = spaces.iter().map(Space::as_str).collect();
        assert_eq!(names, ["a", "b-1", "launched"]);
    }

    #[test]
    fn a_space_named_like_a_directory_of_the_root_shares_no_file_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let agent = Principal::parse("local.bob").unwrap();
        let mut seen = BTreeSet::from([
            root.mesh_file(),
            root.operator_seed(),
            root.system_file(),
            root.broker_config(),
            root.broker_tls_dir(),
            root.broker_resolver(),
            root.broker_jetstream(),
            root.broker_pid(),
            root.broker_run_lock(),
            root.broker_log(),
        ]);
        for space in ["auth", "broker", "agents", "mesh", "resolver", "delivery"] {
            let seg = Segment::of(space).unwrap();
            for path in [
                root.account_file(&seg),
                root.creds_file(&seg, "delivery"),
                root.agent_creds(&seg, &agent),
                root.delivery_pid(&seg),
                root.delivery_seed(&seg),
                root.delivery_log(&seg),
                root.manager_pid(&seg),
                root.manager_lock(&seg),
                root.family_file(&seg),
                root.gate_file(&seg),
                root.renewals_file(&seg),
            ] {
                assert!(seen.insert(path.clone()), "{}", path.display());
            }
        }
    }
}
