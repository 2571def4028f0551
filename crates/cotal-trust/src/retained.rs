//! The system account's seed on a root that does not hold the operator's: a trusted delivery host
//! that kicks (EVC-5).

use cotal_workspace::Root;
use cotal_workspace::files::{self, Privacy};

use crate::account::AccountKeys;
use crate::error::{TrustError, malformed};
use crate::trust::{SYSTEM_NAME, SystemFile, decode};

/// The system account's keys, where the root retained them.
///
/// # Errors
/// When the file is malformed or unreadable.
pub fn retained_system(root: &Root) -> Result<Option<AccountKeys>, TrustError> {
    let path = root.system_file();
    let Some(text) = files::read(&path)? else { return Ok(None) };
    let file: SystemFile = decode(&path, &text)?;
    AccountKeys::from_seed(SYSTEM_NAME, &file.seed).map(Some).map_err(malformed(&path))
}

/// Lets `host` retain the system account's seed of `from`. It signs users of the system account,
/// whose kicks reach every account of the broker: only for a trusted delivery host.
///
/// # Errors
/// When `from` has none, or it cannot be written.
pub fn retain_system(from: &Root, host: &Root) -> Result<(), TrustError> {
    let path = from.system_file();
    let text = files::read(&path)?.ok_or_else(|| malformed(&path)("there is none".to_owned()))?;
    files::private_dir(&host.auth_dir())?;
    Ok(files::replace(&host.system_file(), text.as_bytes(), Privacy::Secret)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::Trust;

    #[test]
    fn evc_5_a_host_retains_the_system_seed_alone() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (Root::init(from.path()).unwrap(), Root::init(to.path()).unwrap());
        assert!(retain_system(&from, &to).is_err());
        let trust = Trust::create_or_open(&from, 100).unwrap();
        assert!(retained_system(&to).unwrap().is_none());
        retain_system(&from, &to).unwrap();
        let retained = retained_system(&to).unwrap().unwrap();
        assert_eq!(retained.public_key(), trust.system().public_key());
        assert!(Trust::open(&to).is_err(), "the operator's seed went along");
    }
}
