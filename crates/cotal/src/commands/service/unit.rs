//! The text of a systemd unit.
//!
//! Invariant: nothing that came from outside can add a setting, and no secret stands in a unit: a
//! daemon finds its credentials below its root.

use std::fmt::Write as _;
use std::path::Path;

/// What a preset runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Preset {
    /// The delivery daemon of one space, beside a broker that somebody else runs.
    Delivery,
    /// Broker and daemons of a root: `cotal up`.
    Mesh,
}

/// Whose service manager runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The machine's.
    System {
        /// Who owns the root, and so runs it.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// The user's own.
    User,
}

/// Everything that differs from unit to unit.
#[derive(Debug)]
pub(super) struct Unit<'a> {
    pub(super) preset: Preset,
    pub(super) scope: Scope,
    pub(super) description: String,
    /// The command line, the program first.
    pub(super) exec: Vec<String>,
    /// `XDG_CONFIG_HOME`, where the registry is.
    pub(super) config_home: Option<&'a Path>,
    /// What it may write; everything else is read-only.
    pub(super) writable: Vec<&'a Path>,
}

/// Proofs are made three times as often; a lane that is merely without its broker ends by itself
/// within 60 s and says why, which is worth more than being killed.
const DELIVERY_WATCHDOG_SEC: u32 = 90;
/// Longer than a dead daemon's lease stands, so that its restart is waited for.
const MESH_WATCHDOG_SEC: u32 = 180;

/// What costs no privilege to set, and takes away what neither broker nor daemon needs.
const SANDBOX: &str = "\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
";

/// What the machine's manager can take away besides. A user's manager would need the very
/// privileges that are taken, and fails to start the unit.
const SYSTEM_SANDBOX: &str = "\
CapabilityBoundingSet=
AmbientCapabilities=
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectProc=invisible
RemoveIPC=yes
";

impl Unit<'_> {
    /// The unit file.
    ///
    /// # Errors
    /// When a path cannot stand in one.
    pub(super) fn render(&self) -> Result<String, String> {
        let mut text =
            "# Written by `cotal service`; a change made here is lost at the next one.\n\
                        [Unit]\n"
                .to_owned();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Description={}", specifiers(&self.description)?);
        if self.preset == Preset::Delivery {
            text.push_str("After=network-online.target\nWants=network-online.target\n");
        }
        // A claim that is refused is tried again until the lease is free, however long that takes.
        text.push_str("StartLimitIntervalSec=0\n\n[Service]\nType=notify\nNotifyAccess=main\n");
        let exec: Result<Vec<String>, String> =
            self.exec.iter().map(|arg| quoted(&arg.replace('$', "$$"))).collect();
        let _ = writeln!(text, "ExecStart={}", exec?.join(" "));
        text.push_str(self.lifetime());
        let _ = match self.preset {
            Preset::Delivery => writeln!(text, "WatchdogSec={DELIVERY_WATCHDOG_SEC}"),
            Preset::Mesh => writeln!(text, "WatchdogSec={MESH_WATCHDOG_SEC}"),
        };
        text.push_str("StandardInput=null\nStandardOutput=journal\nStandardError=journal\n");
        if let Some(dir) = self.config_home {
            let _ = writeln!(
                text,
                "Environment={}",
                quoted(&format!("XDG_CONFIG_HOME={}", utf8(dir)?))?
            );
        }
        self.render_sandbox(&mut text)?;
        let target = match self.scope {
            Scope::System { .. } => "multi-user.target",
            Scope::User => "default.target",
        };
        let _ = write!(text, "\n[Install]\nWantedBy={target}\n");
        Ok(text)
    }

    /// A stop that somebody asked for is no failure; everything else is started again.
    fn lifetime(&self) -> &'static str {
        match self.preset {
            Preset::Delivery => {
                "KillMode=mixed\nRestart=on-failure\nRestartSec=5\nRestartPreventExitStatus=2\n\
                 TimeoutStartSec=90\nTimeoutStopSec=30\n"
            }
            // `up` restarts a daemon itself, also one that the kernel killed for its memory.
            Preset::Mesh => {
                "KillMode=mixed\nRestart=on-failure\nRestartSec=5\nRestartPreventExitStatus=2\n\
                 TimeoutStartSec=180\nTimeoutStopSec=90\nOOMPolicy=continue\nLimitNOFILE=65536\n"
            }
        }
    }

    fn render_sandbox(&self, text: &mut String) -> Result<(), String> {
        if let Scope::System { uid, gid } = self.scope {
            let _ = writeln!(text, "User={uid}\nGroup={gid}");
            text.push_str(SYSTEM_SANDBOX);
        }
        text.push_str(SANDBOX);
        let in_tmp = |path: &&Path| path.starts_with("/tmp") || path.starts_with("/var/tmp");
        if !self.writable.iter().any(in_tmp) {
            text.push_str("PrivateTmp=yes\n");
        }
        // A broker lists the machine's interfaces.
        text.push_str(match self.preset {
            Preset::Delivery => "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n",
            Preset::Mesh => "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n",
        });
        for path in &self.writable {
            let _ = writeln!(text, "ReadWritePaths={}", quoted(utf8(path)?)?);
        }
        Ok(())
    }
}

fn utf8(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8, so no unit can name it", path.display()))
}

/// A value as systemd reads it back: specifiers are escaped, and whatever could end the line is
/// refused.
fn specifiers(value: &str) -> Result<String, String> {
    if value.chars().any(char::is_control) {
        return Err(format!("{value:?} holds a control character, so no unit can name it"));
    }
    Ok(value.replace('%', "%%"))
}

/// One word, whatever is in it.
fn quoted(value: &str) -> Result<String, String> {
    let value = specifiers(value)?.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!("\"{value}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(preset: Preset, scope: Scope) -> Unit<'static> {
        Unit {
            preset,
            scope,
            description: "Cotal delivery of space main".to_owned(),
            exec: vec!["/opt/a b/cotal".to_owned(), "deliver".to_owned(), "$x%y\"z".to_owned()],
            config_home: Some(Path::new("/srv/mesh/.cotal/config")),
            writable: vec![Path::new("/srv/mesh/.cotal")],
        }
    }

    #[test]
    fn lif_16_a_unit_is_hardened_and_watched() {
        let system = Scope::System { uid: 1000, gid: 1001 };
        let text = unit(Preset::Delivery, system).render().unwrap();
        for line in [
            "Type=notify",
            "NotifyAccess=main",
            "ExecStart=\"/opt/a b/cotal\" \"deliver\" \"$$x%%y\\\"z\"",
            "Restart=on-failure",
            "WatchdogSec=90",
            "StandardError=journal",
            "Environment=\"XDG_CONFIG_HOME=/srv/mesh/.cotal/config\"",
            "User=1000",
            "Group=1001",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectSystem=strict",
            "PrivateTmp=yes",
            "ReadWritePaths=\"/srv/mesh/.cotal\"",
            "WantedBy=multi-user.target",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        let text = unit(Preset::Mesh, Scope::User).render().unwrap();
        for line in ["WatchdogSec=180", "OOMPolicy=continue", "WantedBy=default.target"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        for line in ["User=", "CapabilityBoundingSet=", "PrivateDevices="] {
            assert!(!text.contains(line), "a user's manager cannot do {line}:\n{text}");
        }
    }

    #[test]
    fn lif_16_no_path_can_add_a_setting() {
        let evil = Path::new("/srv/a\nExecStartPre=/bin/evil");
        let refused = Unit { writable: vec![evil], ..unit(Preset::Mesh, Scope::User) }.render();
        assert!(refused.unwrap_err().contains("control character"));
    }
}
